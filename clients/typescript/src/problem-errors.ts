/**
 * Turn the answer of a server into the error that it tells of: the one that a call in process would have raised.
 *
 * The `type` of a problem (RFC 9457) chooses the class, never its status: a server may be told to use others.  An
 * answer that is no problem is a `ServerError`, because something else than the server has written it.
 *
 * Contract
 * --------
 * - Nothing in an answer is taken on trust: a field of the wrong kind is as one that is not there.
 * - An ending that may be retried, of a problem that does not say when, is of an item that has begun: it is not
 *   retryable.
 * - A type that is not known is its nearest base: `JobError` where its name begins with `job-`, else `RequestError`.
 * - Every error has `status`, `requestId`, and where the answer is a problem `problem`.
 */

import { isObject, readJson } from "./bodies.js";
import * as errors from "./errors.js";
import type { PenstockError, Problem, RetryTimes } from "./errors.js";
import * as jobErrors from "./job-errors.js";
import type { NoReply, Reply } from "./replies.js";
import { itemSeconds } from "./retry-rules.js";

const PREFIX = "urn:penstock:problem:";
const PROBLEM_TYPE = "application/problem+json";
/** The status of a dead job whose input was at fault. */
const BY_INPUT_STATUS = 422;
const FULL = new Set([429, 503]);
/** Most characters of a page that is no problem that its error shows. */
const SHOWN = 300;

/** The error that an answer tells of, or the lack of one. */
export function replyError(reply: Reply | NoReply, requestId: string): PenstockError {
  if (reply.kind === "no reply") {
    return withSource(new errors.ConnectionFailed(reply.detail, reply.sent, reply.cause), null, requestId);
  }
  const problem = readProblem(reply);
  const knownAs = reply.headers.get("x-request-id") ?? requestId;
  if (problem === null) {
    const error = new errors.ServerError(`unexpected response (status ${reply.status}, not from Penstock): ${shown(reply)}`);
    return withSource(error, reply.status, knownAs);
  }
  return withSource(errorOf(problem, reply.status), reply.status, knownAs, problem);
}

/** The error of one item of a client batch, whose outcome is `problem`. */
export function itemError(problem: Problem, requestId: string): PenstockError {
  const status = whole(problem, "status", 500);
  return withSource(errorOf(problem, status), status, text(problem, "request_id") || requestId, problem);
}

/** The error of an answer that says it is a result, and cannot be read as one. */
export function unreadable(reply: Reply, requestId: string, why: string): PenstockError {
  const error = new errors.ServerError(`invalid response (status ${reply.status}): ${why}: ${shown(reply)}`);
  return withSource(error, reply.status, reply.headers.get("x-request-id") ?? requestId);
}

/** `error` with what a caller may want to know of the answer that it comes from. */
export function withSource<E extends PenstockError>(
  error: E,
  status: number | null,
  requestId: string,
  problem: Problem | null = null,
): E {
  error.status = status;
  error.requestId = requestId;
  error.problem = problem;
  return error;
}

/**
 * Whether `reply`, which is `error`, says that there was no room; what one tenant may have is no such thing.
 *
 * A 429 or a 503 that is no problem is one as well: proxies refuse so what they have no room for.
 */
export function isRefusal(reply: Reply | NoReply, error: PenstockError): boolean {
  if (error instanceof errors.Overloaded) {
    return error.reason !== "quota";
  }
  return error instanceof errors.ServerError && reply.kind === "reply" && FULL.has(reply.status);
}

function readProblem(reply: Reply): Problem | null {
  const [mediaType = ""] = (reply.headers.get("content-type") ?? "").split(";");
  if (mediaType.trim().toLowerCase() !== PROBLEM_TYPE) {
    return null;
  }
  try {
    const problem = readJson(reply.body);
    return isObject(problem) ? problem : null;
  } catch {
    return null;
  }
}

/** The last part of a problem's type; "" where it is none of ours. */
function kindOf(problem: Problem): string {
  const name = text(problem, "type");
  return name.startsWith(PREFIX) ? name.slice(PREFIX.length) : "";
}

function errorOf(problem: Problem, status: number): PenstockError {
  const error = make(problem, status);
  if (error instanceof errors.RequestError && error.retryable && itemSeconds(problem) === undefined) {
    error.markStarted();
  }
  return error;
}

function make(problem: Problem, status: number): PenstockError {
  const detail = text(problem, "detail") || text(problem, "title");
  const kind = kindOf(problem);
  switch (kind) {
    case "invalid-item":
      return new errors.InvalidItem(detail, text(problem, "path"));
    case "overloaded":
      return new errors.Overloaded(detail, times(problem), text(problem, "reason") || "queue_full");
    case "quota-exceeded":
      return new errors.QuotaExceeded(detail, times(problem));
    case "deadline-exceeded":
      // What has not begun is told when to come again.
      return itemSeconds(problem) === undefined
        ? new errors.DeadlineExceeded(detail, true)
        : new errors.DeadlineExceeded(detail, false, times(problem));
    case "stage-failed":
      return new errors.StageFailed(detail);
    case "worker-lost":
      return new errors.WorkerLost(detail);
    case "not-ready":
      return new errors.NotReady(detail, text(problem, "state"), times(problem).retryAfter);
    case "cancelled":
      return new errors.Cancelled(detail);
    case "format-not-taken":
      return new errors.UnsupportedMediaType(detail);
    case "format-not-given":
      return new errors.NotAcceptable(detail);
    case "job-not-found":
      return new jobErrors.JobNotFound(detail);
    case "job-conflict":
      return new jobErrors.JobConflict(detail);
    case "job-too-large":
      return new jobErrors.InputTooLarge(detail);
    case "queue-full":
      return new jobErrors.QueueFull(detail);
    case "job-failed":
      return new jobErrors.JobFailed(detail, text(problem, "id"), status === BY_INPUT_STATUS ? "invalid_input" : "");
    case "job-cancelled":
      return new jobErrors.JobCancelled(detail, text(problem, "id"));
    case "job-expired":
      return new jobErrors.JobExpired(detail, text(problem, "id"));
    case "store-unavailable":
      return new jobErrors.StoreUnavailable(detail);
    case "place-refused":
      return new jobErrors.TransferRejected(detail);
    default: {
      const Nearest = kind.startsWith("job-") ? jobErrors.JobError : errors.RequestError;
      return new Nearest(detail || `status ${status}`);
    }
  }
}

function text(problem: Problem, name: string): string {
  const value = problem[name];
  return typeof value === "string" ? value : "";
}

function whole(problem: Problem, name: string, otherwise: number): number {
  const value = problem[name];
  return typeof value === "number" && Number.isInteger(value) && value >= 0 ? value : otherwise;
}

/** When to come again, as `Overloaded` has it. */
function times(problem: Problem): RetryTimes {
  const retryAfter = whole(problem, "retry_after", 1);
  return { retryAfter, retryAfterMs: whole(problem, "retry_after_ms", 1000 * retryAfter) };
}

function shown(reply: Reply): string {
  const page = new TextDecoder().decode(reply.body.subarray(0, 4 * SHOWN)).replace(/\s+/g, " ").trim();
  return page.length > SHOWN ? `${page.slice(0, SHOWN)}…` : page || "an empty body";
}
