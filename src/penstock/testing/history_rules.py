"""The rules that a history keeps, I1 to I7, and the list of all.  See `penstock.testing.history`.

Each is a function that gives every breach it is sure of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from penstock.jobs.job import MOST_HISTORY
from penstock.jobs.rules.attempts import MOST_ATTEMPTS, FailureCause
from penstock.jobs.rules.job_states import ENDED, JobState
from penstock.jobs.store import LEASE_RAN_OUT, Answer
from penstock.testing.history_events import Act, Deed, Event, Part
from penstock.testing.history_index import Bounds, Breach, History
from penstock.testing.history_rooms import (
    claims_keep_to_their_rooms,
    hosts_keep_to_their_shares,
    no_room_holds_up_another,
)

# -- I1 ---------------------------------------------------------------------------------------------------------------


def all_ended(history: History) -> Iterator[Breach]:
    """I1: every job that was accepted has ended."""
    for done, part in history.parts_of(Act.SUBMIT):
        job = history.jobs.get(part.job)
        if done.ended is not None and job is None:
            yield Breach("I1", part.job, "was accepted and is lost", (done,))
        elif job is not None and not job.is_finished:
            yield Breach("I1", part.job, f"never ended: it is {job.state}", (done,))


def one_end_a_run(history: History, _: Bounds) -> Iterator[Breach]:
    """I1: no run has the endings of two attempts, and none is told to have ended otherwise than it did."""
    ends: dict[tuple[str, int], tuple[int, str, Deed]] = {}
    for attempt in history.attempts.values():
        name, run = attempt.part.job, attempt.part.run
        job = history.jobs.get(name)
        for done, part in attempt.ends:
            if part.answer != Answer.OK or JobState(part.to) not in ENDED:
                continue
            fence, to, other = ends.setdefault((name, run), (part.fence, part.to, done))
            if (fence, to) != (part.fence, part.to):
                yield Breach("I1", name, f"was ended twice in run {run}", (other, done))
            if job is not None and job.generation == run and job.state != part.to:
                yield Breach("I1", name, f"was ended as {part.to} and is {job.state}", (done,))
            if job is not None and job.generation > run and part.to == JobState.SUCCEEDED:
                yield Breach("I1", name, f"succeeded in run {run}, and was run again", (done,))
    for job in history.jobs.values():
        last = history.attempts.get((job.id, job.attempts[-1].fencing_token)) if job.attempts else None
        if job.state is JobState.SUCCEEDED and last is not None and not last.commits():
            yield Breach("I1", job.id, "has succeeded, and nobody committed it", (last.claim,))


# -- I2 ---------------------------------------------------------------------------------------------------------------


def fences_decide(history: History, _: Bounds) -> Iterator[Breach]:
    """I2: nobody is told OK after another's claim."""
    for (job, fence), attempt in history.attempts.items():
        later = attempt.next_claim
        if later is None:
            continue
        for done in [*attempt.renewals, *(done for done, _ in attempt.ends)]:
            if attempt.answer_of(done) == Answer.OK and history.in_order(later, done):
                yield Breach("I2", job, f"was taken from fence {fence} after the next claim", (later, done))
        accepted = attempt.accepted_end()
        same_run = history.attempts[job, fence + 1].part.run == attempt.part.run
        if accepted is not None and JobState(accepted[1].to) in ENDED and same_run:
            yield Breach("I2", job, f"was claimed after fence {fence} had ended its run", (accepted[0], later))


def each_fence_is_one_holder_s(history: History, _: Bounds) -> Iterator[Breach]:
    """I2: no two processes are handed a job under the same fence."""
    for done, part in history.parts_of(Act.CLAIM):
        attempt = history.attempts[part.job, part.fence]
        if attempt.claim.begun.process != done.begun.process:
            what = f"was handed to two processes under fence {part.fence}"
            yield Breach("I2", part.job, what, (attempt.claim, done))


# -- I3 ---------------------------------------------------------------------------------------------------------------


