"""Decide how many jobs of a service a consumer claims: enough to keep its model full, and no more.

A job that lies in one consumer while another is idle is late for nothing.  So what is held and not begun is at most one
batch for each worker of the first stage, which is what a worker runs next; where that stage is a waiting one, as many
as its workers may have in progress.

Jobs whose inputs are fetched have places of their own: the model does not wait for the network then, and an input that
never comes takes no job's place that has its own.  Jobs that were fetched and are more than the model needs next keep
their places until it has begun with them.

Everything is counted for each service by itself, so that a slow one takes nothing from the others.
"""

from __future__ import annotations

from typing import NamedTuple


class Credit(NamedTuple):
    """The jobs of a service that may be claimed now."""

    jobs: int
    """Jobs whose input is in the store."""
    fetched: int
    """Jobs whose input is to be fetched."""
    nbytes: int
    """Bytes of their inputs; one job may have more."""


NO_CREDIT = Credit(0, 0, 0)


def credit(
    *,
    held: int,
    fetching: int,
    ready: int,
    held_bytes: int,
    window: int,
    downloads: int,
    concurrency: int,
    max_bytes: int,
    fetched_first: bool = False,
) -> Credit:
    """The jobs of a service that may be claimed now.

    Args:
        held: the jobs that are held, in whatever step.
        fetching: how many of them wait for their input.
        ready: how many have theirs, and the model has not begun with them.
        held_bytes: the bytes of inputs and results that are held.
        window: the items of one batch for each worker of the first stage, or of all that these may have in progress.
        downloads: how many inputs are fetched at a time.
        concurrency: the most jobs that may be held; 0 is no such limit.
        max_bytes: the most bytes that may be held; one job may pass it.
        fetched_first: where `concurrency` leaves too little for both kinds, whether jobs to be fetched have it.
    """
    if held_bytes >= max_bytes or not window:
        return NO_CREDIT
    jobs = max(0, window - ready)
    fetched = max(0, downloads - fetching - max(0, ready - window))
    if concurrency:
        left = max(0, concurrency - held)
        if fetched_first:
            fetched = min(fetched, left)
            jobs = min(jobs, left - fetched)
        else:
            jobs = min(jobs, left)
            fetched = min(fetched, left - jobs)
    return Credit(jobs, fetched, max_bytes - held_bytes) if jobs or fetched else NO_CREDIT
