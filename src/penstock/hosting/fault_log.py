"""Write failures to the log, each once, and however many there are only so much of each kind.

A failure is written under the ids that clients were given: from the id in an answer, its line in the log can be found.
What `core.fault_lines` has no line for is told as a count, once a second.  A text has been cut by the worker already;
here lines are cut to a line's length.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.codec.text import cut_line
from penstock.core.clock import Clock, Timer
from penstock.core.fault_lines import COUNT_SECONDS, LINES_PER_SECOND, OTHERS, Detail, FaultKind, FaultLines
from penstock.errors import (
    RETURNED,
    Cancelled,
    DeadlineExceeded,
    InvalidItem,
    NotReady,
    Overloaded,
    RequestError,
    StageFailed,
    WorkerLost,
)
from penstock.hosting.guarded_log import guarded_logger

log = guarded_logger("penstock.server")

_NO_FAULT = (InvalidItem, Overloaded, DeadlineExceeded, NotReady, Cancelled)
"""Errors that are no fault of the service: metrics count them, and nothing is logged."""

LINE_BYTES = 1024
"""Longest line, in UTF-8; the head of a traceback is one."""

_MAX_IDS = 10
"""Most request ids in one line: all items of a client batch may fail for one reason.

`logs.IDS_BYTES` has room for them.
"""
_IDS_BYTES = 400
"""Longest list of ids in a line, which also has to say what happened; one id is always written."""


class FaultLog:
    """The failures of one host, or of one stage.  Every call is made on the event loop's thread.

    A count that nobody came back for is written when it is flushed, or when the process ends.
    """

    def __init__(self, clock: Clock, logger: logging.Logger = log) -> None:
        self._clock = clock
        self._log = logger
        self._lines = FaultLines()
        self._timer: Timer | None = None
        self._wait_until = 0.0
        self._process = 0
        """The process that counts: a fork of it has a copy of the count, and must not write it again."""

    @property
    def writes(self) -> bool:
        """Whether failures are written at all: the level of the log may leave them out."""
        return self._log.isEnabledFor(logging.ERROR)

    def report(self, error: RequestError, ids: Sequence[str], n: int = 1) -> int:
        """Write that `n` requests or items ended with `error`; `ids` are theirs, or the first of them.

        Returns how many of `ids` the line names; 0 where there is none.
        """
        if isinstance(error, _NO_FAULT):
            return 0
        kind = _kind(error)
        trace = error.traceback if isinstance(error, StageFailed) else ""
        detail = self._judge(kind, n, has_traceback=bool(trace))
        if detail is Detail.COUNT or not self.writes:
            return 0
        named = tuple(ids[:_MAX_IDS])
        extra: dict[str, Any] = {"request_ids": named}
        if n > len(named):
            extra["request_ids_left_out"] = n - len(named)
        if kind.stage:
            extra["stage"] = kind.stage
        if isinstance(error, StageFailed):
            extra["error"] = error.type_name
        who = list_ids(ids, n)
        if detail is Detail.TRACEBACK:  # the message is in it
            self._write(f"{who}: {_where(kind)}", trace, extra)
        else:
            self._write(f"{who}: {_what(error)}", "", extra)
        return len(_shown(ids))

    def report_start(self, kind: FaultKind, what: str, reason: str, trace: str) -> None:
        """Write that a worker could not be started, because of `reason`; `trace` is its traceback, or "".

        `what` is the reason without the error, as "worker 0 could not be set up".
        """
        detail = self._judge(kind, 1, has_traceback=bool(trace))
        extra = {"stage": kind.stage}
        if detail is Detail.TRACEBACK:
            self._write(f"{what}: {_at(kind)}", trace, extra)
        elif detail is Detail.LINE:
            self._write(reason, "", extra)

    def flush(self) -> None:
        """Write every count now."""
        self._stop_waiting()
        self._write_counts(math.inf)

    # -- judging and counting -----------------------------------------------------------------------------------------

    def _judge(self, kind: FaultKind, n: int, *, has_traceback: bool) -> Detail:
        now = self._clock.now()
        detail = self._lines.judge(kind, n, now, has_traceback=has_traceback)
        if detail is Detail.COUNT:
            if self._timer is None:
                self._wait()
            elif now > self._wait_until + COUNT_SECONDS:
                self._due()  # the event loop that had the timer has ended
        return detail

    def _wait(self) -> None:
        self._wait_until = self._lines.next_count()
        self._timer = self._clock.call_later(self._wait_until - self._clock.now(), self._due)
        self._process = os.getpid()
        atexit.register(self._at_exit)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            atexit.unregister(self._at_exit)

    def _due(self) -> None:
        self._stop_waiting()
        self._write_counts(self._clock.now())
        if self._lines.next_count() < math.inf:
            self._wait()

    def _at_exit(self) -> None:
        if self._process == os.getpid():
            self._write_counts(math.inf)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _write(self, head: str, trace: str, extra: dict[str, Any]) -> None:
        if not self.writes:
            return
        words = (cut_line(head, LINE_BYTES),)
        record = self._log.makeRecord(self._log.name, logging.ERROR, __file__, 0, "%s", words, None, extra=extra)
        if trace:
            # Where Python keeps the text of a traceback: every formatter writes it below the message.
            record.exc_text = f"\n{trace.rstrip()}"
        self._log.handle(record)

    def _write_counts(self, now: float) -> None:
        for kind, n in self._lines.take_counts(now):
            line = f"{n} more failures of other kinds in the last second"
            if kind != OTHERS:
                line = f"stage {kind.stage!r}: {n} more failures of the kind {_at(kind)} in the last second"
            self._write(line, "", {"stage": kind.stage, "error": kind.error, "failures": n})


class BatchFaults:
    """The failed items of one client batch, by what happened to them: what many items share is written once.

    It takes so many different texts of a kind as can become lines at once; what goes on beyond them would only be
    counted, and is one more entry here.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[FaultKind, str | None], _Entry] = {}
        self._texts: Counter[FaultKind] = Counter()

    def add(self, error: RequestError, occurrence: str) -> None:
        """Add the item `occurrence`, which ended with `error`; of one that is no fault nothing is kept."""
        if isinstance(error, _NO_FAULT):
            return
        kind, text = _kind(error), error.args[0]
        entry = self._entries.get((kind, text))
        if entry is None:
            if self._texts[kind] > LINES_PER_SECOND:  # and one more, of which the traceback is written
                text = None
            self._texts[kind] += 1
            entry = self._entries.setdefault((kind, text), _Entry(error))
        entry.add(occurrence)

    def report(self, faults: FaultLog) -> set[str]:
        """Write them; returns the occurrences that a line names."""
        named: set[str] = set()
        for entry in self._entries.values():
            named.update(entry.ids[: faults.report(entry.error, entry.ids, entry.n)])
        return named


