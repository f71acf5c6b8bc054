/** A job as its submitter sees it, read from what the server says.  Times are Unix seconds. */

import { isObject, UnreadableBody } from "./bodies.js";

export type JobState = "scheduled" | "queued" | "running" | "succeeded" | "dead" | "cancelled" | "expired";

/** One claim of a job. */
export interface Attempt {
  /** The generation of the job it belongs to, from 1. */
  readonly generation: number;
  /** Its number: larger than that of every claim before it, in all runs. */
  readonly fencingToken: number;
  /** The consumer that claimed the job. */
  readonly consumerId: string;
  readonly startedAt: number;
  /** When it ended; null while it may go on. */
  readonly finishedAt: number | null;
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
  readonly createdAt: number;
  /** The service that it is for; "" is any. */
  readonly service: string;
  /** How often it was begun from the start: 1, and one more for each time it was retried. */
  readonly generation: number;
  /** The attempts of this run that count, by cause. */
  readonly failures: Readonly<Record<string, number>>;
  /** The last hundred claims, oldest first, of all runs. */
  readonly attempts: readonly Attempt[];
  readonly finishedAt: number | null;
  readonly priority: number;
  /** The moment from which it may be claimed, while it is scheduled; else null. */
  readonly scheduledAt: number | null;
  readonly expiresAt: number | null;
  /** Why the last attempt of this run that failed did so; null where none did, or where the job succeeded. */
  readonly error: AttemptError | null;
  readonly inputUrl: string | null;
  readonly outputUrl: string | null;
}

/** The job that `page` is.  Throws `UnreadableBody` where it is none. */
export function readJob(page: unknown): Job {
  if (!isObject(page) || typeof page["id"] !== "string" || typeof page["state"] !== "string") {
    throw new UnreadableBody("an invalid job");
  }
  const found: Record<string, unknown> = { ...WITHOUT, ...camelNames(page) };
  if (Array.isArray(found["attempts"])) {
    found["attempts"] = found["attempts"].map((one: unknown) => (isObject(one) ? camelNames(one) : one));
  }
  return found as unknown as Job; // the members are taken on trust
}

/** The members of `page` by their names in camel case. */
function camelNames(page: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(page).map(([name, value]) => [camelName(name), value]));
}

function camelName(name: string): string {
  return name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

/** What a job has where the server does not say. */
const WITHOUT = {
  queue: "",
  createdAt: 0,
  service: "",
  generation: 1,
  failures: {},
  attempts: [],
  finishedAt: null,
  priority: 0,
  scheduledAt: null,
  expiresAt: null,
  error: null,
  inputUrl: null,
  outputUrl: null,
};
