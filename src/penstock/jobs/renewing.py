"""Renew the leases of all jobs that are held, from a thread of its own over a connection of its own.

Neither the event loop nor a slow claim can keep it from its work, and no code of users runs in this process.  A job
whose step has passed its limit is left out: its lease runs out, and another consumer takes it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.core.leases import renewal_delay, retry_delay
from penstock.hosting.fault_points import hit
from penstock.hosting.guarded_log import guarded_logger
from penstock.jobs.held_work import HeldWork, Holding
from penstock.jobs.store import STORE_TROUBLE, Answer, Renewed, Store

log = guarded_logger("penstock.jobs")

MOST_AT_ONCE = 500
"""The most leases that one call renews."""
LOOK_SECONDS = 1.0
"""How often it is looked whether the machine was suspended: the clock that threads wait by has stood still then."""


class RunOut(NamedTuple):
    """Jobs whose leases cannot be relied on: they may have run out."""

    to_renew: list[HeldWork]
    given_up: list[HeldWork]
    """Jobs whose step has passed its limit."""


Told = Callable[[Sequence[tuple[HeldWork, Renewed]]], None]


class Renewing:
    """Renews what `holding` has.

    `open_store` opens the connection, in the thread.  `boot` is the clock of leases, `now` that of the steps.  `told`
    is called in the thread with each answer that is not plainly OK, or that came after the lease had run out.  `died`
    is called there with what ended the thread by surprise.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        holding: Holding,
        *,
        lease: float,
        now: Callable[[], float],
        boot: Callable[[], float],
        told: Told,
        died: Callable[[Exception], None],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._open_store = open_store
        self._holding = holding
        self._lease = lease
        self._now = now
        self._boot = boot
        self._told = told
        self._died = died
        self._draw = draw
        self._store: Store | None = None
        self._failing = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.answers: dict[Answer, int] = dict.fromkeys(Answer, 0)
        """How many renewals were answered how."""

    def start(self) -> None:
        """Renew from now on."""
        self._thread = threading.Thread(target=self._run, name="penstock-renew", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Renew no longer.  The thread ends, and closes its store, as soon as its last call was answered."""
        self._stopped.set()

    def join(self, seconds: float) -> None:
        """Wait for the thread's end, at most so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        delay = renewal_delay(self._lease, self._draw())
        try:
            while not self._rest(delay):
                delay = self.renew()
        except Exception as error:  # noqa: BLE001  # a mistake of ours: without this thread all leases run out unseen
            self._died(error)
        finally:
            if self._store is not None:
                self._store.close()

    def _rest(self, seconds: float) -> bool:
        """Wait so long, of which a machine that was suspended has slept a part; whether this was stopped."""
        while seconds > 0 and not self._stopped.is_set():
            began, step = self._boot(), min(seconds, LOOK_SECONDS)
            self._stopped.wait(step)
            seconds -= max(step, self._boot() - began)
        return self._stopped.is_set()

    def run_out(self) -> RunOut:
        """Jobs that are held, and whose lease cannot be relied on."""
        now, boot = self._now(), self._boot()
        late = [job for job in self._holding.jobs() if job.lease_until <= boot and not job.lost]
        return RunOut([job for job in late if not job.overdue(now)], [job for job in late if job.overdue(now)])

    def renew(self) -> float:
        """Renew every lease once; returns the seconds until the next time."""
        now = self._now()
        jobs = [job for job in self._holding.jobs() if not job.lost and not job.overdue(now)]
        well = True
        for first in range(0, len(jobs), MOST_AT_ONCE):
            well = self._renew(jobs[first : first + MOST_AT_ONCE]) and well
        return (renewal_delay if well else retry_delay)(self._lease, self._draw())

    def _renew(self, jobs: Sequence[HeldWork]) -> bool:
        """Renew `jobs`; returns whether it is known of each what became of it."""
        try:
            if self._store is None:
                self._store = self._open_store()
            return self.renew_over(self._store, jobs)
        except STORE_TROUBLE as error:
            self.answers[Answer.UNKNOWN] += len(jobs)
            if not self._failing:
                self._failing = True
                log.warning("cannot renew leases, trying again: %s", error)
            return False

    def renew_over(self, store: Store, jobs: Sequence[HeldWork]) -> bool:
        """Renew `jobs` over a connection of somebody else's, in any thread; returns whether it is known of each what
        became of it.

        Raises:
            StoreUnavailable, ConfigError: the store does not answer.
        """
        sent = self._boot()
        hit("before_renewal")
        answers = store.renew([job.hold for job in jobs], self._lease)
        hit("after_renewal")
        if self._failing:
            self._failing = False
            log.info("lease renewals work again")
        news = []
        for job, renewed in zip(jobs, answers, strict=True):
            self.answers[renewed.answer] += 1
            before = job.lease_until
            if renewed.answer is Answer.OK:
                job.lease_until = sent + self._lease
            # Asked last: a lease may have run out while the call was under way, and who found that waits to be told.
            late = before <= self._boot()
            if late or renewed.cancel or renewed.answer is Answer.LOST:
                news.append((job, renewed))
        if news:
            self._told(news)
        return all(renewed.answer is not Answer.UNKNOWN for renewed in answers)
