"""End a stage that holds 60 % of the device in six ways: the next worker loads, however long the memory is held."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from part import Part
from serving import Server, ServerFailed

ROUNDS = 3
WAITED = "a process that has just ended may still hold memory"

Way = Callable[["Servers"], float]
"""Ends a worker, or the server, and returns how long it took until the next right answer."""


class Servers:
    """The server that runs at this time."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.waits = 0
        """Starts that found too little memory, so far."""
        self._numbers = count()
        self._env = {"GPU_LOCK": str(part.folder / "lock")}

    def start(self, target: str, *flags: str) -> Server:
        """Start one; it is ready later."""
        log = self.part.folder / f"{next(self._numbers)}.log"
        return Server.penstock(target, log, *flags, **self._env)

    @contextmanager
    def serving(self, target: str, *flags: str) -> Iterator[Server]:
        """A server that answers; it is ended and gone afterwards."""
        with self.start(target, *flags) as server:
            self.answers(server)
            yield server
            if server.process.poll() is None:
                server.signal(signal.SIGTERM)
                server.process.wait(30)
        self.waits += server.output.count(WAITED)

    def answers(self, server: Server) -> None:
        """Wait for a right answer."""
        server.ready(self.part.seconds_left() - 1)
        server.until(lambda: server.answers(1), "no right answer", self.part.seconds_left() - 1)


def run(part: Part) -> None:
    """Go through the ways, three times if there is time for it."""
    servers = Servers(part)
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    waits: dict[str, list[float]] = {name: [] for name in WAYS}
    longest = 0.0
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            if part.seconds_left() < 1.5 * longest + 2:
                part.note(f"There was no time for more rounds than these: {len(found[name])} of {ROUNDS} of {name}.")
                _conclude(part, servers, found)
                return
            started, before = time.monotonic(), servers.waits
            try:
                found[name].append(way(servers))
            except ServerFailed as error:
                part.check(name, ok=False, words=str(error))
                return
            waits[name].append(servers.waits - before)
            longest = max(longest, time.monotonic() - started)
            part.figure(f"{name}: to the next right answer", "s", found[name])
            part.figure(f"{name}: starts without memory", "starts", waits[name])
    _conclude(part, servers, found)


def _conclude(part: Part, servers: Servers, found: dict[str, list[float]]) -> None:
    for name, seconds in found.items():
        part.check(name, bool(seconds), f"came back {len(seconds)} times" if seconds else "there was no time for it")
    if not part.on_gpu:  # there the memory is back when the driver says so, and perhaps before the next worker wants it
        part.check("starts found too little memory", servers.waits > 0, f"{servers.waits} did")


def _worker_killed(servers: Servers) -> float:
    with servers.serving("trouble_services:hold") as server:
        (worker,) = server.workers()
        started = time.monotonic()
        os.kill(worker["pid"], signal.SIGKILL)
        server.until(
            lambda: [found["pid"] for found in server.workers()] not in ([worker["pid"]], [None]), "no new one"
        )
        servers.answers(server)
        return time.monotonic() - started


def _recycled(servers: Servers) -> float:
    with servers.serving("trouble_services:hold") as server:
        started = time.monotonic()
        for _ in range(5):
            server.ask(0)
        server.until(lambda: server.metric("penstock_stage_worker_recycled_total") > 0, "it was not recycled")
        servers.answers(server)
        return time.monotonic() - started


def _timed_out(servers: Servers) -> float:
    with servers.serving("trouble_services:hasty") as server:
        started = time.monotonic()
        server.ask(-1)
        servers.answers(server)
        return time.monotonic() - started


def _reloaded(servers: Servers) -> float:
    module = servers.part.folder / "reloaded.py"
    module.write_text("from trouble_services import hold\n")
    with servers.serving("reloaded:hold", "--reload") as server:
        (worker,) = server.workers()
        started = time.monotonic()
        module.write_text("from trouble_services import hold  # changed\n")
        server.until(lambda: worker["pid"] not in _pids(server), "it was not loaded anew")
        servers.answers(server)
        return time.monotonic() - started


def _pids(server: Server) -> list[int | None]:
    """Process ids of the workers; while the server is being replaced, those of nobody."""
    try:
        return [worker["pid"] for worker in server.workers()]
    except (OSError, ValueError, KeyError):
        return []


def _server_ended(number: signal.Signals) -> Way:
    def way(servers: Servers) -> float:
        with servers.serving("trouble_services:hold") as before:
            started = time.monotonic()
            before.signal(number)
            with servers.serving("trouble_services:hold"):
                return time.monotonic() - started

    return way


WAYS: dict[str, Way] = {
    "kill -9 of the worker": _worker_killed,
    "a recycle": _recycled,
    "a worker killed by its timeout": _timed_out,
    "a reload": _reloaded,
    "kill -9 of the server, and a new one at once": _server_ended(signal.SIGKILL),
    "SIGTERM to the server, and a new one at once": _server_ended(signal.SIGTERM),
}
