"""Every error Penstock raises, as one tree.

The first sentence of a class's docstring is its default message.  `retryable` says whether the same call may
succeed later without anybody changing anything, and would do nothing twice; clients and the table of HTTP statuses read
it.

A request that ends without a result ends with a `RequestError`.  The code that accepted an item settles it, with a
result or with one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any


class PenstockError(Exception):
    """Something went wrong in Penstock.

    `status`, `request_id` and `problem` are what a client was told over HTTP, or None, "" and None.
    """

    retryable: bool = False
    status: int | None = None
    request_id: str = ""
    problem: Mapping[str, Any] | None = None

    def __init__(self, message: str = "") -> None:
        super().__init__(message or self.default_message())

    @classmethod
    def default_message(cls) -> str:
        """The first line of the class's docstring."""
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0]


class ConfigError(PenstockError, ValueError):
    """An option has an invalid value."""


class StartFailed(PenstockError):
    """The service could not start.

    `traceback` has the remote traceback as text where a worker failed, else "".
    """

    def __init__(self, message: str = "", *, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback

    def __str__(self) -> str:
        base, trace = super().__str__(), self.traceback.rstrip()
        return f"{base}\n\n{trace}" if "\n" in trace else base  # one line is the message once more


class ProtocolError(PenstockError):
    """The peer of a channel sent something that is not a frame."""


REFUSAL_REASONS = ("queue_full", "memory_budget", "deadline", "preempted", "quota", "memory_pressure")
"""Why a request is refused that another time would be taken: `Overloaded.reason`."""


class RequestError(PenstockError):
    """A request ended without a result.

    `started` says whether a worker was at work on the item before it ended, in whatever stage.  A retry of
    such an item repeats its work, so it is not `retryable`, whatever its class says.
    """

    started: bool = False

    def mark_started(self) -> None:
        """A worker was at work on the item."""
        self.started = True
        self.retryable = False


class InvalidItem(RequestError):
    """The item is not valid input.

    The codecs raise it, and so may user code: ``raise ps.InvalidItem("too long")``, or returned in an item's place.  It
    is the caller's fault, and never logged as a fault of the service.  It is bisected only where `predict` raises it
    for a whole batch.  `path` says where in the item, as ``$.x[3]``, or is "".  Where several things are wrong, the
    reason has the path of each, and `path` is the first.
    """

    def __init__(self, reason: str = "", *, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason or self.default_message()
        self.path = path

    def __str__(self) -> str:
        where = f" at `{self.path}`"
        return self.reason if not self.path or where in self.reason else self.reason + where


class UnsupportedMediaType(InvalidItem):
    """The service does not accept input of this media type."""


class NotAcceptable(InvalidItem):
    """The service cannot produce results of this media type."""


class Overloaded(RequestError):
    """The service is full; try again later.

    `retry_after` says when, in whole seconds, from 1 to 60, and `retry_after_ms` more exactly in milliseconds, at least
    50.  `reason` is one of `REFUSAL_REASONS`.
    """

    retryable = True

    def __init__(
        self, message: str = "", *, retry_after: int = 1, retry_after_ms: int | None = None, reason: str = "queue_full"
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.retry_after_ms = 1000 * retry_after if retry_after_ms is None else retry_after_ms
        self.reason = reason


class QuotaExceeded(Overloaded):
    """The tenant has exceeded its quota; try again later."""

    def __init__(self, message: str = "", *, retry_after: int = 1, retry_after_ms: int | None = None) -> None:
        super().__init__(message, retry_after=retry_after, retry_after_ms=retry_after_ms, reason="quota")


class DeadlineExceeded(RequestError):
    """The deadline passed before there was a result.

    `ran` tells whether a stage was at work on the item when the deadline passed.  False means that the item was still
    waiting, and that the stage it waited for never ran it; `retry_after` and `retry_after_ms` then say when to try
    again, as those of `Overloaded`.
    """

    retryable = True
    retry_after = 1
    retry_after_ms = 1000

    def __init__(self, message: str = "", *, ran: bool = False) -> None:
        super().__init__(message)
        self.ran = ran
        if ran:
            self.mark_started()


RETURNED = {
    "penstock.codec.encode.EncodeFailed": "returned a result that cannot be encoded",
    "penstock.codec.encode.ResultMismatch": "returned a result that is not of its declared type",
    "penstock.codec.example.WrongAnswer": "returned a wrong result for an example",
    "penstock.worker.problems.WrongLength": "returned a different number of results than items",
}
"""What a stage did that raised nothing, by the name of our error that says so."""


class StageFailed(RequestError):
    """A stage raised an exception for this item.

    It carries what happened in the worker as text: `stage`, `type_name` (``module.Qualname``), `message`, `traceback`,
    `mro` and `raised_at`.  `mro` has the names of the remote type and its bases, `raised_at` is the ``file:line`` that
    raised, or "", and of a result that cannot be encoded the type of what cannot be, or its place.  A message has at
    most 8 KiB, a traceback 64 KiB: of longer ones the middle is cut.
    """

    started = True

    def __init__(
        self,
        message: str = "",
        *,
        stage: str = "",
        type_name: str = "",
        mro: tuple[str, ...] = (),
        traceback: str = "",
        raised_at: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.type_name = type_name
        self.mro = mro
        self.traceback = traceback
        self.raised_at = raised_at

    @property
    def action(self) -> str:
        """What the stage did, in words that any caller may read."""
        return RETURNED.get(self.type_name, "raised an exception")

    def is_a(self, kind: type[BaseException]) -> bool:
        """Whether the remote exception was of `kind`, judged by name: the class itself never travels."""
        return f"{kind.__module__}.{kind.__qualname__}" in self.mro

    def __str__(self) -> str:
        if not self.stage and not self.type_name:
            return _with_traceback(str(self.args[0]), self.traceback)  # a client is told what happened in words
        # A worker from outside need not say of what class its error is.
        what = RETURNED.get(self.type_name, f"raised {self.type_name}" if self.type_name else "failed")
        return _with_traceback(f"stage {self.stage!r} {what}: {self.message}", self.traceback)


class WorkerLost(RequestError):
    """The worker process died, or hung, while it ran this item.

    `stage` names where.  `hung` says that the worker was killed because the stage's `timeout` had passed.  `alone` says
    that the item was the only one of its batch, so nothing else can have been at fault.  Where an item is tried once
    more, both are about the second time.
    """

    started = True

    def __init__(self, message: str = "", *, stage: str = "", hung: bool = False, alone: bool = False) -> None:
        super().__init__(message)
        self.stage = stage
        self.hung = hung
        self.alone = alone


class NotReady(RequestError):
    """The service is starting, draining, stopped or failed, and accepts no requests.

    `state` is the service's state by name.  `retry_after` is in whole seconds, at least 1: while a stage rests, the
    time until it is tried again.
    """

    retryable = True

    def __init__(self, message: str = "", *, state: str = "", retry_after: int = 1) -> None:
        super().__init__(message)
        self.state = state
        self.retry_after = retry_after


class Cancelled(RequestError):
    """The caller cancelled the request before there was a result."""


class ServerError(RequestError):
    """The response is neither a result nor a problem from Penstock.

    A client raises it: something between the two has answered, such as a proxy, or the answer cannot be read.
    """

    retryable = True


class ConnectionFailed(RequestError):
    """The server could not be reached, or the connection was lost before the response was complete.

    A client raises it.  `sent` says whether the request, or a part of it, was sent: then it may have run.
    """

    retryable = True

    def __init__(self, message: str = "", *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class JobError(PenstockError):
    """Something is wrong with a job, or with the store that keeps it."""


class JobNotFound(JobError):
    """There is no such job.

    It was never submitted, or it ended so long ago that it is no longer kept, or it was purged.
    """


class JobConflict(JobError):
    """The job is not in the state that the call requires.

    Another job has the same key or id and another body, or the job has ended already, or it has not ended yet.
    """


class InputTooLarge(JobError):
    """The input is too large for the store; put it into a file or a bucket, and submit its URL."""


class QueueFull(JobError):
    """The queue is full; the job was rejected, retry later."""

    retryable = True


class JobNotSucceeded(JobError):
    """The job ended without a result.

    `job_id` is the job's id.  `type_name` and `traceback` say what was raised in a worker; they are "" where nothing
    was.
    """

    def __init__(self, message: str = "", *, job_id: str = "", type_name: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id
        self.type_name = type_name
        self.traceback = traceback

    def __str__(self) -> str:
        return _with_traceback(super().__str__(), self.traceback)


class JobFailed(JobNotSucceeded):
    """The job is dead: it used up its attempts, or its input was not valid.

    `cause` is the cause of its attempts that ended it, as `invalid_input` or `worker_lost`; "" where that is not known.
    """

    def __init__(
        self, message: str = "", *, job_id: str = "", type_name: str = "", traceback: str = "", cause: str = ""
    ) -> None:
        super().__init__(message, job_id=job_id, type_name=type_name, traceback=traceback)
        self.cause = cause


class JobCancelled(JobNotSucceeded):
    """The job was cancelled."""


class JobExpired(JobNotSucceeded):
    """The job's deadline passed before it had a result."""


class StoreUnavailable(JobError):
    """The job store cannot be reached, or did not answer in time.

    Whether it did what was asked is not known.
    """

    retryable = True


class TransferError(PenstockError):
    """An input could not be fetched, or an output could not be stored."""


class TransferFailed(TransferError):
    """The transfer failed and may succeed later.

    The other end was slow, was cut off, could not be reached or had trouble of its own; or there was no room on a disk.
    """

    retryable = True


class TransferRejected(TransferError):
    """The transfer is not allowed or not possible; retrying does not help."""


class TransferCancelled(TransferError):
    """The transfer was stopped before it was complete."""

    retryable = True


class ExportError(PenstockError):
    """A model could not be exported, or an artifact cannot be used."""


class ExportRefused(ExportError):
    """The exported model does not give the same results as the trained model.

    `format` is the format of the graph that failed, `output` the name of the output, `row` the number of the worst row
    among the reference rows and then the validation rows, from 0; `expected` is what the model answered, `got` what
    the graph did, or the model itself when it was asked once more.  An unknown value is "" or None.
    """

    def __init__(
        self,
        message: str = "",
        *,
        format: str = "",  # noqa: A002  # the word users know
        output: str = "",
        row: int | None = None,
        expected: object = None,
        got: object = None,
    ) -> None:
        super().__init__(message)
        self.format = format
        self.output = output
        self.row = row
        self.expected = expected
        self.got = got


class ArtifactInvalid(ExportError):
    """The folder is not an artifact or model directory, or was changed after it was written.

    `file` is the path of the file at fault, below the folder; "" where it is the folder itself.
    """

    def __init__(self, message: str = "", *, file: str = "") -> None:
        super().__init__(message)
        self.file = file


class PublishFailed(ExportError):
    """The model directory could not be changed; retry later.

    There is no room on its disk, it may not be written, or somebody else has been changing it for too long.  It is as
    it was, unless the message says otherwise.
    """

    retryable = True


class TrainingError(PenstockError):
    """Something went wrong in a training run."""


class RunFailed(TrainingError):
    """The training run has failed: a task used up its attempts.

    `task` says which, as ``train 3``; `traceback` has what its last attempt raised, or how its worker was lost.
    """

    def __init__(self, message: str = "", *, task: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.task = task
        self.traceback = traceback

    def __str__(self) -> str:
        return _with_traceback(super().__str__(), self.traceback)


class LeaseLost(TrainingError):
    """The lease of the task expired and another worker has it; the result was dropped."""


class RunUnavailable(TrainingError):
    """The file of the training run is not available: it is locked or missing, or the disk is full or fails."""

    retryable = True


class EmbeddingError(PenstockError):
    """Rows of an embedding table could not be read, changed or stored."""


class TableMismatch(EmbeddingError):
    """A different table with that name exists."""


class RowsUnavailable(EmbeddingError):
    """The row store is not available: it is locked or missing, or the disk is full or fails."""

    retryable = True


def _with_traceback(message: str, traceback: str) -> str:
    trace = traceback.rstrip()
    return f"{message}\n\n{trace}" if trace else message


if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> Any:
        from penstock.spelling import explain_name

        raise AttributeError(explain_name(__name__, name))
