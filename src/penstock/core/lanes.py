"""The lanes in which requests and items wait.

The lanes of `FRONT` take turns, so that none can shut another out (see `serving_order`).  What is in the lane behind
them is served after them, and has a share of its own (see `batching`).
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
