"""The suite of `penstock.testing.stores` over stores that break the contract in one point each: it must fail."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from penstock.jobs.rules.job_states import JobState
from penstock.jobs.rules.waiting_bounds import NO_BOUNDS, WaitingBounds
from penstock.jobs.store import Answer, Hold, Renewed
from penstock.jobs.stores.memory_job import Moment
from penstock.jobs.stores.memory_store import MemoryStore
from penstock.testing.stores import StoreSuite


def newest(store, hold):
    """What a holder would say if it held the newest claim of its job."""
    job = store._jobs.get(hold.job_id)
    return hold if job is None else Hold(hold.job_id, job.fence)


class WithoutFences(MemoryStore):
    """Every claim of a job has the same number."""

    def claim(self, holder, **options):
        for job in self._jobs.values():
            job.fence = 0
        return super().claim(holder, **options)


class WithoutFencedCommits(MemoryStore):
    """Anybody may commit who ever held the job."""

    def end_attempts(self, ends):
        return super().end_attempts([replace(end, hold=newest(self, end.hold)) for end in ends])


class WithoutFencedRenewals(MemoryStore):
    """Anybody may renew who ever held the job."""

    def renew(self, holds, lease):
        return super().renew([newest(self, hold) for hold in holds], lease)


class WithoutRenewals(MemoryStore):
    """It says OK, and lets the lease run out when it would have."""

    def renew(self, holds, lease):
        jobs = [self._jobs.get(hold.job_id) for hold in holds]
        held = [job is not None and job.is_held_by(hold.fence) for hold, job in zip(holds, jobs, strict=True)]
        return [
            Renewed(Answer.OK, job.to_be_cancelled) if ok else Renewed(Answer.LOST)
            for job, ok in zip(jobs, held, strict=True)
        ]


class WithoutHiding(MemoryStore):
    """What is running is handed out once more."""

    def claim(self, holder, **options):
        for job in self._jobs.values():
            job.lease_ends = -math.inf
        return super().claim(holder, **options)


class WithoutScheduled(MemoryStore):
    """What is scheduled never falls due."""

    def submit(self, jobs):
        shown = super().submit(jobs)
        for job in self._jobs.values():
            if job.state is JobState.SCHEDULED:
                job.due = Moment(math.inf, job.due.wall)
        return shown


class WithoutRests(MemoryStore):
    """A job that is to rest is lost."""

    def end_attempts(self, ends):
        answers = super().end_attempts(ends)
        for end in ends:
            if end.to is JobState.SCHEDULED:
                self._jobs.pop(end.hold.job_id, None)
        return answers


class WithoutGrace(MemoryStore):
    """A lease that ran out is over, although nobody has claimed the job since."""

    def end_attempts(self, ends):
        for end in ends:
            job = self._jobs.get(end.hold.job_id)
            if job is not None and job.lease_ran_out(self._at()):
                job.fence += 1
        return super().end_attempts(ends)


class WithoutLosses(MemoryStore):
    """Lost attempts are not counted."""

    def claim(self, holder, **options):
        claimed = super().claim(holder, **options)
        for job in self._jobs.values():
            job.attempts.pop("lease_expired", None)
        return claimed


class WithoutSelf(MemoryStore):
    """Whose lease has run out is nobody in particular."""

    def claim(self, holder, **options):
        return super().claim(f"{holder} {self._now()}", **options)


class WithoutGivingUp(MemoryStore):
    """A holder keeps for ever what it renews no longer."""

    def claim(self, holder, *, given_up=(), **options):
        return super().claim(holder, **options)


class WithoutKeys(MemoryStore):
    """A job published twice under one key is two jobs."""

    def submit(self, jobs):
        self._ids.clear()
        return super().submit(jobs)


class WithoutMemoryOfEndings(MemoryStore):
    """Who asks once more whether its ending was heard is told LOST."""

    def end_attempts(self, ends):
        answers = super().end_attempts(ends)
        for end in ends:
            if end.hold.job_id in self._jobs:
                self._jobs[end.hold.job_id].told = None
        return answers


class WithoutOutbox(MemoryStore):
    """A delivery is forgotten as soon as somebody has it."""

    def deliveries(self, *, limit, lease):
        given = super().deliveries(limit=limit, lease=lease)
        self.delivered(given)
        return given


class WithoutRuns(MemoryStore):
    """Who has made a job's delivery has made all of them."""

    def delivered(self, deliveries):
        ids = {delivery.job_id for delivery in deliveries}
        self._outbox[:] = [left for left in self._outbox if left.job_id not in ids]


