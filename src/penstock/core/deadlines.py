"""Which requests have run out of time.  Pure: it is told the time.

Requests are gathered in buckets of ten milliseconds by their deadline.  To add or remove one costs a set operation,
however many are in hand, and no request needs a timer.  A deadline is noticed up to one bucket late, never early.
Emptied buckets are forgotten as time goes on, so a long deadline costs no more memory than a short one.
"""

from __future__ import annotations

import heapq
import math

from penstock.core.item import Request

BUCKETS_PER_SECOND = 100
EMPTY_BUCKETS_KEPT = 1000
"""Emptied buckets that may be kept before all of them are forgotten."""


class Deadlines:
    """The requests in hand that have a deadline."""

    def __init__(self) -> None:
        self._buckets: dict[int, set[Request]] = {}
        self._order: list[int] = []
        self._forget_at = EMPTY_BUCKETS_KEPT

    def add(self, request: Request) -> bool:
        """Watch `request`; True if `next_moment` may have come nearer."""
        if request.deadline == math.inf:
            return False
        key = math.ceil(request.deadline * BUCKETS_PER_SECOND)
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.add(request)
            request.bucket = bucket
            return False
        request.bucket = self._buckets[key] = {request}
        heapq.heappush(self._order, key)
        if len(self._order) > self._forget_at:
            self._forget_emptied()
        return self._order[0] == key

    def discard(self, request: Request) -> None:
        """Watch `request` no longer; harmless if it was not watched."""
        bucket = request.bucket
        if bucket is not None:
            bucket.discard(request)
            if not bucket:
                bucket.clear()  # an emptied set keeps the table it grew to, and thousands of buckets lie ahead
            request.bucket = None

    def _forget_emptied(self) -> None:
        """Forget the emptied buckets; due again at twice as many buckets, and `EMPTY_BUCKETS_KEPT` more."""
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if bucket}
        self._order = list(self._buckets)
        heapq.heapify(self._order)
        self._forget_at = 2 * len(self._order) + EMPTY_BUCKETS_KEPT

    def next_moment(self) -> float | None:
        """When to call `expired` next, or None while nothing is watched."""
        return self._order[0] / BUCKETS_PER_SECOND if self._order else None

    def expired(self, now: float) -> list[Request]:
        """The requests whose deadline has passed, each told once."""
        gone: list[Request] = []
        # The same division as in `next_moment`: a call at exactly that moment finds the bucket.
        while self._order and self._order[0] / BUCKETS_PER_SECOND <= now:
            gone.extend(self._buckets.pop(heapq.heappop(self._order)))
        return gone
