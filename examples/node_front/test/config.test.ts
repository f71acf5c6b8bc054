/** The options, from an environment that the test makes. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { ConfigError, readConfig } from "../src/config.js";

test("without variables the options are those of the burst", () => {
  const { port, maxQueue, batchSize, maxBatches, maxWaitMs, timeoutMs } = readConfig({});
  assert.deepEqual([port, maxQueue, batchSize, maxBatches, maxWaitMs, timeoutMs], [3000, 8, 4, 1, 1000, 3000]);
});

test("a variable sets its option", () => {
  const config = readConfig({ PORT: "0", MAX_QUEUE: "9", SERVICE: "a:b", PENSTOCK: "/bin/penstock" });
  assert.deepEqual([config.port, config.maxQueue, config.service, config.penstock], [0, 9, "a:b", "/bin/penstock"]);
});

test("a value that an option cannot have is told with the variable and itself", () => {
  for (const [name, value] of [["MAX_QUEUE", "0"], ["PORT", "65536"], ["BATCH_SIZE", "1.5"], ["TIMEOUT_MS", ""]] as const) {
    const told = (error: unknown): boolean =>
      error instanceof ConfigError && error.message.startsWith(name) && error.message.endsWith(`got "${value}"`);
    assert.throws(() => readConfig({ [name]: value }), told);
  }
});
