"""Asks the idle workers of a stage that has a `health` how they are.  When is decided in `core.idle_checks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.alarm import Alarm
from penstock.core.clock import Clock
from penstock.core.idle_checks import LIMIT_SECONDS, IdleChecks, Look
from penstock.runtime.worker_slot import WorkerSlot

LATE = f"health() ran longer than {LIMIT_SECONDS:g} s"


class IdleRounds:
    """The rounds through the workers of one stage, which share one timer.

    `ask` has a worker run its `health`; `unwell` is told of one that is late, and why.
    """

    def __init__(
        self,
        workers: Sequence[WorkerSlot],
        clock: Clock,
        ask: Callable[[WorkerSlot], None],
        unwell: Callable[[WorkerSlot, str], None],
    ) -> None:
        self._checks = [(worker, IdleChecks()) for worker in workers]
        self._ask = ask
        self._unwell = unwell
        self._now = clock.now
        self._alarm = Alarm(clock, self._go)

    def begin(self) -> None:
        """A worker became ready: look at it, and at the others, when it may have been idle for long enough."""
        self._wait(self._now())

    def ended(self, worker: WorkerSlot) -> None:
        """A worker has answered, or is gone."""
        self._checks[worker.index][1].ended()

    def cancel(self) -> None:
        """Ask nobody any more."""
        self._alarm.cancel()

    def _go(self) -> None:
        now = self._now()
        for worker, checks in self._checks:
            look = checks.look(worker.idle_since, now)
            if look is Look.ASK:
                self._ask(worker)
            elif look is Look.LATE:
                self._unwell(worker, LATE)
        self._wait(now)

    def _wait(self, now: float) -> None:
        self._alarm.set(min(checks.next_look(worker.idle_since, now) for worker, checks in self._checks))
