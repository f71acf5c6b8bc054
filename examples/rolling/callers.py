"""Callers that ask for one square after the other, with the client in Python, as long as a block."""

import itertools
import threading
import time
from typing import Self

import penstock as ps
from penstock.client import Client

CALLERS = 8
PAUSE = 0.04
"""Seconds between an answer and the next question of the same caller."""


class Callers:
    """What became of the questions of all callers in one language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.answered: list[int] = []
        self.failed: list[str] = []

    def __str__(self) -> str:
        return f"{len(self.answered)} answers in {self.language}"


class PythonCallers(Callers):
    """Threads that share a client."""

    def __init__(self, url: str) -> None:
        super().__init__("Python")
        self._client = Client(url)
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CALLERS)]

    def _ask(self) -> None:
        while not self._over.is_set():
            number = next(self._numbers)
            try:
                if (answer := self._client.predict(number)) == number * number:
                    self.answered.append(number)
                else:
                    self.failed.append(f"{number}: the answer is {answer}")
            except ps.RequestError as error:
                self.failed.append(f"{number}: {error!r}")
            time.sleep(PAUSE)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._client.close()
