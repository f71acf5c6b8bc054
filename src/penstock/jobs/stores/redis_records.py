"""Write and read what the scripts of the Redis store keep of a job.

A record is MessagePack, so that a script reads and writes it too.  `lua/common.lua` says which records there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.jobs.job import MOST_HISTORY, Attempt, AttemptError, Job
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, ClaimedJob, Delivery, NewJob, Room
from penstock.jobs.stores.stored_words import shown_attempt, shown_counts, shown_word, stored_word


class JobRecord(msgspec.Struct, frozen=True):
    """What changes in the life of a job, as far as somebody outside the scripts looks at it."""

    id: str
    state: str
    """In the stored words, as are the causes of `attempts`."""
    seq: int
    """Its place in the order of submission."""
    created: float
    service: str
    run: int
    fence: int
    priority: int
    alone: bool = False
    attempts: dict[str, int] = {}
    holder: str = ""
    """Who has claimed it, while it is leased."""
    claimed: float = 0.0
    due: float | None = None
    ended: float | None = None
    deadline: float | None = None
    output: str | None = None


class JobSpec(msgspec.Struct, frozen=True, array_like=True):
    """What never changes in the life of a job, besides its input."""

    content_type: str = ""
    accept: str = ""
    input_url: str | None = None


class SubmitOptions(msgspec.Struct, frozen=True):
    """What the script that submits a job looks at."""

    priority: int
    service: str
    delay: float
    deadline: float | None
    output: str | None
    host: str | None


_record: msgspec.msgpack.Decoder[JobRecord] = msgspec.msgpack.Decoder(JobRecord)
_spec: msgspec.msgpack.Decoder[JobSpec] = msgspec.msgpack.Decoder(JobSpec)
_problem: msgspec.msgpack.Decoder[AttemptError] = msgspec.msgpack.Decoder(AttemptError)
_attempt: msgspec.msgpack.Decoder[tuple[int, int, str, float, float, str]] = msgspec.msgpack.Decoder(
    tuple[int, int, str, float, float, str]
)
_delivery: msgspec.msgpack.Decoder[tuple[str, str, int, int, int]] = msgspec.msgpack.Decoder(
    tuple[str, str, int, int, int]
)
encode = msgspec.msgpack.Encoder().encode


class UnreadableJob(Exception):
    """The options of a job cannot be read: somebody else has changed them."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


def submission_words(job: NewJob) -> tuple[str | bytes, ...]:
    """The arguments of `submit.lua` for `job`."""
    options = SubmitOptions(job.priority, job.service, job.delay, job.deadline, job.output, job.host or None)
    spec = JobSpec(job.content_type, job.accept, job.input_url)
    return job.id, job.key or "", job.digest, encode(options), encode(spec), job.body


def read_shown_job(answer: Sequence[bytes], queue: str) -> tuple[int, Job]:
    """A job as its submitter sees it, of what `shown` in `common.lua` gives; and its place in the order.

    Raises:
        UnreadableJob: its options are not what `submission_words` has written.
    """
    packed, packed_spec, packed_problem, *packed_attempts = answer
    record = _record.decode(packed)
    try:
        spec = _spec.decode(packed_spec) if packed_spec else JobSpec()
        problem = _problem.decode(packed_problem) if packed_problem else None
        attempts = [shown_attempt(*_attempt.decode(each)) for each in packed_attempts]
    except msgspec.MsgspecError:
        raise UnreadableJob(record.id) from None
    state = JobState(shown_word(record.state))
    if state is JobState.RUNNING:
        attempts.append(Attempt(record.run, record.fence, record.holder, record.claimed))
    job = Job(
        id=record.id,
        queue=queue,
        state=state,
        created_at=record.created,
        service=record.service,
        generation=record.run,
        failures=shown_counts(record.attempts),
        attempts=tuple(attempts[-MOST_HISTORY:]),
        finished_at=record.ended,
        priority=record.priority,
        scheduled_at=record.due,
        expires_at=record.deadline,
        error=problem,
        input_url=spec.input_url,
        output_url=record.output,
    )
    return record.seq, job


def rooms_word(rooms: Sequence[Room]) -> bytes:
    """The argument of `claim.lua` for `rooms`."""
    return encode([(*room[:4], dict(room.at_hosts)) for room in rooms])


def read_claimed_job(packed: bytes, packed_spec: bytes, body: bytes) -> ClaimedJob:
    """A job as it is handed to its holder.

    Raises:
        UnreadableJob: its options are not what `submission_words` has written.
    """
    record = _record.decode(packed)
    try:
        spec = _spec.decode(packed_spec)
    except msgspec.MsgspecError:
        raise UnreadableJob(record.id) from None
    return ClaimedJob(
        record.id,
        record.fence,
        record.run,
        body,
        spec.content_type,
        spec.accept,
        record.service,
        record.alone,
        shown_counts(record.attempts),
        record.deadline,
        spec.input_url,
        record.output,
    )


def ending_words(end: AttemptEnd) -> tuple[bytes, bytes, bytes]:
    """The arguments of `end.lua` for `end`."""
    cause = None if end.cause is None else stored_word(end.cause)
    told = (*end.hold, stored_word(end.to), cause, end.counts, end.alone, end.rest, end.content_type, end.transfers)
    return encode(told), b"" if end.problem is None else encode(end.problem), end.result


def read_delivery(packed: bytes) -> Delivery:
    """A delivery, of what `deliveries.lua` gives."""
    return Delivery(*_delivery.decode(packed))


def delivery_word(made: Delivery) -> str:
    """The argument of `delivered.lua` for `made`."""
    return f"{made.last_fence}:{made.job_id}"
