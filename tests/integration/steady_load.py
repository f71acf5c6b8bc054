"""Clients that keep their connections and never try again, for as long as something is done to the servers.

What became of each request is kept, so that a test can say which of them may fail and which may not.
"""

from __future__ import annotations

import http.client
import itertools
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from served import PATIENCE_SECONDS
from waiting import until_now

CLIENTS = 16
PAUSE = 0.05
"""Seconds between an answer and the next request of a client, twice as long at most: so a roll meets idle connections,
new ones and those in use, and does not take all of the machine."""


@dataclass(frozen=True)
class Asked:
    """One request and what became of it."""

    number: int
    begun: float
    ended: float
    told: str
    """`""`, if it was answered right."""


class _Connection(http.client.HTTPConnection):
    """A connection that is opened by `opener`, and again where an answer has ended it."""

    def __init__(self, opener: Callable[[], socket.socket]) -> None:
        super().__init__("localhost")
        self._opener = opener

    def connect(self) -> None:
        self.sock = self._opener()


class Load:
    """Asks while the block is run, and until `least` requests were made; each number is asked for once."""

    def __init__(self, opener: Callable[[], socket.socket], *, least: int = 0, clients: int = CLIENTS) -> None:
        self.asked: list[Asked] = []
        self._opener = opener
        self._least = least
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(seed,), daemon=True) for seed in range(clients)]

    def _ask(self, seed: int) -> None:
        pauses = random.Random(seed)
        connection = _Connection(self._opener)
        while not self._over.is_set() or len(self.asked) < self._least:
            self.asked.append(_ask_once(connection, next(self._numbers)))
            self._over.wait(pauses.uniform(0, 2 * PAUSE))
        connection.close()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._least = 0
        self._over.set()
        for thread in self._threads:
            thread.join(3 * PATIENCE_SECONDS)
            assert not thread.is_alive() or kind, "a client waits for its answer"

    def go_on(self, requests: int) -> None:
        """Wait until so many more were answered, or have failed."""
        wanted = len(self.asked) + requests
        until_now(lambda: len(self.asked) >= wanted, f"{requests} requests", context=lambda: str(self.failed))

    @property
    def numbers(self) -> list[int]:
        """What was asked for."""
        return [each.number for each in self.asked]

    @property
    def failed(self) -> list[Asked]:
        """The requests that were not answered right."""
        return [each for each in self.asked if each.told]


def _ask_once(connection: _Connection, number: int) -> Asked:
    begun = time.monotonic()
    try:
        connection.request("POST", "/predict", str(number), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = answer.read().decode()
        told = "" if (answer.status, body) == (200, str(number)) else f"{answer.status}: {body}"
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        told = repr(error)
    return Asked(number, begun, time.monotonic(), told)
