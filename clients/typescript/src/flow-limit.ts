/**
 * Decide how many requests may be in flight: more while they succeed, half as many once the server refuses for room.
 *
 * Contract
 * --------
 * - There may be `limit` requests in flight, at least 1 and at most `most`; the first limit is `FIRST_LIMIT`.
 * - After as many successes as the limit is, it grows by one.
 * - A refusal halves it.  Those that were in flight then were sent before anybody knew, so no end of theirs changes it
 *   again: it is halved at most once in a round trip.
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

  constructor(most: number) {
    this.#most = most;
    this.limit = Math.min(FIRST_LIMIT, most);
  }

  /** Whether one more request may be sent. */
  get hasRoom(): boolean {
    return this.inFlight < this.limit;
  }

  /** Count a request that is sent; gives its round, which `end` wants to know. */
  begin(): number {
    this.inFlight += 1;
    return this.#round;
  }

  /** Count the end of a try that began in the round `begunIn`. */
  end(begunIn: number, how: End): void {
    this.inFlight -= 1;
    if (how === "neither" || begunIn !== this.#round) {
      return;
    }
    if (how === "refusal") {
      this.limit = Math.max(1, Math.floor(this.limit / 2));
      this.#round += 1;
      this.#successes = 0;
      return;
    }
    this.#successes += 1;
    if (this.#successes >= this.limit) {
      this.#successes = 0;
      this.limit = Math.min(this.limit + 1, this.#most);
    }
  }
}
