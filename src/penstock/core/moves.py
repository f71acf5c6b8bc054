"""Legal moves of whatever has states, as a table.

The states are an `Enum`.  Each kind of move is one `Move`: a row of the table.  It is applied as
``thing.state = OFFER[thing.state]``: one lookup, and an illegal move raises instead of passing unseen.
"""

from __future__ import annotations

from enum import Enum
from typing import Generic, TypeVar

AnyState = TypeVar("AnyState", bound=Enum)


# From Exception itself: mypyc compiles no subclass of most other built-in exceptions.
class IllegalMove(Exception):
    """A thing was moved in a way its table does not have: a mistake of ours."""


class Move(Generic[AnyState]):
    """One row of a table: the states a move may start from, and the state each leads to.

    `name` and `thing` are the words of the error: "cannot offer an item that is settled".
    """

    def __init__(self, name: str, thing: str, row: dict[AnyState, AnyState]) -> None:
        self.name = name
        self.thing = thing
        self._row = row

    def __getitem__(self, state: AnyState) -> AnyState:
        """The state that the move leads to from `state`.  Raises IllegalMove where it may not start there."""
        after = self._row.get(state)
        if after is None:
            words = state.name.lower().replace("_", " ")
            raise IllegalMove(f"cannot {self.name} {self.thing} that is {words}")
        return after
