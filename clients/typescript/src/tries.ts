/**
 * Decide about the tries of one request: how long each may take, and whether and when there is another one.
 *
 * Contract
 * --------
 * - There are `mostRetries` further tries at most, and none that nobody asked for beyond the `RetryBudget`.
 * - No try begins at or behind the deadline.  One that began gives up `GRACE_SECONDS` behind it: the server, which is
 *   told what is left, answers by the deadline, and its answer says more than a client's own watch.
 * - Where the wait for another try would reach the deadline there is none, and the caller learns so at once.
 */

import type { PenstockError } from "./errors.js";
import type { RetryBudget } from "./retry-budget.js";
import { pauseSeconds, type Retry } from "./retry-rules.js";

export const GRACE_SECONDS = 0.5;
const LEAST_TOLD_SECONDS = 0.001;

/** A try that has not ended well, and what is known of another one. */
export interface Setback {
  readonly kind: "setback";
  /** What the caller gets where there is no other try. */
  readonly error: PenstockError;
  readonly retry: Retry;
  /** How many seconds the server says to wait. */
  readonly told: number | undefined;
  /** Whether the server had no room. */
  readonly isRefusal: boolean;
}

/** The tries of one request, which began at `started`; a `deadline` of Infinity is none. */
export class Tries {
  readonly deadline: number;
  /** How long the request may take. */
  readonly seconds: number;
  /** How many tries have begun. */
  number = 0;
  readonly #mostRetries: number;
  readonly #budget: RetryBudget;

  constructor(started: number, deadline: number, mostRetries: number, budget: RetryBudget) {
    this.deadline = deadline;
    this.seconds = deadline - started;
    this.#mostRetries = mostRetries;
    this.#budget = budget;
  }

  /** When a try that has begun is given up. */
  get givesUp(): number {
    return this.deadline + GRACE_SECONDS;
  }

  /** Count a try that begins now; false where it is too late for one. */
  begin(now: number): boolean {
    if (now >= this.deadline) {
      return false;
    }
    this.number += 1;
    return true;
  }

  /** What the server is told of the try that begins now. */
  headers(now: number): Record<string, string> {
    const told: Record<string, string> = { "x-attempt": String(this.number) };
    if (this.deadline !== Infinity) {
      told["x-request-timeout"] = Math.max(this.deadline - now, LEAST_TOLD_SECONDS).toFixed(3);
    }
    return told;
  }

  /** When to try again; undefined where there is no other try.  `chance` is a random number from 0 up to 1. */
  nextMoment(setback: Setback, now: number, chance: number): number | undefined {
    if (setback.retry === "never" || this.number > this.#mostRetries) {
      return undefined;
    }
    const moment = now + pauseSeconds(setback.told, this.number, chance);
    if (moment >= this.deadline) {
      return undefined;
    }
    return setback.retry === "unasked" && !this.#budget.take(now) ? undefined : moment;
  }
}
