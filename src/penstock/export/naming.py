"""Name the outputs of a model, and say what dtype and shape each has.

Contract
--------
* A dict's keys, the fields of a dataclass and those of a named tuple are the names of the outputs.  Otherwise they are
  what `outputs=` says, and without it `output`, or `output_0` and so on.
* No two outputs share a name, and none begins with `_`: such names are kept for later.
* The first axis of every output is the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.artifact.manifest_json import DTYPES
from penstock.errors import ConfigError
from penstock.export.exporter import ModelAnswer
from penstock.features.tensors import TensorSpec

if TYPE_CHECKING:
    import numpy as np


def split_outputs(value: Any) -> tuple[list[Any], tuple[str, ...] | None]:
    """The parts of what a model returned, and their names where it names them; a part that is None is left out.

    Raises:
        ConfigError: a key is no string.
    """
    named: Mapping[Any, Any] | None = None
    if isinstance(value, Mapping):
        named = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        named = dict(zip(value._fields, value, strict=True))
    if named is None:
        return (list(value) if isinstance(value, list | tuple) else [value]), None
    for key in named:
        if not isinstance(key, str):
            raise ConfigError(f"the model returns a dict with the key {key!r}; the name of an output must be a string")
    present = {key: part for key, part in named.items() if part is not None}
    return list(present.values()), tuple(present)


def name_outputs(answer: ModelAnswer, given: Sequence[str] | None) -> tuple[str, ...]:
    """The name of each output of a model.

    Args:
        answer: what the model answered.
        given: what the user calls them: `outputs=`.

    Raises:
        ConfigError: the names do not fit the outputs, or cannot be.
    """
    count = len(answer.arrays)
    if not count:
        raise ConfigError("the model returns nothing: it must return at least one output")
    if given is not None and answer.names is not None and tuple(given) != answer.names:
        raise ConfigError(
            f"outputs={list(given)!r}, but the model names its outputs itself: {', '.join(answer.names)}; "
            "leave outputs= out, or change the keys of the dict that it returns"
        )
    if given is not None and len(given) != count:
        raise ConfigError(f"outputs={list(given)!r} has {len(given)} names, but the model has {count} outputs")
    names = answer.names or (None if given is None else tuple(given)) or answer.defaults or _numbered(count)
    check_output_names(names)
    return names


def check_output_names(names: Sequence[str]) -> None:
    """Raise ConfigError for the first of `names` that cannot be the name of an output."""
    for place, name in enumerate(names):
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ConfigError(f"the name of an output must be printable and not empty, got {name!r}")
        if name.startswith("_"):
            raise ConfigError(f"output {name!r}: names that start with `_` are reserved; use another name")
        if name in names[:place]:
            raise ConfigError(f"two outputs have the name {name!r}")


def describe_outputs(names: Sequence[str], arrays: Sequence[np.ndarray[Any, Any]], rows: int) -> tuple[TensorSpec, ...]:
    """The outputs as tensors: without their batch axis.

    Raises:
        ConfigError: an output is not one row for each of the `rows` that the model was asked, or no numbers or text.
    """
    return tuple(_describe(name, array, rows) for name, array in zip(names, arrays, strict=True))


def _describe(name: str, array: np.ndarray[Any, Any], rows: int) -> TensorSpec:
    if not array.ndim or array.shape[0] != rows:
        raise ConfigError(
            f"output {name!r} has the shape {list(array.shape)} for {rows} rows: its first axis must be "
            "the batch, with one entry for each input row"
        )
    dtype = "str" if array.dtype.kind in "OTU" else array.dtype.name
    if dtype not in DTYPES:
        raise ConfigError(f"output {name!r} has the dtype {dtype}, which JSON does not support; return float32 instead")
    return TensorSpec(name, dtype, tuple(array.shape[1:]))


def _numbered(count: int) -> tuple[str, ...]:
    return ("output",) if count == 1 else tuple(f"output_{place}" for place in range(count))
