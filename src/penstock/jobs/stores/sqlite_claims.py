"""Lease the jobs of a queue's file, and renew their leases.

Each function is part of one transaction, which its caller has begun.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from penstock.hosting.host_clock import Reading
from penstock.jobs.rules.attempts import FailureCause, judge
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import LEASE_RAN_OUT, Answer, AttemptEnd, ClaimedJob, Hold, Renewed, Room
from penstock.jobs.stores.sqlite_endings import Endings, read_held
from penstock.jobs.stores.sqlite_passing import catch_up, is_due
from penstock.jobs.stores.sqlite_rows import (
    NUMBERS,
    PLACES,
    LastClaim,
    change_jobs,
    chunks,
    read_counts,
    write_counts,
    write_history,
    write_problem,
)
from penstock.transfer.places import host_of

_LAPSED: Final = "queue = ? AND state = 2 AND lease_until <= ?"
_RENEW: Final = "lease_until = ?"


class _Candidate(NamedTuple):
    """A job that may be claimed.  The order of the first two is that of claims."""

    rank: int
    turn: int
    seq: int
    state: int
    size: int
    id: str
    run: int
    content_type: str
    accept: str
    service: str
    alone: int
    attempts: str
    deadline: float | None
    input_url: str | None
    output: str | None
    cancelling: int
    problem: str | None
    history: str | None
    fence: int
    claim_run: int | None
    holder: str | None
    claimed: float | None
    claim_ended: float | None
    cause: str | None


_CANDIDATE: Final = ", ".join(_Candidate._fields)
_BEFORE_ALL: Final = (-math.inf, 0)
"""A place before all jobs."""
MOST_HOSTS: Final = 100
"""The most hosts of which each is looked at by itself."""
_NEXT_HOST: Final = (
    "SELECT min(host) FROM jobs WHERE queue = ? AND state = 1 AND service = ? AND elsewhere = 1 AND host > ?"
)
_LEASED: Final = NUMBERS[JobState.RUNNING]


class _Own(NamedTuple):
    """The jobs that stay with the holder which claims, although their leases have run out."""

    holder: str
    given_up: Collection[Hold]

    def has(self, lapsed: _Candidate) -> bool:
        """Whether the claim renews this job's lease."""
        held = lapsed.holder == self.holder and Hold(lapsed.id, lapsed.fence) not in self.given_up
        return held and not lapsed.cancelling


def may_claim(connection: sqlite3.Connection, queue: int, rooms: Sequence[Room], now: Reading) -> bool:
    """Whether a claim would change anything.  It only reads: an idle consumer asks five times a second."""
    (paused,) = connection.execute("SELECT paused FROM queues WHERE number = ?", (queue,)).fetchone()
    if is_due(connection, queue, now):
        return True
    if paused:
        return False
    if _any_lapsed(connection, queue, now):
        return True
    lanes = (lane for room in rooms for service in room.services for lane in _lanes(connection, queue, service, room))
    one = "SELECT 1 FROM jobs WHERE queue = ? AND state = 1 AND {} LIMIT 1"
    return any(connection.execute(one.format(lane), (queue, *values)).fetchone() for lane, values in lanes)


