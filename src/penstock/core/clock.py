"""Time, as the rest of the project sees it: seconds as floats, monotonic, told and never looked up.

Deadlines are moments of this clock; `math.inf` is a deadline that never comes.  Wall-clock time exists only
where something is shown or stored.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
