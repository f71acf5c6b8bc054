/** Let what a call awaits be ended from outside, at a moment or at once, with an error. */

import { type Clock, FOREVER_SECONDS, type Timer } from "./world.js";

/** Everything that a call awaits watches `signal`, and rejects with its reason. */
export class Interruption {
  readonly #clock: Clock;
  readonly #controller = new AbortController();
  readonly #outer: AbortSignal | undefined;
  #timer: Timer | undefined;

  /** `outer` is a signal that ends it as well, such as that of the caller. */
  constructor(clock: Clock, outer?: AbortSignal) {
    this.#clock = clock;
    this.#outer = outer;
    if (outer?.aborted) {
      this.#followOuter();
    } else {
      outer?.addEventListener("abort", this.#followOuter, { once: true });
    }
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Whether it was ended by the outer signal. */
  get isOuter(): boolean {
    return this.signal.aborted && this.#outer !== undefined && this.signal.reason === this.#outer.reason;
  }

  /** End what the call awaits, with `error`; harmless where it was ended before. */
  interrupt(error: unknown): void {
    this.#controller.abort(error);
  }

  /** Interrupt at `moment`, unless another moment is named before; Infinity is never. */
  interruptAt(moment: number, error: () => unknown): void {
    this.letBe();
    const left = Math.max(0, moment - this.#clock.now());
    if (left <= FOREVER_SECONDS) {
      this.#timer = this.#clock.callLater(left, () => this.interrupt(error()));
    }
  }

  /** Forget the moment that was named. */
  letBe(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  /** The call has ended: nothing is watched any more. */
  end(): void {
    this.letBe();
    this.#outer?.removeEventListener("abort", this.#followOuter);
  }

  readonly #followOuter = (): void => this.interrupt(this.#outer?.reason);
}

/** Return in `seconds`; rejects with the reason of `signal`. */
export async function sleepOn(clock: Clock, seconds: number, signal: AbortSignal | undefined): Promise<void> {
  let ring = (): void => undefined;
  const rung = new Promise<void>((resolve) => {
    ring = resolve;
  });
  const timer = clock.callLater(seconds, ring);
  try {
    await untilAborted(rung, signal);
  } finally {
    timer.cancel();
  }
}

/** What `promise` gives, or the reason of `signal`, whichever comes first. */
export async function untilAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) {
    return promise;
  }
  let stop = (): void => undefined;
  const aborted = new Promise<never>((_, reject) => {
    stop = () => reject(signal.reason);
  });
  signal.addEventListener("abort", stop, { once: true });
  if (signal.aborted) {
    stop();
  }
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", stop);
  }
}
