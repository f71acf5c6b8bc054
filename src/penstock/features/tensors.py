"""What goes into a model and comes out of it: a name, a dtype, and a shape without the batch axis."""

from __future__ import annotations

import msgspec


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input or one output of a model."""

    name: str
    dtype: str
    """numpy's name of it, as ``float32`` or ``int64``; ``str`` for text."""
    shape: tuple[int | None, ...] = ()
    """Without the batch axis: () is one value a row; None is an axis of any length."""
