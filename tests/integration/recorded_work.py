"""`penstock consume` with a history: ``python recorded_work.py work job_models:service --queue-url URL …``.

What the consumer tells its store and every move of an output go into the file `JOBS_HISTORY`.  `JOBS_MUTANT` plants a
mistake in the consumer, which the history must show, and `JOBS_BLOCKED_LOOP` keeps its event loop busy for so many
seconds.  Outputs that a killed consumer was about to move are another's
after `JOBS_DELIVERY_LEASE` seconds.  Names of hosts are looked up in the file `MOVING_NAMES`, where there is one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from moving_names import VARIABLE, look_up_in

from penstock.cli import main, work
from penstock.jobs import upkeep
from penstock.jobs.claiming import Claiming
from penstock.jobs.renewing import Renewing
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import Answer, AttemptEnd, ClaimedJob, Hold, Store
from penstock.jobs.stores.opening import open_store
from penstock.testing.history import Act, Part, RecordedStore, log_to
from penstock.transfer.transfers import Transfers

LOG = log_to(os.environ["JOBS_HISTORY"])
MUTANT = os.environ.get("JOBS_MUTANT", "")


class RecordedTransfers(Transfers):
    """Writes down each move of an output."""

    def finish_output(self, url: str, job_id: str, fence: int) -> None:
        end = LOG.begin(Act.MOVE, [Part(job_id, fence)])
        super().finish_output(url, job_id, fence)
        end()


class MovesEarly(RecordedTransfers):
    """Moves an output to its place as soon as it is written."""

    def write_output(self, url: str, job_id: str, fence: int, *given: Any, **more: Any) -> None:
        super().write_output(url, job_id, fence, *given, **more)
        self.finish_output(url, job_id, fence)
        super().write_output(url, job_id, fence, *given, **more)  # the move after the commit finds its part


class CommitsEarly:
    """Ends each attempt as soon as its job is claimed."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, holder: str, **given: Any) -> list[ClaimedJob]:
        claimed = self._store.claim(holder, **given)
        if claimed:
            self._store.end_attempts([AttemptEnd(job.hold, JobState.SUCCEEDED) for job in claimed])
        return claimed


class WithoutFence:
    """A store that takes an ending from everybody, whatever its fence."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[Answer]:
        jobs = self._store.get([end.hold.job_id for end in ends])
        newest = [Hold(job.id, job.attempts[-1].fencing_token) for job in jobs if job is not None]
        moved = [
            AttemptEnd(hold, end.to, result=end.result, content_type=end.content_type)
            for hold, end in zip(newest, ends, strict=True)
        ]
        return self._store.end_attempts(moved)


def recorded(url: str, **options: float) -> Any:
    """The store, with what changes jobs written down, and with the mistake that is planted."""
    store: Any = open_store(url, **options)
    if MUTANT == "unfenced commit":
        store = WithoutFence(store)
    store = RecordedStore(store, LOG)
    return CommitsEarly(store) if MUTANT == "ack before commit" else store


def block_the_loop(seconds: float) -> None:
    """Have the event loop do nothing else for so long, once, after the first claim that brought something."""
    begin = Claiming._begin

    def begin_late(self: Claiming, claimed: Sequence[ClaimedJob], lease_until: float) -> None:
        if claimed:
            Claiming._begin = begin  # type: ignore[method-assign]
        begin(self, claimed, lease_until)
        if claimed:
            end = time.monotonic() + seconds / 4
            while time.monotonic() < end:  # not even the interpreter's lock is given away, but when it is taken
                pass
            time.sleep(seconds * 3 / 4)

    Claiming._begin = begin_late  # type: ignore[method-assign]


def run() -> int:
    """Run the command line as `penstock` does."""
    work.open_store = recorded
    work.Transfers = MovesEarly if MUTANT == "output moved early" else RecordedTransfers  # type: ignore[misc]
    upkeep.DELIVERY_LEASE_SECONDS = float(os.environ.get("JOBS_DELIVERY_LEASE", "1"))
    upkeep.ROUND_SECONDS = 0.5
    if names := os.environ.get(VARIABLE):
        look_up_in(names)
    if MUTANT == "no renewal":
        Renewing.start = lambda self: None  # type: ignore[method-assign]
    if blocked := float(os.environ.get("JOBS_BLOCKED_LOOP", "0")):
        block_the_loop(blocked)
    return main.main()


if __name__ == "__main__":
    run()
