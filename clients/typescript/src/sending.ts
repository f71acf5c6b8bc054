/**
 * Send calls: wait for a turn, try, and try again as the rules say.  What decides is elsewhere.
 *
 * Contract
 * --------
 * - Every call ends: with a value or an error, at the latest `GRACE_SECONDS` behind its deadline.
 * - All calls of a client share one flow limit, one line and one retry budget.
 * - A call that is ended, and every call of a client that is closed, has its connection closed.
 */

import type { Call, CallHead, Finished } from "./calls.js";
import { Cancelled, ConfigError, DeadlineExceeded, PenstockError } from "./errors.js";
import { exchange, type OutgoingRequest } from "./fetch-wire.js";
import { type End, FlowLimit } from "./flow-limit.js";
import { Gate } from "./gate.js";
import { Interruption, sleepOn } from "./interruption.js";
import type { Fetch, Settings } from "./options.js";
import { withSource } from "./problem-errors.js";
import { RetryBudget } from "./retry-budget.js";
import { sharedPauseSeconds } from "./retry-rules.js";
import { type Setback, Tries } from "./tries.js";
import type { World } from "./world.js";

/** What a client has done, and how much it may do. */
export interface ClientStats {
  /** Requests that have begun, each with all its tries. */
  readonly requests: number;
  readonly attempts: number;
  /** Tries beyond the first of a request. */
  readonly retries: number;
  /** Those of them that no server has asked for. */
  readonly clientInitiatedRetries: number;
  /** Tries under flow control that are with the server. */
  readonly inFlight: number;
  /** Requests that wait for their turn. */
  readonly waiting: number;
  /** How many may be in flight. */
  readonly limit: number;
  /** How many tries that nobody asks for there may be now. */
  readonly retryBudget: number;
}

/** Where a call is, for as long as it lasts. */
interface Course<T> {
  readonly call: Call<T>;
  readonly tries: Tries;
  readonly ended: Interruption;
  readonly arrival: number;
}

/** What there is to end where the client is closed. */
interface InHand {
  readonly head: CallHead;
  readonly done: Promise<unknown>;
}

/** How a call is sent. */
export interface Sending {
  /** Ends it. */
  readonly signal?: AbortSignal | undefined;
  /** When its result is worthless; without it its own time limit counts from now. */
  readonly deadline?: number | undefined;
  /** Whether it belongs to a call that has begun already: where the client was closed meanwhile, it is `Cancelled`. */
  readonly isPart?: boolean;
}

/** Sends the calls of one client. */
export class Sender {
  readonly #settings: Settings;
  readonly #world: World;
  readonly #fetch: Fetch;
  readonly #limit: FlowLimit;
  readonly #gate: Gate;
  readonly #budget = new RetryBudget();
  readonly #inHand = new Map<Interruption, InHand>();
  #requests = 0;
  #tries = 0;
  #retries = 0;
  #unasked = 0;
  #closed = false;

  constructor(settings: Settings, world: World, fetch: Fetch) {
    this.#settings = settings;
    this.#world = world;
    this.#fetch = fetch;
    this.#limit = new FlowLimit(settings.maxConcurrency);
    this.#gate = new Gate(this.#limit, world.clock);
  }

  /** The numbers of this moment. */
  get stats(): ClientStats {
    return {
      requests: this.#requests,
      attempts: this.#tries,
      retries: this.#retries,
      clientInitiatedRetries: this.#unasked,
      inFlight: this.#limit.inFlight,
      waiting: this.#gate.waiting,
      limit: this.#limit.limit,
      retryBudget: this.#budget.left(this.#world.clock.now()),
    };
  }

  /** Throws `ConfigError` where the client is closed. */
  check(): void {
    if (this.#closed) {
      throw new ConfigError("the client is closed");
    }
  }