def effects_follow(history: History, _: Bounds) -> Iterator[Breach]:
    """I3: a commit comes after a call of the model in that attempt, and a move after its commit."""
    calls: dict[str, list[Deed]] = {}
    for done, part in history.parts_of(Act.CALL):
        calls.setdefault(part.job, []).append(done)
    for (job, fence), attempt in history.attempts.items():
        mine = [call for call in calls.get(job, []) if call.ended and call.ended.at >= attempt.claim.begun.at]
        for commit in attempt.commits()[:1] if calls else []:
            if not any(history.in_order(call, commit) for call in mine):
                acts = (attempt.claim, *mine, commit)
                yield Breach("I3", job, f"was committed by fence {fence} before the model had run for it", acts)
    for done, part in history.parts_of(Act.MOVE):
        mover = history.attempts.get((part.job, part.fence))
        # A commit without an answer may have been made: then the outbox has the move.
        commits = [] if mover is None else [end for end in mover.commits() if mover.answer_of(end) != Answer.LOST]
        if not any(history.began_before(end, done) for end in commits):
            yield Breach("I3", part.job, f"had its output moved before fence {part.fence} committed", (done, *commits))


# -- I4 ---------------------------------------------------------------------------------------------------------------


def attempts_are_counted(history: History, _: Bounds) -> Iterator[Breach]:
    """I4: a job's counts are what its holders told, and what was lost."""
    for job in history.jobs.values():
        claims = [claim for claim in job.attempts if claim.generation == job.generation]
        known = [history.attempts.get((job.id, claim.fencing_token)) for claim in claims]
        attempts = [attempt for attempt in known if attempt is not None]
        if len(job.attempts) == MOST_HISTORY or len(attempts) < len(claims):
            continue  # the oldest claims are not in it, or a claim's answer was not written
        least = Counter(claim.cause for claim in claims if claim.cause == FailureCause.LEASE_EXPIRED)
        unsure: Counter[str] = Counter()
        for attempt in attempts:
            accepted = attempt.accepted_end()
            if accepted is not None:
                least.update(_counted(accepted[1]))
            else:
                for done, part in attempt.ends[:1]:
                    unsure.update(_counted(part) if done.ended is None else [])
        if job.state is JobState.DEAD and job.error == LEASE_RAN_OUT and attempts[-1].accepted_end() is None:
            least[FailureCause.LEASE_EXPIRED] += 1
        acts = tuple(end for attempt in attempts for end, _ in attempt.ends)
        for cause in {*least, *unsure, *job.failures}:
            count = job.failures.get(cause, 0)
            if not least[cause] <= count <= least[cause] + unsure[cause]:
                yield Breach("I4", job.id, f"counts {count} of {cause}, and {least[cause]} were told or lost", acts)
            if count > MOST_ATTEMPTS.get(cause, 0) or (count == MOST_ATTEMPTS[cause] and not job.is_finished):
                yield Breach("I4", job.id, f"is {job.state} after {count} of {cause}", acts)


def _counted(end: Part) -> list[str]:
    """The causes under which an end is counted, each as often as it is."""
    return [end.cause] * end.counts + [str(FailureCause.TRANSFER)] * end.transfers


# -- I5 ---------------------------------------------------------------------------------------------------------------


def nobody_is_handed_a_leased_job(history: History, _: Bounds) -> Iterator[Breach]:
    """I5: a claim comes after the lease before it ran out, or after its attempt has ended."""
    for (job, fence), attempt in history.attempts.items():
        later = attempt.next_claim
        if later is None or later.ended is None:
            continue
        if any(done.begun.at < later.ended.at or history.began_before(done, later) for done, _ in attempt.ends):
            continue
        granted = [done for done in attempt.given() if history.in_order(done, later)]
        if granted and later.ended.at < granted[-1].begun.at + granted[-1].begun.lease:
            yield Breach("I5", job, f"was handed on while fence {fence} had its lease", (granted[-1], later))


def nobody_loses_a_job_to_itself(history: History, _: Bounds) -> Iterator[Breach]:
    """I5: who claims again what it holds goes on with it, unless it had given that up."""
    given_up = {(part.job, part.fence) for _, part in history.parts_of(Act.GIVE_UP)}
    for (job, fence), attempt in history.attempts.items():
        later = attempt.next_claim
        if later is None or attempt.ends or (job, fence) in given_up:
            continue
        same_run = history.attempts[job, fence + 1].part.run == attempt.part.run
        if same_run and later.begun.process == attempt.claim.begun.process:
            acts = (*attempt.given(), later)
            yield Breach("I5", job, f"was taken from fence {fence} by the process that held it", acts)


