"""Time a small piece of code, per request.

Each run does the same work on objects prepared beforehand, outside the clock.  The lowest of the runs is the
figure: all that can disturb a run makes it longer.  The garbage collector stays on, as it is in a server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

REQUESTS = 3200
"""Requests in one run: some milliseconds, so the clock's own cost does not show."""
RUNS = 15

Work: TypeAlias = Callable[[], object]


def per_request(prepare: Callable[[int], Work]) -> float:
    """Microseconds per request of the work that `prepare(REQUESTS)` returns; it is prepared anew for each run."""
    return min(_seconds(prepare(REQUESTS)) for _ in range(RUNS)) / REQUESTS * 1e6


def _seconds(work: Work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
