"""Name in the log what blocks the event loop of a waiting stage, once: nothing else of its worker goes on meanwhile.

A thread looks while frames are in progress, and sleeps otherwise.  It ends when it has told of something.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import sys
import threading
import time
from types import FrameType
from typing import Any, Final

from penstock.hosting.guarded_log import guarded_logger
from penstock.worker.problems import is_ours

log = guarded_logger("penstock.worker")

BLOCKED_SECONDS: Final = 1.0
"""The loop is blocked where one turn of it takes longer."""
LOOK_SECONDS: Final = 0.25
"""How often the thread looks."""
MOST_SECONDS: Final = 3.0
"""How much longer it waits for the end of what blocks, to tell how long that took."""


class TimedSelector(selectors.DefaultSelector):
    """The selector of an event loop, which tells since when the loop has been at work."""

    busy_since = math.inf
    """When the turn of the loop began; inf while it waits."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the selector; the loop waits here between two turns."""
        self.busy_since = math.inf
        events = super().select(timeout)
        self.busy_since = time.monotonic()
        return events


class LoopWatch:
    """Watches one event loop from `begin` to `end`, which its own thread calls."""

    def __init__(self, stage: Any, name: str) -> None:
        self._root = root_of(type(stage).__module__)
        self._name = name
        self.selector = TimedSelector()
        self.at_work = threading.Event()
        """Set by the loop when a frame is in progress; the watch clears it, where none is."""
        self._ended = threading.Event()
        self._loop_thread = 0
        self._in_progress: dict[int, Any] = {}
        self._thread: threading.Thread | None = None

    def begin(self, in_progress: dict[int, Any]) -> None:
        """Watch the loop of this thread, as long as there is something in `in_progress`."""
        self._loop_thread = threading.get_ident()
        self._in_progress = in_progress
        thread = threading.Thread(target=self._watch, name="penstock-loop-watch", daemon=True)
        with contextlib.suppress(RuntimeError):  # there can be no more threads
            thread.start()
            self._thread = thread

    def end(self) -> None:
        """Watch no more."""
        self._ended.set()
        self.at_work.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while True:
            self.at_work.wait()
            if self._ended.wait(LOOK_SECONDS):
                return
            since = self.selector.busy_since
            if time.monotonic() - since > BLOCKED_SECONDS:
                self._tell(since, self._where())
                return
            if not self._in_progress:
                self.at_work.clear()
                if self._in_progress:  # it has come meanwhile
                    self.at_work.set()

    def _where(self) -> str:
        """The function of the stage that the loop is in, and the line at which it stands."""
        frames = users_frames(sys._current_frames().get(self._loop_thread))
        if not frames:
            return "code outside of the stage"
        of_stage = [frame for frame in frames if root_of(frame.f_globals.get("__name__")) == self._root]
        inner = of_stage[0] if of_stage else frames[-1]
        outer = of_stage[-1] if of_stage else frames[-1]
        return f"`{outer.f_code.co_qualname}`, at {inner.f_code.co_filename}:{inner.f_lineno}"

    def _tell(self, since: float, where: str) -> None:
        until = time.monotonic() + MOST_SECONDS
        while self.selector.busy_since == since and time.monotonic() < until and not self._ended.wait(0.01):
            pass
        still = "over " if self.selector.busy_since == since else ""
        log.warning(
            "stage %r: the event loop was blocked for %s%.1f s by %s, which stops all other items of this worker: "
            "await long operations, or run them with asyncio.to_thread (logged once)",
            self._name,
            still,
            time.monotonic() - since,
            where,
        )


def users_frames(frame: FrameType | None) -> list[FrameType]:
    """The frames of a thread that are neither ours nor asyncio's, the innermost first."""
    frames = []
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if not is_ours(module) and root_of(module) not in {"asyncio", "threading"}:
            frames.append(frame)
        frame = frame.f_back
    return frames


def root_of(module: object) -> str:
    """The package that a module is in."""
    return module.partition(".")[0] if isinstance(module, str) else ""
