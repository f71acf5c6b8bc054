"""How much is compared: a part by day, all of it by night.

`make night` sets the variable NIGHT to 1.  A test that only a night runs has the mark `night` instead.
"""

from __future__ import annotations

import os

HANG_SECONDS = 20.0
NIGHT = os.environ.get("NIGHT") == "1"


def histories(number: int) -> int:
    """Number of random histories: `number` by night, a fifth by day."""
    return number if NIGHT else max(1, number // 5)


def tight(seconds: float) -> float:
    """A bound on real time: by night this one, by day one that only a hang takes, for a busy machine is no fault."""
    return seconds if NIGHT else HANG_SECONDS


def examples(number: int) -> int:
    """Number of examples that Hypothesis draws: `number` by day, ten times as many by night."""
    return 10 * number if NIGHT else number
