/** Let calls through as the flow limit allows, in their order; the others wait. */

import type { End, FlowLimit } from "./flow-limit.js";
import { WaitingLine } from "./waiting-line.js";
import type { Clock, Timer } from "./world.js";

/** The gate of one client. */
export class Gate {
  readonly #limit: FlowLimit;
  readonly #clock: Clock;
  #pause: Timer | undefined;
  readonly #line = new WaitingLine<() => void>();

  constructor(limit: FlowLimit, clock: Clock) {
    this.#limit = limit;
    this.#clock = clock;
  }

  /** How many wait. */
  get waiting(): number {
    return this.#line.length;
  }

  /**
   * Return once the caller may send a request; what it gives is told to `leave`.
   *
   * Who is let in must leave, also where `signal` ends its call in the same turn of the event loop.
   */
  async enter(urgency: number, arrival: number, signal: AbortSignal): Promise<number> {
    if (this.#limit.hasRoom && this.#line.length === 0) {
      return this.#limit.begin();
    }
    return new Promise((resolve, reject) => {
      const leaveLine = (): void => {
        this.#line.leave(arrival);
        reject(signal.reason);
      };
      const letIn = (): void => {
        signal.removeEventListener("abort", leaveLine);
        resolve(this.#limit.begin());
      };
      this.#line.join(letIn, urgency, arrival);
      signal.addEventListener("abort", leaveLine, { once: true });
    });
  }

  /** A request has ended; after a refusal, `pauseSeconds` is how long a pause is to be, if one begins. */
  leave(begunIn: number, how: End, pauseSeconds: number): void {
    if (this.#limit.end(begunIn, how)) {
      this.#pause = this.#clock.callLater(pauseSeconds, () => {
        this.#limit.goOn();
        this.#letIn();
      });
    }
    this.#letIn();
  }

  /** Forget the pause: nobody comes any more. */
  close(): void {
    this.#pause?.cancel();
  }

  #letIn(): void {
    while (this.#limit.hasRoom) {
      const letIn = this.#line.next();
      if (letIn === undefined) {
        return;
      }
      letIn();
    }
  }
}
