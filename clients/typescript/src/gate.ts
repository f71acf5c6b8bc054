/** Let calls through as the flow limit allows, in their order; the others wait. */

import type { End, FlowLimit } from "./flow-limit.js";
import { WaitingLine } from "./waiting-line.js";

/** The gate of one client. */
export class Gate {
  readonly #limit: FlowLimit;
  readonly #line = new WaitingLine<() => void>();

  constructor(limit: FlowLimit) {
    this.#limit = limit;
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

  /** A request has ended. */
  leave(begunIn: number, how: End): void {
    this.#limit.end(begunIn, how);
    while (this.#limit.hasRoom) {
      const letIn = this.#line.next();
      if (letIn === undefined) {
        return;
      }
      letIn();
    }
  }
}
