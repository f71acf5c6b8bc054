"""What a served model answers: an object of its outputs, without their batch axis, and the type of that object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from penstock.errors import ArtifactInvalid
from penstock.features.tensors import TensorSpec

_SCALARS: dict[str, Any] = {"f": float, "i": int, "u": int, "b": bool}
"""The type of one value, by the kind of numpy's dtype."""
_MISSING_TYPE: Any = (
    Annotated[
        dict[str, int],
        msgspec.Meta(
            description="how many distinct ids of this item are not in a table, by the table's name; absent where all "
            "are there"
        ),
    ]
    | msgspec.UnsetType
)


MISSING: Final = "_missing"
"""The field of an answer that is explained.  No output that was saved begins with an underscore."""


def answer_type(
    name: str, outputs: Sequence[TensorSpec], classes: Sequence[Any] | None, *, explained: bool = False
) -> type:
    """The type of one answer of the model `name`, with a field for each output.

    With `explained` it has a field that may be absent: how many ids were not found, by table.
    """
    fields: list[Any] = [(f"output{number}", _described(tensor, classes)) for number, tensor in enumerate(outputs)]
    rename = {field: tensor.name for (field, _), tensor in zip(fields, outputs, strict=True)}
    if explained:
        fields.append(("missing", _MISSING_TYPE, msgspec.UNSET))
        rename["missing"] = MISSING
    return msgspec.defstruct(f"{_class_name(name)}Answer", fields, rename=rename)


def row_answers(
    values: Mapping[str, np.ndarray[Any, Any]], *, rows: int, missing: Sequence[Mapping[str, int]] = ()
) -> list[dict[str, Any]]:
    """One answer for each row of a batch, of plain Python values.

    `missing` has for each row how many of its ids were not found, by table; a row without any is as it would be.

    Raises:
        ArtifactInvalid: an output has another number of rows than there are.
    """
    for name, array in values.items():
        if array.shape[:1] != (rows,):
            raise ArtifactInvalid(f"output {name!r} of the graph has the shape {array.shape} for a batch of {rows}")
    columns = [array.tolist() for array in values.values()]
    answers = [dict(zip(values, row, strict=True)) for row in zip(*columns, strict=True)]
    for place, counts in enumerate(missing):
        if counts:
            answers[place][MISSING] = dict(counts)
    return answers


def _described(tensor: TensorSpec, classes: Sequence[Any] | None) -> Any:
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
