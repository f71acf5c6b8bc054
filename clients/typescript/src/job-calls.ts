/**
 * Make the calls about jobs, and read what comes of them.  Nothing here does I/O.
 *
 * Each of them may be made twice without harm: a job is submitted with a key, under which a second one is the first.
 */

import { type Body, BYTES_TYPE, bytesOf, formatOf, isObject, JSON_TYPE, readJson, UnreadableBody } from "./bodies.js";
import { SingleCall } from "./calls.js";
import { ConfigError } from "./errors.js";
import { type Job, readJob } from "./job.js";
import { JobNotFound } from "./job-errors.js";
import { writeJson } from "./json.js";
import type { CallMaker } from "./making-calls.js";
import { type Names, show } from "./options.js";
import type { Reply } from "./replies.js";

/** What a job is submitted with. */
export interface JobOptions {
  /** Higher is claimed first. */
  readonly priority?: number | undefined;
  /** Milliseconds before which the job is not claimed. */
  readonly delayMs?: number | undefined;
  /** The moment, in Unix seconds, from which on it is not begun any more. */
  readonly deadline?: number | undefined;
  /** The job's id; without it one is made. */
  readonly id?: string | undefined;
  /** The service that the job is for. */
  readonly service?: string | undefined;
  /** Where the input is; the input is undefined then. */
  readonly inputUrl?: string | undefined;
  /** The URL where the result is to be written; without it the store keeps the result. */
  readonly outputUrl?: string | undefined;
  /** The media type of the input; without it that in which it is written. */
  readonly contentType?: string | undefined;
  /** The media types that the result may have; without it what the service prefers. */
  readonly accept?: string | undefined;
  /** A second submission with this key and the same input is the same job; without it one is made for the call. */
  readonly key?: string | undefined;
}

export const JOB_NAMES: Names<JobOptions> = {
  priority: true,
  delayMs: true,
  deadline: true,
  id: true,
  service: true,
  inputUrl: true,
  outputUrl: true,
  contentType: true,
  accept: true,
  key: true,
};

/** What has come of an ask: the end of a job and its result, or the job, which has not ended. */
export type Asked =
  | { readonly hasEnded: true; readonly result: unknown }
  | { readonly hasEnded: false; readonly job: Job };

const JOB_ID = /^[A-Za-z0-9._-]{1,128}$/;
const MEDIA_TYPE = /^[!-~][ -~]*$/;
/** A key that a header carries as it is. */
const PLAIN_KEY = /^[!-~]([ -~]*[!-~])?$/;

/** Makes the calls about jobs of one client, whose calls have `timeout` seconds. */
export class JobCallMaker {
  readonly #maker: CallMaker;
  readonly #timeout: number;

  constructor(maker: CallMaker, timeout: number) {
    this.#maker = maker;
    this.#timeout = timeout;
  }

  /** A job of the input `given`, undefined where the options name its URL; `key` makes it the same job. */
  submit(given: unknown, options: JobOptions, key: string): SingleCall<Job> {
    const { contentType } = options;
    const body = given === undefined ? undefined : writeInput(given, contentType);
    const query = queryOf(options);
    const headers: Record<string, string> = {};
    if (PLAIN_KEY.test(key)) {
      headers["idempotency-key"] = key;
    } else {
      query.push(["key", key]);
    }
    if (body === undefined && contentType !== undefined) {
      headers["content-type"] = contentType;
    }
    const written = query.map(([name, value]) => `${name}=${quote(value)}`).join("&");
    return new SingleCall(this.#maker.head("POST", written ? `/jobs?${written}` : "/jobs", { headers }), body, jobOf);
  }

  /** The job as it is now. */
  get(job: Job | string): SingleCall<Job> {
    return new SingleCall(this.#maker.head("GET", `/jobs/${idOf(job)}`), undefined, jobOf);
  }

  /** End a job. */
  cancel(job: Job | string): SingleCall<Job> {
    return new SingleCall(this.#maker.head("DELETE", `/jobs/${idOf(job)}`), undefined, jobOf);
  }

  /** The result once the job has ended, or the job as it is after `wait` seconds. */
  ask(job: Job | string, wait: number): SingleCall<Asked> {
    const special = { hasResult: true, flowControlled: false, timeout: wait + this.#timeout };
    const head = this.#maker.head("GET", `/jobs/${idOf(job)}/result?wait=${wait.toFixed(3)}`, special);
    return new SingleCall<Asked>(head, undefined, (reply) =>
      reply.status === 202
        ? { hasEnded: false, job: jobOf(reply) }
        : { hasEnded: true, result: this.#maker.read(reply, true) },
    );
  }
}

/** The id of a job that is given itself or by its id. */
export function idOf(job: Job | string): string {
  const id = isObject(job) ? job["id"] : job;
  if (typeof id !== "string" || id === "") {
    throw new ConfigError(`expected a job or its id, got ${show(job)}`);
  }
  if (!JOB_ID.test(id) || id === "." || id === "..") { // and no path has it
    throw new JobNotFound(`job ${show(id)} does not exist`);
  }
  return id;
}

/** Whether a result looks like the place of an output, which a job may also give as its result. */
export function mayLieElsewhere(result: unknown): result is { readonly output_url: string } {
  return isObject(result) && Object.keys(result).length === 1 && typeof result["output_url"] === "string";
}

function jobOf(reply: Reply): Job {
  let page: unknown;
  try {
    page = readJson(reply.body);
  } catch (error) {
    throw new UnreadableBody(`an invalid job (${String(error)})`);
  }
  return readJob(page);
}

/** The body of an input: bytes as they are, anything else as JSON. */
function writeInput(given: unknown, contentType: string | undefined): Body {
  if (contentType !== undefined && !MEDIA_TYPE.test(contentType)) {
    throw new ConfigError(`contentType must be a media type such as application/json, got ${show(contentType)}`);
  }
  const bytes = bytesOf(given);
  if (bytes !== undefined) {
    return { bytes, contentType: contentType ?? BYTES_TYPE };
  }
  if (contentType !== undefined && formatOf(contentType) !== "json") {
    throw new ConfigError(`an input that is not bytes is sent as ${JSON_TYPE}; pass bytes for ${show(contentType)}`);
  }
  return { bytes: writeJson(given), contentType: contentType ?? JSON_TYPE };
}

/** Those of the options that stand in the query, in its order, and are not what a job has without them. */
function queryOf(options: JobOptions): [string, string][] {
  const { priority = 0, delayMs = 0, deadline, id, service = "", inputUrl, outputUrl, accept } = options;
  const told: [string, string | number | undefined][] = [
    ["priority", priority === 0 ? undefined : priority],
    ["delay", delayMs === 0 ? undefined : delayMs / 1000],
    ["deadline", deadline],
    ["id", id],
    ["service", service === "" ? undefined : service],
    ["input_url", inputUrl],
    ["output_url", outputUrl],
    ["accept", accept],
  ];
  return told.flatMap(([name, value]) => (value === undefined ? [] : [[name, String(value)]]));
}

/** As RFC 3986 has it: of the marks only `-._~` stay. */
function quote(text: string): string {
  return encodeURIComponent(text).replace(/[!'()*]/g, (mark) => `%${mark.charCodeAt(0).toString(16).toUpperCase()}`);
}
