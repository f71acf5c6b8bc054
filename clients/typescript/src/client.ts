/** The client. */

import type { Answer, BatchCall } from "./batch-call.js";
import type { PenstockError } from "./errors.js";
import type { Job } from "./job.js";
import { JOB_NAMES, JobCallMaker, type JobOptions } from "./job-calls.js";
import { JobWaiting } from "./job-waiting.js";
import { CallMaker } from "./making-calls.js";
import { gatherBounded } from "./many-calls.js";
import {
  CALL_NAMES,
  type CallOptions,
  checkNames,
  type ClientOptions,
  type Names,
  readSettings,
  readTerms,
  type Settings,
} from "./options.js";
import { type ClientStats, Sender } from "./sending.js";
import { REAL_WORLD, type World } from "./world.js";

/** What a call of many items asks for itself. */
export interface ManyOptions extends CallOptions {
  /** Whether errors stand in the places of their items; without it the first is thrown. */
  readonly returnExceptions?: boolean | undefined;
  /** Most items of one request.  256 without it. */
  readonly batchSize?: number | undefined;
}

/** How long to wait for a job, and what ends the wait. */
export interface WaitOptions {
  /** Milliseconds; 0 asks once, without it there is no limit. */
  readonly timeoutMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** What ends a call. */
export interface SignalOptions {
  readonly signal?: AbortSignal | undefined;
}

const MANY_NAMES: Names<ManyOptions> = { ...CALL_NAMES, returnExceptions: true, batchSize: true };
const WAIT_NAMES: Names<WaitOptions> = { timeoutMs: true, signal: true };
const SIGNAL_NAMES: Names<SignalOptions> = { signal: true };
const SUBMIT_NAMES: Names<JobOptions & SignalOptions> = { ...JOB_NAMES, ...SIGNAL_NAMES };

/** A server's services, called over HTTP.  Make one for a server, and share it. */
export class Client {
  /** The jobs of the server's queue. */
  readonly jobs: ClientJobs;
  readonly #settings: Settings;
  readonly #world: World;
  readonly #sender: Sender;
  readonly #maker: CallMaker;

  /** `_deps` is for tests: time, chance and names.  Throws `ConfigError` where an option has a value that it cannot have. */
  constructor(url: string | URL, options: ClientOptions = {}, _deps: World = REAL_WORLD) {
    this.#settings = readSettings(url, options);
    this.#world = _deps;
    this.#sender = new Sender(this.#settings, _deps, options.fetch ?? ((...request) => globalThis.fetch(...request)));
    this.#maker = new CallMaker(this.#settings, _deps);
    this.jobs = new ClientJobs(this.#settings, _deps, this.#sender, this.#maker);
  }

  /** What the client has done, and how much it may do. */
  get stats(): ClientStats {
    return this.#sender.stats;
  }

  /** End every call with `Cancelled`, and return once all have ended; may be called any number of times. */
  async close(): Promise<void> {
    await this.#sender.close();
  }

  /** The result of one item: bytes, or what can be written as JSON or MessagePack. */
  async predict<R = unknown>(item: unknown, options: CallOptions = {}): Promise<R> {
    checkNames(options, CALL_NAMES);
    const call = this.#maker.predict(item, readTerms(options, this.#settings));
    return (await this.#sender.send(call, { signal: options.signal })) as R;
  }

  /** The results of many items in their order.  Of what fails, only what may be retried is sent again. */
  async predictMany<R = unknown>(
    items: Iterable<unknown>,
    options: ManyOptions & { readonly returnExceptions: true },
  ): Promise<(R | PenstockError)[]>;
  async predictMany<R = unknown>(
    items: Iterable<unknown>,
    options?: ManyOptions & { readonly returnExceptions?: false | undefined },
  ): Promise<R[]>;
  async predictMany(items: Iterable<unknown>, options: ManyOptions = {}): Promise<unknown[]> {
    checkNames(options, MANY_NAMES);
    const { returnExceptions = false, batchSize = 256, signal } = options;
    this.#sender.check();
    const calls = this.#maker.predictMany(items, readTerms(options, this.#settings), batchSize, returnExceptions);
    const [first] = calls;
    if (first === undefined) {
      return [];
    }
    const deadline = this.#world.clock.now() + first.head.timeout;
    const makers = calls.map(
      (call) => (group: AbortSignal) => this.#sendBatch(call, deadline, returnExceptions, group),
    );
    return (await gatherBounded(makers, this.#settings.maxConcurrency, signal)).flat(1);
  }

  /** What the server says at `/health`; it never waits for its turn. */
  async health(options: SignalOptions = {}): Promise<Record<string, unknown>> {
    checkNames(options, SIGNAL_NAMES);
    return this.#sender.send(this.#maker.health(), { signal: options.signal });
  }

  async #sendBatch(call: BatchCall, deadline: number, keepGoing: boolean, signal: AbortSignal): Promise<unknown[]> {
    const sending = { signal, deadline, isPart: true };
    const answers: readonly Answer[] = call.unsendable ?? (await this.#sender.send(call, sending));
    return answers.map((answer) => {
      if ("result" in answer) {
        return answer.result;
      }
      if (!keepGoing) {
        throw answer.error;
      }
      return answer.error;
    });
  }
}

/** The jobs of a server's queue.  A job is given itself or by its id. */
export class ClientJobs {
  readonly #world: World;
  readonly #sender: Sender;
  readonly #calls: JobCallMaker;
  readonly #waiting: JobWaiting;

  /** It is made by the client. */
  constructor(settings: Settings, world: World, sender: Sender, maker: CallMaker) {
    this.#world = world;
    this.#sender = sender;
    this.#calls = new JobCallMaker(maker, settings.timeout);
    this.#waiting = new JobWaiting(sender, this.#calls, world.clock, settings.maxConcurrency);
  }

  /**
   * Submit a job; it is durable when this returns.
   *
   * Without a `key` one is made for this call, so that a try that may have succeeded can be made again.
   */
  async submit(input: unknown, options: JobOptions & SignalOptions = {}): Promise<Job> {
    checkNames(options, SUBMIT_NAMES);
    const call = this.#calls.submit(input, options, options.key ?? this.#world.newKey());
    return this.#sender.send(call, { signal: options.signal });
  }

  /** The job as it is now. */
  async get(job: Job | string, options: SignalOptions = {}): Promise<Job> {
    checkNames(options, SIGNAL_NAMES);
    return this.#sender.send(this.#calls.get(job), { signal: options.signal });
  }

  /** Wait until all of `jobs` have ended, however they end, and give them in their order. */
  async wait(jobs: Iterable<Job | string>, options: WaitOptions = {}): Promise<Job[]> {
    checkNames(options, WAIT_NAMES);
    return this.#waiting.wait(jobs, options.timeoutMs, options.signal);
  }

  /** Wait until the job has ended, and give its result; of one with an `outputUrl`, the output's URL. */
  async result<R = unknown>(job: Job | string, options: WaitOptions = {}): Promise<R> {
    checkNames(options, WAIT_NAMES);
    return (await this.#waiting.result(job, options.timeoutMs, options.signal)) as R;
  }

  /** End a job that nobody runs; have the holder of another one end it.  The job as it is then. */
  async cancel(job: Job | string, options: SignalOptions = {}): Promise<Job> {
    checkNames(options, SIGNAL_NAMES);
    return this.#sender.send(this.#calls.cancel(job), { signal: options.signal });
  }
}
