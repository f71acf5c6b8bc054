"""What the tests of `StoreSuite` share: how a store is opened, how time passes, and what holders say.

Real stores look at clocks of their own.  So no test reckons with two moments that lie close together: a lease is short
and waited for, or so long that no test sees its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.jobs.job import AttemptError, Job
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, ClaimedJob, Hold, NewJob, Room, Store

T = TypeVar("T")

SHORT = 0.05
"""Seconds of a lease, a delay or a rest that a test waits for."""
LONG = 3600.0
"""Seconds of a lease, a delay or a rest whose end no test sees."""
STEP_SECONDS = 0.01
WAIT_SECONDS = 20.0
"""Seconds until something that should have happened counts as not happening."""
MUCH = 1 << 30


class StoreCase:
    """A part of the suite; each test opens stores of its own."""

    def open(self) -> Store:
        """A new store with no jobs."""
        raise NotImplementedError

    def open_again(self, store: Store) -> Store:
        """Another connection to the jobs of `store`."""
        raise NotImplementedError

    def open_bounded(self, store: Store, *, max_waiting: int | None, max_waiting_bytes: int | None) -> Store:
        """Another connection to the jobs of `store`, which lets so much wait."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        """Let `seconds` pass, on the store's clocks."""
        time.sleep(seconds)

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """A new store, closed at the end."""
        store = self.open()
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def bounded(self, store: Store, jobs: int | None = None, nbytes: int | None = None) -> Iterator[Store]:
        """Another connection to the jobs of `store`, which lets so much wait; closed at the end."""
        other = self.open_bounded(store, max_waiting=jobs, max_waiting_bytes=nbytes)
        try:
            yield other
        finally:
            other.close()

    @contextmanager
    def opened_again(self, store: Store) -> Iterator[Store]:
        """Another connection to the jobs of `store`, closed at the end."""
        other = self.open_again(store)
        try:
            yield other
        finally:
            other.close()

    def until(self, look: Callable[[], T]) -> T:
        """Let time pass until `look` gives something true, and return that."""
        for _ in range(round(WAIT_SECONDS / STEP_SECONDS)):
            if found := look():
                return found
            self.pass_time(STEP_SECONDS)
        raise AssertionError(f"it did not happen within {WAIT_SECONDS:.0f} seconds")

    def lose(self, store: Store, holder: str = "lost") -> ClaimedJob:
        """Claim the only job there is, and let its lease run out."""
        claimed = self.until(lambda: take(store, holder, lease=SHORT))[0]
        self.pass_time(2 * SHORT)
        return claimed


def refused(error: type[Exception], call: Callable[[], object]) -> bool:
    """Whether `call` raises `error`."""
    try:
        call()
    except error:
        return True
    return False


# -- submitters -------------------------------------------------------------------------------------------------------


def put(store: Store, job_id: str = "a", **fields: Any) -> Job:
    """Submit one job."""
    (job,) = store.submit([NewJob(job_id, **fields)])
    return job


def see(store: Store, job_id: str = "a") -> Job:
    """A job that is there."""
    (job,) = store.get([job_id])
    assert job is not None, f"there is no job {job_id}"
    return job


def ids(jobs: list[Job] | list[ClaimedJob]) -> list[str]:
    """The ids of `jobs`."""
    return [job.id for job in jobs]


def wall_of(store: Store) -> float:
    """The time in Unix seconds, as the store has it."""
    job = put(store, "what-time-is-it", service="a clock")
    store.cancel(job.id)
    store.purge(JobState.CANCELLED, 0.0)
    return job.created_at


# -- holders ----------------------------------------------------------------------------------------------------------


def take(
    store: Store,
    holder: str = "h",
    *,
    lease: float = LONG,
    limit: int = 1000,
    max_bytes: int = MUCH,
    services: Sequence[str] = (),
    given_up: Sequence[Hold] = (),
) -> list[ClaimedJob]:
    """Claim all there is for any of `services` or for any service, for long, unless the options say otherwise."""
    names = ("", *services)
    rooms = [Room(names, limit, max_bytes), Room(names, limit, max_bytes, of_host=max(limit, 1))]
    return store.claim(holder, lease=lease, rooms=rooms, given_up=given_up)


def take_one(store: Store, holder: str = "h", **options: Any) -> ClaimedJob:
    """Claim all there is, which is one job."""
    (claimed,) = take(store, holder, **options)
    return claimed


def success(hold: Hold, result: bytes = b"1") -> AttemptEnd:
    """The job has a result."""
    return AttemptEnd(hold, JobState.SUCCEEDED, result=result, content_type="application/json")


def handed_back(hold: Hold) -> AttemptEnd:
    """The job was not begun."""
    return AttemptEnd(hold, JobState.QUEUED, FailureCause.RELEASED)


def failure(hold: Hold, to: JobState = JobState.DEAD, *, rest: float = 0.0, alone: bool = False) -> AttemptEnd:
    """A stage raised an exception, which counts."""
    problem = AttemptError(
        "builtins.ValueError", "no such word: \N{SNOWMAN}", "Traceback (most recent call last):\n  …"
    )
    return AttemptEnd(hold, to, FailureCause.APPLICATION, counts=True, alone=alone, rest=rest, problem=problem)
