"""Whose turn it is, among any number of lanes."""

from __future__ import annotations

from random import Random

import pytest

from penstock.core.lanes import FRONT, Lane, Turns


def test_lanes_are_numbered_from_zero_so_that_they_can_lie_in_lists():
    assert [int(lane) for lane in Lane] == [0, 1, 2]
    assert list(Lane) == [Lane.SINGLE, Lane.BULK, Lane.BACK]
    assert [int(lane) for lane in FRONT] == [0, 1]


def test_the_first_turn_is_the_first_lanes():
    assert Turns(1).order() == [0]
    assert Turns(3).order() == [0, 1, 2]


def test_the_turn_goes_from_lane_to_lane_and_round_again():
    turns = Turns(3)
    turns.pass_on(0)
    assert turns.order() == [1, 2, 0]
    turns.pass_on(1)
    assert turns.order() == [2, 0, 1]
    turns.pass_on(2)
    assert turns.order() == [0, 1, 2]


def test_a_lane_that_stood_in_for_others_is_last_in_the_next_round():
    turns = Turns(4)
    turns.pass_on(2)
    assert turns.order() == [3, 0, 1, 2]


@pytest.mark.parametrize("lanes", range(1, 6))
def test_lanes_are_served_in_the_order_of_a_circle(lanes):
    random = Random(lanes)
    turns, circle = Turns(lanes), list(range(lanes))
    for _ in range(500):
        assert turns.order() == circle
        served = random.choice(circle)
        turns.pass_on(served)
        while circle[-1] != served:
            circle.append(circle.pop(0))


@pytest.mark.parametrize("lanes", range(2, 6))
def test_none_is_shut_out_while_others_go_on(lanes):
    random = Random(lanes)
    turns, passed_over = Turns(lanes), [0] * lanes
    for _ in range(500):
        waiting = {lane for lane in range(lanes) if random.random() < 0.7}
        served = next((lane for lane in turns.order() if lane in waiting), None)
        if served is None:
            continue
        turns.pass_on(served)
        passed_over = [count + 1 if lane in waiting - {served} else 0 for lane, count in enumerate(passed_over)]
        assert max(passed_over) < lanes
