"""Make jobs of the rows of a queue's file, and rows of jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from penstock.jobs.job import MOST_HISTORY, Attempt, AttemptError, Job
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.stores.stored_words import shown_attempt, shown_counts, stored_counts, stored_word

T = TypeVar("T")

STATES: Final = tuple(JobState)
"""The states by their numbers in the file."""
NUMBERS: Final = {state: number for number, state in enumerate(STATES)}
NAMES: Final = tuple(state.value for state in STATES)

_LOST: Final = stored_word(FailureCause.LEASE_EXPIRED)

CHUNK: Final = 64
"""The most rows that one statement looks up.  Always so many places, so that SQLite prepares it once."""
PLACES: Final = ",".join("?" * CHUNK)

_write = msgspec.json.Encoder().encode
_read_counts = msgspec.json.Decoder(dict[str, int]).decode
_read_problem = msgspec.json.Decoder(AttemptError).decode

NO_COUNTS: Final = "{}"


class StoredAttempt(msgspec.Struct, frozen=True):
    """A claim as `history` has it; its cause is a stored word."""

    run: int
    fence: int
    holder: str
    claimed: float
    ended: float | None = None
    cause: str = ""


_read_history = msgspec.json.Decoder(tuple[StoredAttempt, ...]).decode


class LastClaim(NamedTuple):
    """The newest claim of a job, as its row has it; all None in a job that was never claimed."""

    fence: int
    run: int | None
    holder: str | None
    claimed: float | None
    ended: float | None
    cause: str | None


JOB: Final = (
    "fence, claim_run, holder, claimed, claim_ended, cause, seq, id, state, created, service, run, attempts, history, "
    "ended, rank, not_before, deadline, problem, input_url, output"
)
"""The columns that `job_of` reads."""


def job_of(row: Sequence[Any], queue: str) -> Job:
    """The job of a row that has the columns `JOB`."""
    (_, id_, state, created, service, run, attempts, history, ended, rank) = row[6:16]
    (not_before, deadline, problem, input_url, output) = row[16:]
    return Job(
        id=id_,
        queue=queue,
        state=STATES[state],
        created_at=created,
        service=service,
        generation=run,
        failures=read_counts(attempts),
        attempts=_shown_history(_history(history, LastClaim(*row[:6]), ended=None)),
        finished_at=ended,
        priority=-rank,
        scheduled_at=not_before,
        expires_at=deadline,
        error=None if problem is None else _read_problem(problem),
        input_url=input_url,
        output_url=output,
    )


def jobs_where(connection: sqlite3.Connection, queue: str, condition: str, *values: Any) -> list[Job]:
    """The jobs that meet `condition`, which is SQL of ours."""
    rows = connection.execute(f"SELECT {JOB} FROM jobs WHERE {condition}", values).fetchall()  # noqa: S608
    return [job_of(row, queue) for row in rows]


def read_counts(text: str) -> dict[str, int]:
    """Counts by cause."""
    return {} if text == NO_COUNTS else shown_counts(_read_counts(text))


def write_counts(counts: dict[str, int]) -> str:
    """The text of counts by cause."""
    return _write(stored_counts(counts)).decode() if counts else NO_COUNTS


def write_problem(problem: AttemptError | None) -> str | None:
    """The text of a problem."""
    return None if problem is None else _write(problem).decode()


def write_history(older: str | None, last: LastClaim, lost_at: float) -> str | None:
    """The text of all claims, before a new one takes the columns of `last`, which was lost if it has not ended."""
    return _write(_history(older, last, lost_at)).decode() if last.claimed is not None else older


def chunks(values: Sequence[T]) -> Iterator[list[T | None]]:
    """`values` in lists of `CHUNK`, the last one filled up with None, which no row has."""
    rest = iter(values)
    while part := list(islice(rest, CHUNK)):
        yield [*part, *([None] * (CHUNK - len(part)))]


def change_jobs(connection: sqlite3.Connection, columns: str, changes: Iterable[tuple[tuple[Any, ...], int]]) -> None:
    """Give the columns of rows new values; `columns` is SQL of ours, a change the values for it and the row's `seq`.

    One statement changes all rows that get the same values.  Most of those do that are claimed or end together, and a
    statement for each of them takes much longer.
    """
    alike: dict[tuple[Any, ...], list[int]] = {}
    for values, seq in changes:
        alike.setdefault(values, []).append(seq)
    statement = f"UPDATE jobs SET {columns} WHERE seq IN ({PLACES})"  # noqa: S608
    for values, seqs in alike.items():
        for places in chunks(seqs):
            connection.execute(statement, (*values, *places))


def _shown_history(history: Iterable[StoredAttempt]) -> tuple[Attempt, ...]:
    return tuple(
        [shown_attempt(each.run, each.fence, each.holder, each.claimed, each.ended, each.cause) for each in history]
    )


def _history(older: str | None, last: LastClaim, ended: float | None) -> tuple[StoredAttempt, ...]:
    before = () if older is None else _read_history(older)
    if last.claimed is None or last.run is None or last.holder is None:
        return before
    attempt = StoredAttempt(last.run, last.fence, last.holder, last.claimed, last.ended, last.cause or "")
    if attempt.ended is None and ended is not None:
        attempt = msgspec.structs.replace(attempt, ended=ended, cause=_LOST)
    return (*before, attempt)[-MOST_HISTORY:]
