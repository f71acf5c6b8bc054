/**
 * Decide how many requests may be in flight: more while they succeed, half as many once the server refuses for room.
 *
 * Contract
 * --------
 * - There may be `limit` requests in flight, at least 1 and at most `most`; the first limit is `FIRST_LIMIT`.
 * - After as many successes as the limit is, it grows by one.
 * - A refusal halves it.  Those that were in flight then were sent before anybody knew, so no end of theirs changes it
 *   again: it is halved at most once in a round trip.
 * - Where it cannot be halved, since it is 1, and the last end that counted was a refusal too, there is a pause: nothing
 *   is sent.  A refusal takes hardly any time, so a client that goes on with one request after the other is refused as
 *   often as it has callers, before anybody leaves room.
 */

export const FIRST_LIMIT = 8;

/** How a try ended, for the limit; a refusal says that the server had no room. */
export type End = "success" | "refusal" | "neither";

/** The limit of one client. */
export class FlowLimit {
  limit: number;
  inFlight = 0;
  readonly #most: number;
  /** Since the limit changed. */
  #successes = 0;
  /** How often it was halved. */
  #round = 0;
  /** Whether the last end that counted was a refusal. */
  #refused = false;
  #paused = false;

  constructor(most: number) {
    this.#most = most;
    this.limit = Math.min(FIRST_LIMIT, most);
  }

  /** Whether one more request may be sent. */
  get hasRoom(): boolean {
    return this.inFlight < this.limit && !this.#paused;
  }

  /** Count a request that is sent; gives its round, which `end` wants to know. */
  begin(): number {
    this.inFlight += 1;
    return this.#round;
  }

  /** Count the end of a try that began in the round `begunIn`; whether a pause begins, which `goOn` ends. */
  end(begunIn: number, how: End): boolean {
    this.inFlight -= 1;
    if (how === "neither" || begunIn !== this.#round) {
      return false;
    }
    if (how === "refusal") {
      this.#paused = this.#refused && this.limit === 1;
      this.#refused = true;
      this.limit = Math.max(1, Math.floor(this.limit / 2));
      this.#round += 1;
      this.#successes = 0;
      return this.#paused;
    }
    this.#refused = false;
    this.#successes += 1;
    if (this.#successes >= this.limit) {
      this.#successes = 0;
      this.limit = Math.min(this.limit + 1, this.#most);
    }
    return false;
  }

  /** End the pause. */
  goOn(): void {
    this.#paused = false;
  }
}
