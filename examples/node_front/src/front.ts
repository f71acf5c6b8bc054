/**
 * Gather items, send them to Python in batches, and settle each with its own outcome.  What decides is in `queue.ts`.
 *
 * Every call of `predict` ends, at the latest when its time is over.
 */

import { type Client, DeadlineExceeded, NotReady, Overloaded, PenstockError } from "penstock-client";
import { type Batch, type Item, Queue, type QueueLimits } from "./queue.js";

/** The result of an item, or why there is none. */
export type Outcome = { readonly result: unknown } | { readonly error: unknown };

/** The process in which items are run. */
export interface Backend {
  readonly isReady: boolean;
  /** In how many seconds it may be ready. */
  readonly retryAfter: number;
}

interface Asked {
  readonly data: unknown;
  readonly settle: (outcome: Outcome) => void;
}

export class Front {
  readonly #client: Client;
  readonly #backend: Backend;
  readonly #limits: QueueLimits;
  readonly #queue: Queue<Asked>;
  readonly #calls = new Map<Batch<Asked>, AbortController>();
  #timer: NodeJS.Timeout | undefined;
  #draining: { readonly done: () => void } | undefined;

  constructor(client: Client, backend: Backend, limits: QueueLimits) {
    this.#client = client;
    this.#backend = backend;
    this.#limits = limits;
    this.#queue = new Queue(limits);
  }

  get isFull(): boolean {
    return this.#queue.isFull;
  }

  get isDraining(): boolean {
    return this.#draining !== undefined;
  }

  /** What becomes of `data`; `gone` is aborted where nobody waits for it any more. */
  predict(data: unknown, gone: AbortSignal): Promise<Outcome> {
    return new Promise((settle) => {
      const refusal = this.#refusal();
      const item = refusal === undefined ? this.#queue.offer({ data, settle }, performance.now()) : undefined;
      if (item === undefined) {
        settle({ error: refusal ?? full() });
        return;
      }
      gone.addEventListener("abort", () => {
        this.#settle([item], { error: gone.reason });
        this.#turn();
      });
      this.#turn();
    });
  }

  /** Python has ended: who waits is told so, since the next one may take long to start. */
  backendEnded(): void {
    this.#settle(this.#queue.clear(), { error: this.#unready() });
    this.#turn();
  }

  /** Accept nothing more, let nobody wait for company, and return once nothing is in hand. */
  drain(): Promise<void> {
    return new Promise((done) => {
      this.#draining = { done };
      this.#queue.drain();
      this.#turn();
    });
  }

  /** Do all that is due, and set the timer for what is due next. */
  #turn(): void {
    clearTimeout(this.#timer);
    const now = performance.now();
    for (const item of this.#queue.expire(now)) {
      item.value.settle({ error: tooLate(this.#limits.timeoutMs) });
    }
    for (let batch = this.#queue.take(now); batch !== undefined; batch = this.#queue.take(now)) {
      void this.#run(batch, now);
    }
    for (const batch of this.#queue.deserted) {
      this.#calls.get(batch)?.abort(); // closes the connection, so that Python withdraws what has not begun
    }
    if (this.#queue.inHand === 0) {
      this.#draining?.done();
    }
    const next = this.#queue.nextMoment;
    if (next !== undefined) {
      this.#timer = setTimeout(() => this.#turn(), Math.max(0, Math.ceil(next - now)));
    }
  }

  async #run(batch: Batch<Asked>, now: number): Promise<void> {
    const call = new AbortController();
    this.#calls.set(batch, call);
    const outcomes = await this.#call(batch, now, call.signal);
    batch.items.forEach((item, place) => this.#settle([item], outcomes[place]!));
    this.#calls.delete(batch);
    this.#queue.end(batch);
    this.#turn();
  }

  /** An outcome for each item of a batch.  The call may last as long as the youngest of them. */
  async #call(batch: Batch<Asked>, now: number, signal: AbortSignal): Promise<Outcome[]> {
    const data = batch.items.map((item) => ({ data: item.value.data }));
    const timeoutMs = Math.max(...batch.items.map((item) => item.deadline)) - now;
    const terms = { timeoutMs, signal, batchSize: this.#limits.batchSize, returnExceptions: true } as const;
    try {
      const answers = await this.#client.predictMany(data, terms);
      return answers.map((answer) => (answer instanceof PenstockError ? { error: answer } : { result: answer }));
    } catch (error) {
      return data.map(() => ({ error }));
    }
  }

  #settle(items: readonly Item<Asked>[], outcome: Outcome): void {
    for (const item of items) {
      this.#queue.settle(item);
      item.value.settle(outcome); // harmless for who was settled before: a promise keeps its first value
    }
  }

  #refusal(): PenstockError | undefined {
    if (this.isDraining) {
      return new NotReady("the front is about to end", "draining", 1);
    }
    return this.#backend.isReady ? undefined : this.#unready();
  }

  #unready(): PenstockError {
    return new NotReady("Python is not ready", "starting", this.#backend.retryAfter);
  }
}

function full(): PenstockError {
  return new Overloaded("the front holds as many requests as it may", { retryAfter: 1, retryAfterMs: 1000 }, "queue_full");
}

function tooLate(timeoutMs: number): PenstockError {
  return new DeadlineExceeded(`there was no result after ${timeoutMs / 1000} s`, true);
}
