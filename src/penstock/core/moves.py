"""The legal moves of whatever has states, as tables.

A move is a row of its thing's table, applied as ``state = MOVE[state]``: one look-up, and an illegal move cannot pass
unseen.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Generic, TypeVar

State = TypeVar("State", bound=IntEnum)


class IllegalMove(Exception):
    """Something was moved in a way its table does not have: a mistake of ours."""


class Move(Generic[State]):
    """One row of a table: the states that a move may start from, and where each leads.

    `name` and `thing` are words for the error: ``Move("offer", "an item", ...)``.
    """

    def __init__(self, name: str, thing: str, row: dict[State, State]) -> None:
        self.name = name
        self.thing = thing
        self._row = row

    def __getitem__(self, state: State) -> State:
        after = self._row.get(state)
        if after is None:
            raise IllegalMove(f"cannot {self.name} {self.thing} that is {state.name.lower().replace('_', ' ')}")
        return after
