/**
 * Bound the tries that no server has asked for, so that a failing server is not sent several times its load.
 *
 * Contract
 * --------
 * - Of the last `SPAN_SECONDS`, at most one for `REQUESTS_FOR_ONE` requests, and `ALWAYS` more, are tries that nobody
 *   asked for.
 * - A request counts once, however often it is tried.  A try counts when it is decided on.
 */

export const SPAN_SECONDS = 10;
export const REQUESTS_FOR_ONE = 10;
export const ALWAYS = 10;

/** The budget of one client. */
export class RetryBudget {
  readonly #requests = new Moments();
  readonly #taken = new Moments();

  /** Note that a request begins. */
  countRequest(now: number): void {
    this.#requests.add(now);
  }

  /** How many tries there may be now. */
  left(now: number): number {
    const earned = Math.floor(this.#requests.count(now) / REQUESTS_FOR_ONE);
    return Math.max(0, ALWAYS + earned - this.#taken.count(now));
  }

  /** Whether there may be one more try; it counts then. */
  take(now: number): boolean {
    if (this.left(now) === 0) {
      return false;
    }
    this.#taken.add(now);
    return true;
  }
}

/** The moments of the last `SPAN_SECONDS`, oldest first. */
class Moments {
  #moments: number[] = [];
  /** How many at the front are forgotten; to take each away from an array costs more. */
  #forgotten = 0;

  add(now: number): void {
    this.#moments.push(now);
    this.#forget(now);
  }

  count(now: number): number {
    this.#forget(now);
    return this.#moments.length - this.#forgotten;
  }

  #forget(now: number): void {
    while (this.#forgotten < this.#moments.length && this.#moments[this.#forgotten]! <= now - SPAN_SECONDS) {
      this.#forgotten += 1;
    }
    if (this.#forgotten > 1000 && this.#forgotten * 2 > this.#moments.length) {
      this.#moments = this.#moments.slice(this.#forgotten);
      this.#forgotten = 0;
    }
  }
}
