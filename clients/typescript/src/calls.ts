/** What a call is to the sender, and the call whose answer is one thing.  Nothing here does I/O. */

import { type Body, UnreadableBody } from "./bodies.js";
import type { PenstockError } from "./errors.js";
import { JobNotSucceeded } from "./job-errors.js";
import { isRefusal, replyError, unreadable } from "./problem-errors.js";
import { isSuccess, type NoReply, type Reply } from "./replies.js";
import { judgeReply, toldSeconds } from "./retry-rules.js";
import type { Setback } from "./tries.js";

/** What the caller gets. */
export interface Finished<T> {
  readonly kind: "finished";
  readonly value: T;
}

/** What every call has. */
export interface CallHead {
  readonly method: string;
  /** Behind the server's address, with the query. */
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly requestId: string;
  /** In seconds. */
  readonly timeout: number;
  readonly urgency: number;
  /** Whether a second run does no harm, so that also what may have run is tried again. */
  readonly harmless: boolean;
  /** Most bytes of a success. */
  readonly largest: number;
  /** Whether it waits for its turn, and counts. */
  readonly flowControlled: boolean;
}

/** A request to come, and what its answers mean. */
export interface Call<T> {
  /** What stays the same in all its tries. */
  readonly head: CallHead;
  /** The body of the next try. */
  body(): Body | undefined;
  /** What has come of a try; `wall` is the moment in Unix seconds. */
  take(reply: Reply | NoReply, wall: number): Finished<T> | Setback;
  /** What the caller gets where there is no further try because of `error`; or throws it. */
  giveUp(error: PenstockError): T;
}

/** A call whose answer is one thing, which `read` makes of it. */
export class SingleCall<T> implements Call<T> {
  readonly head: CallHead;
  readonly #body: Body | undefined;
  readonly #read: (reply: Reply) => T;

  constructor(head: CallHead, body: Body | undefined, read: (reply: Reply) => T) {
    this.head = head;
    this.#body = body;
    this.#read = read;
  }

  body(): Body | undefined {
    return this.#body;
  }

  /** A success is read; one that cannot be read is never tried again. */
  take(reply: Reply | NoReply, wall: number): Finished<T> | Setback {
    if (reply.kind === "no reply" || !isSuccess(reply)) {
      return setbackOf(reply, this.head, wall);
    }
    return read(reply, this.head, () => ({ kind: "finished", value: this.#read(reply) }));
  }

  giveUp(error: PenstockError): never {
    throw error;
  }
}

/** What an answer that is no success, or the lack of one, means for the whole call. */
export function setbackOf(reply: Reply | NoReply, head: CallHead, wall: number): Setback {
  const error = replyError(reply, head.requestId);
  return {
    kind: "setback",
    error,
    // A job's own end is final, whatever its status says of servers.
    retry: error instanceof JobNotSucceeded ? "never" : judgeReply(reply, head.harmless),
    told: reply.kind === "no reply" ? undefined : toldSeconds(reply.headers, wall),
    isRefusal: isRefusal(reply, error),
  };
}

/** What `take` makes of a success; a setback where its body cannot be read. */
export function read<R>(reply: Reply, head: CallHead, take: () => R): R | Setback {
  try {
    return take();
  } catch (error) {
    if (error instanceof UnreadableBody) {
      const found = unreadable(reply, head.requestId, error.message);
      return { kind: "setback", error: found, retry: "never", told: undefined, isRefusal: false };
    }
    throw error;
  }
}
