"""A connection's legal moves, written out once more: the table says these and no others."""

from __future__ import annotations

import pytest

from penstock.core.moves import IllegalMove
from penstock.server.http1.states import MOVES, ConnectionState
from rows import each

LEGAL = {
    ("postpone a body", "READING_HEAD"): "AWAITING_TURN",
    ("expect a body", "READING_HEAD"): "READING_BODY",
    ("expect a body", "AWAITING_TURN"): "READING_BODY",
    ("skip a body", "READING_HEAD"): "SKIPPING",
    ("end a body", "READING_BODY"): "READING_HEAD",
    ("end a body", "SKIPPING"): "READING_HEAD",
    ("finish", "READING_HEAD"): "FINISHING",
    ("discard input", "READING_HEAD"): "DISCARDING",
    ("discard input", "READING_BODY"): "DISCARDING",
    ("discard input", "FINISHING"): "DISCARDING",
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


@each("state", ConnectionState)
@each("move", MOVES)
def test_a_move_of_a_connection_is_in_the_table_or_raises(move, state):
    if (move.name, state.name) in LEGAL:
        assert move[state].name == LEGAL[move.name, state.name]
        return
    words = state.name.lower().replace("_", " ")
    with pytest.raises(IllegalMove, match=f"^cannot {move.name}( on)? a connection that is {words}$"):
        move[state]


def test_every_legal_move_has_its_row():
    assert {name for name, _ in LEGAL} == {move.name for move in MOVES}
