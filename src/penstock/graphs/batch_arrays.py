"""Check what goes into a graph, in one way for each runtime.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.errors import ArtifactInvalid
from penstock.features.tensors import TensorSpec


def arrays_taken(
    inputs: Mapping[str, np.ndarray[Any, Any]], tensors: Sequence[TensorSpec]
) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays that a graph takes, of exactly the dtypes it takes; others are left out.

    Raises:
        TypeError: one is missing, or of another dtype.
    """
    found = {}
    for tensor in tensors:
        array = inputs.get(tensor.name)
        if array is None:
            raise TypeError(f"the graph takes an input {tensor.name!r}, which is not among {sorted(inputs)}")
        if array.dtype.name != ("object" if tensor.dtype == "str" else tensor.dtype):
            raise TypeError(f"input {tensor.name!r} must be {tensor.dtype}, got {array.dtype}")
        found[tensor.name] = array
    return found


def check_names(word: str, found: Collection[str], expected: Sequence[TensorSpec]) -> None:
    """Refuse a graph that has other inputs than its manifest says.

    Raises:
        ArtifactInvalid: it has.
    """
    names = [tensor.name for tensor in expected]
    if set(found) != set(names):
        raise ArtifactInvalid(f"the graph has the {word}s {sorted(found)}, but its manifest lists {sorted(names)}")


def check_count(found: int, expected: Sequence[TensorSpec]) -> None:
    """Refuse a graph that has another number of outputs than its manifest says.

    Raises:
        ArtifactInvalid: it has.
    """
    if found != len(expected):
        raise ArtifactInvalid(f"the graph has {found} outputs, but its manifest lists {[t.name for t in expected]}")


def check_tensor_axes(tensor: TensorSpec, found: Sequence[Any]) -> None:
    """Refuse a graph whose input has other axes than its manifest says, as far as the graph tells them.

    `found` are the graph's axes, the batch first; one that is no number may be of any length.  A graph that tells no
    axes is not refused.

    Raises:
        ArtifactInvalid: it has.
    """
    axes = found[1:]
    same = len(axes) == len(tensor.shape) and all(
        not isinstance(axis, int) or size in (None, axis) for axis, size in zip(axes, tensor.shape, strict=True)
    )
    if found and not same:
        raise ArtifactInvalid(
            f"input {tensor.name!r} of the graph has the axes {['batch', *axes]}, but its manifest lists "
            f"{['batch', *tensor.shape]}"
        )


def check_tensor_dtype(word: str, tensor: TensorSpec, found: str) -> None:
    """Refuse a graph that has another dtype than its manifest says.

    Raises:
        ArtifactInvalid: it has.
    """
    if found != tensor.dtype:
        raise ArtifactInvalid(
            f"{word} {tensor.name!r} of the graph has the dtype {found}, but its manifest lists {tensor.dtype}"
        )
