"""Keep jobs in Redis: each change is one Lua script there, and measures with the server's clock.

Contract
--------
* A script is atomic, and does a bounded amount of work.  `purge` and `tend` may do theirs by several scripts.
* All keys of a queue begin with ``{penstock:QUEUE}:`` and so lie in one slot of a cluster.
* A claim whose answer was lost gets the same jobs when the same holder claims again through this store.
* What an answer promises is as durable as the server makes it: `penstock jobs doctor` says how it should be set up.

The server's clock may be set: a step back has leases and rests take longer by so much, a step forward ends them early.
A server that was restarted may have forgotten its last second: the fences of a job make a small jump then, so that none
is given twice.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

from penstock.errors import ConfigError, JobConflict, JobNotFound, StoreUnavailable
from penstock.jobs.advice import Advice
from penstock.jobs.job import Job, Stats, StoredResult
from penstock.jobs.rules.attempts import MOST_ATTEMPTS, FailureCause
from penstock.jobs.rules.job_states import ENDED, JobState
from penstock.jobs.rules.waiting_bounds import NO_BOUNDS, WaitingBounds
from penstock.jobs.store import (
    LEASE_RAN_OUT,
    Answer,
    AttemptEnd,
    ClaimedJob,
    Delivery,
    Hold,
    KeptInput,
    NewJob,
    Renewed,
    Room,
)
from penstock.jobs.stores import redis_records as records
from penstock.jobs.stores.stored_words import stored_word

T = TypeVar("T")

MOST_SUBMITTED: Final = 10_000
"""The most jobs that one call submits: all or none are kept, so it is one script, and others wait for its end."""
_SHOWN_AT_ONCE: Final = 100
_RENEWED_AT_ONCE: Final = 500
_ENDED_AT_ONCE: Final = 64
_PURGED_AT_ONCE: Final = 500
_MOST_TENDING: Final = 20
"""The most scripts of one `tend`; the next one goes on."""

_STATES: Final = tuple(state.value for state in JobState)
"""In the order of `STATES` in the scripts, which have the stored words."""
_LOST = records.encode(LEASE_RAN_OUT)
_RENEWED = {b"ok": Renewed(Answer.OK), b"cancel": Renewed(Answer.OK, cancel=True), b"lost": Renewed(Answer.LOST)}
_ANSWERS = {b"ok": Answer.OK, b"lost": Answer.LOST}


class ScriptServer(Protocol):
    """A server that runs the scripts of one queue."""

    def run(self, name: str, *arguments: str | bytes | float) -> Any:
        """What the script `name` answers.  It may have run twice, where the first answer was lost.

        Raises:
            StoreUnavailable: the server cannot be reached, or cannot do it now.
            ConfigError: the server refuses us.
        """

    def advice(self) -> list[Advice]:
        """What the server's setup means for jobs."""

    def close(self) -> None:
        """Give up the connections."""


