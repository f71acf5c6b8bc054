/** The client does what every vector says. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { readVectors, ScriptedServer } from "./scripted-server.js";
import { runVector } from "./vector-runner.js";

const PATIENCE_MS = 20_000; // of real time; only a broken test waits this long

const files = readVectors();
let server: ScriptedServer;
before(async () => {
  server = await ScriptedServer.start();
});
after(() => server.stop());

for (const [file, vectors] of files) {
  describe(file, () => {
    for (const vector of vectors) {
      test(vector.name, { timeout: PATIENCE_MS }, () => runVector(vector, server));
    }
  });
}

test("there are as many vectors as there must be, and each has a name of its own", () => {
  const names = [...files.values()].flat().map((vector) => vector.name);
  assert.ok(names.length >= 60, `${names.length} vectors`);
  assert.equal(new Set(names).size, names.length);
});
