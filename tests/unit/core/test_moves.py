"""A table of moves: what it has leads on, what it has not raises."""

from __future__ import annotations

from enum import IntEnum

import pytest

from penstock.core.moves import IllegalMove, Move


class Door(IntEnum):
    OPEN = 0
    CLOSED = 1
    LOCKED_TWICE = 2


CLOSE = Move("close", "a door", {Door.OPEN: Door.CLOSED})


def test_a_move_leads_from_a_state_to_the_next():
    assert CLOSE[Door.OPEN] is Door.CLOSED
    assert (CLOSE.name, CLOSE.thing) == ("close", "a door")


@pytest.mark.parametrize(("state", "words"), [(Door.CLOSED, "closed"), (Door.LOCKED_TWICE, "locked twice")])
def test_an_illegal_move_names_the_move_the_thing_and_the_state(state, words):
    with pytest.raises(IllegalMove, match=f"^cannot close a door that is {words}$"):
        CLOSE[state]


def test_a_move_may_lead_to_the_first_state():
    reopen = Move("open", "a door", {Door.CLOSED: Door.OPEN})
    assert reopen[Door.CLOSED] is Door.OPEN
