"""The rules of claims and their rooms, I8 and I9.  See `penstock.testing.history`."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import Answer, Room
from penstock.testing.history_events import Act, Deed, Part
from penstock.testing.history_index import Attempted, Bounds, Breach, History
from penstock.transfer.places import host_of


def _is_for(room: Room, service: str, host: str) -> bool:
    """Whether a room is for jobs of a service, and for those whose input is where this one's is."""
    return service in room.services and (room.of_host > 0) == bool(host)


def _with_rooms(history: History) -> Iterator[tuple[Deed, tuple[Room, ...]]]:
    """The claims of which the rooms are known."""
    return ((done, done.begun.rooms) for done in history.of(Act.CLAIM) if done.begun.rooms is not None)


def _from_each(history: History) -> Iterator[tuple[Deed, Room, list[Part]]]:
    """Each claim with each of its rooms, and what it handed out from that."""
    for done, rooms in _with_rooms(history):
        for room in rooms:
            yield done, room, [part for part in done.parts if _is_for(room, part.service, part.host)]


# -- I8 ---------------------------------------------------------------------------------------------------------------


def claims_keep_to_their_rooms(history: History, _: Bounds) -> Iterator[Breach]:
    """I8: no job is handed out for which the claim had no room, and no room gives more than it has."""
    for done, rooms in _with_rooms(history):
        for part in done.parts:
            if not any(part.service in room.services for room in rooms):
                what = f"was handed to a claim without room for its service {part.service!r}"
                yield Breach("I8", part.job, what, (done,))
    for done, room, parts in _from_each(history):
        size = sum(part.size for part in parts)
        if len(parts) > room.jobs or (len(parts) > 1 and size > room.nbytes):
            what = f"{len(parts)} jobs of {size} bytes were handed out from a room for {room.jobs} of {room.nbytes}"
            yield Breach("I8", "", what, (done,))


def hosts_keep_to_their_shares(history: History, _: Bounds) -> Iterator[Breach]:
    """I8: jobs whose input is elsewhere come from rooms of their own, and no host has more than its share there."""
    for done, rooms in _with_rooms(history):
        for part in done.parts:
            named = any(part.service in room.services for room in rooms)
            if named and not any(_is_for(room, part.service, part.host) for room in rooms):
                what = f"was handed to a claim without room for inputs {'elsewhere' if part.host else 'in the store'}"
                yield Breach("I8", part.job, what, (done,))
    for done, room, parts in _from_each(history):
        for host, jobs in Counter(part.host for part in parts if part.host).items():
            share = max(0, room.of_host - room.at_hosts.get(host, 0))
            if jobs > share:
                yield Breach("I8", "", f"{jobs} jobs of {host} were handed out from a room for {share}", (done,))


# -- I9 ---------------------------------------------------------------------------------------------------------------


class _Wait(NamedTuple):
    """A time in which a job surely waited, whoever else claimed: from an act to a claim, or to the end."""

    job: str
    service: str
    host: str
    since: Deed
    until: Deed | None


def no_room_holds_up_another(history: History, _: Bounds) -> Iterator[Breach]:
    """I9: a claim hands out a job from each room that has place for one that waited from before it until after it.

    The first job fits into a room whatever its bytes.
    A job is seen to have waited by what happens next: it is claimed in the same run under the next fence, or it waits
    in the end.  Leases that have run out are left out, for not every store measures them on the clock of the log.
    """
    empty, unanswered = _empty_rooms(history), _first_unanswered(history)
    for wait in _waits(history):
        asked = empty.get((wait.service, bool(wait.host)), [])
        first = bisect_left(asked, (wait.since.ended or wait.since.begun).at, key=_begun_at)
        last = None if wait.until is None else bisect_right(asked, wait.until.begun.at, key=_begun_at)
        for done, room in asked[first:last]:
            acts = [wait.since, done] if wait.until is None else [wait.since, done, wait.until]
            waited = all(history.in_order(*pair) for pair in pairwise(acts))
            if waited and wait.host not in room.full_hosts and not _may_be_older(wait, done, unanswered):
                what = "waited, and a claim with room for it took nothing into that room"
                yield Breach("I9", wait.job, what, tuple(acts))
                break


