"""Describe a model that is split at its lookups: a graph to the ids of each, and one that is fed with their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.export.exporter import GraphSignature
from penstock.features.tensors import TensorSpec


class LookupNames:
    """Names for the lookups of some layers."""

    def __init__(self, taken: Sequence[str], paths: Sequence[str]) -> None:
        """Find names that no input has.

        Args:
            taken: the names of the inputs.
            paths: the layers, each with a table.
        """
        self._prefix = ""
        while any(name.startswith((f"{self._prefix}rows_", f"{self._prefix}places_")) for name in taken):
            self._prefix += "of_"  # a SavedModel has no name that begins with `_`
        self._numbers = {path: number for number, path in enumerate(paths)}

    def rows(self, path: str) -> str:
        """The input with the rows of a layer's table."""
        return f"{self._prefix}rows_{self._numbers[path]}"

    def ids(self, path: str, call: int) -> str:
        """The output with the ids of a lookup; `call` is 0 for the first that the layer makes."""
        return f"ids_{self._numbers[path]}_{call}"

    def places(self, ids: str) -> str:
        """The input with the places of the ids that are called `ids`."""
        return f"{self._prefix}places_{ids.removeprefix('ids_')}"

    def of_lookups(self, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Each lookup's layer, and the name of its ids, in the order in which the model makes them."""
        calls = dict.fromkeys(self._numbers, 0)
        for path in paths:
            yield path, self.ids(path, calls[path])
            calls[path] += 1


@dataclass(frozen=True)
class TracedLookup:
    """A lookup, as the model makes it for any batch."""

    path: str
    """The layer's path."""
    name: str
    """The output of the graph `ids`."""
    shape: tuple[int | None, ...]
    """Axes of the ids besides the first; None is one of any length."""
    by_row: bool
    """Whether the first axis is the batch."""


@dataclass(frozen=True)
class SplitModel:
    """Both graphs of a model, as its framework has traced them."""

    ids: Any
    ids_signature: GraphSignature
    model: Any
    model_signature: GraphSignature
    lookups: Sequence[TracedLookup]


def split_signatures(
    signature: GraphSignature, lookups: Sequence[TracedLookup], outside: Mapping[str, int], names: LookupNames
) -> tuple[GraphSignature, GraphSignature]:
    """Inputs and outputs of the graph `ids`, and those of the graph that is fed with rows.

    Args:
        signature: that of the whole model.
        lookups: all of them, in order.
        outside: the width of the rows of each layer outside, by path.
        names: the names of rows and places.
    """
    ids = tuple(TensorSpec(lookup.name, "int64", lookup.shape) for lookup in lookups)
    fed = [TensorSpec(names.rows(path), "float32", (width,)) for path, width in outside.items()]
    fed += [
        TensorSpec(names.places(lookup.name), "int64", lookup.shape) for lookup in lookups if lookup.path in outside
    ]
    return replace(signature, outputs=ids), replace(signature, inputs=(*signature.inputs, *fed))
