/** The package as it was built: its two module formats, and its types, which `npm run pretest` checks. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";

const require = createRequire(import.meta.url);
const CONSUMERS = new URL("../consumers/", import.meta.url);

test("a program of ES modules imports it", async () => {
  const { found } = (await import(new URL("modules.mjs", CONSUMERS).href)) as { found: unknown };
  assert.deepEqual(found, [8, true, false, "QuotaExceeded"]);
});

test("a program of CommonJS modules requires it", async () => {
  const common = require(new URL("common.cjs", CONSUMERS).pathname) as { found: unknown; failed: Promise<unknown> };
  assert.deepEqual(common.found, [8, true]);
  assert.equal(await common.failed, false);
});

test("it depends on nothing, and its lock file names no host", () => {
  const folder = new URL("../../", import.meta.url);
  const read = (name: string): Record<string, unknown> => {
    return JSON.parse(readFileSync(new URL(name, folder), "utf8")) as Record<string, unknown>;
  };
  const { dependencies, peerDependencies, optionalDependencies } = read("package.json");
  assert.deepEqual([dependencies, peerDependencies, optionalDependencies], [undefined, undefined, undefined]);
  assert.ok(!JSON.stringify(read("package-lock.json")).includes("://"), "resolved entries: see .npmrc");
});
