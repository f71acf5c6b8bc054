"""What a stage says of itself; a module of its own, because most programs that import penstock have no need of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.config import Batch


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a stage says of itself for one `setup`, where that differs from one setup to another; see `Stage.declare`.

    None: what the class and its annotations say.
    """

    item: Any = None
    """The type of one item."""
    result: Any = None
    """The type of one result."""
    examples: Sequence[Any] | None = None
    """Inputs of the stage, plain or as an `Example`."""
    batch: Batch | None = None
    """The batch policy; one that is given to `penstock.stage` wins."""
