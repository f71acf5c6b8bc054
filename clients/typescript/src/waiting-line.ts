/**
 * Decide who of those that wait for a place goes next: the most urgent, and of one urgency who came first.
 *
 * Who comes again for a further try has its old place in the order of coming.
 */

interface Waiting<T> {
  readonly who: T;
  readonly urgency: number;
  readonly arrival: number;
}

/** Entries of the heap beyond twice those that wait, so that a short line is not built anew all the time. */
const SPARE = 8;

/** Those that wait.  `arrival` is a number of each, of which no two have the same. */
export class WaitingLine<T> {
  /** A binary heap, whose first goes next; it may have as many as wait, and a few, that have left the line. */
  #heap: Waiting<T>[] = [];
  /** The arrivals of those in the line. */
  readonly #waiting = new Set<number>();

  get length(): number {
    return this.#waiting.size;
  }

  /** How many are kept, those that have left the line too. */
  get size(): number {
    return this.#heap.length;
  }

  /** Let `who` wait; 0 is the best urgency. */
  join(who: T, urgency: number, arrival: number): void {
    this.#waiting.add(arrival);
    this.#heap.push({ who, urgency, arrival });
    this.#rise(this.#heap.length - 1);
  }

  /** Forget who has this arrival, if it waits. */
  leave(arrival: number): void {
    this.#waiting.delete(arrival);
    this.#forgetGone();
  }

  /** Take who goes next out of the line; undefined where nobody waits. */
  next(): T | undefined {
    for (let first = this.#pop(); first !== undefined; first = this.#pop()) {
      if (this.#waiting.delete(first.arrival)) {
        this.#forgetGone();
        return first.who;
      }
    }
    return undefined;
  }

  /** Let go of those that have left the line: more urgent ones may keep them from its head for ever. */
  #forgetGone(): void {
    if (this.#heap.length > 2 * this.#waiting.size + SPARE) {
      const heap = this.#heap.filter(({ arrival }) => this.#waiting.has(arrival));
      this.#heap = heap.sort((one, other) => one.urgency - other.urgency || one.arrival - other.arrival);
    }
  }

  #pop(): Waiting<T> | undefined {
    const first = this.#heap[0];
    const last = this.#heap.pop();
    if (last !== undefined && this.#heap.length > 0) {
      this.#heap[0] = last;
      this.#sink();
    }
    return first;
  }

  #rise(from: number): void {
    for (let place = from, above = (place - 1) >> 1; place > 0; place = above, above = (place - 1) >> 1) {
      if (!this.#swapIfBefore(place, above)) {
        return;
      }
    }
  }

  #sink(): void {
    for (let place = 0; ; ) {
      const [left, right] = [2 * place + 1, 2 * place + 2];
      const better = this.#isBefore(right, left) ? right : left;
      if (!this.#swapIfBefore(better, place)) {
        return;
      }
      place = better;
    }
  }

  #swapIfBefore(one: number, other: number): boolean {
    if (!this.#isBefore(one, other)) {
      return false;
    }
    [this.#heap[one], this.#heap[other]] = [this.#heap[other]!, this.#heap[one]!];
    return true;
  }

  /** Whether who is at the place `one` goes before who is at `other`; nobody is at a place behind the end. */
  #isBefore(one: number, other: number): boolean {
    const [first, second] = [this.#heap[one], this.#heap[other]];
    if (first === undefined || second === undefined) {
      return false;
    }
    return first.urgency === second.urgency ? first.arrival < second.arrival : first.urgency < second.urgency;
  }
}
