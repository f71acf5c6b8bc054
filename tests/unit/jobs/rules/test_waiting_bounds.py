"""How many jobs may wait in a queue, and how many bytes of inputs."""

from __future__ import annotations

import pytest

from penstock.errors import QueueFull
from penstock.jobs.rules.waiting_bounds import NO_BOUNDS, WaitingBounds


def check(bounds, *, waiting=0, waiting_bytes=0, new=1, new_bytes=0):
    bounds.check("q", waiting=waiting, waiting_bytes=waiting_bytes, new=new, new_bytes=new_bytes)


def test_without_bounds_everything_fits():
    check(NO_BOUNDS, waiting=10**12, waiting_bytes=10**15, new=10**9, new_bytes=10**15)
    assert not NO_BOUNDS.any


def test_jobs_fit_up_to_the_bound():
    bounds = WaitingBounds(jobs=3)
    assert bounds.any
    check(bounds, waiting=1, new=2, new_bytes=10**9)
    with pytest.raises(
        QueueFull, match=r"queue q is full: 2 waiting jobs and 2 more submitted exceed max_waiting \(3\)"
    ):
        check(bounds, waiting=2, new=2)


def test_bytes_fit_up_to_the_bound():
    bounds = WaitingBounds(nbytes=10)
    assert bounds.any
    check(bounds, waiting=10**9, waiting_bytes=4, new_bytes=6)
    with pytest.raises(QueueFull, match=r"of waiting inputs and 6 more submitted exceed max_waiting_bytes \(10\)"):
        check(bounds, waiting_bytes=5, new_bytes=6)