class _Entry:
    __slots__ = ("error", "ids", "n")

    def __init__(self, error: RequestError) -> None:
        self.error = error
        self.ids: list[str] = []
        self.n = 0

    def add(self, occurrence: str) -> None:
        self.n += 1
        if self.n <= _MAX_IDS:
            self.ids.append(occurrence)


def _kind(error: RequestError) -> FaultKind:
    if isinstance(error, StageFailed):
        return FaultKind(error.stage, error.type_name, error.raised_at)
    return FaultKind(error.stage if isinstance(error, WorkerLost) else "", type(error).__name__, "")


def _at(kind: FaultKind) -> str:
    name = kind.error or "an error without a class"  # a worker from outside need not say which
    return f"{name} at {kind.raised_at}" if kind.raised_at else name


def _where(kind: FaultKind) -> str:
    return f"stage {kind.stage!r} {RETURNED.get(kind.error, f'raised {_at(kind)}')}"


def _what(error: RequestError) -> str:
    if isinstance(error, StageFailed):
        return f"{_where(_kind(error))}: {error.message}"
    return str(error)


def list_ids(ids: Iterable[str], n: int) -> str:
    """`ids` as far as a line has room for them, and how many more there are of the `n`."""
    named = _shown(ids)
    listed = ", ".join(named)
    return f"{listed} and {n - len(named)} more" if n > len(named) else listed


def _shown(ids: Iterable[str]) -> list[str]:
    """The first of `ids`, as many as a line has room for."""
    named: list[str] = []
    room = _IDS_BYTES
    for each in ids:
        room -= len(each) + 2
        if named and (room < 0 or len(named) == _MAX_IDS):
            break
        named.append(each)
    return named
