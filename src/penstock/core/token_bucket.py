"""Decide when a tenant may have its next item, by a rate.  Pure: it is told the time.

Contract
--------
* A bucket holds at most `burst` tokens, and is full at first.  `rate` tokens a second come back.  An item takes one.
* `has_token` is true from exactly `next_token` on: a timer that is set to that moment never rings too early.
* `next_slot` is when to come again for one who is refused.  Each refusal takes the next slot, `1 / rate` after the one
  before it, so that callers who come back as told find a token each.  Slots pass with time, taken or not.  None is more
  than a minute ahead.

The state is one moment: when the bucket is full again.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from penstock.core.retry_slots import LONGEST_SECONDS

_ROUNDING: Final = 1e-6
"""What part of a token may be lost to the rounding of moments before it counts as missing."""


class Allowance(NamedTuple):
    """What a bucket holds at one moment, in whole numbers, as answers tell it."""

    quota: int
    """The tokens of a full bucket."""
    window: int
    """The seconds in which an empty one is full again, rounded up."""
    left: int
    """The tokens there are now."""
    seconds: int | None
    """In how many seconds there is one more, rounded up; None where the bucket holds as many as it can."""


class TokenBucket:
    """The tokens of one tenant.  `rate` is more than 0 and `burst` at least 1; both are finite."""

    __slots__ = ("_full_at", "_promised", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        self._full_at = -math.inf
        self._promised = -math.inf
        """The last slot that somebody was told of."""

    @property
    def next_token(self) -> float:
        """From when on there is a token; in the past where there is one already."""
        return self._full_at - (self.burst - 1.0) / self.rate

    def has_token(self, now: float) -> bool:
        """Whether there is a token."""
        return now >= self.next_token

    def take(self, now: float) -> None:
        """Take the token that `has_token` told of."""
        self._full_at = max(self._full_at, now) + 1.0 / self.rate

    def is_full(self, now: float) -> bool:
        """Whether a new bucket would be no different."""
        return self._full_at <= now

    def next_slot(self, now: float, ahead: int = 0) -> float:
        """Refuse one who comes at `now`: the moment at which it is its turn, after `ahead` items that wait."""
        slot = max(self.next_token + ahead / self.rate, self._promised + 1.0 / self.rate, now)
        self._promised = min(slot, now + LONGEST_SECONDS)
        return self._promised

    def allowance(self, now: float) -> Allowance:
        """What is left at `now`, for an answer."""
        missing = max(0.0, self._full_at - now) * self.rate
        left = max(1, math.floor(self.burst - missing + _ROUNDING)) if self.has_token(now) else 0
        seconds = None
        if left + 1 <= self.burst:
            # The moment at which `left + 1` tokens are there.
            one_more = self._full_at - (self.burst - (left + 1)) / self.rate - now
            seconds = max(1, math.ceil(one_more - _ROUNDING))
        window = max(1, math.ceil(self.burst / self.rate - _ROUNDING))
        return Allowance(math.floor(self.burst), window, left, seconds)
