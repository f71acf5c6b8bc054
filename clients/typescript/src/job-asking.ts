/**
 * Decide how the end of a job is asked for: how long the server is to wait, and how long to pause between two asks.
 *
 * A server that drains answers at once.  Behind an answer that came sooner than was asked for there is a pause, each
 * twice as long as the one before, so that nobody asks all the time.
 */

import { ConfigError } from "./errors.js";
import { show } from "./options.js";
import { FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS } from "./retry-rules.js";

/** How long the server is asked to wait for the end of a job; proxies give up on requests of a minute. */
export const LONGEST_ASK_SECONDS = 20;

/** One wait for a job, of `timeoutMs` from `now`; 0 asks once, undefined and Infinity wait for ever. */
export class Asking {
  /** In seconds. */
  readonly timeout: number;
  readonly #until: number;
  /** How many answers came too soon, one after another. */
  #soon = 0;

  constructor(timeoutMs: number | undefined, now: number) {
    if (timeoutMs !== undefined && !(typeof timeoutMs === "number" && timeoutMs >= 0)) {
      throw new ConfigError(`timeoutMs must be at least 0 milliseconds, got ${show(timeoutMs)}`);
    }
    this.timeout = timeoutMs === undefined ? Infinity : timeoutMs / 1000;
    this.#until = now + this.timeout;
  }

  /** How long the server is to wait in the ask that begins now. */
  waitSeconds(now: number): number {
    return Math.min(LONGEST_ASK_SECONDS, this.#left(now));
  }

  /** When the answer to the ask that begins now is too late; undefined leaves it to the limit of a call. */
  deadline(now: number): number | undefined {
    const left = this.#left(now);
    return left > 0 && left < Infinity ? this.#until : undefined;
  }

  /**
   * How long to pause, now that a job has not ended; undefined where the time is up.
   *
   * The server was asked to wait for `waited` seconds, and answered after `took`.
   */
  pauseSeconds(waited: number, took: number, now: number): number | undefined {
    const left = this.#left(now);
    if (left <= 0) {
      return undefined;
    }
    if (took >= waited / 2) {
      this.#soon = 0;
      return 0;
    }
    this.#soon += 1;
    return Math.min(left, LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** Math.min(this.#soon - 1, 10));
  }

  #left(now: number): number {
    return Math.max(0, this.#until - now);
  }
}
