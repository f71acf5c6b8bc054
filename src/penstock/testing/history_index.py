"""The acts of a history by the jobs and the attempts that they were about.  See `penstock.testing.history`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.jobs.job import Job
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import Answer
from penstock.testing.history_events import Act, Deed, Event, Part, pair_up


class Breach(NamedTuple):
    """A promise that was broken."""

    rule: str
    job: str
    what: str
    acts: tuple[Deed, ...]

    def __str__(self) -> str:
        lines = sorted((event for done in self.acts for event in done.lines), key=lambda event: event.at)
        shown = "".join(f"\n    {event}" for event in lines)
        return f"{self.rule}: {f'job {self.job} ' if self.job else ''}{self.what}{shown}"


@dataclass(frozen=True)
class Bounds:
    """What may be at most; None is not checked."""

    reclaim_within: float | None
    most_held: int | None
    most_held_bytes: int | None


class Attempted(NamedTuple):
    """A claim of a job, what its holder told the store about it, and the claim that came next."""

    claim: Deed
    part: Part
    renewals: list[Deed]
    ends: list[tuple[Deed, Part]]
    next_claim: Deed | None

    def given(self) -> list[Deed]:
        """The claim, and the renewals that the store granted."""
        return [self.claim, *(done for done in self.renewals if self.answer_of(done) == Answer.OK)]

    def answer_of(self, done: Deed) -> str:
        """What the store said of this attempt in an act."""
        mine = (self.part.job, self.part.fence)
        return next((part.answer for part in done.parts if (part.job, part.fence) == mine), "")

    def commits(self) -> list[Deed]:
        """What the holder told as a success."""
        return [done for done, part in self.ends if part.to == JobState.SUCCEEDED]

    def accepted_end(self) -> tuple[Deed, Part] | None:
        """The first ending that the store took."""
        return next(((done, part) for done, part in self.ends if part.answer == Answer.OK), None)


class History:
    """The acts, sorted by what they were about."""

    def __init__(self, events: Sequence[Event], jobs: Sequence[Job]) -> None:
        self.acts = pair_up(events)
        self._places = {done.begun.call: place for place, done in enumerate(self.acts)}
        self.jobs = {job.id: job for job in jobs}
        claims: dict[tuple[str, int], tuple[Deed, Part]] = {}
        again: list[tuple[Deed, Part]] = []
        for done, part in self.parts_of(Act.CLAIM):
            first, _ = claims.setdefault((part.job, part.fence), (done, part))
            if first is not done and first.begun.process == done.begun.process:
                again.append((done, part))  # its lease had run out, and the claim has renewed it
        self.attempts: dict[tuple[str, int], Attempted] = {}
        for (job, fence), (done, part) in sorted(claims.items(), reverse=True):
            later = self.attempts.get((job, fence + 1))
            self.attempts[job, fence] = Attempted(done, part, [], [], None if later is None else later.claim)
        renewals = [*self.parts_of(Act.RENEW), *again]
        for done, part in sorted(renewals, key=lambda each: self._places[each[0].begun.call]):
            if (part.job, part.fence) in self.attempts:
                self.attempts[part.job, part.fence].renewals.append(done)
        for done, part in self.parts_of(Act.END):
            if (part.job, part.fence) in self.attempts:
                self.attempts[part.job, part.fence].ends.append((done, part))

    def in_order(self, first: Deed, second: Deed) -> bool:
        """Whether `second` began when `first` had ended, which decides also where the clock stood still."""
        if first.ended is None or second.begun.at < first.ended.at:
            return False
        return self._places[first.begun.call] < self._places[second.begun.call]

    def began_before(self, first: Deed, second: Deed) -> bool:
        """Whether `first` began earlier."""
        return self._places[first.begun.call] < self._places[second.begun.call]

    def of(self, act: Act) -> list[Deed]:
        """All acts of a kind."""
        return [done for done in self.acts if done.begun.act is act]

    def parts_of(self, act: Act) -> Iterator[tuple[Deed, Part]]:
        """All acts of a kind, for each job that they were about."""
        return ((done, part) for done in self.of(act) for part in done.parts)
