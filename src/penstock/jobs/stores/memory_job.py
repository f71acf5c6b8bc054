"""Decide what becomes of one job in memory: the rules of a store, applied to one job.  No lock, no clock.

Contract
--------
* Every change of state is a `Move` of `rules.job_states`.
* `now` is in seconds on a clock that nobody sets, and measures leases and rests.  `wall` is in Unix seconds: it is
  shown, and deadlines are compared with it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from penstock.errors import JobConflict
from penstock.jobs.job import MOST_HISTORY, Attempt, AttemptError, Job, StoredResult
from penstock.jobs.rules.attempts import FailureCause, judge
from penstock.jobs.rules.job_states import (
    CANCEL,
    CLAIM,
    ENDED,
    EXPIRE,
    FALL_DUE,
    GIVE_UP,
    POSTPONE,
    RELEASE,
    RETRY,
    SUCCEED,
    JobState,
)
from penstock.jobs.store import (
    LEASE_RAN_OUT,
    Answer,
    AttemptEnd,
    ClaimedJob,
    Delivery,
    Hold,
    NewJob,
    Renewed,
    wrote_nothing,
)

HELD_MOVES = {
    JobState.QUEUED: RELEASE,
    JobState.SCHEDULED: POSTPONE,
    JobState.SUCCEEDED: SUCCEED,
    JobState.DEAD: GIVE_UP,
    JobState.CANCELLED: CANCEL,
    JobState.EXPIRED: EXPIRE,
}
"""The moves that a holder makes, by where they lead."""


@dataclass(frozen=True)
class Moment:
    """The present on both clocks."""

    now: float
    wall: float


@dataclass
class MemoryJob:
    """A job in memory, and what happens to it.  A fence of `fence` or less is one of its forgotten namesakes'."""

    queue: str
    new: NewJob
    created: Moment
    fence: int
    outbox: list[Delivery]
    """Where it puts what is left to deliver."""
    seq: int = 0
    """Its place in the order of submission."""
    host: str = ""
    """Where its input is; "" in the store."""
    turn: int = 0
    """Its place in the order of claims, among those of its priority."""
    state: JobState = JobState.QUEUED
    run: int = 1
    first_fence: int = 0
    """The fence of the run's first attempt; 0 before it."""
    attempts: dict[str, int] = field(default_factory=dict)
    history: list[Attempt] = field(default_factory=list)
    alone: bool = False
    to_be_cancelled: bool = False
    deadline: float | None = None
    due: Moment | None = None
    """When it falls due, while it is scheduled."""
    waits_since: float = 0.0
    lease_ends: float = 0.0
    lapsed: bool = False
    """Whether its store has seen that the lease ran out: it stands among those that may be claimed."""
    forgotten: bool = False
    """Whether its store has it no more."""
    told: JobState | None = None
    """How the holder of the newest fence told that its attempt ended; None where it has not."""
    ended: Moment | None = None
    error: AttemptError | None = None
    result: StoredResult | None = None

    def __post_init__(self) -> None:
        self.deadline = self.new.deadline
        self.host, self.turn = self.new.host, self.seq
        self.waits_since = self.created.now
        if self.new.delay > 0:
            self.state = JobState.SCHEDULED
            self.due = Moment(self.created.now + self.new.delay, self.created.wall + self.new.delay)

    def shown(self) -> Job:
        """The job as its submitter sees it."""
        return Job(
            id=self.new.id,
            queue=self.queue,
            state=self.state,
            created_at=self.created.wall,
            service=self.new.service,
            generation=self.run,
            failures=dict(self.attempts),
            attempts=tuple(self.history),
            finished_at=None if self.ended is None else self.ended.wall,
            priority=self.new.priority,
            scheduled_at=None if self.due is None else self.due.wall,
            expires_at=self.deadline,
            error=self.error,
            input_url=self.new.input_url,
            output_url=self.new.output,
        )

    # -- what time does ---------------------------------------------------------------------------------------------

    def see_time(self, at: Moment) -> None:
        """Fall due, or expire, where that moment has come and nobody holds the job."""
        if self.state is JobState.SCHEDULED and self.due is not None and at.now >= self.due.now:
            self.state = FALL_DUE[self.state]
            self.waits_since = self.due.now
            self.due = None
        if self.state in (JobState.SCHEDULED, JobState.QUEUED) and self.deadline_passed(at):
            self._end_run(EXPIRE[self.state], at)

    def deadline_passed(self, at: Moment) -> bool:
        """Whether its deadline has passed."""
        return self.deadline is not None and at.wall >= self.deadline

    def lease_ran_out(self, at: Moment) -> bool:
        """Whether it is running, and its holder has not renewed the lease in time."""
        return self.state is JobState.RUNNING and at.now >= self.lease_ends

    # -- what its submitter does ------------------------------------------------------------------------------------

    def cancel(self, at: Moment) -> None:
        """End it as cancelled, or have its holder do so; does nothing to one that is cancelled."""
        if self.state is JobState.CANCELLED:
            return
        if self.state in ENDED:
            raise JobConflict(f"job {self.new.id} cannot be cancelled: it is {self.state} already")
        if self.state is JobState.RUNNING and not self.lease_ran_out(at):
            self.to_be_cancelled = True
            return
        self._end_run(CANCEL[self.state], at)

    def retry(self, at: Moment) -> None:
        """Begin its next run."""
        if self.state not in ENDED or self.state is JobState.SUCCEEDED:
            raise JobConflict(f"job {self.new.id} cannot be retried: it is {self.state}")
        self.state = RETRY[self.state]
        self.run += 1
        self.first_fence = 0
        self.attempts = {}
        self.alone = self.to_be_cancelled = False
        if self.deadline_passed(at):
            self.deadline = None
        self.waits_since = at.now
        self.ended = self.error = None

    # -- what holders do --------------------------------------------------------------------------------------------

    def lose(self, at: Moment) -> None:
        """Settle the attempt whose lease ran out; it may be claimed then, unless that has ended its run."""
        if self.to_be_cancelled:
            self._end_run(CANCEL[self.state], at)
        elif self.deadline_passed(at):
            self._end_run(EXPIRE[self.state], at)
        else:
            judgement = judge(self.attempts, FailureCause.LEASE_EXPIRED, alone=self.alone, backoff=0.0, draw=0.0)
            self._count(FailureCause.LEASE_EXPIRED)
            self.error = LEASE_RAN_OUT
            self.alone = True
            if judgement.dead:
                self._end_run(GIVE_UP[self.state], at)
            else:
                self._end_attempt(FailureCause.LEASE_EXPIRED, at)

    def stays_with(self, holder: str, given_up: Collection[Hold]) -> bool:
        """Whether a claim by `holder` renews the lease that ran out."""
        held = self.history[-1].consumer_id == holder and Hold(self.new.id, self.fence) not in given_up
        return held and not self.to_be_cancelled

    def claim(self, holder: str, lease: float, at: Moment) -> ClaimedJob:
        """Lease it to `holder`."""
        self.state = CLAIM[self.state]
        self.fence += 1
        self.first_fence = self.first_fence or self.fence
        self.told = None
        self.history.append(
            Attempt(generation=self.run, fencing_token=self.fence, consumer_id=holder, started_at=at.wall)
        )
        del self.history[:-MOST_HISTORY]
        return self.claim_again(lease, at)

    def claim_again(self, lease: float, at: Moment) -> ClaimedJob:
        """Lease it to its holder for longer, and hand it out."""
        self.lease_ends = at.now + lease
        self.lapsed = False
        return ClaimedJob(
            id=self.new.id,
            fence=self.fence,
            run=self.run,
            body=self.new.body,
            content_type=self.new.content_type,
            accept=self.new.accept,
            service=self.new.service,
            alone=self.alone,
            attempts=dict(self.attempts),
            deadline=self.deadline,
            input_url=self.new.input_url,
            output=self.new.output,
        )

    def renew(self, fence: int, lease: float, at: Moment) -> Renewed:
        """Have its lease end later."""
        if not self.is_held_by(fence):
            return Renewed(Answer.LOST)
        self.lease_ends = at.now + lease
        self.lapsed = False
        return Renewed(Answer.OK, self.to_be_cancelled)

    def is_held_by(self, fence: int) -> bool:
        """Whether the attempt `fence` still goes on."""
        return self.state is JobState.RUNNING and fence == self.fence

    def end(self, end: AttemptEnd, at: Moment) -> Answer:
        """End its attempt as the holder tells."""
        if not self.is_held_by(end.hold.fence):
            was_told = end.hold.fence == self.fence and end.to is self.told
            return Answer.OK if was_told else Answer.LOST
        self.told = end.to
        if end.cause is not None and end.counts:
            self._count(end.cause)
        if end.transfers:
            self._count(FailureCause.TRANSFER, end.transfers)
        self.alone = self.alone or end.alone
        self.error = end.problem or self.error
        goes_back = end.to not in ENDED
        to = JobState.CANCELLED if goes_back and self.to_be_cancelled else end.to
        after = HELD_MOVES[to][self.state]
        if after in ENDED:
            self._end_run(after, at, end)
            return Answer.OK
        self._end_attempt(str(end.cause or after), at)
        self.state = after
        if after is JobState.SCHEDULED:
            self.due = Moment(at.now + end.rest, at.wall + end.rest)
        return Answer.OK

    def _count(self, cause: FailureCause, n: int = 1) -> None:
        self.attempts[cause] = self.attempts.get(cause, 0) + n

    def _end_attempt(self, cause: str, at: Moment) -> None:
        last = self.history[-1]
        self.history[-1] = Attempt(
            last.generation, last.fencing_token, last.consumer_id, last.started_at, at.wall, cause
        )

    # -- the end ----------------------------------------------------------------------------------------------------

    def _end_run(self, state: JobState, at: Moment, end: AttemptEnd | None = None) -> None:
        if self.state is JobState.RUNNING:
            self._end_attempt(state, at)
        self.state = state
        self.ended = at
        self.due = None
        if state is JobState.SUCCEEDED and end is not None:
            self.error = None
            self.result = StoredResult(end.result, end.content_type, self.new.output)
        if end is None or not wrote_nothing(end, self.first_fence):
            self._leave_delivery()

    def forget(self) -> None:
        """Its store forgets it."""
        self.forgotten = True
        if self.state not in ENDED:
            self._leave_delivery()

    def _leave_delivery(self) -> None:
        if self.new.output is not None and self.first_fence > 0:
            written = self.fence if self.state is JobState.SUCCEEDED else 0
            self.outbox.append(Delivery(self.new.id, self.new.output, written, self.first_fence, self.fence))
