/**
 * The call of `/batch`: many items, each with an outcome of its own, of which only some are sent again.
 *
 * Contract
 * --------
 * - Answers stand in the order of the items, whatever was sent how often.
 * - An item is sent again only if it may succeed then and was not at work, or where a second run does no harm.
 * - The wait is the longest that one of them is told.  A try is asked for where it is asked for one of its items.
 */

import { type Body, type Bytes, isObject, joinItems, readResult, UnreadableBody } from "./bodies.js";
import { type Call, type CallHead, type Finished, read, setbackOf } from "./calls.js";
import { InvalidItem, Overloaded, type PenstockError, type Problem } from "./errors.js";
import type { MessagePackCodec } from "./options.js";
import { itemError } from "./problem-errors.js";
import { isSuccess, type NoReply, type Reply } from "./replies.js";
import { itemSeconds, judgeItem } from "./retry-rules.js";
import type { Setback } from "./tries.js";

/** The answer of an item, which may be an error. */
export type Answer = { readonly result: unknown } | { readonly error: PenstockError };

/** An item as it is sent, or the error of one that could not be written. */
export type WrittenItem = Bytes | InvalidItem;

interface Open {
  readonly place: number;
  readonly item: Bytes;
}

/** A client batch. */
export class BatchCall implements Call<readonly Answer[]> {
  readonly head: CallHead;
  readonly #codec: MessagePackCodec | undefined;
  readonly #answers: Answer[] = [];
  /** Those without a last answer. */
  #open: Open[] = [];
  /** The error of the setback that only some items had. */
  #partial: PenstockError | undefined;

  constructor(head: CallHead, items: readonly WrittenItem[], codec: MessagePackCodec | undefined) {
    this.head = head;
    this.#codec = codec;
    items.forEach((item, place) => {
      if (item instanceof InvalidItem) {
        this.#answers[place] = { error: item };
      } else {
        this.#open.push({ place, item });
      }
    });
  }

  /** The answers, where there is nothing to send. */
  get unsendable(): readonly Answer[] | undefined {
    return this.#open.length > 0 ? undefined : this.#answers;
  }

  /** Those that have no last answer. */
  body(): Body {
    return joinItems(this.#open.map(({ item }) => item), this.#codec);
  }

  /** Keep the answers of the items; a setback where some are sent again. */
  take(reply: Reply | NoReply, wall: number): Finished<readonly Answer[]> | Setback {
    if (reply.kind === "no reply" || !isSuccess(reply)) {
      return setbackOf(reply, this.head, wall);
    }
    return read(reply, this.head, () => this.#keep(this.#outcomes(reply)));
  }

  /** The answers, where there is no further try. */
  giveUp(error: PenstockError): readonly Answer[] {
    if (error !== this.#partial) { // else each has an error of its own
      for (const { place } of this.#open) {
        this.#answers[place] = { error };
      }
    }
    return this.#answers;
  }

  #outcomes(reply: Reply): readonly unknown[] {
    const page = readResult(reply.body, reply.headers.get("content-type") ?? "", this.#codec);
    const outcomes = isObject(page) ? page["outcomes"] : undefined;
    if (!Array.isArray(outcomes) || outcomes.length !== this.#open.length || !outcomes.every(isOutcome)) {
      throw new UnreadableBody(`a body without outcomes for ${this.#open.length} items`);
    }
    return outcomes;
  }

  #keep(outcomes: readonly unknown[]): Finished<readonly Answer[]> | Setback {
    const again: Open[] = [];
    const problems: Problem[] = [];
    this.#open.forEach((one, number) => {
      const outcome = outcomes[number] as Record<string, unknown>;
      const problem = outcome["error"];
      if (!isObject(problem)) {
        this.#answers[one.place] = { result: outcome["result"] };
        return;
      }
      this.#answers[one.place] = { error: itemError(problem, this.head.requestId) };
      if (judgeItem(problem, this.head.harmless) !== "never") {
        again.push(one);
        problems.push(problem);
      }
    });
    this.#open = again;
    return this.#setback(problems) ?? { kind: "finished", value: this.#answers };
  }

  /** What is to be done for the items that are sent again; undefined where there is none. */
  #setback(problems: readonly Problem[]): Setback | undefined {
    const failed = this.#open.flatMap(({ place }) => errorsOf(this.#answers[place]));
    const told = problems.map(itemSeconds).filter((seconds) => seconds !== undefined);
    const [first] = failed;
    this.#partial = first;
    return first && {
      kind: "setback",
      error: first,
      retry: told.length > 0 ? "asked" : "unasked",
      told: told.length > 0 ? Math.max(...told) : undefined,
      isRefusal: failed.some((error) => error instanceof Overloaded && error.reason !== "quota"),
    };
  }
}

function errorsOf(answer: Answer | undefined): PenstockError[] {
  return answer !== undefined && "error" in answer ? [answer.error] : [];
}

function isOutcome(outcome: unknown): boolean {
  return isObject(outcome) && ("result" in outcome || isObject(outcome["error"]));
}
