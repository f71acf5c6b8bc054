"""Renew the lease of one task while its function runs, from a thread of its own over a connection of its own.

Contract
--------
* The thread opens its connection for the first renewal, so a task that is done before then costs none.
* It ends with the task, or once the fence counts no longer, or after `limit` seconds: the lease runs out then, and
  another worker takes the task.  It never keeps the process alive.
* Ctrl-C may come at any moment of `start` and `stop`.  They call nothing but C: in the Python code of `threading` it
  can leave a lock behind that nobody ever lets go, or become a RuntimeError.
* A renewal that fails is told once, and tried again sooner than the next one was due.
"""

from __future__ import annotations

import math
import random
import threading
from _thread import start_new_thread
from collections.abc import Callable
from typing import Final

from penstock.core.leases import renewal_delay, retry_delay
from penstock.errors import PenstockError
from penstock.hosting.host_clock import boot_seconds
from penstock.training.rules.task_rules import task_name
from penstock.training.task_store import TaskHold, TaskStore

JOIN_SECONDS: Final = 10.0
"""For how long the end of a task waits for a renewal that is under way."""


class TaskRenewing:
    """Renews the lease of `hold` between `start` and `stop`.

    `open_store` opens the connection, in the thread.  `boot` is the clock of leases.  `tell` is called in the thread
    with a sentence about each trouble.
    """

    def __init__(
        self,
        open_store: Callable[[], TaskStore],
        hold: TaskHold,
        *,
        lease: float,
        limit: float = math.inf,
        tell: Callable[[str], None],
        boot: Callable[[], float] = boot_seconds,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._open_store = open_store
        self._hold = hold
        self._name = task_name(hold.kind, hold.place)
        self._lease = lease
        self._limit = limit
        self._tell = tell
        self._boot = boot
        self._draw = draw
        self._began = boot()
        self._store: TaskStore | None = None
        self._failing = False
        self._stopped = False
        self._sleep = threading.Lock()
        """The thread sleeps by waiting for it; `stop` lets it go."""
        self._sleep.acquire()
        self._at_work = threading.Lock()
        """Held by the thread from its begin to its end, and by `stop` for ever after."""

    def start(self) -> None:
        """Renew from now on."""
        start_new_thread(self._run, ())

    def stop(self) -> None:
        """Renew no longer; also where somebody interrupted `start`."""
        self._stopped = True
        if self._sleep.locked():
            self._sleep.release()
        self._at_work.acquire(timeout=JOIN_SECONDS)

    def _run(self) -> None:
        if not self._at_work.acquire(blocking=False):
            return  # it was stopped before it began
        delay: float | None = renewal_delay(self._lease, self._draw())
        try:
            while delay is not None and not self._sleep.acquire(timeout=delay) and not self._stopped:
                delay = self.renew()
        finally:
            if self._store is not None:
                self._store.close()
            self._at_work.release()

    def renew(self) -> float | None:
        """Renew once; returns the seconds until the next time, or None where there is none."""
        if self._boot() - self._began >= self._limit:
            self._tell(
                f"{self._name} has run for {self._limit:g} s, and its lease is no longer renewed: another "
                "worker takes the task when the lease expires"
            )
            return None
        try:
            if self._store is None:
                self._store = self._open_store()
            counts = self._store.renew(self._hold, self._lease)
        except PenstockError as error:
            if not self._failing and not self._stopped:
                self._failing = True
                self._tell(f"cannot renew the lease of {self._name}, trying again: {error}")
            return retry_delay(self._lease, self._draw())
        if not counts:
            if not self._stopped:
                self._tell(
                    f"lease of {self._name} lost: another worker has the task, or it was given up; dropping its "
                    "work here"
                )
            return None
        if self._failing:
            self._failing = False
            self._tell(f"the lease of {self._name} is renewed again")
        return renewal_delay(self._lease, self._draw())
