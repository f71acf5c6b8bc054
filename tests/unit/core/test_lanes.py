"""The lanes and their numbers."""

from __future__ import annotations

from penstock.core.lanes import FRONT, Lane


def test_lanes_are_numbered_from_zero_so_that_they_can_lie_in_lists():
    assert [int(lane) for lane in Lane] == [0, 1, 2]
    assert list(Lane) == [Lane.SINGLE, Lane.BULK, Lane.BACK]
    assert [int(lane) for lane in FRONT] == [0, 1]
