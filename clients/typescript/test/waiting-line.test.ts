/** The waiting line, against a plain list. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { WaitingLine } from "../src/waiting-line.js";

/** Numbers that look random, and are the same in each run. */
function* draws(seed: number): Generator<number, never> {
  for (let state = seed; ; ) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    yield state / 2 ** 32;
  }
}

test("those that gave up behind others are not kept", () => {
  const line = new WaitingLine<number>();
  line.join(0, 0, 0);
  let held = 0;
  for (let arrival = 1; arrival <= 10_000; arrival += 1) {
    line.join(arrival, 7, arrival);
    line.leave(arrival);
    line.join(arrival, 0, 100_000 + arrival); // so that somebody more urgent waits all the time
    line.next();
    held = Math.max(held, line.size);
  }
  assert.equal(line.length, 1);
  assert.ok(held < 50, `${held} are kept`);
});

test("those that gave up are forgotten as the others go", () => {
  const line = new WaitingLine<number>();
  for (let arrival = 0; arrival < 1000; arrival += 1) {
    line.join(arrival, 0, arrival);
  }
  for (let arrival = 1000; arrival < 1100; arrival += 1) {
    line.join(arrival, 7, arrival);
    line.leave(arrival);
  }
  for (let arrival = 0; arrival < 999; arrival += 1) {
    assert.equal(line.next(), arrival);
  }
  assert.deepEqual([line.length, line.size < 20], [1, true]);
});

test("random histories go as with a plain list", () => {
  for (let seed = 1; seed <= 200; seed += 1) {
    const draw = draws(seed);
    const next = (below: number): number => Math.floor(draw.next().value * below);
    const line = new WaitingLine<number>();
    let plain: [urgency: number, arrival: number][] = [];
    const left: number[] = [];
    for (let step = 0; step < 60; step += 1) {
      const what = next(4);
      if (what < 2) { // one that comes for the first time, or comes back
        const arrival = what === 0 && left.length > 0 ? left.splice(next(left.length), 1)[0]! : step + 1000;
        const urgency = next(3);
        line.join(arrival, urgency, arrival);
        plain.push([urgency, arrival]);
      } else if (what === 2 && plain.length > 0) {
        const [, arrival] = plain[next(plain.length)]!;
        line.leave(arrival);
        plain = plain.filter((one) => one[1] !== arrival);
      } else {
        plain.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
        const first = plain.shift()?.[1];
        assert.equal(line.next(), first);
        if (first !== undefined) {
          left.push(first);
        }
      }
      assert.equal(line.length, plain.length);
    }
  }
});
