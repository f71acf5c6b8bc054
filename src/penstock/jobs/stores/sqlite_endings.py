"""End the attempts of the jobs of a queue's file.

Each function is part of one transaction, which its caller has begun.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.hosting.host_clock import Reading
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import ENDED, JobState
from penstock.jobs.store import Answer, AttemptEnd, wrote_nothing
from penstock.jobs.stores.sqlite_rows import (
    NAMES,
    NUMBERS,
    PLACES,
    change_jobs,
    chunks,
    read_counts,
    write_counts,
    write_problem,
)
from penstock.jobs.stores.stored_words import stored_word

_SCHEDULED: Final = NUMBERS[JobState.SCHEDULED]
_LEASED: Final = NUMBERS[JobState.RUNNING]
_SUCCEEDED: Final = NUMBERS[JobState.SUCCEEDED]
_CANCELLED: Final = NUMBERS[JobState.CANCELLED]
_FIRST_ENDED: Final = _LEASED + 1


class HeldJob(NamedTuple):
    """What ending an attempt needs to know of its job."""

    id: str
    seq: int
    fence: int
    state: int
    cancelling: int
    attempts: str
    alone: int
    problem: str | None
    cause: str | None
    first_fence: int | None
    output: str | None


def end_held(connection: sqlite3.Connection, queue: int, ends: Sequence[AttemptEnd], now: Reading) -> list[Answer]:
    """See `Store.end_attempts`."""
    held: dict[str, HeldJob] = {}
    for ids in chunks([end.hold.job_id for end in ends]):
        rows = connection.execute(
            f"SELECT {', '.join(HeldJob._fields)} FROM jobs WHERE queue = ? AND id IN ({PLACES})",  # noqa: S608
            (queue, *ids),
        )
        held.update((row[0], HeldJob._make(row)) for row in rows)
    answers, changes = [], Endings(queue, now)
    causes: dict[str, str] = {}
    for end in ends:
        job_id, fence = end.hold
        job = held.get(job_id)
        if job is None or job.fence != fence:
            answers.append(Answer.LOST)
        elif job.state != _LEASED or job_id in causes:
            answers.append(Answer.OK if _is_repeated(causes.get(job_id, job.cause), end) else Answer.LOST)
        else:
            causes[job_id] = changes.add(job, end)
            answers.append(Answer.OK)
    changes.make(connection)
    return answers


class Endings:
    """What is written for the attempts that end together: one statement for each table."""

    def __init__(self, queue: int, now: Reading) -> None:
        self._queue = queue
        self._now = now
        self._jobs: list[tuple[tuple[Any, ...], int]] = []
        self._results: list[tuple[int, bytes]] = []
        self._unneeded: list[tuple[int]] = []
        self._deliveries: list[tuple[Any, ...]] = []
        self._resting: list[int] = []

    def add(self, job: HeldJob, end: AttemptEnd) -> str:
        """End an attempt, and return the stored word of the cause by which it has ended."""
        wall, boottime = self._now
        state = NUMBERS[end.to]
        if job.cancelling and state < _FIRST_ENDED:
            state = _CANCELLED
        ended, rests = state >= _FIRST_ENDED, state == _SCHEDULED
        cause = NAMES[state] if ended else _cause(end)
        attempts, problem = job.attempts, job.problem
        if end.counts and end.cause is not None:
            attempts = _counted(attempts, end.cause, 1)
        if end.transfers:
            attempts = _counted(attempts, FailureCause.TRANSFER, end.transfers)
        if end.problem is not None:
            problem = write_problem(end.problem)
        if state == _SUCCEEDED:
            problem = None
            if end.result and job.output is None:
                self._results.append((job.seq, end.result))
            else:
                self._unneeded.append((job.seq,))
        if ended and job.output is not None and not wrote_nothing(end, job.first_fence):
            fence = job.fence if state == _SUCCEEDED else 0
            self._deliveries.append((self._queue, job.id, job.fence, job.first_fence, fence, job.output))
        values = (
            state,
            wall,
            cause,
            wall if ended else None,
            boottime + end.rest if rests else None,
            wall + end.rest if rests else None,
            attempts,
            1 if job.alone or end.alone else 0,
            problem,
            end.content_type if state == _SUCCEEDED else None,
        )
        self._jobs.append((values, job.seq))
        if rests:
            self._resting.append(job.seq)
        return cause

    def make(self, connection: sqlite3.Connection) -> None:
        """Write everything."""
        change_jobs(
            connection,
            "state = ?, claim_ended = ?, cause = ?, ended = ?, due = ?, not_before = ?, attempts = ?, alone = ?, "
            "problem = ?, result_type = ?, lease_until = NULL",
            self._jobs,
        )
        for seq in self._resting:
            connection.execute(
                "UPDATE queues SET last_turn = 1 + max(last_turn, (SELECT max(seq) FROM jobs)) WHERE number = ?",
                (self._queue,),
            )
            connection.execute(
                "UPDATE jobs SET turn = (SELECT last_turn FROM queues WHERE number = ?) WHERE seq = ?",
                (self._queue, seq),
            )
        connection.executemany("INSERT OR REPLACE INTO bodies VALUES (?, ?)", self._results)
        connection.executemany("DELETE FROM bodies WHERE seq = ?", self._unneeded)
        connection.executemany("INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?, ?, ?, ?, -1.0)", self._deliveries)


def _counted(attempts: str, cause: FailureCause, n: int) -> str:
    """The text of `attempts` with `n` more of this cause."""
    counts = read_counts(attempts)
    return write_counts({**counts, cause.value: counts.get(cause.value, 0) + n})


def _cause(end: AttemptEnd) -> str:
    """The stored word by which an attempt ends that does not end its run."""
    return stored_word(end.cause or FailureCause.RELEASED)


def _is_repeated(cause: str | None, end: AttemptEnd) -> bool:
    """Whether `end` was told before: the attempt has ended just so, or as cancelled where it would have gone back."""
    if end.to in ENDED:
        return cause == end.to.value
    return cause in (_cause(end), JobState.CANCELLED.value)


def read_held(connection: sqlite3.Connection, seq: int) -> HeldJob:
    """The job in row `seq`."""
    row = connection.execute(f"SELECT {', '.join(HeldJob._fields)} FROM jobs WHERE seq = ?", (seq,)).fetchone()  # noqa: S608
    return HeldJob._make(row)
