/** The front, with a client whose requests the test answers. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, InvalidItem, NotReady } from "penstock-client";
import { Front, type Outcome } from "../src/front.js";

const LIMITS = { maxQueue: 8, batchSize: 2, maxBatches: 4, maxWaitMs: 100_000, timeoutMs: 200_000 };

interface Sent {
  readonly url: string;
  readonly items: unknown;
  readonly signal: AbortSignal;
  readonly answer: (outcomes: readonly unknown[]) => void;
}

/** A front before a Python that is ready, and what it has sent there. */
function fronting(): { front: Front; sent: Sent[] } {
  const sent: Sent[] = [];
  const fetch = (url: string, { body, signal }: RequestInit): Promise<Response> =>
    new Promise((resolve) => {
      const items: unknown = JSON.parse(Buffer.from(body as Uint8Array).toString());
      const answer = (outcomes: readonly unknown[]): void => resolve(Response.json({ outcomes }, { status: 207 }));
      sent.push({ url, items, signal: signal!, answer });
    });
  const client = new Client("http://python", { fetch });
  return { front: new Front(client, { isReady: true, retryAfter: 1 }, LIMITS), sent };
}

/** Whatever needs no time to pass has happened. */
const rest = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
const stays = new AbortController().signal;

function errorOf(outcome: Outcome): unknown {
  assert("error" in outcome);
  return outcome.error;
}

test("items go as one batch, and each caller gets its own outcome", async () => {
  const { front, sent } = fronting();
  const outcomes = [front.predict(1, stays), front.predict("x", stays)];
  await rest();
  assert.deepEqual(sent.map(({ url, items }) => [url, items]), [["http://python/batch", [{ data: 1 }, { data: "x" }]]]);
  const problem = { type: "urn:penstock:problem:invalid-item", status: 422, detail: "expected `int`" };
  sent[0]!.answer([{ result: 1 }, { error: problem }]);
  const [first, second] = await Promise.all(outcomes);
  assert.deepEqual(first, { result: 1 });
  assert(errorOf(second!) instanceof InvalidItem);
});

test("the connection of a batch is closed once all its callers have left, and its places are free", async () => {
  const { front, sent } = fronting();
  const callers = Array.from({ length: 8 }, () => new AbortController());
  const outcomes = callers.map((caller, number) => front.predict(number, caller.signal));
  await rest();
  assert(front.isFull);
  callers[0]!.abort();
  await rest();
  assert(!sent[0]!.signal.aborted);
  callers[1]!.abort();
  await rest();
  assert(sent[0]!.signal.aborted);
  assert(!front.isFull);
  callers.forEach((caller) => caller.abort());
  assert.equal((await Promise.all(outcomes)).filter((outcome) => "error" in outcome).length, 8);
});

test("when Python has ended who waits is told so, and whose batch it had gets what the client finds out", async () => {
  const { front, sent } = fronting();
  const running = [front.predict(1, stays), front.predict(2, stays)];
  const waiting = front.predict(3, stays);
  await rest();
  front.backendEnded();
  assert(errorOf(await waiting) instanceof NotReady);
  sent[0]!.answer([{ result: 1 }, { result: 2 }]);
  assert.deepEqual(await Promise.all(running), [{ result: 1 }, { result: 2 }]);
});

test("a drain sends who waits, takes nobody in, and ends once all are answered", async () => {
  const { front, sent } = fronting();
  const waiting = front.predict(1, stays);
  let hasEnded = false;
  const drained = front.drain().then(() => (hasEnded = true));
  assert(errorOf(await front.predict(2, stays)) instanceof NotReady);
  await rest();
  assert(!hasEnded);
  sent[0]!.answer([{ result: 1 }]);
  assert.deepEqual(await waiting, { result: 1 });
  await drained;
});
