/** What becomes of an error: its status, and when to come again. */

import assert from "node:assert/strict";
import { test } from "node:test";
import * as client from "penstock-client";
import { answerOf, BadRequest } from "../src/answers.js";

const begun = <E extends client.RequestError>(error: E): E => {
  error.markStarted();
  return error;
};
const overloaded = (): client.Overloaded => new client.Overloaded("full", { retryAfter: 2, retryAfterMs: 1500 }, "queue_full");

const TOLD: readonly (readonly [unknown, number, string | undefined])[] = [
  [new BadRequest("`data` is missing"), 400, undefined],
  [new BadRequest("a body has at most 9 bytes", 413), 413, undefined],
  [new client.InvalidItem("expected `int`", "$.data"), 422, undefined],
  [overloaded(), 429, "2"],
  [begun(overloaded()), 500, undefined],
  [new client.NotReady("it starts", "starting", 3), 503, "3"],
  [begun(new client.NotReady("it ended", "failed", 3)), 500, undefined],
  [new client.ConnectionFailed("refused", false), 503, "1"],
  [new client.ConnectionFailed("lost", true), 502, undefined],
  [new client.ServerError("no problem"), 502, undefined],
  [new client.DeadlineExceeded("late", true), 504, undefined],
  [new client.StageFailed("the model failed"), 500, undefined],
  [new client.WorkerLost("the worker died"), 500, undefined],
  [new TypeError("a mistake of ours"), 500, undefined],
];

for (const [error, status, retryAfter] of TOLD) {
  const { name, message } = error as Error;
  test(`${name}, ${message}, is ${status}`, () => {
    const answer = answerOf(error);
    assert.equal(answer.status, status);
    assert.equal(answer.headers["Retry-After"], retryAfter);
    assert.equal(answer.problem["status"], status);
    assert.equal(answer.problem["retry_after"], retryAfter === undefined ? undefined : Number(retryAfter));
  });
}

test("a problem says where in the item, and what to look for in the log of Python", () => {
  const error = new client.InvalidItem("expected `int`", "$.data");
  error.requestId = "abc";
  const { problem } = answerOf(error);
  assert.deepEqual([problem["path"], problem["request_id"]], ["$.data", "abc"]);
});

test("a mistake of the front's own is told without its words", () => {
  assert.equal(answerOf(new TypeError("secret")).problem["detail"], "the front failed");
});
