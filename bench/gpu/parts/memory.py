"""End a stage that holds 60 % of the device in six ways: the next worker loads, however long the memory is held.

Each load is a start of PyTorch, which takes most of the time.  So no server is started for one way alone: the three
that end a worker are tried on one, its end is the fourth, and the server that takes its place is for the last two.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from itertools import count

from part import Part
from serving import Server, ServerFailed

ROUNDS = 3
WAITED = "a process that ended recently may still hold memory"
TARGET = "trouble_services:hold"


class Servers:
    """The server that runs at this time, and those before it."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self._module = part.folder / "reloaded.py"
        self._module.write_text("from trouble_services import hold\n")
        self._numbers = count(1)
        self._env = {"GPU_LOCK": str(part.folder / "lock")}
        self.now = self._start(TARGET)

    @property
    def waits(self) -> int:
        """How many starts have found too little memory so far."""
        return sum(log.read_text(errors="replace").count(WAITED) for log in self.part.folder.glob("*.log"))

    def answers(self) -> None:
        """Wait for a right answer."""
        self.now.ready(self.part.seconds_left() - 1)
        self.now.until(lambda: self.now.answers(1), "no right answer", self.part.seconds_left() - 1)

    def worker_is_killed(self) -> None:
        """Kill the worker."""
        (worker,) = self.now.workers()
        os.kill(worker["pid"], signal.SIGKILL)
        self._await_other(worker["pid"])

    def worker_is_recycled(self) -> None:
        """Have five batches in a row fail."""
        before = self.now.metric("penstock_stage_worker_unhealthy_restarts_total")
        for _ in range(5):
            self.now.ask(0)
        self._until(
            lambda: self.now.metric("penstock_stage_worker_unhealthy_restarts_total") > before, "it was not recycled"
        )

    def worker_is_late(self) -> None:
        """Have a batch take longer than it may."""
        (worker,) = self.now.workers()
        self.now.ask(-1)
        self._await_other(worker["pid"])

    def server_is_killed(self) -> None:
        """Kill the server, and start another one, which reloads what is changed."""
        self.now.signal(signal.SIGKILL)
        self.now = self._start("reloaded:hold", "--reload")

    def server_reloads(self) -> None:
        """Change the module of the service."""
        (worker,) = self.now.workers()
        self._module.write_text(f"{self._module.read_text()}# changed\n")
        self._await_other(worker["pid"])

    def server_is_ended(self) -> None:
        """Ask the server to end, and start another one."""
        self.now.signal(signal.SIGTERM)
        self.now = self._start(TARGET)

    def _start(self, target: str, *flags: str) -> Server:
        log = self.part.folder / f"{next(self._numbers)}.log"
        return Server.penstock(target, log, *flags, **self._env)

    def _await_other(self, pid: int) -> None:
        self._until(lambda: self._pids() not in ([pid], [None]), "no new worker")

    def _pids(self) -> list[int | None]:
        """Process ids of the workers; while the server is being replaced, those of nobody."""
        try:
            return [worker["pid"] for worker in self.now.workers()]
        except (OSError, ValueError, KeyError):
            return [None]

    def _until(self, seen: Callable[[], bool], otherwise: str) -> None:
        self.now.until(seen, otherwise, self.part.seconds_left() - 1)


WAYS: dict[str, Callable[[Servers], None]] = {
    "kill -9 of the worker": Servers.worker_is_killed,
    "a recycle": Servers.worker_is_recycled,
    "a worker killed by its timeout": Servers.worker_is_late,
    "kill -9 of the server, and a new one at once": Servers.server_is_killed,
    "a reload": Servers.server_reloads,
    "SIGTERM to the server, and a new one at once": Servers.server_is_ended,
}
"""In this order: each finds the server that the one before leaves."""


def run(part: Part) -> None:
    """Go through the ways, three times if there is time for it."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    waits: dict[str, list[float]] = {name: [] for name in WAYS}
    servers = Servers(part)
    try:
        servers.answers()
        _go_through(servers, found, waits)
    except ServerFailed as error:
        name = min(found, key=lambda name: len(found[name]))
        part.check(name, ok=False, words=str(error))
        return
    for name, seconds in found.items():
        part.check(name, bool(seconds), f"came back {len(seconds)} times" if seconds else "there was no time for it")
    if not part.on_gpu:  # there the memory is back when the driver says so, and perhaps before the next worker wants it
        part.check("starts found too little memory", servers.waits > 0, f"{servers.waits} did")


def _go_through(servers: Servers, found: dict[str, list[float]], waits: dict[str, list[float]]) -> None:
    part = servers.part
    longest = 0.0
    for number in range(ROUNDS):
        for name, way in WAYS.items():
            if part.seconds_left() < 1.3 * longest + 2:
                part.note(f"There was time for {number} rounds of {ROUNDS}, and for a part of the next.")
                return
            started, before = time.monotonic(), servers.waits
            way(servers)
            servers.answers()
            found[name].append(time.monotonic() - started)
            waits[name].append(servers.waits - before)
            longest = max(longest, found[name][-1])
            part.figure(f"{name}: to the next right answer", "s", found[name])
            part.figure(f"{name}: starts without memory", "starts", waits[name])
