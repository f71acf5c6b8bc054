/** The queue, told the time: sentences first, then random histories against a plain list. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type Batch, type Item, Queue, type QueueLimits } from "../src/queue.js";

const LIMITS: QueueLimits = { maxQueue: 8, batchSize: 4, maxBatches: 2, maxWaitMs: 1000, timeoutMs: 3000 };

function offer(queue: Queue<number>, count: number, now: number): Item<number>[] {
  return Array.from({ length: count }, (_, value) => {
    const item = queue.offer(value, now);
    assert(item !== undefined);
    return item;
  });
}

const values = (items: readonly Item<number>[] | undefined): number[] | undefined => items?.map((item) => item.value);

test("a lone item waits for company until its second is over", () => {
  const queue = new Queue<number>(LIMITS);
  offer(queue, 1, 10);
  assert.equal(queue.nextMoment, 1010);
  assert.equal(queue.take(1009), undefined);
  assert.deepEqual(values(queue.take(1010)?.items), [0]);
  assert.equal(queue.take(5000), undefined);
});

test("a full batch is due at once, in the order in which its items came", () => {
  const queue = new Queue<number>(LIMITS);
  offer(queue, 6, 0);
  assert.deepEqual(values(queue.take(0)?.items), [0, 1, 2, 3]);
  assert.equal(queue.take(0), undefined);
  assert.deepEqual(values(queue.take(1000)?.items), [4, 5]);
});

test("who comes when as many are in hand as may be finds no room, until a batch has ended", () => {
  const queue = new Queue<number>(LIMITS);
  offer(queue, 8, 0);
  const batch = queue.take(0);
  assert(batch !== undefined);
  assert.equal(queue.offer(9, 0), undefined);
  assert(queue.isFull);
  batch.items.forEach((item) => queue.settle(item));
  assert.equal(queue.offer(9, 0), undefined);
  queue.end(batch);
  assert.equal(queue.inHand, 4);
  assert(queue.offer(9, 0) !== undefined);
});

test("while Python has as many batches as it may the next one waits, and may find more company", () => {
  const queue = new Queue<number>({ ...LIMITS, maxBatches: 1 });
  offer(queue, 6, 0);
  const batch = queue.take(0);
  assert(batch !== undefined);
  assert.equal(queue.nextMoment, 3000);
  assert.equal(queue.take(2000), undefined);
  offer(queue, 1, 2000);
  queue.end(batch);
  assert.equal(queue.nextMoment, 1000);
  assert.deepEqual(values(queue.take(2000)?.items), [4, 5, 0]);
});

test("an item is too late once, wherever it is, and never after it was settled", () => {
  const queue = new Queue<number>({ ...LIMITS, maxWaitMs: 9000 });
  const items = offer(queue, 5, 0);
  queue.take(0);
  assert(queue.settle(items[1]!));
  assert(!queue.settle(items[1]!));
  assert.deepEqual(queue.expire(2999), []);
  assert.equal(queue.nextMoment, 3000);
  assert.deepEqual(values(queue.expire(3000)), [0, 2, 3, 4]);
  assert.deepEqual(queue.expire(3000), []);
  assert.equal(queue.inHand, 4);
});

test("an item whose caller has left while it waited goes nowhere, and leaves its place", () => {
  const queue = new Queue<number>(LIMITS);
  const items = offer(queue, 4, 0);
  assert(queue.settle(items[2]!));
  assert.equal(queue.inHand, 3);
  assert.equal(queue.take(0), undefined);
  assert.deepEqual(values(queue.take(1000)?.items), [0, 1, 3]);
});

test("a batch is deserted once nobody waits for any of its items, until it has ended", () => {
  const queue = new Queue<number>(LIMITS);
  const items = offer(queue, 4, 0);
  const batch = queue.take(0);
  assert(batch !== undefined);
  items.slice(1).forEach((item) => queue.settle(item));
  assert.deepEqual(queue.deserted, []);
  queue.settle(items[0]!);
  assert.deepEqual(queue.deserted, [batch]);
  queue.end(batch);
  assert.deepEqual(queue.deserted, []);
  assert.equal(queue.nextMoment, undefined);
});

test("while it drains nobody waits for company", () => {
  const queue = new Queue<number>(LIMITS);
  offer(queue, 1, 0);
  queue.drain();
  assert.equal(queue.nextMoment, 0);
  assert.deepEqual(values(queue.take(0)?.items), [0]);
});

test("clear gives those who wait, and leaves the batches that Python has", () => {
  const queue = new Queue<number>(LIMITS);
  offer(queue, 6, 0);
  queue.take(0);
  assert.deepEqual(values(queue.clear()), [4, 5]);
  assert.equal(queue.inHand, 4);
  assert.deepEqual(values(queue.expire(3000)), [0, 1, 2, 3]);
});

/** The same, as somebody would write it who looks at every item each time. */
class Plain {
  items: { value: number; arrived: number; batch: number; settled: boolean }[] = [];
  batches = 0;
  atPython = 0;
  readonly limits: QueueLimits;

