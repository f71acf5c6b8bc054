"""Decide what a failed attempt means for its job: another one, and when, or the end.

Contract
--------
* Attempts are counted by their cause, in each run anew.  The last one that `MOST_ATTEMPTS` allows of a cause ends the
  run as dead.  What is `RELEASED` counts for nothing.
* A worker that dies under several jobs tells of none which one it was: that attempt does not count.
* A job that failed by `APPLICATION`, `WORKER_LOST` or `LEASE_EXPIRED` runs alone from then on: it may have
  failed through its batch-mates, or they through it.
* The rest before the next attempt is drawn between 0 and a bound, which doubles with each attempt that counts, of
  whatever cause: full jitter, as in "Exponential Backoff And Jitter" by Marc Brooker (AWS, 2015).  A job whose lease
  ran out rests no longer: it has rested for a lease already.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

LONGEST_REST_SECONDS: Final = 300.0


class FailureCause(StrEnum):
    """Why an attempt ended without ending its run, by the names that users see."""

    APPLICATION = "application"
    """A stage raised an exception for it."""
    WORKER_LOST = "worker_lost"
    """A worker died or hung under it."""
    LEASE_EXPIRED = "lease_expired"
    """Its lease ran out without a word of its holder."""
    TRANSFER = "transfer"
    """Its input could not be fetched, or its output not be stored, this time."""
    INVALID_INPUT = "invalid_input"
    """It is at fault itself: its input is not valid, or can never be had."""
    RELEASED = "released"
    """Its holder gave it back."""


MOST_ATTEMPTS: Final[Mapping[str, int]] = {
    FailureCause.APPLICATION: 3,
    FailureCause.WORKER_LOST: 2,
    FailureCause.LEASE_EXPIRED: 5,
    FailureCause.TRANSFER: 10,
    FailureCause.INVALID_INPUT: 1,
}
"""The attempt of each cause that ends a run as dead."""

RUNS_ALONE: Final = frozenset((FailureCause.APPLICATION, FailureCause.WORKER_LOST, FailureCause.LEASE_EXPIRED))
"""The causes after which a job runs alone."""


class Judgement(NamedTuple):
    """What becomes of a job after a failed attempt."""

    dead: bool
    """Whether its run has ended."""
    counts: bool
    """Whether the attempt is counted."""
    alone: bool
    """Whether the next attempt must run alone because of this one."""
    rest: float
    """The seconds until the next attempt may begin."""


def judge(attempts: Mapping[str, int], cause: FailureCause, *, alone: bool, backoff: float, draw: float) -> Judgement:
    """What an attempt that ended by `cause` means.

    Args:
        attempts: the run's attempts so far by cause, without this one.
        cause: why this one ended.
        alone: whether the job was alone in its batch.  It matters for WORKER_LOST only.
        backoff: the bound of the first rest, in seconds; 0 is no rest at all.
        draw: a number drawn evenly between 0 and 1.
    """
    counts = cause is not FailureCause.RELEASED and (alone or cause is not FailureCause.WORKER_LOST)
    if counts and attempts.get(cause, 0) + 1 >= MOST_ATTEMPTS[cause]:
        return Judgement(dead=True, counts=True, alone=False, rest=0.0)
    rests = cause not in (FailureCause.RELEASED, FailureCause.LEASE_EXPIRED)
    bound = rest_bound(backoff, sum(attempts.values())) if rests else 0.0
    return Judgement(dead=False, counts=counts, alone=cause in RUNS_ALONE, rest=bound * draw)


def rest_bound(backoff: float, failures: int) -> float:
    """The longest rest, in seconds, after so many failures before the one that it follows."""
    return min(backoff * 2.0 ** min(failures, 32), LONGEST_REST_SECONDS)
