/** A job as its submitter sees it, read from what the server says.  Times are Unix seconds. */

import { isObject, UnreadableBody } from "./bodies.js";

export type JobState = "scheduled" | "waiting" | "leased" | "succeeded" | "dead" | "cancelled" | "expired";

/** One claim of a job. */
export interface Attempt {
  /** The run it belongs to, from 1. */
  readonly run: number;
  /** Its number: larger than that of every claim before it, in all runs. */
  readonly fence: number;
  /** The consumer that claimed the job. */
  readonly holder: string;
  readonly claimed: number;
  /** When it ended; null while it may go on. */
  readonly ended: number | null;
  /** Why it ended; "" while it may go on. */
  readonly cause: string;
}

/** Why an attempt of a job failed. */
export interface AttemptError {
  /** The class of the error, as `module.Qualname`. */
  readonly type: string;
  readonly message: string;
  readonly traceback: string;
}

/** A job, as its store had it when it was asked. */
export interface Job {
  readonly id: string;
  readonly queue: string;
  readonly state: JobState;
  readonly created: number;
  /** The service that it is for; "" is any. */
  readonly service: string;
  /** How often it was begun from the start: 1, and one more for each time it was retried. */
  readonly run: number;
  /** The attempts of this run that count, by cause. */
  readonly attempts: Readonly<Record<string, number>>;
  /** The last hundred claims, oldest first, of all runs. */
  readonly history: readonly Attempt[];
  readonly ended: number | null;
  readonly priority: number;
  /** The moment from which it may be claimed, while it is scheduled; else null. */
  readonly notBefore: number | null;
  readonly deadline: number | null;
  /** Why the last attempt of this run that failed did so; null where none did, or where the job succeeded. */
  readonly error: AttemptError | null;
  readonly inputUrl: string | null;
  readonly output: string | null;
}

/** The job that `page` is.  Throws `UnreadableBody` where it is none. */
export function readJob(page: unknown): Job {
  if (!isObject(page) || typeof page["id"] !== "string" || typeof page["state"] !== "string") {
    throw new UnreadableBody("an invalid job");
  }
  const { not_before: notBefore = null, input_url: inputUrl = null, ...rest } = page;
  return { ...WITHOUT, ...rest, notBefore, inputUrl } as unknown as Job; // the other members are taken on trust
}

/** What a job has where the server does not say. */
const WITHOUT = {
  queue: "",
  created: 0,
  service: "",
  run: 1,
  attempts: {},
  history: [],
  ended: null,
  priority: 0,
  deadline: null,
  error: null,
  output: null,
};
