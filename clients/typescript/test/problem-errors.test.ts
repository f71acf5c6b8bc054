/** Which errors may be retried, and which are of an item that had begun; what is in them, vectors say. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Overloaded, RequestError } from "../src/errors.js";
import { itemError } from "../src/problem-errors.js";

const WAIT = { retry_after: 1, retry_after_ms: 50 };

const kinds: [kind: string, told: object, name: string, retryable: boolean, begun: boolean | undefined][] = [
  ["invalid-item", {}, "InvalidItem", false, false],
  ["format-not-taken", {}, "UnsupportedMediaType", false, false],
  ["format-not-given", {}, "NotAcceptable", false, false],
  ["overloaded", WAIT, "Overloaded", true, false],
  ["overloaded", {}, "Overloaded", false, true],
  ["quota-exceeded", WAIT, "QuotaExceeded", true, false],
  ["deadline-exceeded", WAIT, "DeadlineExceeded", true, false],
  ["deadline-exceeded", {}, "DeadlineExceeded", false, true],
  ["stage-failed", {}, "StageFailed", false, true],
  ["worker-lost", {}, "WorkerLost", false, true],
  ["not-ready", WAIT, "NotReady", true, false],
  ["not-ready", {}, "NotReady", false, true],
  ["cancelled", {}, "Cancelled", false, false],
  ["failed", {}, "RequestError", false, false],
  ["a-new-one", {}, "RequestError", false, false],
  ["job-not-found", {}, "JobNotFound", false, undefined],
  ["job-conflict", {}, "JobConflict", false, undefined],
  ["job-too-large", {}, "InputTooLarge", false, undefined],
  ["queue-full", WAIT, "QueueFull", true, undefined],
  ["job-failed", {}, "JobFailed", false, undefined],
  ["job-cancelled", {}, "JobCancelled", false, undefined],
  ["job-expired", {}, "JobExpired", false, undefined],
  ["job-of-a-new-kind", {}, "JobError", false, undefined],
  ["store-unavailable", WAIT, "StoreUnavailable", true, undefined],
  ["place-refused", {}, "TransferRejected", false, undefined],
];

for (const [kind, told, name, retryable, begun] of kinds) {
  test(`${kind}, told ${JSON.stringify(told)}`, () => {
    const error = itemError({ type: `urn:penstock:problem:${kind}`, detail: "why", ...told }, "r1");
    assert.deepEqual([error.name, error.constructor.name, error.retryable], [name, name, retryable]);
    assert.equal(error instanceof RequestError ? error.started : undefined, begun);
    assert.deepEqual([error.message, error.status, error.requestId], ["why", 500, "r1"]);
  });
}

test("what is in a problem is not taken on trust", () => {
  const type = "urn:penstock:problem:overloaded";
  const texts = { reason: 5, detail: [], title: "A title", request_id: 7 };
  const error = itemError({ type, ...texts, retry_after: -1, retry_after_ms: "50", status: "503" }, "r1");
  assert.ok(error instanceof Overloaded);
  assert.deepEqual([error.retryAfter, error.retryAfterMs, error.reason], [1, 1000, "queue_full"]);
  assert.deepEqual([error.message, error.status, error.requestId, error.retryable], ["A title", 500, "r1", false]);
  assert.equal(itemError({ type: 5, status: 418 }, "r1").message, "status 418");
});
