"""What a served model answers: an object of its outputs, without their batch axis, and the type of that object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from penstock.errors import ArtifactInvalid
from penstock.features.tensors import Tensor

_SCALARS: dict[str, Any] = {"f": float, "i": int, "u": int, "b": bool}
"""The type of one value, by the kind of numpy's dtype."""


def answer_type(name: str, outputs: Sequence[Tensor], classes: Sequence[Any] | None) -> type:
    """The type of one answer of the model `name`, with a field for each output."""
    fields = [(f"output{number}", _described(tensor, classes)) for number, tensor in enumerate(outputs)]
    rename = {field: tensor.name for (field, _), tensor in zip(fields, outputs, strict=True)}
    return msgspec.defstruct(f"{_class_name(name)}Answer", fields, rename=rename)


def row_answers(values: Mapping[str, np.ndarray[Any, Any]], *, rows: int) -> list[dict[str, Any]]:
    """One answer for each row of a batch, of plain Python values.

    Raises:
        ArtifactInvalid: an output has another number of rows than there are.
    """
    for name, array in values.items():
        if array.shape[:1] != (rows,):
            raise ArtifactInvalid(f"output {name!r} of the graph has the shape {array.shape} for a batch of {rows}")
    columns = [array.tolist() for array in values.values()]
    return [dict(zip(values, row, strict=True)) for row in zip(*columns, strict=True)]


def _described(tensor: Tensor, classes: Sequence[Any] | None) -> Any:
    """The type of one value of `tensor`, with what OpenAPI says of it."""
    kind = str if tensor.dtype == "str" else _SCALARS[np.dtype(tensor.dtype).kind]
    for _ in tensor.shape:
        kind = list[kind]  # type: ignore[valid-type]
    words = f"{tensor.dtype}, shape {list(tensor.shape)}" if tensor.shape else tensor.dtype
    if classes is not None:
        words += f"; the classes are {', '.join(map(repr, classes))}"
    return Annotated[kind, msgspec.Meta(description=words)]


def _class_name(name: str) -> str:
    """A name for the type, for the document: ``fair-affairs`` is ``FairAffairs``."""
    parts = "".join(c if c.isalnum() and c.isascii() else " " for c in name).split()
    return "".join(part[:1].upper() + part[1:] for part in parts) or "Model"
