"""What systemd is told of a run, in a time that the test moves."""

from __future__ import annotations

import pytest

from penstock.core.notifications import READY, STOPPING, WATCHDOG
from penstock.hosting.notifying import END_SECONDS, Notifier
from penstock.testing.virtual_clock import VirtualClock

EXTENDED = "EXTEND_TIMEOUT_USEC=15000000"


class Manager:
    """Keeps what it takes; while it is `full` it takes nothing."""

    def __init__(self):
        self.messages = []
        self.full = self.closed = False

    def send(self, assignments):
        if not self.full:
            self.messages.append(list(assignments))
        return not self.full

    def close(self):
        self.closed = True

    def took(self):
        """What has come since it was last asked."""
        messages, self.messages = self.messages, []
        return messages


class Run:
    """A run whose state is what the test says."""

    def __init__(self, watchdog=None):
        self.clock, self.manager = VirtualClock(), Manager()
        self.words, self.stuck = "starting", ""
        self.fault = None
        self.notifier = Notifier(
            self.manager,
            self.clock,
            watchdog=watchdog,
            words=self._told_words,
            stuck=lambda: self.stuck,
        )

    def _told_words(self, stopping):
        if self.fault is not None:
            raise self.fault
        return "draining" if stopping else self.words


@pytest.fixture
def run():
    return Run()


async def test_a_run_is_told_from_its_beginning_to_its_end(run):
    run.notifier.began()
    assert run.manager.took() == [["STATUS=starting", EXTENDED]]
    run.words = "starting: M is loading, 2 s"
    await run.clock.advance(2.0)
    assert run.manager.took() == [["STATUS=starting: M is loading, 2 s"]]
    run.words = "ready"
    run.notifier.ready()
    assert run.manager.took() == [[READY, "STATUS=ready"]]
    await run.clock.advance(60.0)
    assert run.manager.took() == []
    run.notifier.stopping(2.0)
    assert run.manager.took() == [[STOPPING, "STATUS=draining", "EXTEND_TIMEOUT_USEC=12000000"]]
    await run.clock.advance(5.0)
    assert run.manager.took() == [["EXTEND_TIMEOUT_USEC=7000000"]]
    run.notifier.ended()
    assert run.clock.waiting == []
    assert run.manager.closed


async def test_a_drain_that_hangs_does_not_ask_for_patience_for_ever(run):
    run.notifier.stopping(1.0)
    await run.clock.advance(1.0 + END_SECONDS)
    run.manager.took()
    await run.clock.advance(600.0)
    assert run.manager.took() == []


async def test_a_sign_of_life_comes_at_half_of_the_time_until_something_is_stuck():
    run = Run(watchdog=5.0)
    run.notifier.began()
    run.notifier.ready()
    run.manager.took()
    await run.clock.advance(10.0)
    assert run.manager.took() == [[WATCHDOG]] * 4
    run.stuck = "stage 'M' has work, but has completed no batch for 600 s"
    await run.clock.advance(60.0)
    assert run.manager.took() == []
    run.stuck = ""
    await run.clock.advance(1.0)
    assert run.manager.took() == [[WATCHDOG]]


async def test_readiness_that_was_not_taken_is_told_again(run):
    run.notifier.began()
    run.manager.took()
    run.manager.full = True
    run.words = "ready"
    run.notifier.ready()
    await run.clock.advance(0.5)
    run.manager.full = False
    await run.clock.advance(0.5)
    assert run.manager.took() == [[READY, "STATUS=ready"]]


async def test_a_fault_in_a_look_costs_that_look_alone(run):
    run.notifier.began()
    run.manager.took()
    run.fault = ValueError("no words")
    with pytest.raises(ValueError, match="no words"):
        await run.clock.advance(1.0)
    run.fault, run.words = None, "busy"
    await run.clock.advance(1.0)
    assert run.manager.took() == [["STATUS=busy"]]
