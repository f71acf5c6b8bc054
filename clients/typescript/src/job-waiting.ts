/** Wait for the ends of jobs, by asking again and again. */

import { ConfigError, DeadlineExceeded } from "./errors.js";
import type { Job } from "./job.js";
import { Asking } from "./job-asking.js";
import { idOf, type JobCallMaker, mayLieElsewhere } from "./job-calls.js";
import { JobNotSucceeded } from "./job-errors.js";
import { gatherBounded } from "./many-calls.js";
import { withSource } from "./problem-errors.js";
import type { Sender } from "./sending.js";
import type { Clock } from "./world.js";

/** The waits of one client; `most` jobs are asked for at a time. */
export class JobWaiting {
  readonly #sender: Sender;
  readonly #calls: JobCallMaker;
  readonly #clock: Clock;
  readonly #most: number;

  constructor(sender: Sender, calls: JobCallMaker, clock: Clock, most: number) {
    this.#sender = sender;
    this.#calls = calls;
    this.#clock = clock;
    this.#most = most;
  }

  /** The result of a job, once it has ended; of one with an output the output's URL. */
  async result(job: Job | string, timeoutMs: number | undefined, signal: AbortSignal | undefined): Promise<unknown> {
    this.#sender.check();
    const result = await this.#end(job, new Asking(timeoutMs, this.#clock.now()), signal);
    return mayLieElsewhere(result) && (await this.#get(job, signal)).outputUrl !== null ? result.output_url : result;
  }

  /** The jobs as they are once all have ended, however they end. */
  async wait(
    jobs: Iterable<Job | string>,
    timeoutMs: number | undefined,
    signal: AbortSignal | undefined,
  ): Promise<Job[]> {
    if (typeof jobs === "string" || !(Symbol.iterator in jobs)) {
      throw new ConfigError("wait expects several jobs or ids, got one: write [job]");
    }
    this.#sender.check();
    const ids = Array.from(jobs, idOf);
    const now = this.#clock.now();
    const makers = new Map(
      ids.map((id) => {
        const asking = new Asking(timeoutMs, now);
        return [id, (group: AbortSignal) => this.#endedJob(id, asking, group)];
      }),
    );
    const found = await gatherBounded([...makers.values()], this.#most, signal);
    const byId = new Map([...makers.keys()].map((id, place) => [id, found[place]!]));
    return ids.map((id) => byId.get(id)!);
  }

  async #endedJob(id: string, asking: Asking, signal: AbortSignal): Promise<Job> {
    try {
      await this.#end(id, asking, signal);
    } catch (error) {
      if (!(error instanceof JobNotSucceeded)) { // that is an end, too
        throw error;
      }
    }
    return this.#get(id, signal);
  }

  async #get(job: Job | string, signal: AbortSignal | undefined): Promise<Job> {
    return this.#sender.send(this.#calls.get(job), { signal, isPart: true });
  }

  /** The result as it came. */
  async #end(job: Job | string, asking: Asking, signal: AbortSignal | undefined): Promise<unknown> {
    for (;;) {
      const began = this.#clock.now();
      const wait = asking.waitSeconds(began);
      const call = this.#calls.ask(job, wait);
      const found = await this.#sender.send(call, { signal, deadline: asking.deadline(began), isPart: true });
      if (found.hasEnded) {
        return found.result;
      }
      const now = this.#clock.now();
      const pause = asking.pauseSeconds(wait, now - began, now);
      if (pause === undefined) {
        const text = `job ${found.job.id} is still ${found.job.state} after ${asking.timeout} s`;
        throw withSource(new DeadlineExceeded(text, false), null, call.head.requestId);
      }
      if (pause > 0) {
        await this.#sender.pause(pause, call.head, signal);
      }
    }
  }
}
