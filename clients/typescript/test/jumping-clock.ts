/** A clock that stands still while something real is under way; else it goes to the next timer by itself. */

import type { Clock, Timer } from "../src/world.js";

/** So many turns of the event loop without anything new, and no task can run. */
const RESTING_TURNS = 50;

interface Due {
  readonly moment: number;
  readonly callback: () => void;
}

export class JumpingClock implements Clock {
  #now = 0;
  #real = 0;
  #timers: Due[] = [];
  #moving = false;
  /** Counts what begins, and what ends, so that a rest sees that there was something new. */
  #news = 0;

  now(): number {
    return this.#now;
  }

  callLater(seconds: number, callback: () => void): Timer {
    const due = { moment: this.#now + seconds, callback };
    this.#timers.push(due);
    this.#timers.sort((one, other) => one.moment - other.moment); // which keeps the order of equals
    this.#move();
    return {
      cancel: () => {
        this.#news += 1;
        this.#timers = this.#timers.filter((one) => one !== due);
      },
    };
  }

  /** What `work` gives, for which time stands still. */
  async real<T>(work: () => Promise<T>): Promise<T> {
    this.#real += 1;
    try {
      return await work();
    } finally {
      this.#real -= 1;
      this.#move();
    }
  }

  #move(): void {
    this.#news += 1;
    if (!this.#moving) {
      this.#moving = true;
      void this.#jump();
    }
  }

  async #jump(): Promise<void> {
    for (;;) {
      await this.#rest();
      const first = this.#real > 0 ? undefined : this.#timers.shift();
      if (first === undefined) {
        this.#moving = false;
        return;
      }
      this.#now = Math.max(this.#now, first.moment);
      first.callback();
    }
  }

  async #rest(): Promise<void> {
    for (let turns = 0, news = this.#news; turns < RESTING_TURNS; turns += 1) {
      await new Promise(setImmediate);
      if (news !== this.#news) {
        [turns, news] = [0, this.#news];
      }
    }
  }
}