def lost_jobs_are_claimed_soon(history: History, bounds: Bounds) -> Iterator[Breach]:
    """I5: nobody holds a job for long who does nothing for it."""
    for job in history.jobs.values() if bounds.reclaim_within is not None else ():
        for claim in job.attempts:
            attempt = history.attempts.get((job.id, claim.fencing_token))
            if attempt is None or attempt.next_claim is None or claim.cause != FailureCause.LEASE_EXPIRED:
                continue
            words = [attempt.claim, *attempt.renewals]
            ran_out = max((done.ended or done.begun).at + done.begun.lease for done in words)
            if attempt.next_claim.begun.at > ran_out + (bounds.reclaim_within or 0.0):
                acts = (words[-1], attempt.next_claim)
                yield Breach("I5", job.id, f"lay about for too long after fence {claim.fencing_token}", acts)


def holders_renew(history: History, _: Bounds) -> Iterator[Breach]:
    """I5: who holds a job asks for its renewal before the lease runs out, unless it stands still."""
    last_acts = {done.begun.process: done for done in history.acts if done.begun.act is not Act.SUSPEND}
    stops: dict[str, list[Deed]] = {}
    for done in history.of(Act.SUSPEND):
        stops.setdefault(done.begun.process, []).append(done)
    for (job, fence), attempt in history.attempts.items():
        process = attempt.claim.begun.process
        words = [attempt.claim, *attempt.renewals, *(done for done, _ in attempt.ends[:1])]
        dropped = any(attempt.answer_of(done) == Answer.LOST for done in attempt.renewals)
        if not dropped and not attempt.ends:
            words.append(last_acts[process])
        words.sort(key=lambda done: done.begun.at)
        for before, after in pairwise(words):
            stood = sum(_overlap(stop, before.begun, after.begun) for stop in stops.get(process, []))
            # A lease runs from some moment between the two lines of what gave it.
            given = before.begun if before.ended is None else before.ended
            if after.begun.at - given.at - stood > attempt.claim.begun.lease:
                yield Breach("I5", job, f"was not renewed in time by fence {fence}", (before, after))
                break


def _overlap(stop: Deed, before: Event, after: Event) -> float:
    """The seconds between two lines in which a process stood still."""
    end = after.at if stop.ended is None else min(stop.ended.at, after.at)
    return max(0.0, end - max(stop.begun.at, before.at))


# -- I6, I7 -----------------------------------------------------------------------------------------------------------


def bounds_are_kept(history: History, bounds: Bounds) -> Iterator[Breach]:
    """I6: no process holds more jobs or more bytes than it may."""
    if bounds.most_held is None and bounds.most_held_bytes is None:
        return
    held: dict[str, dict[tuple[str, int], int]] = {}
    for done in history.acts:
        mine = held.setdefault(done.begun.process, {})
        if done.begun.act is Act.CLAIM:
            mine.update({(part.job, part.fence): part.size for part in done.parts})
        elif done.begun.act in (Act.END, Act.RENEW):
            gone = [part for part in done.parts if done.begun.act is Act.END or part.answer == Answer.LOST]
            for part in gone:
                mine.pop((part.job, part.fence), None)
        size = sum(mine.values())
        too_many = bounds.most_held is not None and len(mine) > bounds.most_held
        too_much = bounds.most_held_bytes is not None and len(mine) > 1 and size > bounds.most_held_bytes
        if too_many or too_much:
            yield Breach("I6", "", f"process {done.begun.process} holds {len(mine)} jobs of {size} bytes", (done,))


def models_run_alone(history: History, _: Bounds) -> Iterator[Breach]:
    """I7: the calls of one model come one after the other."""
    running: dict[str, Deed] = {}
    for call in history.of(Act.CALL):
        before = running.get(call.begun.stage)
        if before is not None and before.ended is not None and call.begun.at < before.ended.at:
            names = ", ".join(part.job for part in call.parts)
            yield Breach("I7", names, f"ran in {call.begun.stage} while another call was running", (before, call))
        if before is None or before.ended is None or call.ended is None or call.ended.at >= before.ended.at:
            running[call.begun.stage] = call


RULES: tuple[Callable[[History, Bounds], Iterator[Breach]], ...] = (
    one_end_a_run,
    fences_decide,
    each_fence_is_one_holder_s,
    effects_follow,
    attempts_are_counted,
    nobody_is_handed_a_leased_job,
    nobody_loses_a_job_to_itself,
    lost_jobs_are_claimed_soon,
    holders_renew,
    bounds_are_kept,
    models_run_alone,
    claims_keep_to_their_rooms,
    hosts_keep_to_their_shares,
    no_room_holds_up_another,
)
