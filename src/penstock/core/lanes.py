"""The lanes in which requests and items wait, and whose turn it is.

Within a lane the first to come is served first.  The lanes of `FRONT` take turns, so that none can shut another out.
What is in the lane behind them is served after them, and has a share of its own (see `batching`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Lane(IntEnum):
    """How a request came.  Numbers, because they are indices into lists of lanes."""

    SINGLE = 0
    """By itself.  Its items may wait for company."""
    BULK = 1
    """As one of many: a client batch, `predict_many`, `stream`.  Its items never wait for company."""
    BACK = 2
    """As work that nobody waits for: a job.  It takes what the others leave, and counts in none of their bounds."""


FRONT: Final = (Lane.SINGLE, Lane.BULK)
"""The lanes of those who wait for their answers."""


class Turns:
    """Whose turn it is, among `lanes` lanes that are served in a circle; the first turn is lane 0's.

    Ask for `order` and serve the first lane in it that can be served.  Then name a lane to `pass_on`; the turn is the
    next lane's.
    """

    def __init__(self, lanes: int) -> None:
        # Made once: `order` is asked for each item that waits.
        self._orders = [[*range(first, lanes), *range(first)] for first in range(lanes)]
        self._turn = 0

    def order(self) -> list[int]:
        """Every lane once, from the one whose turn it is."""
        return self._orders[self._turn]

    def pass_on(self, lane: int) -> None:
        """`lane` had its turn: the turn is now the next lane's, or the first one's after the last."""
        self._turn = lane + 1 if lane + 1 < len(self._orders) else 0
