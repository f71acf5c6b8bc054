"""Translate states and causes between the words that users see and those that SQLite and Redis keep.

The stored words never change: files, servers and consumers of an earlier version have them, and all work on one queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.jobs.job import Attempt
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState

_STORED: Final[Mapping[str, str]] = {
    JobState.QUEUED.value: "waiting",
    JobState.RUNNING.value: "leased",
    FailureCause.LEASE_EXPIRED.value: "lost",
    FailureCause.WORKER_LOST.value: "crash",
    FailureCause.INVALID_INPUT.value: "input",
}
"""The stored word of each state and cause that has another one for users."""
_SHOWN: Final = {stored: shown for shown, stored in _STORED.items()}


def stored_word(shown: str) -> str:
    """The stored word of a state or a cause."""
    return _STORED.get(shown, shown)


def shown_word(stored: str) -> str:
    """The state or the cause that a stored word means."""
    return _SHOWN.get(stored, stored)


def stored_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by stored cause."""
    return {_STORED.get(cause, cause): count for cause, count in counts.items()}


def shown_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by cause, of counts by stored cause."""
    return {_SHOWN.get(cause, cause): count for cause, count in counts.items()}


def shown_attempt(
    run: int, fence: int, holder: str, claimed: float, ended: float | None = None, cause: str = ""
) -> Attempt:
    """The attempt that a store has kept in this order, with the stored word of its cause."""
    return Attempt(run, fence, holder, claimed, ended, _SHOWN.get(cause, cause))
