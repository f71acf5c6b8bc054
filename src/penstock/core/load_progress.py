"""Say what a service that starts still waits for.  Pure: it is told how many workers, and for how long.

A model may load for minutes.  Whoever waits wants to know that something happens, and which stage takes so long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Loading:
    """What one stage still loads.  As text: ``M is loading, 12 s`` or ``M is loading (3 of 4 workers), 12 s``."""

    stage: str
    """The stage's name."""
    left: int
    """Workers that are not ready yet; at least 1, unless they attach from outside."""
    workers: int
    """All workers of the stage."""
    seconds: float
    """How long ago the first start of its workers began."""
    last_failure: str = ""
    """Why the last start of a worker failed; "" while none has."""
    external: bool = False
    """Whether its workers attach from outside; then `left` counts those that have, and are not ready.  As text:
    ``M waits for a remote worker, 12 s``, or ``M waits for a remote worker to become ready, 12 s``."""

    def __str__(self) -> str:
        """The stage, how many workers, the whole seconds, and what went wrong meanwhile."""
        if self.external:
            ready = " to become ready" if self.left else ""
            return f"{self.stage} waits for a remote worker{ready}, {int(self.seconds)} s"
        of_them = f" ({self.left} of {self.workers} workers)" if self.workers > 1 else ""
        failed = f"; the last attempt failed: {self.last_failure}" if self.last_failure else ""
        return f"{self.stage} is loading{of_them}, {int(self.seconds)} s{failed}"


def loading_words(loading: Iterable[Loading]) -> str:
    """All of them in a line; "" where nothing loads."""
    return "; ".join(map(str, loading))


def cut_to_width(words: str, columns: int) -> str:
    """`words` on a line of a terminal with so many columns, one of them free: a longer line would take two."""
    room = max(0, columns - 1)
    return words if len(words) <= room else words[: max(0, room - 3)] + "..."[:room]
