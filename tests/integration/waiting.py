"""Wait for a condition, never for a time: each fails with what it waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""Seconds; only a broken test waits this long."""
PAUSE = 0.002
"""Seconds between two looks."""
LONGEST_PAUSE = 0.02
"""To which it grows outside event loops, where a look may cost a process as much CPU as what it waits for."""


async def until(
    condition: Callable[[], T], what: str = "", patience: float = PATIENCE_SECONDS, pause: float = PAUSE
) -> T:
    """What `condition` answers once that is true; with no `pause` the event loop runs one turn between two looks."""
    deadline = time.monotonic() + patience
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        await asyncio.sleep(pause)
    return answer


def until_now(
    condition: Callable[[], T],
    what: str = "",
    patience: float = PATIENCE_SECONDS,
    context: Callable[[], str] = lambda: "",
) -> T:
    """As `until`, without an event loop; a failure also tells the `context`."""
    deadline, pause = time.monotonic() + patience, PAUSE
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}\n{context()}"
        time.sleep(pause)
        pause = min(1.2 * pause, LONGEST_PAUSE)
    return answer
