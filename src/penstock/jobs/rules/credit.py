"""Decide how many jobs of a service a consumer claims: enough to keep its model full, and no more.

A job that lies in one consumer while another is idle is late for nothing.  So what is held and not begun is at most one
batch for each worker of the first stage, which is what a worker runs next.  Jobs whose inputs are to be fetched come on
top of that, one for each that is fetched at a time: otherwise the model would wait for the network.

Everything is counted for each service by itself, so that a slow one takes nothing from the others.
"""

from __future__ import annotations

from typing import NamedTuple


class Credit(NamedTuple):
    """What may be claimed of a service now."""

    jobs: int
    nbytes: int
    """Bytes of their inputs; one job may have more."""


NO_CREDIT = Credit(0, 0)


def credit(
    *,
    held: int,
    begun: int,
    held_bytes: int,
    window: int,
    downloads: int,
    concurrency: int,
    max_bytes: int,
) -> Credit:
    """What may be claimed of a service now.

    Args:
        held: the jobs that are held, in whatever step.
        begun: how many of them the model has begun with.
        held_bytes: the bytes of inputs and results that are held.
        window: the items of one batch for each worker of the first stage.
        downloads: how many inputs are fetched at a time; 0 where no job needs that.
        concurrency: the most jobs that may be held; 0 is no such limit.
        max_bytes: the most bytes that may be held; one job may pass it.
    """
    if held_bytes >= max_bytes or not window:
        return NO_CREDIT
    jobs = window + downloads - (held - begun)
    if concurrency:
        jobs = min(jobs, concurrency - held)
    return Credit(jobs, max_bytes - held_bytes) if jobs > 0 else NO_CREDIT
