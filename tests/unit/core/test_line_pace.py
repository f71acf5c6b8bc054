"""Which lines are written where others decide how many there are."""

from __future__ import annotations

from penstock.core.line_pace import LinePace


def test_one_line_a_second_and_the_next_says_how_many_were_left_out():
    pace = LinePace()
    assert [pace.take(at) for at in (5.0, 5.1, 5.9)] == [0, None, None]
    assert [pace.take(at) for at in (6.0, 6.5)] == [2, None]
    assert pace.take(9.0) == 1
    assert pace.take(20.0) == 0


def test_several_lines_a_second():
    pace = LinePace(2)
    assert [pace.take(at) for at in (0.0, 0.5, 0.9, 1.0, 1.1, 1.2)] == [0, 0, None, 1, 0, None]
