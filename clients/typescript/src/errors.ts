/**
 * The errors of calls, as one tree, with the names that they have in Python.
 *
 * `retryable` says whether the same call may succeed later without anybody changing anything, and would do nothing
 * twice.  A request that ends without a result ends with a `RequestError`.
 */

/** A problem (RFC 9457), as the server wrote it. */
export type Problem = Readonly<Record<string, unknown>>;

/** Something went wrong in Penstock. */
export class PenstockError extends Error {
  override name = "PenstockError";
  retryable = false;
  /** The status of the answer; null where no answer came. */
  status: number | null = null;
  /** What to look for in the server's log. */
  requestId = "";
  /** What the server wrote; null where the answer is no problem. */
  problem: Problem | null = null;
}

/** An option has a value that it cannot have. */
export class ConfigError extends PenstockError {
  override name = "ConfigError";
}

/** A request ended without a result. */
export class RequestError extends PenstockError {
  override name = "RequestError";
  /** Whether a worker was at work on the item before it ended, in whatever stage. */
  started = false;

  /** A worker was at work on the item: who sends it again has its work done twice. */
  markStarted(): void {
    this.started = true;
    this.retryable = false;
  }
}

/** The item is not valid input.  `path` says where in the item, as `$.x[3]`, or is "". */
export class InvalidItem extends RequestError {
  override name = "InvalidItem";
  readonly reason: string;
  readonly path: string;

  constructor(reason: string, path = "") {
    super(path ? `${reason} at \`${path}\`` : reason);
    this.reason = reason;
    this.path = path;
  }
}

/** The service does not accept input of this media type. */
export class UnsupportedMediaType extends InvalidItem {
  override name = "UnsupportedMediaType";
}

/** The service cannot produce results of this media type. */
export class NotAcceptable extends InvalidItem {
  override name = "NotAcceptable";
}

/** When to come again: in whole seconds, and more exactly in milliseconds. */
export interface RetryTimes {
  readonly retryAfter: number;
  readonly retryAfterMs: number;
}

/** The service is full; try again later. */
export class Overloaded extends RequestError {
  override name = "Overloaded";
  override retryable = true;
  readonly retryAfter: number;
  readonly retryAfterMs: number;
  /** Why there is no room: `full`, `bytes`, `late`, `share`, `quota` or `memory`. */
  readonly reason: string;

  constructor(message: string, times: RetryTimes, reason: string) {
    super(message);
    this.retryAfter = times.retryAfter;
    this.retryAfterMs = times.retryAfterMs;
    this.reason = reason;
  }
}

/** The tenant has exceeded its quota; try again later. */
export class QuotaExceeded extends Overloaded {
  override name = "QuotaExceeded";

  constructor(message: string, times: RetryTimes) {
    super(message, times, "quota");
  }
}

/** The deadline passed before there was a result; `ran` says whether a try, or a stage, was at work on the item. */
export class DeadlineExceeded extends RequestError {
  override name = "DeadlineExceeded";
  override retryable = true;
  readonly ran: boolean;
  readonly retryAfter: number;
  readonly retryAfterMs: number;

  constructor(message: string, ran: boolean, times: RetryTimes = { retryAfter: 1, retryAfterMs: 1000 }) {
    super(message);
    this.ran = ran;
    this.retryAfter = times.retryAfter;
    this.retryAfterMs = times.retryAfterMs;
    if (ran) {
      this.markStarted();
    }
  }
}

/** A stage raised an exception for this item. */
export class StageFailed extends RequestError {
  override name = "StageFailed";
  override started = true;
}

/** The worker process died, or hung, while it ran this item. */
export class WorkerLost extends RequestError {
  override name = "WorkerLost";
  override started = true;
}

/** The service is starting, draining, stopped or failed, and accepts no requests; `state` says which. */
export class NotReady extends RequestError {
  override name = "NotReady";
  override retryable = true;
  readonly state: string;
  readonly retryAfter: number;

  constructor(message: string, state: string, retryAfter: number) {
    super(message);
    this.state = state;
    this.retryAfter = retryAfter;
  }
}

/** The caller left before there was a result; or the client was closed. */
export class Cancelled extends RequestError {
  override name = "Cancelled";
}

/** The response is neither a result nor a problem from Penstock. */
export class ServerError extends RequestError {
  override name = "ServerError";
  override retryable = true;
}

/** The server could not be reached, or the connection was lost; `sent` says whether the request was sent. */
export class ConnectionFailed extends RequestError {
  override name = "ConnectionFailed";
  override retryable = true;
  readonly sent: boolean;

  constructor(message: string, sent: boolean, cause?: unknown) {
    super(message, { cause });
    this.sent = sent;
  }
}
