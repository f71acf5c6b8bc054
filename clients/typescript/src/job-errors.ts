/** The errors of jobs, and of the places of their inputs and outputs. */

import { PenstockError } from "./errors.js";

/** Something is wrong with a job, or with the store that keeps it. */
export class JobError extends PenstockError {
  override name = "JobError";
}

/** There is no such job. */
export class JobNotFound extends JobError {
  override name = "JobNotFound";
}

/** The job is not in the state that the call requires. */
export class JobConflict extends JobError {
  override name = "JobConflict";
}

/** The input is too large for the store; put it into a file or a bucket, and submit its URL. */
export class InputTooLarge extends JobError {
  override name = "InputTooLarge";
}

/** The queue is full; the job was rejected, retry later. */
export class QueueFull extends JobError {
  override name = "QueueFull";
  override retryable = true;
}

/** The job ended without a result. */
export class JobNotSucceeded extends JobError {
  override name = "JobNotSucceeded";
  readonly jobId: string;

  constructor(message: string, jobId: string) {
    super(message);
    this.jobId = jobId;
  }
}

/** The job is dead; `cause` is `invalid_input` where its input was not valid, else "". */
export class JobFailed extends JobNotSucceeded {
  override name = "JobFailed";
  override readonly cause: string;

  constructor(message: string, jobId: string, cause: string) {
    super(message, jobId);
    this.cause = cause;
  }
}

/** The job was cancelled. */
export class JobCancelled extends JobNotSucceeded {
  override name = "JobCancelled";
}

/** The job's deadline passed before it had a result. */
export class JobExpired extends JobNotSucceeded {
  override name = "JobExpired";
}

/** The store of jobs cannot be reached; whether it did what was asked is not known. */
export class StoreUnavailable extends JobError {
  override name = "StoreUnavailable";
  override retryable = true;
}

/** An input could not be fetched, or an output could not be stored. */
export class TransferError extends PenstockError {
  override name = "TransferError";
}

/** The transfer is not allowed or not possible; retrying does not help. */
export class TransferRejected extends TransferError {
  override name = "TransferRejected";
}
