"""A batch as it was cut, and why."""

from __future__ import annotations

from enum import StrEnum

from penstock.core.item import Item


class Reason(StrEnum):
    """Why a batch was cut, by the names metrics and logs use."""

    FULL = "full"
    """`max_size` items waited.  Fewer leave where the next stage's queue has less room."""
    TIMEOUT = "timeout"
    """Its oldest item waited `max_wait`."""
    IDLE_GAP = "idle_gap"
    """Nothing arrived for `max_idle_gap`."""
    IDLE = "idle"
    """A worker was free and no item was to wait for company."""
    ADAPTIVE = "adaptive"
    """Items had waited for company, and all had come, or it was not worth waiting for more."""
    ADAPTIVE_TIMEOUT = "adaptive_timeout"
    """Items had waited for company as long as that was worth it."""
    DEADLINE = "deadline"
    """An item had to run now or miss its deadline."""
    BULK = "bulk"
    """Items that came together do not wait for company."""
    BACKGROUND = "background"
    """Items of the lane behind the others do not wait for company, and nothing else made it due."""
    ISOLATED = "isolated"
    """An item that is to be alone: it runs by itself, or it ended this batch before it."""
    RETRY = "retry"
    """A suspect, run alone after the death of a worker."""
    DRAIN = "drain"
    """The service is stopping."""


class CutBatch:
    """Items that run together, and the reason for the cut; the last `back` of them are of the lane BACK."""

    __slots__ = ("back", "items", "reason")

    def __init__(self, items: list[Item], reason: Reason, back: int = 0) -> None:
        self.items = items
        self.reason = reason
        self.back = back
