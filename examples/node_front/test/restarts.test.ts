/** The pauses before a restart, told the time. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { FIRST_PAUSE_MS, HEALTHY_MS, LONGEST_PAUSE_MS, Restarts } from "../src/restarts.js";

test("the pauses grow up to the longest", () => {
  const restarts = new Restarts();
  const pauses = Array.from({ length: 8 }, (_, now) => restarts.ended(now));
  assert.deepEqual(pauses, [250, 500, 1000, 2000, 4000, 8000, 8000, 8000]);
  assert.deepEqual([pauses[0], pauses[7]], [FIRST_PAUSE_MS, LONGEST_PAUSE_MS]);
});

test("they begin again after it was ready for long, and go on growing after it was so for less", () => {
  const restarts = new Restarts();
  restarts.ended(0);
  restarts.ready(0);
  restarts.ready(5000);
  assert.equal(restarts.ended(HEALTHY_MS - 1), 500);
  restarts.ready(0);
  assert.equal(restarts.ended(HEALTHY_MS), 250);
  assert.equal(restarts.ended(2 * HEALTHY_MS), 500);
});
