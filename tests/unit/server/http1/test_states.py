"""A connection's legal moves, written out once more: the table says these and no others."""

from __future__ import annotations

import pytest

from penstock.core.moves import IllegalMove
from penstock.server.http1.states import MOVES, ConnectionState

LEGAL = {
    ("postpone the body on", "READING_HEAD"): "AWAITING_TURN",
    ("expect a body on", "READING_HEAD"): "READING_BODY",
    ("expect a body on", "AWAITING_TURN"): "READING_BODY",
    ("skip a body on", "READING_HEAD"): "SKIPPING",
    ("end a body on", "READING_BODY"): "READING_HEAD",
    ("end a body on", "SKIPPING"): "READING_HEAD",
    ("finish", "READING_HEAD"): "FINISHING",
    ("discard input of", "READING_HEAD"): "DISCARDING",
    ("discard input of", "READING_BODY"): "DISCARDING",
    ("discard input of", "FINISHING"): "DISCARDING",
    ("half-close", "READING_HEAD"): "LINGERING",
    ("half-close", "DISCARDING"): "LINGERING",
    ("close", "READING_HEAD"): "CLOSED",
    ("close", "READING_BODY"): "CLOSED",
    ("close", "AWAITING_TURN"): "CLOSED",
    ("close", "SKIPPING"): "CLOSED",
    ("close", "FINISHING"): "CLOSED",
    ("close", "DISCARDING"): "CLOSED",
    ("close", "LINGERING"): "CLOSED",
}


@pytest.mark.parametrize("state", ConnectionState)
@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.name)
def test_a_move_of_a_connection_is_in_the_table_or_raises(move, state):
    if (move.name, state.name) in LEGAL:
        assert move[state].name == LEGAL[move.name, state.name]
        return
    words = state.name.lower().replace("_", " ")
    with pytest.raises(IllegalMove, match=f"^cannot {move.name} a connection that is {words}$"):
        move[state]


def test_every_legal_move_has_its_row():
    assert {name for name, _ in LEGAL} == {move.name for move in MOVES}
