"""Decide how much of a failure is written to the log: a traceback, a line, or one more in a count.

Contract
--------
* Failures are of one kind if they have the stage, the type of the error and the raising line in common.
* Of one kind a traceback is written once in `TRACEBACK_SECONDS`, and at most `LINES_PER_SECOND` other lines in any
  second.  The rest is counted, and the count is due a second after its first failure: one count a second at most.
* No failure is lost: each is written or counted, and a count stays until it is taken.
* At most `MAX_KINDS` kinds are told apart.  One that was quiet for long enough makes room; while there is none, further
  kinds are judged together, as the kind `OTHERS`.

Pure: it is told the time, and whoever writes takes the counts when they are due.
"""

from __future__ import annotations

import math
from collections import deque
from enum import Enum
from typing import NamedTuple

TRACEBACK_SECONDS = 10.0
LINES_PER_SECOND = 10
COUNT_SECONDS = 1.0
MAX_KINDS = 100
"""Few programs fail in so many ways at once; it bounds what a client can write who can choose the type of an error."""


class FaultKind(NamedTuple):
    """What failures of one kind have in common."""

    stage: str
    error: str
    """The name of the error's type."""
    raised_at: str
    """`file:line`, or "" where there is no traceback; of a result that cannot be encoded what cannot be, or where."""


OTHERS = FaultKind("", "", "")
"""All kinds for which there is no room."""


class Detail(Enum):
    """How much of a failure is written."""

    TRACEBACK = "traceback"
    LINE = "line"
    COUNT = "count"


class _Record:
    """What was written of one kind."""

    __slots__ = ("count_due", "counted", "lines", "traceback_due")

    def __init__(self) -> None:
        self.traceback_due = -math.inf
        self.lines: deque[float] = deque(maxlen=LINES_PER_SECOND)
        """When the last lines were written."""
        self.counted = 0
        self.count_due = math.inf

    def judge(self, n: int, now: float, *, has_traceback: bool) -> Detail:
        if has_traceback and now >= self.traceback_due:
            self.traceback_due = now + TRACEBACK_SECONDS
            return Detail.TRACEBACK
        if len(self.lines) < LINES_PER_SECOND or now - self.lines[0] >= 1.0:
            self.lines.append(now)
            return Detail.LINE
        if not self.counted:
            self.count_due = now + COUNT_SECONDS
        self.counted += n
        return Detail.COUNT

    def forgettable(self, now: float) -> bool:
        """Whether a new record would judge as this one."""
        quiet = not self.lines or now - self.lines[-1] >= 1.0
        return quiet and not self.counted and now >= self.traceback_due


class FaultLines:
    """The failures of one log."""

    def __init__(self) -> None:
        self._records: dict[FaultKind, _Record] = {}
        self._others = _Record()

    def judge(self, kind: FaultKind, n: int, now: float, *, has_traceback: bool) -> Detail:
        """How much to write of a failure that `n` requests or items share.  Those of a `COUNT` are added to it."""
        return self._record(kind, now).judge(n, now, has_traceback=has_traceback)

    def next_count(self) -> float:
        """When the next count is due; inf where nothing is counted."""
        return min((record.count_due for _, record in self._all()), default=math.inf)

    def take_counts(self, now: float) -> list[tuple[FaultKind, int]]:
        """The counts that are due, of each kind how many failures; they are counted no more."""
        taken = []
        for kind, record in self._all():
            if record.count_due <= now and record.counted:
                taken.append((kind, record.counted))
                record.counted, record.count_due = 0, math.inf
        return taken

    def _all(self) -> list[tuple[FaultKind, _Record]]:
        return [*self._records.items(), (OTHERS, self._others)]

    def _record(self, kind: FaultKind, now: float) -> _Record:
        record = self._records.get(kind)
        if record is None:
            if len(self._records) >= MAX_KINDS:
                self._records = {k: r for k, r in self._records.items() if not r.forgettable(now)}
            if len(self._records) >= MAX_KINDS:
                return self._others
            record = self._records[kind] = _Record()
        return record
