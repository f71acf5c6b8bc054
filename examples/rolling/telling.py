"""Lines of who did what and when, and on a terminal one line that tells how it goes meanwhile."""

import sys
import time
from collections.abc import Callable

BEGUN = time.monotonic()
LIMIT = 60.0
"""Seconds that something may take which takes a few."""
LOOK = 0.05
"""Seconds between two looks."""


def _write(text: str, end: str) -> None:
    clear = "\r\x1b[K" if sys.stdout.isatty() else ""
    sys.stdout.write(f"{clear}{time.monotonic() - BEGUN:5.1f} s  {text}{end}")
    sys.stdout.flush()


def tell(who: str, what: str) -> None:
    """Say what somebody does, or has seen."""
    _write(f"{who:10}{what}", "\n")


def until(happened: Callable[[], bool], how_it_goes: Callable[[], str] = str) -> None:
    """Wait, and not for ever; on a terminal say how it goes."""
    end = time.monotonic() + LIMIT
    while not happened():
        if time.monotonic() > end:
            raise SystemExit("what has to happen here does not")
        if sys.stdout.isatty():
            _write(how_it_goes(), "")
        time.sleep(LOOK)