  constructor(limits: QueueLimits) {
    this.limits = limits;
  }

  inHand(): number {
    return this.items.length;
  }

  waiting() {
    return this.items.filter((item) => item.batch === 0);
  }

  take(now: number): number[] | undefined {
    const waiting = this.waiting();
    const isFull = waiting.length >= this.limits.batchSize;
    if (waiting.length === 0 || this.atPython === this.limits.maxBatches || !(isFull || now >= waiting[0]!.arrived + this.limits.maxWaitMs)) {
      return undefined;
    }
    this.batches += 1;
    this.atPython += 1;
    const taken = waiting.slice(0, this.limits.batchSize);
    taken.forEach((item) => (item.batch = this.batches));
    return taken.map((item) => item.value);
  }

  settle(value: number): boolean {
    const item = this.items.find((one) => one.value === value);
    if (item === undefined || item.settled) {
      return false;
    }
    item.settled = true;
    this.items = this.items.filter((one) => one !== item || one.batch > 0);
    return true;
  }

  expire(now: number): number[] {
    const late = this.items.filter((item) => !item.settled && now >= item.arrived + this.limits.timeoutMs);
    return late.map((item) => item.value).filter((value) => this.settle(value));
  }

  nextMoment(): number | undefined {
    const waiting = this.waiting();
    const moments = this.items.filter((item) => !item.settled).map((item) => item.arrived + this.limits.timeoutMs);
    if (waiting.length > 0 && this.atPython < this.limits.maxBatches) {
      const isFull = waiting.length >= this.limits.batchSize;
      moments.push(waiting[0]!.arrived + (isFull ? 0 : this.limits.maxWaitMs));
    }
    return moments.length > 0 ? Math.min(...moments) : undefined;
  }
}

/** Random numbers that a seed decides (xorshift). */
function chances(seed: number): (below: number) => number {
  let state = seed * 2_654_435_761 + 1;
  return (below) => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % below;
  };
}

test("in random histories it answers as a plain list does", () => {
  for (let seed = 1; seed <= 200; seed += 1) {
    const below = chances(seed);
    const sizes = { maxQueue: 1 + below(9), batchSize: 1 + below(5), maxBatches: 1 + below(3) };
    const limits = { ...sizes, maxWaitMs: below(20), timeoutMs: 1 + below(40) };
    const queue = new Queue<number>(limits);
    const plain = new Plain(limits);
    const items: Item<number>[] = [];
    const batches: Batch<number>[] = [];
    let now = 0;
    for (let step = 0; step < 200; step += 1) {
      const told = `seed ${seed}, step ${step}`;
      now += below(6);
      switch (below(5)) {
        case 0: {
          const item = queue.offer(step, now);
          assert.equal(item !== undefined, plain.inHand() < limits.maxQueue, told);
          if (item !== undefined) {
            items.push(item);
            plain.items.push({ value: step, arrived: now, batch: 0, settled: false });
          }
          break;
        }
        case 1: {
          const batch = queue.take(now);
          assert.deepEqual(values(batch?.items), plain.take(now), told);
          if (batch !== undefined) {
            batches.push(batch);
          }
          break;
        }
        case 2: {
          const item = items[below(items.length + 1)];
          if (item !== undefined) {
            assert.equal(queue.settle(item), plain.settle(item.value), told);
          }
          break;
        }
        case 3: {
          const [batch] = batches.splice(below(batches.length + 1), 1);
          if (batch !== undefined) {
            queue.end(batch);
            plain.atPython -= 1;
            plain.items = plain.items.filter((one) => !batch.items.some((item) => item.value === one.value));
          }
          break;
        }
        default:
          assert.deepEqual(values(queue.expire(now)), plain.expire(now), told);
      }
      assert.equal(queue.inHand, plain.inHand(), told);
      assert.equal(queue.nextMoment, plain.nextMoment(), told);
    }
  }
});