  /** What comes of `call`. */
  async send<T>(call: Call<T>, { signal, deadline, isPart = false }: Sending = {}): Promise<T> {
    signal?.throwIfAborted();
    if (this.#closed && isPart) {
      return call.giveUp(closedError(call.head));
    }
    this.check();
    const now = this.#world.clock.now();
    const tries = new Tries(now, deadline ?? now + call.head.timeout, this.#settings.maxRetries, this.#budget);
    const ended = new Interruption(this.#world.clock, signal);
    const arrival = this.#requests;
    this.#requests += 1;
    this.#budget.countRequest(now);
    try {
      return await this.#hold(call.head, ended, this.#tryUntilDone({ call, tries, ended, arrival }));
    } catch (error) {
      if (error instanceof PenstockError && !ended.isOuter) {
        return call.giveUp(error);
      }
      throw error;
    }
  }

  /** Pause between two requests of one call, of which `head` is that of the first. */
  async pause(seconds: number, head: CallHead, signal: AbortSignal | undefined): Promise<void> {
    if (this.#closed) { // in the turn in which the first one ended
      throw closedError(head);
    }
    const ended = new Interruption(this.#world.clock, signal);
    await this.#hold(head, ended, sleepOn(this.#world.clock, seconds, ended.signal));
  }

  /** End every call with `Cancelled`; may be called any number of times. */
  async close(): Promise<void> {
    this.#closed = true;
    const inHand = [...this.#inHand];
    for (const [ended, { head }] of inHand) {
      ended.interrupt(closedError(head));
    }
    await Promise.all(inHand.map(([, { done }]) => done));
    this.#gate.close();
  }

  /** What `work` gives, which `ended` ends where the client is closed. */
  async #hold<T>(head: CallHead, ended: Interruption, work: Promise<T>): Promise<T> {
    this.#inHand.set(ended, { head, done: work.catch(() => undefined) });
    try {
      return await work;
    } finally {
      ended.end();
      this.#inHand.delete(ended);
    }
  }

  async #tryUntilDone<T>(course: Course<T>): Promise<T> {
    for (;;) {
      const outcome = await this.#try(course);
      if (outcome.kind === "finished") {
        return outcome.value;
      }
      const now = this.#world.clock.now();
      const moment = course.tries.nextMoment(outcome, now, this.#world.chance());
      if (moment === undefined) {
        throw outcome.error;
      }
      this.#retries += 1;
      this.#unasked += outcome.retry === "unasked" ? 1 : 0;
      await sleepOn(this.#world.clock, moment - now, course.ended.signal);
    }
  }

  async #try<T>(course: Course<T>): Promise<Finished<T> | Setback> {
    const { call: { head }, tries, ended, arrival } = course;
    if (!head.flowControlled) {
      return this.#sendOnce(course);
    }
    ended.interruptAt(tries.deadline, () => tooLate(head, tries, "while it was queued in the client", false));
    const begunIn = await this.#gate.enter(head.urgency, arrival, ended.signal);
    let how: End = "neither";
    let pause = 0;
    try {
      const outcome = await this.#sendOnce(course);
      if (outcome.kind === "finished") {
        how = "success";
      } else if (outcome.isRefusal) {
        how = "refusal";
        pause = sharedPauseSeconds(outcome.told);
      }
      return outcome;
    } finally {
      this.#gate.leave(begunIn, how, pause);
    }
  }

  async #sendOnce<T>({ call, tries, ended }: Course<T>): Promise<Finished<T> | Setback> {
    ended.signal.throwIfAborted(); // it may have been ended in the turn in which it was let in
    const now = this.#world.clock.now();
    if (!tries.begin(now)) {
      throw tooLate(call.head, tries, "before it could be sent", false);
    }
    this.#tries += 1;
    ended.interruptAt(tries.givesUp, () => tooLate(call.head, tries, "without a response", true));
    const reply = await exchange(this.#fetch, this.#outgoing(call, tries.headers(now)), ended.signal);
    ended.letBe();
    return call.take(reply, this.#world.wall());
  }

  #outgoing<T>(call: Call<T>, ofTry: Record<string, string>): OutgoingRequest {
    const { method, path, headers, requestId, largest } = call.head;
    const body = call.body();
    const contentType: Record<string, string> = body === undefined ? {} : { "content-type": body.contentType };
    return {
      method,
      url: this.#settings.base + path,
      headers: { ...headers, "x-request-id": requestId, ...ofTry, ...contentType },
      body: body?.bytes,
      largest,
    };
  }
}

function closedError(head: CallHead): Cancelled {
  return withSource(new Cancelled("the client was closed before the result"), null, head.requestId);
}

function tooLate(head: CallHead, tries: Tries, when: string, ran: boolean): DeadlineExceeded {
  const seconds = Number(tries.seconds.toPrecision(6)); // a difference of two moments has digits that say nothing
  const error = new DeadlineExceeded(`the call timed out after ${seconds} s, ${when}`, ran);
  return withSource(error, null, head.requestId);
}