class WithoutAtomicSubmit(MemoryStore):
    """What comes before a conflict is kept."""

    def submit(self, jobs):
        return [shown for job in jobs for shown in super(WithoutAtomicSubmit, self).submit([job])]


class WithoutServices(MemoryStore):
    """Everybody is handed what is for anybody."""

    def claim(self, holder, **options):
        every = {job.new.service for job in self._jobs.values()}
        return super().claim(holder, **{**options, "services": every})


class WithoutScheduledInBounds(MemoryStore):
    """A job with a delay does not count among those that wait."""

    def submit(self, jobs):
        bounds = self.bounds
        if any(job.delay for job in jobs) or any(job.state is JobState.SCHEDULED for job in self._jobs.values()):
            self.bounds = NO_BOUNDS
        shown = super().submit(jobs)
        self.bounds = bounds
        return shown


BROKEN = {
    WithoutFences: "test_a_lease_that_ran_out_is_claimed_by_another",
    WithoutFencedCommits: "test_a_lease_that_ran_out_is_claimed_by_another",
    WithoutFencedRenewals: "test_a_lease_that_ran_out_is_claimed_by_another",
    WithoutRenewals: "test_a_renewed_lease_runs_from_the_renewal",
    WithoutHiding: "test_what_is_leased_is_hidden",
    WithoutScheduled: "test_a_delayed_job_is_claimed_when_it_falls_due",
    WithoutRests: "test_a_failed_attempt_is_counted_and_rests",
    WithoutGrace: "test_a_holder_whose_lease_ran_out_may_commit_until_another_claims",
    WithoutLosses: "test_lost_attempts_are_counted_and_the_last_one_allowed_ends_the_run",
    WithoutSelf: "test_a_claim_by_the_holder_whose_lease_ran_out_is_a_renewal",
    WithoutGivingUp: "test_what_a_holder_has_given_up_is_lost_as_another_s_would_be",
    WithoutKeys: "test_a_job_published_twice_is_one_job",
    WithoutMemoryOfEndings: "test_an_ending_told_again_is_ok_again",
    WithoutOutbox: "test_each_delivery_is_one_callers_until_its_lease_runs_out",
    WithoutRuns: "test_a_job_has_a_delivery_for_each_of_its_runs",
    WithoutAtomicSubmit: "test_all_or_none_are_kept",
    WithoutScheduledInBounds: "test_no_more_jobs_wait_than_may",
    WithoutServices: "test_a_claim_takes_what_is_for_its_services_or_for_any",
}
"""For each, a test that is there because of it; others may fail too."""


def failures(kind):
    """The tests of the suite that a store fails."""

    class Suite(StoreSuite):
        passed = 0.0

        def open(self):
            return kind(now=lambda: self.passed, wall=lambda: 1.7e9 + self.passed)

        def open_again(self, store):
            return store

        def open_bounded(self, store, *, max_waiting, max_waiting_bytes):
            store.bounds = WaitingBounds(max_waiting, max_waiting_bytes)
            return store

        def pass_time(self, seconds):
            self.passed += seconds

    failed = set()
    for name in dir(Suite):
        if name.startswith("test_"):
            try:
                getattr(Suite(), name)()
            except Exception:
                failed.add(name)
    return failed


@pytest.mark.parametrize("kind", BROKEN)
def test_the_suite_fails_a_store(kind):
    assert BROKEN[kind] in failures(kind)


def test_the_suite_passes_a_store_in_which_nothing_is_missing():
    assert failures(MemoryStore) == set()
