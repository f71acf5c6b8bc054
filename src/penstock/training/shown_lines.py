"""Show what a worker of a run does as lines on stderr, of which few are written however short the tasks are."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

from penstock.hosting.stdio import write_stderr_line
from penstock.training.rules.task_states import Phase
from penstock.training.task_store import KindProgress

LINE_SECONDS: Final = 5.0
"""The least time between two lines about what is done.  What went wrong does not wait."""


class ShownLines:
    """Where stderr is a file, a pipe, or a terminal on which another process shows its bar."""

    def __init__(
        self,
        name: str,
        *,
        write: Callable[[str], None] = write_stderr_line,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._write = write
        self._now = now
        self._next_line = now()
        self._last = ""

    def show(self, kind: Phase, words: str, progress: Sequence[KindProgress]) -> None:
        """Write a line, unless the last one says the same or was just written."""
        done = [f"{each.total - each.left} of {each.total} done" for each in progress if each.kind is kind]
        line = "; ".join([words, *done])
        if line != self._last and self._now() >= self._next_line:
            self._next_line = self._now() + LINE_SECONDS
            self._last = line
            self.note(line)

    def note(self, words: str) -> None:
        """Write a line."""
        self._write(f"run {self._name}: {words}")

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Lines of others disturb nothing."""
        return contextlib.nullcontext()
