"""The time of one transfer, on a clock that the test sets."""

from __future__ import annotations

import pytest

from penstock.errors import TransferCancelled, TransferFailed
from penstock.transfer.time_limit import GLANCE_SECONDS, TimeLimit


class Hand:
    """The hand of a clock."""

    time = 100.0


def test_a_limit_ends_when_its_seconds_have_passed():
    limit = TimeLimit("a page", 5.0, now=lambda: Hand.time)
    assert limit.left() == 5.0
    assert limit.glance() == GLANCE_SECONDS
    Hand.time += 4.9
    assert limit.glance() == pytest.approx(0.1)
    Hand.time += 0.1
    with pytest.raises(TransferFailed, match="a page: transfer timed out after 5 s"):
        limit.left()


def test_a_transfer_that_is_stopped_is_told_so_before_anything_else():
    limit = TimeLimit("a page", -1.0, lambda: True)
    with pytest.raises(TransferCancelled, match="a page: transfer cancelled"):
        limit.glance()
