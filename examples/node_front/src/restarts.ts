/** Decide how long to pause before a child process is started again.  It is told the time. */

export const FIRST_PAUSE_MS = 250;
export const LONGEST_PAUSE_MS = 8000;
/** Who was ready for so long before it ended did not end by its start: the pauses begin again. */
export const HEALTHY_MS = 10_000;

/** The pauses of one child: each is twice as long as the one before, until it works again. */
export class Restarts {
  #pause = FIRST_PAUSE_MS;
  #readySince: number | undefined;

  /** The child is ready. */
  ready(now: number): void {
    this.#readySince ??= now;
  }

  /** The child has ended; how many milliseconds to pause. */
  ended(now: number): number {
    const wasHealthy = this.#readySince !== undefined && now - this.#readySince >= HEALTHY_MS;
    const pause = wasHealthy ? FIRST_PAUSE_MS : this.#pause;
    this.#pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
    this.#readySince = undefined;
    return pause;
  }
}
