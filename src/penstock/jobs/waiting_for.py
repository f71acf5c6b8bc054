"""Wait until jobs have ended, by looking again and again.

Contract
--------
* The first looks come soon after another, the later ones seldom: who waits for minutes asks a few times a second.
* A store that cannot be reached is asked again until the time is up.
* Nothing here sleeps: who waits is told how long to pause, and so may wait in a thread or on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.errors import ConfigError, StoreUnavailable
from penstock.jobs.endings import no_such_job, read_result, refuse_without_result
from penstock.jobs.job import Job, StoredResult
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.rules.pauses import IDS_IN_LOOK, longer_pause
from penstock.jobs.store import Store

FIRST_PAUSE_SECONDS: Final = 0.01
LONGEST_PAUSE_SECONDS: Final = 0.2
_NAMED_IDS: Final = 5


class Watch:
    """One wait for jobs.

    Args:
        store: who is asked.
        job_ids: the jobs, each once or more.
        timeout: how many seconds to wait; 0 looks once, None waits for ever.
        now: a clock that only goes forward, in seconds.

    Raises:
        ConfigError: `timeout` is no number of seconds.
    """

    def __init__(self, store: Store, job_ids: Sequence[str], timeout: float | None, now: Callable[[], float]) -> None:
        self._store = store
        self._ids = list(job_ids)
        self._timeout = _seconds(timeout)
        self._now = now
        self._until = None if self._timeout is None else now() + self._timeout
        self._pause = FIRST_PAUSE_SECONDS
        self._found: dict[str, Job] = {}
        self._unreachable: StoreUnavailable | None = None

    @property
    def jobs(self) -> list[Job]:
        """The jobs in the order of their ids, once all have ended."""
        return [self._found[job_id] for job_id in self._ids]

    def look(self) -> float | None:
        """Ask the store once: None if all have ended, else how many seconds to pause before the next look.

        Raises:
            JobNotFound: one of them is not there.
            TimeoutError: the time is up.
        """
        self._unreachable = None
        try:
            if self._have_ended():
                return None
        except StoreUnavailable as error:
            self._unreachable = error
        return self._next_pause()

    def _have_ended(self) -> bool:
        """Whether all have ended, and what is wanted of them is there."""
        missing = self._open_ids()
        for first in range(0, len(missing), IDS_IN_LOOK):
            asked = missing[first : first + IDS_IN_LOOK]
            for job_id, job in zip(asked, self._store.get(asked), strict=True):
                if job is None:
                    raise no_such_job(job_id)
                self._found[job_id] = job
        return not self._open_ids()

    def _open_ids(self) -> list[str]:
        unique = dict.fromkeys(self._ids)
        return [job_id for job_id in unique if job_id not in self._found or not self._found[job_id].is_finished]

    def _next_pause(self) -> float:
        missing = self._open_ids()
        left = None if self._until is None else self._until - self._now()
        if left is not None and left <= 0:
            raise TimeoutError(self._words(missing)) from self._unreachable
        pause = self._pause
        self._pause = longer_pause(pause, LONGEST_PAUSE_SECONDS, len(missing))
        return pause if left is None else min(pause, left)

    def _words(self, missing: Sequence[str]) -> str:
        after = f"after {self._timeout:g} s"
        if self._unreachable is not None:
            return f"{after} the states of the jobs are unknown: {self._unreachable}"
        if len(self._ids) == 1:
            job_id = self._ids[0]
            return f"job {job_id} is still {self._found[job_id].state.value} {after}"
        named = ", ".join(missing[:_NAMED_IDS]) + (", …" if len(missing) > _NAMED_IDS else "")
        return f"{len(missing)} of {len(dict.fromkeys(self._ids))} jobs have not finished {after}: {named}"


class ResultWatch(Watch):
    """One wait for a job and its result."""

    def __init__(self, store: Store, job_id: str, timeout: float | None, now: Callable[[], float]) -> None:
        super().__init__(store, [job_id], timeout, now)
        self.stored: StoredResult | None = None
        """The result, once the job has succeeded."""

    def _have_ended(self) -> bool:
        if not super()._have_ended():
            return False
        (job,) = self.jobs
        if job.state is JobState.SUCCEEDED:
            self.stored = self._store.result(job.id)
            if self.stored is None:
                raise no_such_job(job.id)  # somebody has purged it between the two questions
        return True

    def answer(self) -> Any:
        """The result of the job, which has ended.

        Raises:
            JobFailed, JobCancelled, JobExpired: it ended without one.
        """
        (job,) = self.jobs
        refuse_without_result(job)
        assert self.stored is not None, "a job that has succeeded has a result"
        return read_result(self.stored)


def _seconds(timeout: object) -> float | None:
    if timeout is None:
        return None
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout >= 0:
        raise ConfigError(f"timeout must be at least 0 seconds, or None to wait without a limit, got {timeout!r}")
    return float(timeout)
