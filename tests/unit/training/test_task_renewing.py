"""The renewal of one task's lease, one time after the other; the thread itself is tried once, and with real workers."""

from __future__ import annotations

import threading

from penstock.core.leases import renewal_delay, retry_delay
from penstock.errors import ConfigError, RunUnavailable
from penstock.training.rules.task_states import Phase
from penstock.training.task_renewing import TaskRenewing
from penstock.training.task_store import TaskHold

HOLD = TaskHold(Phase.SAVE, 0, 1)
TRAIN = TaskHold(Phase.TRAIN, 3, 1)


class FakeStore:
    """Answers as it is told; `answers` are used up, then all is well."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.asked_once = threading.Event()
        self.closed = threading.Event()

    def renew(self, hold, lease):
        self.asked.append((hold, lease))
        self.asked_once.set()
        found = self.answers.pop(0) if self.answers else True
        if isinstance(found, Exception):
            raise found
        return found

    def close(self):
        self.closed.set()


class Round:
    def __init__(self, *answers, hold=TRAIN, lease=30.0, **more):
        self.now = 100.0
        self.store = FakeStore(*answers)
        self.told = []
        self.opened = 0
        self.renewing = TaskRenewing(
            self.open, hold, lease=lease, tell=self.told.append, boot=lambda: self.now, draw=lambda: 0.5, **more
        )

    def open(self):
        self.opened += 1
        return self.store


def test_a_lease_is_renewed_each_third_of_it_over_one_connection():
    round_ = Round()
    assert [round_.renewing.renew() for _ in range(3)] == [renewal_delay(30.0, 0.5)] * 3 == [10.0] * 3
    assert round_.store.asked == [(TRAIN, 30.0)] * 3
    assert (round_.opened, round_.told) == (1, [])


def test_what_fails_is_told_once_and_tried_again_soon():
    round_ = Round(RunUnavailable("locked"), RunUnavailable("locked"), True, RunUnavailable("full"))
    assert [round_.renewing.renew() for _ in range(3)] == [retry_delay(30.0, 0.5)] * 2 + [10.0]
    assert round_.told == [
        "cannot renew the lease of train 3, trying again: locked",
        "the lease of train 3 is renewed again",
    ]
    round_.renewing.renew()
    assert round_.told[2] == "cannot renew the lease of train 3, trying again: full"


def test_a_file_that_cannot_be_opened_is_told_and_tried_again():
    round_ = Round()
    round_.renewing._open_store = lambda: (_ for _ in ()).throw(ConfigError("damaged"))
    assert round_.renewing.renew() == retry_delay(30.0, 0.5)
    assert "damaged" in round_.told[0]


def test_a_lost_lease_is_told_and_renewed_no_longer():
    round_ = Round(False)
    assert round_.renewing.renew() is None
    (told,) = round_.told
    assert "lease of train 3 lost" in told


def test_after_its_limit_a_lease_is_renewed_no_longer():
    round_ = Round(hold=HOLD, limit=25.0)
    round_.now += 24.9
    assert round_.renewing.renew() == 10.0
    round_.now += 0.1
    assert round_.renewing.renew() is None
    assert len(round_.store.asked) == 1
    (told,) = round_.told
    assert told.startswith("save has run for 25 s, and its lease is no longer renewed")


def test_the_thread_renews_until_it_is_stopped_and_closes_its_connection():
    round_ = Round(lease=0.5)
    round_.renewing.start()
    assert round_.store.asked_once.wait(20)
    round_.renewing.stop()
    assert round_.store.closed.is_set()
    round_.renewing._run()  # as a thread that begins only now
    assert len(round_.store.asked) == 1


def test_a_task_that_is_done_before_the_first_renewal_opens_nothing():
    round_ = Round()
    round_.renewing.start()
    round_.renewing.stop()
    assert round_.opened == 0
