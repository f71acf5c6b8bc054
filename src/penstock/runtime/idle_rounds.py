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

    `ask` has a worker run its `health`; `unwell` is told of one that is late, and why.
    """

    def __init__(
        self,
        workers: Sequence[WorkerSlot],
        clock: Clock,
        ask: Callable[[WorkerSlot], None],
        unwell: Callable[[WorkerSlot, str], None],
    ) -> None:
        self._workers = workers
        self._checks = IdleChecks(len(workers))
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

    def cancel(self) -> None:
        """Ask nobody any more."""
        self._over = True
        self._alarm.cancel()

    def _go(self) -> None:
        now = self._now()
        for index in self._checks.take_late(now):
            self._unwell(self._workers[index], LATE)
        due = self._checks.take_due(self._idle_since(), now)
        if due is not None:
            self._ask(self._workers[due])
        self._wait()

    def _wait(self) -> None:
        if not self._over:
            self._alarm.set(self._checks.next_look(self._idle_since(), self._now()))

    def _idle_since(self) -> list[float | None]:
        return [worker.idle_since for worker in self._workers]