def _empty_rooms(history: History) -> dict[tuple[str, bool], list[tuple[Deed, Room]]]:
    """By service and kind, the claims that surely had a room, and got nothing from it."""
    empty: dict[tuple[str, bool], list[tuple[Deed, Room]]] = {}
    pauses, resumes = history.of(Act.PAUSE), history.of(Act.RESUME)
    for done, room, parts in _from_each(history):
        if parts or room.jobs <= 0 or done.ended is None or _may_be_paused(history, done, pauses, resumes):
            continue
        # A store may be asked once more within a call, and what it gave at first may have been lost by then.
        if done.ended.at - done.begun.at < done.begun.lease:
            for service in room.services:
                empty.setdefault((service, room.of_host > 0), []).append((done, room))
    return empty


def _begun_at(asked: tuple[Deed, Room]) -> float:
    return asked[0].begun.at


def _first_unanswered(history: History) -> dict[str, float]:
    """By process, when the first of its claims began that got no answer."""
    first: dict[str, float] = {}
    for done in history.of(Act.CLAIM):
        if done.ended is None:
            first.setdefault(done.begun.process, done.begun.at)
    return first


def _may_be_older(wait: _Wait, claim: Deed, unanswered: dict[str, float]) -> bool:
    """Whether the claim that ends a wait may renew one that got no answer, and was begun before `claim` ended."""
    if wait.until is None or claim.ended is None:
        return False
    return unanswered.get(wait.until.begun.process, math.inf) <= claim.ended.at


def _may_be_paused(history: History, claim: Deed, pauses: list[Deed], resumes: list[Deed]) -> bool:
    """Whether the queue may have stood still at some moment of a claim."""
    ended = [resume for resume in resumes if history.in_order(resume, claim)]
    return any(
        not history.in_order(claim, pause) and not any(history.in_order(pause, resume) for resume in ended)
        for pause in pauses
    )


def _waits(history: History) -> Iterator[_Wait]:
    """All times in which a job surely waited."""
    firsts: dict[tuple[str, int], Attempted] = {}
    for _, attempt in sorted(history.attempts.items(), reverse=True):
        firsts[attempt.part.job, attempt.part.run] = attempt
    for act in (Act.SUBMIT, Act.RETRY):
        for done, part in history.parts_of(act):
            if done.ended is None or part.answer != JobState.QUEUED:
                continue
            first = firsts.get((part.job, part.run))
            if first is None:
                yield from _to_the_end(history, part.job, part.run, None, done)
            elif first.part.fence == 1 or (part.job, first.part.fence - 1) in history.attempts:
                yield from _to_a_claim(history, first, done)
    for (job, fence), attempt in history.attempts.items():
        for done, part in attempt.ends:
            if done.ended is None or part.answer != Answer.OK or part.to != JobState.QUEUED:
                continue
            following = history.attempts.get((job, fence + 1))
            if following is None:
                yield from _to_the_end(history, job, attempt.part.run, fence, done)
            elif following.part.run == attempt.part.run:
                yield from _to_a_claim(history, following, done)


def _to_a_claim(history: History, attempt: Attempted, since: Deed) -> Iterator[_Wait]:
    if history.in_order(since, attempt.claim):
        part = attempt.part
        yield _Wait(part.job, part.service, part.host, since, attempt.claim)


def _to_the_end(history: History, job_id: str, run: int, fence: int | None, since: Deed) -> Iterator[_Wait]:
    """The wait of a job that still waits, if nobody has claimed it since the attempt `fence`, or None in this run."""
    job = history.jobs.get(job_id)
    if job is None or job.state is not JobState.QUEUED or job.generation != run or job.expires_at is not None:
        return  # with a deadline it may have expired
    last = job.attempts[-1] if job.attempts else None
    unclaimed = (
        last is None or last.generation != run if fence is None else last is not None and last.fencing_token == fence
    )
    if unclaimed:
        host = "" if job.input_url is None else host_of(job.input_url)
        yield _Wait(job_id, job.service, host, since, None)
