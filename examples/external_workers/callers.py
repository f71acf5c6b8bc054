"""Clients that ask for one square after the other, and look whether it is right."""

import itertools
import threading
import time
from http.client import HTTPException
from typing import Self

from server import Server
from telling import tell

AT_ONCE = 12
PAUSE = 0.02
"""Seconds between an answer and the next question of the same caller."""


class Callers:
    """Ask `server` as long as the block."""

    def __init__(self, server: Server) -> None:
        self.right = 0
        self.wrong: list[str] = []
        self._server = server
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._counting = threading.Lock()
        self._threads = [threading.Thread(target=self._ask) for _ in range(AT_ONCE)]

    def _ask(self) -> None:
        while not self._over.is_set():
            number = next(self._numbers)
            try:
                answer = self._server.ask("/predict", str(number))
            except (OSError, HTTPException) as error:  # who is told nothing was not answered right
                answer = 0, repr(error).encode()
            with self._counting:
                if answer == (200, str(number * number).encode()):
                    self.right += 1
                else:
                    self.wrong.append(f"{number}: {answer[0]}, {answer[1].decode()}")
            time.sleep(PAUSE)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def go_on(self, seconds: float) -> None:
        """Let requests flow for a while, and tell how it goes."""
        time.sleep(seconds)
        tell("callers", f"{self.right} answers are right so far, {len(self.wrong)} are not")
