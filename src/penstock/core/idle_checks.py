"""Decide which idle worker is asked how it is, and when its answer has taken too long.  Pure: it is told the time.

Contract
--------
* A worker is due once it has been idle for `IDLE_SECONDS`, and again so long after each answer, while it stays idle.
  Work begins the time anew: who answers batches is not asked.
* One worker of a stage is asked at a time, the one that has been idle for longest.  The next one follows its answer.
* Nobody is asked while a worker starts that was replaced for its health: all may ask for the same thing, and if it is
  gone, those that are left must go on until there is another one.
* A worker has `LIMIT_SECONDS` to answer.  One that was not ended for being late is late again after `IDLE_SECONDS`, and
  keeps no other from being asked.
* A worker that is not ready is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence

IDLE_SECONDS = 10.0
LIMIT_SECONDS = 5.0


class IdleChecks:
    """Those of the workers of one stage, which are numbers here.

    `idle_since` has for each since when it has had nothing to do; None while it has something, or is not ready.
    """

    def __init__(self, workers: int) -> None:
        self._late_at: list[float | None] = [None] * workers
        """When the check that each of them runs is late; None where it runs none."""
        self._asked: int | None = None
        """Who was asked, and has neither answered nor been late yet."""
        self._replaced: set[int] = set()
        """Who was ended for its health, and is not ready again."""

    def take_late(self, now: float) -> list[int]:
        """Those that have not answered in time; each is told once."""
        late = [worker for worker, at in enumerate(self._late_at) if at is not None and at <= now]
        for worker in late:
            self._late_at[worker] = now + IDLE_SECONDS
            if self._asked == worker:
                self._asked = None
        return late

    def take_due(self, idle_since: Sequence[float | None], now: float) -> int | None:
        """Who is to be asked now, if anybody is; it counts as asked."""
        if self._asked is not None or self._replaced:
            return None
        due = [
            (since, worker)
            for worker, since in enumerate(idle_since)
            if since is not None and now - since >= IDLE_SECONDS and self._late_at[worker] is None
        ]
        if not due:
            return None
        _, worker = min(due)
        self._asked = worker
        self._late_at[worker] = now + LIMIT_SECONDS
        return worker

    def ended(self, worker: int) -> None:
        """It has answered, or it is gone."""
        self._late_at[worker] = None
        if self._asked == worker:
            self._asked = None

    def replaced(self, worker: int) -> None:
        """It is being ended for its health."""
        self._replaced.add(worker)

    def became_ready(self, worker: int) -> None:
        """It is ready."""
        self._replaced.discard(worker)

    def next_look(self, idle_since: Sequence[float | None], now: float) -> float | None:
        """The moment at which there may be something to do, if nobody answers, ends or becomes ready before.

        A worker at work may be idle from now on.
        """
        moments = [at for at in self._late_at if at is not None]
        if self._asked is None and not self._replaced:
            moments += [
                (now if since is None else since) + IDLE_SECONDS
                for since, at in zip(idle_since, self._late_at, strict=True)
                if at is None
            ]
        return min(moments, default=None)
