"""Items, requests, and which moves an item may make."""

from __future__ import annotations

import math

import pytest

from penstock.core.item import OFFER, SEND, ItemState, Request
from penstock.core.lanes import Lane

LEGAL = {
    ("offer", ItemState.NEW): ItemState.QUEUED,
    ("offer", ItemState.SENT): ItemState.QUEUED,
    ("send", ItemState.QUEUED): ItemState.SENT,
}


@pytest.mark.parametrize("state", ItemState)
@pytest.mark.parametrize("move", [OFFER, SEND], ids=lambda move: move.name)
def test_a_move_is_in_the_table_or_raises(move, state):
    if (move.name, state) in LEGAL:
        assert move[state] is LEGAL[move.name, state]
        return
    with pytest.raises(match=f"cannot {move.name} an item that is {state.name.lower()}"):
        move[state]


def test_states_are_told_apart_by_their_numbers():
    assert [int(state) for state in ItemState] == [0, 1, 2, 3]


def test_a_request_starts_unfed_and_unsettled():
    request = Request([b"a", b"b"], 1, 2, math.inf, print, Lane.BULK)
    assert (request.fed, request.unsettled, request.outcomes, request.items) == (0, 2, [None, None], [])
    assert not request.wholly_fed
    request.fed = 1
    assert not request.wholly_fed
    request.fed = 2
    assert request.wholly_fed
