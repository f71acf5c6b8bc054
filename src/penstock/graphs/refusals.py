"""Rows that a graph refuses, as its model does, while it answers the others.

A graph that refuses rows has one output more than its manifest says, `_refused`: for each row 0, or the number of the
reason, from 1 on.  The reasons are a list in the graph's own file, which is the list of the `Refusal`s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from penstock.errors import ArtifactInvalid

REFUSED: Final = "_refused"
"""The name of the output, and of the list in the metadata of the file."""


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a graph refuses a row."""

    reason: str
    """Words that follow the value, as `is unknown to step 'onehotencoder'`."""
    input: str = ""
    """The input with the value that is refused; "" where it is not known which one it is."""
    place: int = 0
    """Which value of a row of that input it is."""


class RowsRefused(Exception):
    """The graph refuses rows of the batch.  The others can be asked without them."""

    def __init__(self, refusals: Mapping[int, Refusal]) -> None:
        super().__init__("; ".join(f"row {row} {refusal.reason}" for row, refusal in refusals.items()))
        self.refusals = refusals
        """Why, by the row's place in the batch."""


def refusals_to_text(refusals: Sequence[Refusal]) -> str:
    """The list as the file has it."""
    return msgspec.json.encode(refusals).decode()


def refusals_from_text(text: str) -> list[Refusal]:
    """The list that `refusals_to_text` wrote.

    Raises:
        ArtifactInvalid: it is none.
    """
    try:
        return msgspec.json.decode(text, type=list[Refusal])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ArtifactInvalid(f"cannot read the list {REFUSED!r} of the graph: {error}") from error


def check_rows(codes: np.ndarray[Any, Any], refusals: Sequence[Refusal]) -> None:
    """Raise RowsRefused where the output `_refused` has a number that is not 0."""
    if codes.any():
        rows = np.flatnonzero(codes).tolist()
        raise RowsRefused({row: refusals[int(codes[row]) - 1] for row in rows})
