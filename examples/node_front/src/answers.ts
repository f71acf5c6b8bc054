/**
 * Decide how an error is told to a caller: its status, and a problem (RFC 9457).
 *
 * 503 says that nothing was done, so that a caller may send the same again.  What may have run is 500, 502 or 504.
 */

import { STATUS_CODES } from "node:http";
import {
  ConnectionFailed,
  DeadlineExceeded,
  InvalidItem,
  NotReady,
  Overloaded,
  RequestError,
  ServerError,
} from "penstock-client";

/** The request is not what this front takes; the caller must change it. */
export class BadRequest extends Error {
  readonly status: number;

  constructor(message: string, status = 400) {
    super(message);
    this.status = status;
  }
}

export interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly problem: Readonly<Record<string, unknown>>;
}

/** The answer that tells of `error`. */
export function answerOf(error: unknown): Answer {
  const status = statusOf(error);
  const seconds = retryAfterOf(error, status);
  return {
    status,
    headers: seconds === undefined ? {} : { "Retry-After": String(seconds) },
    problem: {
      title: STATUS_CODES[status] ?? "Error",
      status,
      detail: status === 500 && !(error instanceof RequestError) ? "the front failed" : detailOf(error),
      ...(error instanceof InvalidItem && error.path && { path: error.path }),
      ...(error instanceof RequestError && error.requestId && { request_id: error.requestId }),
      ...(seconds !== undefined && { retry_after: seconds }),
    },
  };
}

function statusOf(error: unknown): number {
  if (error instanceof BadRequest) {
    return error.status;
  }
  if (error instanceof InvalidItem) {
    return 422;
  }
  if (error instanceof DeadlineExceeded) {
    return 504;
  }
  if (error instanceof Overloaded) {
    return error.started ? 500 : 429;
  }
  if (error instanceof NotReady) {
    return error.started ? 500 : 503;
  }
  if (error instanceof ConnectionFailed) {
    return error.sent ? 502 : 503;
  }
  return error instanceof ServerError ? 502 : 500;
}

function retryAfterOf(error: unknown, status: number): number | undefined {
  if (status !== 429 && status !== 503) {
    return undefined;
  }
  return error instanceof Overloaded || error instanceof NotReady ? Math.max(1, error.retryAfter) : 1;
}

function detailOf(error: unknown): string {
  if (error instanceof ConnectionFailed) { // its message names the socket
    return error.sent ? "Python ended before it had answered; it may have done the work" : "Python cannot be reached";
  }
  return (error as Error).message;
}
