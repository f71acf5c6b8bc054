"""Workers of a training run, each a process of its own that starts in milliseconds.

They are forked from a process that has imported scikit-learn and all that an export needs, which takes seconds, and
that has done nothing else.  Each is told by a file what to be and tells by one how it ended.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from waiting import until_now

from penstock.hosting.fault_points import VARIABLE

HERE = Path(__file__).parent
PATIENCE_SECONDS = 120.0
"""Seconds that a worker may take for what it does; only a broken test waits this long."""
WHAT_THEY_RUN = "saving_runs"


@dataclass(frozen=True)
class Order:
    """What a worker is to do."""

    folder: str
    """The folder of the test: the run, the model directory, what the worker writes."""
    name: str
    faults: str = ""
    """For PENSTOCK_FAILPOINTS."""
    save: str = "model"
    """Which function of `saving_runs` saves."""
    gate: str | None = None
    """A file that it waits for before it works."""
    prepare: str = ""
    """A function of `saving_runs` that is called first, as to set a limit."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Run`."""

    def path(self, what: str) -> Path:
        return Path(self.folder, f"{self.name}.{what}")


class Worker:
    """One of them, seen from the test."""

    def __init__(self, order: Order) -> None:
        self.order = order
        context = multiprocessing.get_context("forkserver")
        self.process = context.Process(target=begin, args=(order,), name=order.name)
        self.process.start()

    @property
    def pid(self) -> int:
        pid = self.process.pid
        assert pid is not None
        return pid

    @property
    def output(self) -> str:
        try:
            return self.order.path("log").read_text()
        except FileNotFoundError:
            return ""

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return until_now(condition, f"{self.order.name}: {what}", PATIENCE_SECONDS, lambda: self.output)

    def until_killed(self) -> None:
        """Wait until a fault point, or somebody else, has killed it."""
        self.until(lambda: not self.process.is_alive(), "to be killed")
        assert self.process.exitcode == -signal.SIGKILL, self.output

    def until_stopped(self) -> None:
        self.until(lambda: self.stopped or not self.process.is_alive(), "to be stopped")
        assert self.process.is_alive(), self.output

    @property
    def stopped(self) -> bool:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except FileNotFoundError:
            return False

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may have ended just now
            os.kill(self.pid, number)

    @property
    def ended(self) -> bool:
        return not self.process.is_alive()

    def end(self) -> dict[str, Any]:
        """How it ended, which it must have done by itself: `version`, or `error`, `text` and `trouble`."""
        self.until(lambda: self.ended, "to end")
        assert self.process.exitcode == 0, f"{self.process.exitcode}: {self.output}"
        return json.loads(self.order.path("end").read_text())

    def destroy(self) -> None:
        """Leave nothing running."""
        if not self.ended:
            self.process.kill()
        self.process.join(PATIENCE_SECONDS)
        self.process.close()


@contextlib.contextmanager
def nursery() -> Iterator[None]:
    """Have a process that workers are forked from; it ends with this one."""
    # What it imports beforehand it looks for in its own path, which is not that of this process.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    try:
        multiprocessing.get_context("forkserver").set_forkserver_preload([WHAT_THEY_RUN])
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    yield


def begin(order: Order) -> None:
    """In the worker: do it, and write down how it ended."""
    log = os.open(order.path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ[VARIABLE] = order.faults
    import saving_runs

    try:
        end = {"version": saving_runs.work(order)}
    except Exception as error:
        traceback.print_exc()
        end = {"error": type(error).__name__, "text": str(error), "trouble": getattr(error, "traceback", "")}
    part = order.path("part")
    part.write_text(json.dumps(end))
    part.rename(order.path("end"))
