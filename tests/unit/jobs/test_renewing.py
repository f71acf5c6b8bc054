"""The renewal of leases, one round at a time; the thread itself is tried with real consumers."""

from __future__ import annotations

from penstock.errors import ConfigError, StoreUnavailable
from penstock.jobs import renewing
from penstock.jobs.held_work import HeldWork, Holding, JobStep
from penstock.jobs.renewing import MOST_AT_ONCE, Renewing
from penstock.jobs.store import Answer, ClaimedJob, Renewed


class FakeStore:
    """Answers as it is told; `answers` are used up, then all is well."""

    def __init__(self):
        self.asked = []
        self.answers = []
        self.closed = False

    def renew(self, holds, lease):
        self.asked.append([hold.job_id for hold in holds])
        found = self.answers.pop(0) if self.answers else [Renewed(Answer.OK)] * len(holds)
        if isinstance(found, Exception):
            raise found
        return found

    def close(self):
        self.closed = True


class Round:
    def __init__(self, *names, lease=30.0):
        self.now = 100.0
        self.holding = Holding()
        self.store = FakeStore()
        self.news = []
        self.deaths = []
        self.jobs = {name: self.hold(name) for name in names}
        self.renewing = Renewing(
            lambda: self.store,
            self.holding,
            lease=lease,
            now=lambda: self.now,
            boot=lambda: self.now,
            told=lambda news: self.news.extend(
                (job.claimed.id, renewed.answer, renewed.cancel) for job, renewed in news
            ),
            died=self.deaths.append,
            draw=lambda: 0.5,
        )

    def hold(self, name):
        claimed = ClaimedJob(
            id=name, fence=1, run=1, body=b"", content_type="", accept="", service="", alone=False, attempts={},
            deadline=None, input_url=None, output=None,
        )  # fmt: skip
        job = HeldWork(claimed, self.now + 30.0, self.now)
        self.holding.add(job)
        return job


def test_everything_that_is_held_is_renewed_from_before_the_call_was_sent():
    here = Round("a", "b")
    here.now = 110.0
    assert here.renewing.renew() == 10.0
    assert here.store.asked == [["a", "b"]]
    assert {job.lease_until for job in here.jobs.values()} == {140.0}
    assert here.news == []
    assert here.renewing.answers[Answer.OK] == 2


def test_many_leases_are_renewed_by_several_calls():
    here = Round(*[f"j{n}" for n in range(MOST_AT_ONCE + 1)])
    here.renewing.renew()
    assert [len(asked) for asked in here.store.asked] == [MOST_AT_ONCE, 1]


def test_one_call_that_fails_does_not_keep_the_others_from_being_made():
    here = Round(*[f"j{n}" for n in range(MOST_AT_ONCE + 1)])
    here.store.answers = [StoreUnavailable("gone")]
    assert here.renewing.renew() < 10.0
    assert len(here.store.asked) == 2
    assert here.renewing.answers == {Answer.OK: 1, Answer.LOST: 0, Answer.UNKNOWN: MOST_AT_ONCE}


def test_a_failed_renewal_changes_no_lease_and_is_tried_again_sooner(caplog):
    here = Round("a")
    here.store.answers = [StoreUnavailable("gone"), StoreUnavailable("gone")]
    assert here.renewing.renew() == 1.5
    assert here.renewing.renew() == 1.5
    assert here.jobs["a"].lease_until == 130.0
    assert here.renewing.renew() == 10.0
    warnings = [record for record in caplog.records if "cannot renew leases" in record.message]
    assert len(warnings) == 1


def test_a_store_that_refuses_us_is_asked_again():
    here = Round("a")
    here.store.answers = [ConfigError("refuses the password")]
    assert here.renewing.renew() == 1.5
    assert here.renewing.answers[Answer.UNKNOWN] == 1
    assert here.renewing.renew() == 10.0
    assert here.jobs["a"].lease_until == 130.0


def test_only_news_are_told():
    here = Round("well", "lost", "cancelled", "late", "unknown")
    here.jobs["late"].lease_until = 99.0
    here.store.answers = [
        [
            Renewed(Answer.OK),
            Renewed(Answer.LOST),
            Renewed(Answer.OK, cancel=True),
            Renewed(Answer.OK),
            Renewed(Answer.UNKNOWN),
        ]
    ]
    assert here.renewing.renew() < 10.0
    assert here.news == [
        ("lost", Answer.LOST, False),
        ("cancelled", Answer.OK, True),
        ("late", Answer.OK, False),
    ]


def test_a_lease_that_runs_out_before_the_answer_comes_is_told_as_late():
    """A step that was to begin meanwhile waits for that."""
    here = Round("a")
    here.now = 129.0

    def renew(holds, lease):
        here.now = 131.0
        return FakeStore.renew(here.store, holds, lease)

    here.store.renew = renew
    here.renewing.renew()
    assert here.jobs["a"].lease_until == 159.0
    assert here.news == [("a", Answer.OK, False)]


def test_what_is_lost_or_stuck_is_renewed_no_longer():
    here = Round("a", "lost", "stuck")
    here.jobs["lost"].lost = True
    here.jobs["stuck"].enter(JobStep.UPLOAD, 100.0, limit=5.0)
    here.now = 106.0
    here.renewing.renew()
    assert here.store.asked == [["a"]]


def test_what_may_have_run_out_is_to_be_renewed_or_was_given_up():
    here = Round("well", "lost", "stuck", "late")
    here.jobs["lost"].lost = True
    here.jobs["stuck"].enter(JobStep.UPLOAD, 100.0, limit=5.0)
    here.now = 130.0
    here.jobs["well"].lease_until = 131.0
    assert here.renewing.run_out() == ([here.jobs["late"]], [here.jobs["stuck"]])
    assert here.renewing.renew_over(here.store, [here.jobs["late"]])
    assert here.renewing.run_out() == ([], [here.jobs["stuck"]])
    assert here.news == [("late", Answer.OK, False)]


def test_who_was_suspended_renews_at_once(monkeypatch):
    monkeypatch.setattr(renewing, "LOOK_SECONDS", 0.001)
    here = Round("a", lease=3600.0)
    readings = iter([100.0, 5000.0])
    here.renewing._boot = lambda: next(readings, 5000.0)  # the thread would wait for twenty minutes
    here.store.answers = [KeyError("that was it")]
    here.renewing.start()
    here.renewing.join(20.0)
    assert here.store.asked == [["a"]]


def test_with_nothing_held_nobody_is_asked():
    here = Round()
    here.renewing.renew()
    assert here.store.asked == []


def test_a_mistake_that_ends_the_thread_is_told():
    here = Round("a", lease=0.001)
    here.store.answers = [KeyError("a mistake of ours")]
    here.renewing.start()
    here.renewing.join(20.0)
    assert [type(error) for error in here.deaths] == [KeyError]
    assert here.store.closed
