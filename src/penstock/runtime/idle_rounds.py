"""Asks the idle workers of a stage how they are that has a `health`.  `core.idle_checks` decides whom and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.alarm import Alarm
from penstock.core.clock import Clock
from penstock.core.idle_checks import LIMIT_SECONDS, IdleChecks
from penstock.runtime.worker_slot import WorkerSlot

LATE = f"health() ran longer than {LIMIT_SECONDS:g} s"


class IdleRounds:
    """The rounds through the workers of one stage, which share one timer.

    `workers` may change: at most `seats` of them are there, with numbers below that.  `ask` has a worker run its
    `health`; `unwell` is told of one that is late, and why.
    """

    def __init__(
        self,
        workers: Sequence[WorkerSlot],
        seats: int,
        clock: Clock,
        ask: Callable[[WorkerSlot], None],
        unwell: Callable[[WorkerSlot, str], None],
    ) -> None:
        self._workers = workers
        self._seats = seats
        self._checks = IdleChecks(seats)
        self._ask = ask
        self._unwell = unwell
        self._now = clock.now
        self._alarm = Alarm(clock, self._go)
        self._over = False

    def became_ready(self, worker: WorkerSlot) -> None:
        """`worker` became ready: look at it, and at the others, when it may have been idle for long enough."""
        self._checks.became_ready(worker.index)
        self._wait()

    def ended(self, worker: WorkerSlot) -> None:
        """A worker has answered, or is gone: it may be the turn of another one."""
        self._checks.ended(worker.index)
        self._wait()

    def replaced(self, worker: WorkerSlot) -> None:
        """`worker` is being ended for its health."""
        self._checks.replaced(worker.index)

    def another_came(self) -> None:
        """A worker is there that may stand for those that were ended for their health, whatever its number."""
        for index in range(self._seats):
            self._checks.became_ready(index)

    def cancel(self) -> None:
        """Ask nobody any more."""
        self._over = True
        self._alarm.cancel()

    def _go(self) -> None:
        now = self._now()
        for index in self._checks.take_late(now):
            self._unwell(self._worker(index), LATE)
        due = self._checks.take_due(self._idle_since(), now)
        if due is not None:
            self._ask(self._worker(due))
        self._wait()

    def _wait(self) -> None:
        if not self._over:
            self._alarm.set(self._checks.next_look(self._idle_since(), self._now()))

    def _idle_since(self) -> list[float | None]:
        found: list[float | None] = [None] * self._seats
        for worker in self._workers:
            if worker.has_health:
                found[worker.index] = worker.idle_since
        return found

    def _worker(self, index: int) -> WorkerSlot:
        return next(worker for worker in self._workers if worker.index == index)
