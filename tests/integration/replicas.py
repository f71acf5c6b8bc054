"""Replicas behind a proxy: servers at Unix sockets that are ended, killed and started again, and know what they ran.

Each has a folder of its own, which stays over its restarts: what ran is noted there, a line for each run.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from notes_and_gates import notes
from served import Server, write_module

SOURCE = """
import os
from pathlib import Path

import penstock as ps
from notes_and_gates import note, wait_for

class Noted(ps.Stage):
    def predict(self, number: int) -> int:
        note("ran", number)
        if number < 0:  # held until the gate is open
            note("holders", os.getpid())
            wait_for(Path("open"))
        return number

service = ps.Service(ps.stage(Noted, workers=2))
"""
"""Answers the number that it is given, and notes it first."""


class Replica:
    """A server that is started again with the same options, at the same socket."""

    def __init__(self, folder: Path, socket: Path, options: tuple[str, ...], source: str) -> None:
        self.folder = folder
        self.address = f"unix:{socket}"
        # The proxy is somebody else.
        where = ("--uds", str(socket), "--uds-mode", "666")
        self._arguments = (f"{write_module(folder, source)}:service", *where, *options)
        self.server = Server(folder, *self._arguments)

    def begin_again(self) -> None:
        """Start another server in place of one that has ended, and wait until it is ready."""
        self.server.hang_up()
        self.server.destroy()
        self.server = Server(self.folder, *self._arguments).ready()

    def roll(self) -> None:
        """Have it end in good order, and start another one."""
        self.server.hang_up()
        self.server.stop()
        self.begin_again()

    @property
    def ran(self) -> list[int]:
        """The number of each run so far."""
        return notes(self.folder / "ran")

    @property
    def holders(self) -> list[int]:
        """The processes that have begun to hold something."""
        return notes(self.folder / "holders")

    def open_gate(self) -> None:
        """Let everything go that is held, now and later."""
        (self.folder / "open").touch()

    @property
    def refused(self) -> float:
        """How many items it had no room for."""
        return self.server.metric("penstock_items_rejected_total", reason="queue_full")


@contextmanager
def replicating(
    folder: Path, sockets: Path, *options: str, alone: tuple[str, ...] = (), source: str = SOURCE
) -> Iterator[tuple[Replica, Replica]]:
    """Two replicas, ready; the first has the options `alone` besides.  Nothing is left of them."""
    with contextlib.ExitStack() as stack:
        pair = []
        for name, more in (("a", alone), ("b", ())):
            (folder / name).mkdir()
            replica = Replica(folder / name, sockets / f"{name}.sock", (*options, *more), source)
            stack.callback(lambda replica=replica: (replica.server.hang_up(), replica.server.destroy()))
            pair.append(replica)
        for replica in pair:
            replica.server.ready()
        yield pair[0], pair[1]


def runs(*replicas: Replica) -> Counter[int]:
    """How often each number ran, wherever."""
    return Counter(number for replica in replicas for number in replica.ran)
