"""Plain numbers that the running parts add to and that `/metrics` reads at scrape time.

Nothing here is labelled, locked or formatted: a counter is an attribute, a histogram is a list of counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from penstock.core.series import SeriesCounts
from penstock.errors import REFUSAL_REASONS, Overloaded, RequestError

NOT_READY: Final = "not_ready"
"""The reason of a refusal by a service that takes no work at all."""
REJECTED: Final = {reason: f"rejected_{reason}" for reason in (*REFUSAL_REASONS, NOT_READY)}
"""The counter of each reason."""
INLINE_REASONS: Final = ("full", "kept", "chunked", "moved", "waiting")
"""Why a large payload does not lie in shared memory.

There was no room; a stage keeps too much of what it was given; the length of the body was not told; a body that
arrives slowly made way for another; or the stage is a waiting one.
"""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


class Histogram:
    """Counts of values by upper bound; `counts` has one entry more than `bounds`, for what exceeds them all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_many(self, values: Sequence[float]) -> None:
        """Count each of `values`."""
        bounds, counts = self.bounds, self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.total += sum(values)

    @property
    def count(self) -> int:
        """How many values were added."""
        return sum(self.counts)


class StageCounters:
    """What one stage has done since its service was started."""

    __slots__ = (
        "batch_size",
        "batches",
        "batches_closed",
        "bisected",
        "devices_lost",
        "orphan_kills",
        "queue_seconds",
        "restarts",
        "retried",
        "run_seconds",
        "series",
        "shortages",
        "unhealthy_restarts",
    )  # fmt: skip

    def __init__(self) -> None:
        self.batches = 0
        self.batch_size = Histogram(SIZES)
        self.queue_seconds = Histogram(SECONDS)
        """Seconds each item lay in this stage's queue."""
        self.run_seconds = Histogram(SECONDS)
        """Seconds a worker spent on each batch."""
        self.batches_closed: dict[str, int] = {}
        """Batches by the reason they were cut."""
        self.restarts = 0
        self.orphan_kills = 0
        """Workers killed because they went on with a batch that nobody waited for."""
        self.unhealthy_restarts = 0
        """Workers ended because every batch of theirs failed."""
        self.retried = 0
        """Items run again because their worker died."""
        self.bisected = 0
        """Batches that were bisected."""
        self.devices_lost = 0
        """Workers ended because their device was lost."""
        self.shortages = 0
        """Batches for which there was not enough memory."""
        self.series = SeriesCounts()
        """Counters of the stage itself, of all its workers together, the ended ones too."""


class ServiceCounters:
    """What became of the items a service was offered; `accepted` is the sum of the endings and of those in hand."""

    __slots__ = (
        "aborted",
        "accepted",
        "cancelled",
        "expired",
        "failed",
        "invalid",
        "preempted",
        "rejected",
        "rejected_deadline",
        "rejected_memory_budget",
        "rejected_memory_pressure",
        "rejected_not_ready",
        "rejected_preempted",
        "rejected_queue_full",
        "rejected_quota",
        "succeeded",
        "worker_lost",
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.succeeded = 0
        self.failed = 0
        self.invalid = 0
        self.expired = 0
        self.cancelled = 0
        self.worker_lost = 0
        """Items whose worker died twice under them."""
        self.aborted = 0
        """Accepted items settled as NotReady because the service stopped or a stage failed."""
        self.preempted = 0
        """Accepted items that made way, unrun, for those of others."""
        self.rejected = 0
        """Items never accepted: the sum of what follows, which `count_refusal` keeps."""
        self.rejected_queue_full = 0
        self.rejected_memory_budget = 0
        self.rejected_deadline = 0
        self.rejected_preempted = 0
        self.rejected_quota = 0
        self.rejected_memory_pressure = 0
        self.rejected_not_ready = 0


def count_refusal(counters: ServiceCounters, error: RequestError, items: int = 1) -> None:
    """Count `items` that were refused with `error`, by its reason."""
    name = REJECTED[error.reason if isinstance(error, Overloaded) else NOT_READY]
    setattr(counters, name, getattr(counters, name) + items)
    counters.rejected += items
