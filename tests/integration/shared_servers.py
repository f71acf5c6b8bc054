"""Servers that many tests use, one of each kind for a process of pytest: to start one costs a second of CPU.

A test is lent a server that has nothing in hand, and whose folder, log and counts are as if it had just been started.
When the test gives it back it must still run and come to rest.  Else that test fails, and the next is lent another.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from served import Server, serving

KINDS: dict[str, dict[str, Any]] = {
    "shared": {},
    "with_access_log": {"options": ("--access-log",)},
    "two_waiting": {"options": ("--max-in-flight", "2")},
    "batched": {"services": ("batched",)},
    "json_logs": {"options": ("--access-log", "--log-format", "json")},
}
"""What each is started with; the name is that of its fixture."""
COUNTS = ("_total", "_count", "_sum", "_bucket")
"""Endings of the names of metrics that only grow."""


class LentServer(Server):
    """A server whose counts and log begin anew with each test."""

    tells_requests = False
    """Whether it writes an access log."""
    _before = ""
    _counts: dict[tuple[str, frozenset[tuple[str, str]]], float] | None = None

    def begin(self) -> None:
        """Leave nothing of the test before, but the module."""
        for path in self.folder.iterdir():
            if path.suffix != ".py":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        mark = uuid.uuid4().hex
        self._before, self._counts = self.http.get("/metrics", headers={"x-request-id": mark}).text, None
        if self.tells_requests:
            self.wait_for(mark)  # what this and the requests before it log comes after their answers
        with self._grown:
            self.output = ""

    def rest(self) -> None:
        """Let go of what the test has left, and wait until nothing is in hand."""
        self.hang_up()
        self.open_gate()
        self.until(lambda: self.is_idle(), "nothing to be in hand")
        self.hang_up()

    def is_idle(self) -> bool:
        """Whether each worker waits for work, and nobody waits for an answer."""
        services = self.health()["services"].values()
        workers = [each for service in services for stage in service["stages"].values() for each in stage["workers"]]
        return all(service["queued"] == 0 for service in services) and all(each["state"] == "idle" for each in workers)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples called `name` with these labels; of a count, what this test has added to it."""
        found = super().metric(name, **labels)
        if not name.endswith(COUNTS):
            return found
        if self._counts is None:
            self._counts = {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(self._before)
                for sample in family.samples
            }
        return found - sum(
            value for (other, of), value in self._counts.items() if other == name and labels.items() <= set(of)
        )


class SharedServers:
    """The servers of this process of pytest, by their kinds."""

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        self._make_folder = make_folder
        self._running: dict[str, tuple[LentServer, ExitStack]] = {}

    def ensure(self, kind: str) -> None:
        """Start a server of this kind unless there is one that answers."""
        if kind in self._running:
            server = self._running[kind][0]
            with contextlib.suppress(Exception):
                if server.process.poll() is None and server.is_idle():
                    return
            self._discard(kind)
        asked = KINDS[kind]
        stack = ExitStack()
        folder = self._make_folder(kind)
        services = asked.get("services", ("service",))
        server = stack.enter_context(serving(folder, *asked.get("options", ()), services=services, kind=LentServer))
        server.tells_requests = "--access-log" in asked.get("options", ())
        self._running[kind] = (server, stack)

    def lend(self, kind: str) -> LentServer:
        """The server, for one test."""
        server = self._running[kind][0]
        server.begin()
        return server

    def take_back(self, kind: str) -> None:
        """See that the test has left it as it was; else the test fails, and the server is given to nobody else."""
        server = self._running[kind][0]
        try:
            assert not server.signalled, "a test that signals a server needs one of its own"
            assert server.process.poll() is None, f"the server that tests share has ended:\n{server.output}"
            server.rest()
        except BaseException:
            self._discard(kind)
            raise

    def _discard(self, kind: str) -> None:
        server, stack = self._running.pop(kind)
        server.signalled = True
        server.hang_up()
        server.destroy()
        stack.close()

    def end(self) -> None:
        """End them, as an operator does."""
        with ExitStack() as ending:
            for _, stack in self._running.values():
                ending.push(stack)
