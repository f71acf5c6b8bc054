/**
 * Decide which items go to Python together, and which are too late.  No clock, no timer, no promise: it is told the time.
 *
 * Contract
 * --------
 * - At most `maxQueue` items are in hand: those that wait, and those of the batches that Python has.
 * - Items leave in the order in which they came, each in one batch of at most `batchSize`.
 * - A batch is due once it is full, or once its oldest item has waited `maxWaitMs`; while it drains, at once.
 * - Python has at most `maxBatches` of them.  Who waits longer for that may find more company.
 * - An item that is in hand `timeoutMs` after it came is given by `expire`, once, unless it was settled before.
 * - An item is settled once, whatever it is that comes first: its outcome, its time, or the end of its caller.
 * - The places of a batch are free when the batch has ended, not before: until then Python holds its items.
 */

export interface QueueLimits {
  readonly maxQueue: number;
  readonly batchSize: number;
  readonly maxBatches: number;
  readonly maxWaitMs: number;
  readonly timeoutMs: number;
}

/** What one caller has asked for. */
export interface Item<T> {
  readonly value: T;
  readonly arrived: number;
  readonly deadline: number;
}

/** Items that went to Python together. */
export interface Batch<T> {
  readonly items: readonly Item<T>[];
}

export class Queue<T> {
  readonly #limits: QueueLimits;
  #waiting: Item<T>[] = [];
  /** The batches that Python has, oldest first, each with those of its items that are not settled. */
  readonly #running = new Map<Batch<T>, Set<Item<T>>>();
  #draining = false;

  constructor(limits: QueueLimits) {
    this.#limits = limits;
  }

  /** How many items are in hand. */
  get inHand(): number {
    return [...this.#running.keys()].reduce((sum, batch) => sum + batch.items.length, this.#waiting.length);
  }

  get isFull(): boolean {
    return this.inHand >= this.#limits.maxQueue;
  }

  /** The new item; undefined where there is no room. */
  offer(value: T, now: number): Item<T> | undefined {
    if (this.isFull) {
      return undefined;
    }
    const item = { value, arrived: now, deadline: now + this.#limits.timeoutMs };
    this.#waiting.push(item);
    return item;
  }

  /** When a batch is due; undefined while nobody waits, and while Python has as many as it may. */
  get dueAt(): number | undefined {
    const [oldest] = this.#waiting;
    if (oldest === undefined || this.#running.size >= this.#limits.maxBatches) {
      return undefined;
    }
    const isDue = this.#draining || this.#waiting.length >= this.#limits.batchSize;
    return isDue ? oldest.arrived : oldest.arrived + this.#limits.maxWaitMs;
  }

  /** The batch that is due; undefined where none is. */
  take(now: number): Batch<T> | undefined {
    if (this.dueAt === undefined || now < this.dueAt) {
      return undefined;
    }
    const batch = { items: this.#waiting.splice(0, this.#limits.batchSize) };
    this.#running.set(batch, new Set(batch.items));
    return batch;
  }

  /** When `take` or `expire` has something to give, if nothing else happens; undefined while nothing is in hand. */
  get nextMoment(): number | undefined {
    const moments = this.#unsettled().map((item) => item.deadline);
    if (this.dueAt !== undefined) {
      moments.push(this.dueAt);
    }
    return moments.length > 0 ? Math.min(...moments) : undefined;
  }

  /** The items whose time is over; they are settled with that. */
  expire(now: number): Item<T>[] {
    return this.#unsettled().filter((item) => now >= item.deadline && this.settle(item));
  }

  /** The items that wait; they are settled with that. */
  clear(): Item<T>[] {
    return this.#waiting.splice(0);
  }

  /** Nobody waits for `item` any more; false where that was so before. */
  settle(item: Item<T>): boolean {
    const place = this.#waiting.indexOf(item);
    if (place >= 0) {
      this.#waiting.splice(place, 1);
      return true;
    }
    return [...this.#running.values()].some((unsettled) => unsettled.delete(item));
  }

  /** The batches that Python has though nobody waits for any of their items. */
  get deserted(): Batch<T>[] {
    return [...this.#running].flatMap(([batch, unsettled]) => (unsettled.size === 0 ? [batch] : []));
  }

  /** Python has the batch no more. */
  end(batch: Batch<T>): void {
    this.#running.delete(batch);
  }

  /** From now on no item waits for company. */
  drain(): void {
    this.#draining = true;
  }

  #unsettled(): Item<T>[] {
    return [...[...this.#running.values()].flatMap((unsettled) => [...unsettled]), ...this.#waiting];
  }
}
