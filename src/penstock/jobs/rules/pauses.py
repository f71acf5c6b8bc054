"""Decide how often a store is asked whether jobs have ended, and of how many at once.

The first looks come soon after another, the later ones seldom.  The more waits there are, the longer the pauses grow:
many waits ask a store little more often than one.
"""

from __future__ import annotations

from typing import Final

PAUSE_GROWTH: Final = 1.5
IDS_IN_LOOK: Final = 500
"""The most jobs that are asked for at once.  The longest pause grows with each as many waits more."""


def longer_pause(pause: float, longest: float, waits: int) -> float:
    """The pause after one of `pause` seconds, where so many wait; `longest` is the longest for a few of them."""
    return min(pause * PAUSE_GROWTH, longest * (1 + waits // IDS_IN_LOOK))
