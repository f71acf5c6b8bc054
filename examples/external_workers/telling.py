"""Lines that a person can follow: when, who, what.  In colours on a terminal, unless `NO_COLOR` is set."""

import os
import sys
import time

BEGUN = time.monotonic()
COLOURS = {"demo": 1, "server": 36, "callers": 32}


def tell(who: str, what: str) -> None:
    """Say what somebody does, or has seen."""
    name = f"{who:8}"
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        name = f"\x1b[{COLOURS[who]}m{name}\x1b[0m"
    # One write: several threads tell.
    sys.stdout.write(f"{time.monotonic() - BEGUN:5.1f} s  {name}{what}\n")
    sys.stdout.flush()