def claim_jobs(
    connection: sqlite3.Connection,
    queue: int,
    holder: str,
    *,
    lease: float,
    rooms: Sequence[Room],
    given_up: Collection[Hold],
    now: Reading,
) -> list[ClaimedJob]:
    """See `Store.claim`."""
    catch_up(connection, queue, now)
    (paused,) = connection.execute("SELECT paused FROM queues WHERE number = ?", (queue,)).fetchone()
    if paused:
        return []
    own = _Own(holder, given_up)
    lapsed = _any_lapsed(connection, queue, now)
    wanted = [room for room in rooms if room.jobs > 0]
    taken = [each for room in wanted for each in _first(connection, queue, room, own, now, with_lapsed=lapsed)]
    bodies = _bodies(connection, [each.seq for each in taken if each.size])
    until = now.boottime + lease
    changes: list[tuple[tuple[Any, ...], int]] = []
    renewals: list[tuple[tuple[Any, ...], int]] = []
    claimed: list[ClaimedJob] = []
    for each in taken:
        counts, alone, problem = read_counts(each.attempts), bool(each.alone), each.problem
        stays = each.state == _LEASED and own.has(each)
        if stays:
            renewals.append(((until,), each.seq))
        else:
            if each.state == _LEASED:
                counts[FailureCause.LEASE_EXPIRED.value] = counts.get(FailureCause.LEASE_EXPIRED.value, 0) + 1
                alone, problem = True, write_problem(LEASE_RAN_OUT)
            history = each.history
            if each.claimed is not None:
                history = write_history(history, LastClaim(*each[-6:]), now.wall)
            changes.append(((holder, now.wall, until, write_counts(counts), alone, problem, history), each.seq))
        claimed.append(
            ClaimedJob(
                each.id,
                each.fence if stays else each.fence + 1,
                each.run,
                bodies.get(each.seq, b""),
                each.content_type,
                each.accept,
                each.service,
                alone,
                counts,
                each.deadline,
                each.input_url,
                each.output,
            )
        )
    change_jobs(
        connection,
        "state = 2, fence = fence + 1, first_fence = ifnull(first_fence, fence + 1), claim_run = run, holder = ?, "
        "claimed = ?, claim_ended = NULL, cause = NULL, lease_until = ?, attempts = ?, alone = ?, problem = ?, "
        "history = ?",
        changes,
    )
    change_jobs(connection, _RENEW, renewals)
    return claimed


def renew_leases(
    connection: sqlite3.Connection, queue: int, holds: Sequence[Hold], lease: float, now: Reading
) -> list[Renewed]:
    """See `Store.renew`."""
    held = {}
    for ids in chunks([hold.job_id for hold in holds]):
        rows = connection.execute(
            f"SELECT id, fence, seq, cancelling FROM jobs WHERE queue = ? AND state = 2 AND id IN ({PLACES})",  # noqa: S608
            (queue, *ids),
        )
        held.update({(id_, fence): (seq, cancelling) for id_, fence, seq, cancelling in rows})
    found = [held.get((hold.job_id, hold.fence)) for hold in holds]
    until = now.boottime + lease
    change_jobs(connection, _RENEW, [((until,), each[0]) for each in found if each is not None])
    return [Renewed(Answer.LOST) if each is None else Renewed(Answer.OK, bool(each[1])) for each in found]


def _first(
    connection: sqlite3.Connection, queue: int, room: Room, own: _Own, now: Reading, *, with_lapsed: bool
) -> list[_Candidate]:
    """The jobs for one room; `with_lapsed`: there are some whose lease has run out."""
    taken: list[_Candidate] = []
    at_hosts, left, after = Counter(room.at_hosts), room.nbytes, _BEFORE_ALL
    while True:
        passed_over = False
        wanted = room._replace(at_hosts=at_hosts)
        found = _candidates(connection, queue, wanted, after, own, now, with_lapsed=with_lapsed)
        for each in found:
            if room.of_host:
                host = host_of(each.input_url or "")
                if at_hosts[host] >= room.of_host:
                    passed_over = True
                    continue
                at_hosts[host] += 1
            left -= each.size
            if left < 0 and taken:
                return taken
            taken.append(each)
            if len(taken) == room.jobs:
                return taken
        if not passed_over:  # else there may be jobs of other hosts behind these
            return taken
        after = found[-1][:2]


def _candidates(
    connection: sqlite3.Connection,
    queue: int,
    room: Room,
    after: tuple[float, int],
    own: _Own,
    now: Reading,
    *,
    with_lapsed: bool,
) -> list[_Candidate]:
    """The first jobs behind a place that are of the room's kind, as many as may be taken of it."""
    in_order = "(rank, turn) > (?, ?) ORDER BY rank, turn LIMIT ?"
    last = (*after, room.jobs)
    kind, values = _kind_of(room)
    kind += f" AND service IN ({','.join('?' * len(room.services))}) AND {in_order}"
    parts = [_lapsed(connection, queue, kind, (*values, *room.services, *last), own, now)] if with_lapsed else []
    for service in room.services:
        for lane, lane_values in _lanes(connection, queue, service, room):
            waiting = f"SELECT {_CANDIDATE} FROM jobs WHERE queue = ? AND state = 1 AND {lane} AND {in_order}"  # noqa: S608
            rows = connection.execute(waiting, (queue, *lane_values, *last))
            parts.append([_Candidate._make(row) for row in rows])
    parts = [part for part in parts if part]
    if len(parts) == 1:
        return parts[0]
    return sorted(chain.from_iterable(parts), key=lambda each: each[:2])[: room.jobs]


