"""A run with three workers in a folder, of which one is at fault, over a model directory that has two versions."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forked_workers import Order, Worker
from watched_models import Models, Reader, content, two_versions

import penstock as ps
from penstock.training.sqlite_tasks import SqliteTasks
from penstock.training.task_store import TaskEntry

LEASE = 2.0
"""Seconds: whoever waits for a dead saver waits as long.  Renewed each third of it, also on a busy machine."""
ATTEMPTS = 9
"""More than are lost here by machines that are busy."""
STANDS_STILL_SECONDS = 3.0
"""For how long the run's file is locked when it is a stopped process that keeps it so."""
NEW = 3
"""The version that comes of a run."""
LET_GO = "let go"


class SharedRun:
    """What the test has in hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = Models(two_versions(folder))
        self.gate = folder / "gate"
        self.workers: list[Worker] = []

    def start(self, name: str, *, gated: bool = False, **changes: Any) -> Worker:
        """Start a worker; one that is `gated` waits for `open_gate` before it works."""
        options = {"lease": LEASE, "max_attempts": ATTEMPTS, **changes.pop("run", {})}
        gate = str(self.gate) if gated else None
        worker = Worker(Order(str(self.folder), name, gate=gate, run=options, **changes))
        self.workers.append(worker)
        return worker

    def open_gate(self) -> None:
        self.gate.touch()

    def let_go(self) -> None:
        """Let the function that hangs return."""
        (self.folder / LET_GO).touch()

    @property
    def saving(self) -> bool:
        """Whether a save function has been called."""
        return (self.folder / "saving").exists()

    @property
    def savers(self) -> list[str]:
        """Whose save function was called, in their order."""
        return (self.folder / "savers").read_text().split()

    @property
    def stages(self) -> list[Path]:
        return sorted((self.models.path / "versions").glob(".stage-*"))

    @property
    def file(self) -> Path:
        return self.folder / "run" / "run.db"

    def save_task(self) -> TaskEntry:
        with contextlib.closing(SqliteTasks.existing(self.file)) as store:
            return store.tasks()[-1]

    def retry(self) -> bool:
        with contextlib.closing(SqliteTasks.existing(self.file)) as store:
            return store.retry()

    @property
    def file_is_locked(self) -> bool:
        """Whether somebody keeps the run's file locked, and not just for one of its short transactions."""
        with contextlib.closing(sqlite3.connect(self.file, timeout=STANDS_STILL_SECONDS)) as ledger:
            try:
                ledger.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            ledger.execute("ROLLBACK")
            return False

    def claimed_in_another_boot(self) -> None:
        """Have every lease be one of a boot that has ended."""
        with contextlib.closing(sqlite3.connect(self.file)) as ledger, ledger:
            ledger.execute("UPDATE tasks SET boot_id = 'of a boot that has ended'")

    def served(self) -> Any:
        """The answer of what is current to one row."""
        with ps.export.load(self.models.path).blocking() as service:
            return service.predict(EXAMPLE)

    def content(self) -> dict[str, bytes | None]:
        """What is in the model directory, but for stages and for who had the lock."""
        found = content(self.models.path)
        return {path: has for path, has in found.items() if not path.startswith(("versions/.stage-", ".lock"))}

    def again(self) -> int | None:
        """What `work` answers to who comes when all is done, and can do nothing."""
        run = ps.training.Run(self.folder / "run", publish_to=self.models.path)
        return run.work()


EXAMPLE = {"age": 32, "educ": 17, "occupation": 2}
"""A row for the two versions that were there before."""


@contextlib.contextmanager
def shared_run(folder: Path) -> Iterator[SharedRun]:
    """A run, whose model directory is read all the while; nobody is left running at the end."""
    shared = SharedRun(folder)
    try:
        with Reader(shared.models.path).reading():
            yield shared
    finally:
        for worker in shared.workers:
            if worker.stopped:
                worker.signal(signal.SIGCONT)
            worker.destroy()
