"""Decide about the tries of one request: how long each may take, and whether and when there is another one.

It does no I/O, is told the time, and is the same for every kind of request and for both clients.

Contract
--------
* There are `most_retries` further tries at most, and none that nobody asked for beyond the `RetryBudget`.
* No try begins at or behind the deadline.  One that began gives up `GRACE_SECONDS` behind it: the server, which is told
  what is left, answers by the deadline, and its answer says more than a client's own watch.
* Where the wait for another try would reach the deadline there is none, and the caller learns so at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from penstock.client.retry_budget import RetryBudget
from penstock.client.retry_rules import Retry, pause_seconds
from penstock.errors import PenstockError

GRACE_SECONDS: Final = 0.5
LEAST_TOLD_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class Setback:
    """A try that has not ended well, and what is known of another one."""

    error: PenstockError
    """What the caller gets where there is no other try."""
    retry: Retry
    told: float | None = None
    """How many seconds the server says to wait."""
    is_refusal: bool = False
    """Whether the server had no room."""


class Tries:
    """The tries of one request.

    Args:
        started: when the request began.
        deadline: the moment after which the answer is worthless; inf is none.
        most_retries: how many further tries there may be.
        budget: the client's.
    """

    def __init__(self, started: float, deadline: float, most_retries: int, budget: RetryBudget) -> None:
        self.seconds = deadline - started
        """How long the request may take."""
        self.deadline = deadline
        self.number = 0
        """How many tries have begun."""
        self._most_retries = most_retries
        self._budget = budget

    @property
    def gives_up(self) -> float:
        """When a try that has begun is given up."""
        return self.deadline + GRACE_SECONDS

    def begin(self, now: float) -> bool:
        """Count a try that begins now; False where it is too late for one."""
        if now >= self.deadline:
            return False
        self.number += 1
        return True

    def headers(self, now: float) -> dict[str, str]:
        """What the server is told of the try that begins now."""
        told = {"x-attempt": str(self.number)}
        left = self.deadline - now
        if left < math.inf:
            told["x-request-timeout"] = f"{max(left, LEAST_TOLD_SECONDS):.3f}"
        return told

    def next_moment(self, setback: Setback, now: float, chance: float) -> float | None:
        """When to try again; None where there is no other try.  `chance` is a random number from 0 up to 1."""
        if setback.retry is Retry.NEVER or self.number > self._most_retries:
            return None
        moment = now + pause_seconds(setback.told, self.number, chance)
        if moment >= self.deadline:
            return None
        if setback.retry is Retry.UNASKED and not self._budget.take(now):
            return None
        return moment