class RedisStore:
    """A queue in Redis 6.2 or later; `redis_.connect_redis` makes one."""

    def __init__(self, server: ScriptServer, queue: str, bounds: WaitingBounds = NO_BOUNDS) -> None:
        self.queue = queue
        self._bounds = bounds
        self._server = server
        process = secrets.token_hex(8)
        self._tokens = (f"{process}-{number}" for number in itertools.count())
        self._unanswered: dict[str, str] = {}
        """The token of a holder's claim whose answer did not come."""

    def __repr__(self) -> str:
        return f"RedisStore({self.queue!r} at {self._server!r})"

    # -- submitters -------------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> list[Job]:
        """See `Store`."""
        if not jobs:
            return []
        if len(jobs) > MOST_SUBMITTED:
            raise ConfigError(
                f"cannot submit {len(jobs)} jobs in one call, the maximum for Redis is {MOST_SUBMITTED}: split the call"
            )
        bounds = ["" if bound is None else bound for bound in (self._bounds.jobs, self._bounds.nbytes)]
        words = itertools.chain.from_iterable(map(records.submission_words, jobs))
        found = self._server.run("submit", *bounds, *words)
        if isinstance(found, int):
            new = jobs[found - 1]
            raise JobConflict(
                f"another job of queue {self.queue} has the id {new.id}"
                + (f" or the key {new.key}" if new.key is not None else "")
                + ", with another input or other options"
            )
        if isinstance(found[0], int):  # it has no room: what waits, and what is new
            waiting, waiting_bytes, new, new_bytes = found
            self._bounds.check(self.queue, waiting=waiting, waiting_bytes=waiting_bytes, new=new, new_bytes=new_bytes)
        return [self._shown(answer)[1] for answer in found]

    def kept_inputs(self, jobs: Sequence[NewJob]) -> list[KeptInput | None]:
        """See `Store`."""
        return [
            None if answer is None else KeptInput(answer[0].decode(), answer[1])
            for some in _slices(jobs, _SHOWN_AT_ONCE)
            for answer in self._server.run("kept", *(word for new in some for word in (new.id, new.key or "")))
        ]

    def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """See `Store`."""
        answers = [answer for some in _slices(job_ids, _SHOWN_AT_ONCE) for answer in self._server.run("get", *some)]
        return [None if answer is None else self._shown(answer)[1] for answer in answers]

    def _shown(self, answer: Sequence[bytes]) -> tuple[int, Job]:
        """A job, and its place in the order; one whose options cannot be read is dead from now on."""
        try:
            return records.read_shown_job(answer, self.queue)
        except records.UnreadableJob as unreadable:
            self._server.run("unreadable", unreadable.job_id)
            (again,) = self._server.run("get", unreadable.job_id)
            return records.read_shown_job(again, self.queue)

    def result(self, job_id: str) -> StoredResult | None:
        """See `Store`."""
        found = self._server.run("result", job_id)
        if found is None:
            return None
        body, content_type, output = found
        return StoredResult(body, content_type.decode(), output.decode() or None)

    def cancel(self, job_id: str) -> Job:
        """See `Store`."""
        return self._changed(job_id, "cancelled", self._server.run("cancel", job_id))

    def retry(self, job_id: str) -> Job:
        """See `Store`."""
        return self._changed(job_id, "retried", self._server.run("retry", job_id, next(self._tokens)))

    def _changed(self, job_id: str, how: str, answer: Sequence[Any]) -> Job:
        word, *rest = answer
        if word == b"missing":
            raise JobNotFound(f"queue {self.queue} has no job {job_id}")
        _, job = self._shown(rest[0])
        if word == b"conflict":
            raise JobConflict(f"job {job_id} cannot be {how}: it is {job.state}")
        return job

    def list_jobs(self, state: JobState | None, limit: int, after: str | None) -> list[Job]:
        """See `Store`."""
        jobs: list[Job] = []
        behind: tuple[str, str] = ("", "-inf") if after is None else (after, "")
        while len(jobs) < limit:
            asked = min(limit - len(jobs), _SHOWN_AT_ONCE)
            answers = self._server.run("list", "" if state is None else stored_word(state), asked, *behind)
            if answers is None:
                raise JobNotFound(f"queue {self.queue} has no job {after}")
            found = [self._shown(answer) for answer in answers]
            jobs += [job for _, job in found if state in (None, job.state)]
            if len(found) < asked:
                break
            behind = ("", f"{found[-1][0]}")
        return jobs

    def purge(self, state: JobState | None, older_than: float) -> int:
        """See `Store`."""
        if state is JobState.RUNNING:
            raise JobConflict("running jobs cannot be purged: cancel them first")
        states = [each for each in JobState if each is not JobState.RUNNING] if state is None else [state]
        words = [stored_word(each) for each in states]
        forgotten = 0
        while count := self._server.run("purge", older_than, _PURGED_AT_ONCE, *words):
            forgotten += count
        return forgotten

    def pause(self) -> None:
        """See `Store`."""
        self._server.run("pause", "1")

    def resume(self) -> None:
        """See `Store`."""
        self._server.run("pause", "")

    def stats(self) -> Stats:
        """See `Store`."""
        *counts, oldest, undelivered, seconds, paused = self._server.run("stats")
        by_state = dict(zip(_STATES, counts, strict=True))
        backlog = by_state[JobState.QUEUED.value] * float(seconds)
        return Stats(
            **by_state,
            oldest_queued_seconds=float(oldest),
            estimated_backlog_seconds=backlog,
            pending_outputs=undelivered,
            paused=bool(paused),
        )

    # -- holders ----------------------------------------------------------------------------------------------------

    def claim(
        self, holder: str, *, lease: float, rooms: Sequence[Room], given_up: Collection[Hold] = ()
    ) -> list[ClaimedJob]:
        """See `Store`."""
        if not any(room.jobs > 0 for room in rooms):
            return []
        token = self._unanswered.pop(holder, None) or next(self._tokens)
        most_lost = MOST_ATTEMPTS[FailureCause.LEASE_EXPIRED]
        wanted = records.rooms_word(rooms)
        not_own = records.encode(dict(given_up)) if given_up else b""
        try:
            found = self._server.run("claim", holder, lease, token, most_lost, _LOST, not_own, wanted)
        except StoreUnavailable:
            self._unanswered[holder] = token
            raise
        jobs: list[ClaimedJob] = []
        for number in range(0, len(found), 3):
            try:
                jobs.append(records.read_claimed_job(*found[number : number + 3]))
            except records.UnreadableJob as unreadable:
                self._server.run("unreadable", unreadable.job_id)
        return jobs

    def renew(self, holds: Sequence[Hold], lease: float) -> list[Renewed]:
        """See `Store`."""
        return [
            _RENEWED[word]
            for some in _slices(holds, _RENEWED_AT_ONCE)
            for word in self._server.run("renew", lease, *(word for hold in some for word in hold))
        ]

    def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[Answer]:
        """See `Store`."""
        return [
            _ANSWERS[word]
            for some in _slices(ends, _ENDED_AT_ONCE)
            for word in self._server.run("end", *itertools.chain.from_iterable(map(records.ending_words, some)))
        ]

    # -- whoever is there -------------------------------------------------------------------------------------------

    def tend(self, *, keep: float, keep_dead: float, seconds_per_job: float | None) -> None:
        """See `Store`."""
        kept = [(state, keep_dead if state is JobState.DEAD else keep) for state in ENDED]
        forgettable = [word for pair in kept if not math.isinf(pair[1]) for word in pair]
        seconds = "" if seconds_per_job is None else seconds_per_job
        for _ in range(_MOST_TENDING):
            if not self._server.run("tend", seconds, *forgettable):
                break

    def deliveries(self, *, limit: int, lease: float) -> list[Delivery]:
        """See `Store`."""
        return [records.read_delivery(packed) for packed in self._server.run("deliveries", max(limit, 0), lease)]

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """See `Store`."""
        if deliveries:
            self._server.run("delivered", *map(records.delivery_word, deliveries))

    def advice(self) -> list[Advice]:
        """See `penstock.jobs.advice.Advisable`."""
        return self._server.advice()

    def close(self) -> None:
        """See `Store`."""
        self._server.close()


def _slices(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[first : first + most] for first in range(0, len(items), most))
