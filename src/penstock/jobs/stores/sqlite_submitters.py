"""What submitters and tenders do with the jobs of a queue's file.

Each function is part of one transaction, which its caller has begun.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.errors import JobConflict, JobNotFound
from penstock.hosting.host_clock import Reading
from penstock.jobs.job import Job, Stats
from penstock.jobs.rules.job_states import ENDED, JobState
from penstock.jobs.store import Delivery, KeptInput, NewJob
from penstock.jobs.stores.sqlite_passing import catch_up, leave_deliveries
from penstock.jobs.stores.sqlite_rows import NUMBERS, PLACES, STATES, chunks, jobs_where

_COLUMNS: Final = (
    "seq, queue, state, service, rank, since, fence, size, due, not_before, deadline, created, id, job_key, digest, "
    "content_type, accept, input_url, output, turn, elsewhere, host"
)
_INSERT: Final = f"INSERT INTO jobs ({_COLUMNS}) VALUES ({', '.join('?' * len(_COLUMNS.split(', ')))})"  # noqa: S608


def submit_jobs(
    connection: sqlite3.Connection,
    queue: int,
    name: str,
    jobs: Sequence[NewJob],
    now: Reading,
    admit: Callable[[Sequence[NewJob]], None],
) -> list[Job]:
    """See `Store.submit`; `admit` raises where there is no room for the jobs that are new."""
    catch_up(connection, queue, now)
    known = _known(connection, queue, jobs)
    first_fence, seq = connection.execute(
        "SELECT first_fence, max(last_turn, (SELECT ifnull(max(seq), 0) FROM jobs)) FROM queues WHERE number = ?",
        (queue,),
    ).fetchone()
    new: list[NewJob] = []
    rows: list[tuple[Any, ...]] = []
    bodies: list[tuple[int, bytes]] = []
    seqs: list[int] = []
    for job in jobs:
        there = _same_job(job, known)
        if there is None:
            seq += 1
            there = (seq, job.digest)
            known[0, job.id] = there
            if job.key is not None:
                known[1, job.key] = there
            new.append(job)
            rows.append(_row(seq, queue, job, first_fence, now))
            if job.body:
                bodies.append((seq, job.body))
        seqs.append(there[0])
    if new:
        admit(new)
    connection.executemany(_INSERT, rows)
    connection.executemany("INSERT OR REPLACE INTO bodies VALUES (?, ?)", bodies)
    found = _jobs_by(connection, name, "seq", seqs)
    return [found[each] for each in seqs]


def kept_inputs(connection: sqlite3.Connection, queue: int, jobs: Sequence[NewJob]) -> list[KeptInput | None]:
    """See `Store.kept_inputs`.  In place of an input there is the result of a job that has succeeded."""
    known = _known(connection, queue, jobs)
    found = [known.get((1, job.key or "")) or known.get((0, job.id)) for job in jobs]
    bodies: dict[int, bytes | None] = {}
    for places in chunks([there[0] for there in found if there is not None]):
        bodies.update(
            connection.execute(
                "SELECT seq, iif(state = 3, NULL, ifnull(body, x'')) FROM jobs LEFT JOIN bodies USING (seq) "  # noqa: S608
                f"WHERE seq IN ({PLACES})",
                places,
            )
        )
    return [None if there is None else KeptInput(there[1], bodies[there[0]]) for there in found]


def get_jobs(connection: sqlite3.Connection, queue: int, name: str, job_ids: Sequence[str]) -> list[Job | None]:
    """See `Store.get`, of jobs that time has moved already."""
    found: dict[str, Job] = {}
    for ids in chunks(job_ids):
        found.update(
            (job.id, job) for job in jobs_where(connection, name, f"queue = ? AND id IN ({PLACES})", queue, *ids)
        )
    return [found.get(each) for each in job_ids]


def cancel_job(connection: sqlite3.Connection, queue: int, name: str, job_id: str, now: Reading) -> Job:
    """See `Store.cancel`."""
    catch_up(connection, queue, now)
    job = _need(connection, queue, name, job_id)
    if job.state is JobState.CANCELLED:
        return job
    if job.is_finished:
        raise JobConflict(f"job {job_id} cannot be cancelled: it is {job.state.value} already")
    held = "queue = ? AND id = ? AND state = 2 AND lease_until > ?"
    changed = connection.execute(
        f"UPDATE jobs SET cancelling = 1 WHERE {held}",  # noqa: S608
        (queue, job_id, now.boottime),
    )
    if not changed.rowcount:
        leave_deliveries(connection, "queue = ? AND id = ?", queue, job_id)
        connection.execute(
            "UPDATE jobs SET claim_ended = iif(state = 2, ?, claim_ended), cause = iif(state = 2, 'cancelled', cause), "
            "state = 5, ended = ?, due = NULL, not_before = NULL, lease_until = NULL WHERE queue = ? AND id = ?",
            (now.wall, now.wall, queue, job_id),
        )
    return _need(connection, queue, name, job_id)


def retry_job(connection: sqlite3.Connection, queue: int, name: str, job_id: str, now: Reading) -> Job:
    """See `Store.retry`."""
    catch_up(connection, queue, now)
    job = _need(connection, queue, name, job_id)
    if not job.is_finished or job.state is JobState.SUCCEEDED:
        raise JobConflict(
            f"job {job_id} cannot be retried: it is {job.state.value}; only dead, cancelled and expired jobs can"
        )
    connection.execute(
        "UPDATE jobs SET state = 1, since = ?, run = run + 1, first_fence = NULL, attempts = '{}', alone = 0, "
        "cancelling = 0, problem = NULL, ended = NULL, deadline = iif(deadline <= ?, NULL, deadline) "
        "WHERE queue = ? AND id = ?",
        (now.wall, now.wall, queue, job_id),
    )
    return _need(connection, queue, name, job_id)


def list_stored_jobs(
    connection: sqlite3.Connection, queue: int, name: str, state: JobState | None, limit: int, after: str | None
) -> list[Job]:
    """See `Store.list_jobs`."""
    seq = 0
    if after is not None:
        row = connection.execute("SELECT seq FROM jobs WHERE queue = ? AND id = ?", (queue, after)).fetchone()
        if row is None:
            raise JobNotFound(f"there is no job {after} to list from")
        (seq,) = row
    number = -1 if state is None else NUMBERS[state]
    in_state = "" if state is None else f"AND state = {number} "
    return jobs_where(connection, name, f"queue = ? AND seq > ? {in_state}ORDER BY seq LIMIT ?", queue, seq, limit)


def count_jobs(connection: sqlite3.Connection, queue: int, now: Reading) -> Stats:
    """See `Store.stats`."""
    paused, seconds = connection.execute(
        "SELECT paused, seconds_per_job FROM queues WHERE number = ?", (queue,)
    ).fetchone()
    counts = {}
    for number, state in enumerate(STATES):  # each from the index of its state
        ended = "state > 2 AND " if state in ENDED else ""
        query = f"SELECT count(*) FROM jobs WHERE {ended}queue = ? AND state = {number}"  # noqa: S608
        (counts[state.value],) = connection.execute(query, (queue,)).fetchone()
    (since,) = connection.execute("SELECT min(since) FROM jobs WHERE queue = ? AND state = 1", (queue,)).fetchone()
    (left,) = connection.execute("SELECT count(*) FROM deliveries WHERE queue = ?", (queue,)).fetchone()
    return Stats(
        **counts,
        oldest_queued_seconds=0.0 if since is None else max(0.0, now.wall - since),
        estimated_backlog_seconds=counts[JobState.QUEUED.value] * seconds,
        pending_outputs=left,
        paused=bool(paused),
    )


def purgeable(connection: sqlite3.Connection, queue: int, state: JobState, before: float, limit: int) -> list[int]:
    """The numbers of at most `limit` jobs in `state` that ended, or else were submitted, at `before` or earlier."""
    old = "state > 2 AND ended" if state in ENDED else "created"
    query = f"SELECT seq FROM jobs WHERE queue = ? AND state = {NUMBERS[state]} AND {old} <= ? LIMIT ?"  # noqa: S608
    return [seq for (seq,) in connection.execute(query, (queue, before, limit))]


def forget_jobs(connection: sqlite3.Connection, queue: int, state: JobState, before: float, limit: int) -> int:
    """Forget what `purgeable` finds, and return how many jobs that were."""
    seqs = purgeable(connection, queue, state, before, limit)
    newest_fence = 0
    for places in chunks(seqs):
        these = f"seq IN ({PLACES})"
        if state not in ENDED:
            leave_deliveries(connection, these, *places)
        (fence,) = connection.execute(f"SELECT max(fence) FROM jobs WHERE {these}", places).fetchone()  # noqa: S608
        newest_fence = max(newest_fence, fence)
        connection.execute(f"DELETE FROM bodies WHERE {these}", places)  # noqa: S608
        connection.execute(f"DELETE FROM jobs WHERE {these}", places)  # noqa: S608
    connection.execute(
        "UPDATE queues SET first_fence = ? WHERE number = ? AND first_fence < ?", (newest_fence, queue, newest_fence)
    )
    return len(seqs)


def lend_deliveries(
    connection: sqlite3.Connection, queue: int, limit: int, lease: float, now: Reading
) -> list[Delivery]:
    """See `Store.deliveries`."""
    rows = connection.execute(
        "SELECT job_id, output, fence, first_fence, last_fence FROM deliveries "
        "WHERE queue = ? AND lease_until <= ? ORDER BY lease_until LIMIT ?",
        (queue, now.boottime, limit),
    ).fetchall()
    found = [Delivery(*row) for row in rows]
    connection.executemany(
        "UPDATE deliveries SET lease_until = ? WHERE queue = ? AND job_id = ? AND last_fence = ?",
        [(now.boottime + lease, queue, each.job_id, each.last_fence) for each in found],
    )
    return found


def _known(
    connection: sqlite3.Connection, queue: int, jobs: Sequence[NewJob]
) -> dict[tuple[int, str], tuple[int, str]]:
    """The number and the digest of the jobs that are there already, by (0, id) and (1, key)."""
    known = {}
    for kind, column in enumerate(("id", "job_key")):
        names = [job.id if kind == 0 else job.key for job in jobs]
        for places in chunks([name for name in names if name is not None]):
            rows = connection.execute(
                f"SELECT {column}, seq, digest FROM jobs WHERE queue = ? AND {column} IN ({PLACES})",  # noqa: S608
                (queue, *places),
            )
            known.update({(kind, value): (seq, digest) for value, seq, digest in rows})
    return known


def _same_job(job: NewJob, known: dict[tuple[int, str], tuple[int, str]]) -> tuple[int, str] | None:
    """The job that `job` is once more, or None."""
    by_id = known.get((0, job.id))
    by_key = None if job.key is None else known.get((1, job.key))
    if by_id is not None and by_key is not None and by_id != by_key:
        raise JobConflict(f"the key {job.key!r} belongs to another job than {job.id}")
    there = by_id or by_key
    if there is not None and there[1] != job.digest:
        what = f"the id {job.id}" if by_id else f"the key {job.key!r}"
        raise JobConflict(f"another job has {what}, with another input or other options")
    return there


def _row(seq: int, queue: int, job: NewJob, fence: int, now: Reading) -> tuple[Any, ...]:
    later = job.delay > 0
    return (
        seq,
        queue,
        NUMBERS[JobState.SCHEDULED if later else JobState.QUEUED],
        job.service,
        -job.priority,
        now.wall,
        fence,
        len(job.body),
        now.boottime + job.delay if later else None,
        now.wall + job.delay if later else None,
        job.deadline,
        now.wall,
        job.id,
        job.key,
        job.digest,
        job.content_type,
        job.accept,
        job.input_url,
        job.output,
        seq,
        job.input_url is not None,
        job.host,
    )


def _jobs_by(connection: sqlite3.Connection, name: str, column: str, values: Sequence[int]) -> dict[int, Job]:
    found: dict[int, Job] = {}
    for places in chunks(values):
        rows = [each for each in places if each is not None]
        jobs = jobs_where(connection, name, f"{column} IN ({PLACES}) ORDER BY {column}", *places)
        found.update(zip(sorted(set(rows)), jobs, strict=True))
    return found


def _need(connection: sqlite3.Connection, queue: int, name: str, job_id: str) -> Job:
    (job,) = get_jobs(connection, queue, name, [job_id])
    if job is None:
        raise JobNotFound(f"there is no job {job_id}")
    return job
