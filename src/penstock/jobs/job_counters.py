"""Plain numbers of a consumer, which its parts add to and `/metrics` reads at scrape time."""

from __future__ import annotations

from penstock.core.counters import SECONDS, Histogram
from penstock.jobs.held_work import JobStep
from penstock.jobs.job import Stats


class JobCounters:
    """What one consumer has done since its start."""

    def __init__(self) -> None:
        self.ended: dict[str, int] = {}
        """Runs that this consumer has ended, by their last state."""
        self.attempts: dict[str, int] = {}
        """Attempts that failed here or were released, by cause."""
        self.steps = {step: Histogram(SECONDS) for step in JobStep}
        """Seconds that each step took."""
        self.stats: Stats | None = None
        """What lay in the queue when it was last asked; None before the first answer."""

    def run_ended(self, state: str) -> None:
        """Count a run that this consumer has ended."""
        self.ended[state] = self.ended.get(state, 0) + 1

    def attempt_failed(self, cause: str) -> None:
        """Count an attempt that failed or was released."""
        self.attempts[cause] = self.attempts.get(cause, 0) + 1

    def step_ended(self, step: JobStep, seconds: float) -> None:
        """Count how long a step took."""
        self.steps[step].add(seconds)