def _kind_of(room: Room) -> tuple[str, tuple[Any, ...]]:
    """A condition for the jobs of a room, and its values."""
    if not room.of_host:
        return "elsewhere = 0", ()
    full = room.full_hosts
    return f"elsewhere = 1 AND host NOT IN ({','.join('?' * len(full))})", tuple(full)


def _lanes(connection: sqlite3.Connection, queue: int, service: str, room: Room) -> list[tuple[str, tuple[Any, ...]]]:
    """Conditions for the jobs of a service that wait and are of the room's kind, with their values.

    Each host has one, so that no job is looked at of a host that has its share; or all have one, where they are many.
    """
    kind, values = _kind_of(room)
    lane = (f"service = ? AND {kind}", (service, *values))
    if not room.of_host:
        return [lane]
    hosts: list[str] = []
    host = ""
    while (host := connection.execute(_NEXT_HOST, (queue, service, host)).fetchone()[0]) is not None:
        hosts.append(host)
        if len(hosts) > MOST_HOSTS:
            return [lane]
    full = set(room.full_hosts)
    return [("service = ? AND elsewhere = 1 AND host = ?", (service, host)) for host in hosts if host not in full]


def _bodies(connection: sqlite3.Connection, seqs: list[int]) -> dict[int, bytes]:
    bodies: dict[int, bytes] = {}
    for places in chunks(seqs):
        bodies.update(connection.execute(f"SELECT seq, body FROM bodies WHERE seq IN ({PLACES})", places))  # noqa: S608
    return bodies


def _any_lapsed(connection: sqlite3.Connection, queue: int, now: Reading) -> bool:
    """Whether the lease of a job has run out."""
    query = f"SELECT 1 FROM jobs WHERE {_LAPSED} LIMIT 1"  # noqa: S608
    return connection.execute(query, (queue, now.boottime)).fetchone() is not None


def _lapsed(
    connection: sqlite3.Connection, queue: int, kind: str, values: Sequence[Any], own: _Own, now: Reading
) -> list[_Candidate]:
    """The jobs of a kind whose lease has run out and that may be claimed; those whose run ends by it end here."""
    query = f"SELECT {_CANDIDATE} FROM jobs WHERE {_LAPSED} AND {kind}"  # noqa: S608
    while True:
        rows = [_Candidate._make(row) for row in connection.execute(query, (queue, now.boottime, *values))]
        others = [each for each in rows if not own.has(each)]
        over = [(each, to) for each in others if (to := _end_of_lapsed(each, now)) is not None]
        if not over:
            return rows
        changes = Endings(queue, now)
        for each, to in over:
            dead = to is JobState.DEAD
            end = AttemptEnd(
                Hold(each.id, each.fence),
                to,
                FailureCause.LEASE_EXPIRED if dead else None,
                counts=dead,
                problem=LEASE_RAN_OUT if dead else None,
            )
            changes.add(read_held(connection, each.seq), end)
        changes.make(connection)


def _end_of_lapsed(job: _Candidate, now: Reading) -> JobState | None:
    """How the run of a job whose lease has run out ends, or None if it may be claimed."""
    if job.cancelling:
        return JobState.CANCELLED
    if job.deadline is not None and job.deadline <= now.wall:
        return JobState.EXPIRED
    lost = judge(read_counts(job.attempts), FailureCause.LEASE_EXPIRED, alone=bool(job.alone), backoff=0.0, draw=0.0)
    return JobState.DEAD if lost.dead else None
