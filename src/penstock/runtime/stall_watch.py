"""Writes to the log that a stage has stalled, and that it is back.  What decides is `core.stage_progress`."""

from __future__ import annotations

from penstock.core.clock import FOREVER_SECONDS, Clock, Timer
from penstock.core.stage_progress import StageProgress
from penstock.hosting.guarded_log import guarded_logger

log = guarded_logger("penstock.runtime")


class StallWatch:
    """One stage's watch.

    It has at most one timer, which is set when work comes and is left alone while answers come: it rings once in
    `stalls_after` seconds at the most.
    """

    def __init__(self, stage: str, stalls_after: float, clock: Clock) -> None:
        self.progress = StageProgress(stalls_after)
        self._stage = stage
        self._clock = clock
        self._timer: Timer | None = None
        self._told = False
        """Whether the log says that the stage has stalled, and not yet that it is back."""
        self._stopped = False

    def work_changed(self, at_work: bool, now: float) -> None:
        """Work has come to a stage that had none, or the last of it is gone."""
        if self._told:
            self._tell_back(now, "no work is left")
        self.progress.work_changed(at_work, now)
        if at_work and self._timer is None:
            self._set(self.progress.stalls_after)

    def answered(self, now: float) -> None:
        """A batch has come back."""
        if self._told:
            self._tell_back(now, "a batch completed")
            self._set(self.progress.stalls_after)
        self.progress.answered(now)

    def stop(self) -> None:
        """Say nothing more.  The timer goes on if this is called from a thread that may not cancel it."""
        self._stopped = True

    def cancel(self) -> None:
        """Say nothing more, and let no timer ring."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, seconds: float) -> None:
        if seconds <= FOREVER_SECONDS and not self._stopped:
            self._timer = self._clock.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        progress, now = self.progress, self._clock.now()
        if not progress.at_work or self._stopped:
            return
        if not progress.stalled(now):
            self._set(progress.stalls_at - now)
            return
        self._told = True
        age = progress.age(now)
        log.error("stage %r has stalled: it has work but has completed nothing for %.1f s", self._stage, age)

    def _tell_back(self, now: float, why: str) -> None:
        self._told = False
        age = self.progress.age(now)
        log.info("stage %r is no longer stalled: %s after %.1f s", self._stage, why, age)
