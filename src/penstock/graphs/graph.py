"""What an exported model is to everything that runs one, whatever the runtime.

Contract
--------
* `run` takes every input by its name, each an array whose first axis is the batch, of exactly the dtype that `inputs`
  says; arrays of `str` are of dtype object.  It casts nothing: another dtype, or an input that is missing, is a
  `TypeError`.  What it has no input for is left alone.
* It returns the outputs in the order of `outputs`, each an array whose first axis is the batch.
* It raises `RowsRefused` where it refuses rows of the batch, as the model does.
* It may be called any number of times, with a batch of any size from 1 on, by one thread at a time.
* It changes no input, and what it returned stays as it is when it is called again.
* After `close`, which may be called twice, it is not called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.features.tensors import TensorSpec
from penstock.graphs.batch_arrays import arrays_taken

if TYPE_CHECKING:
    import numpy as np


class Graph(Protocol):
    """An exported model that is open."""

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """What it takes."""

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """What it gives."""

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The outputs for a batch of inputs."""

    def close(self) -> None:
        """Release what it holds."""


class MemoryGraph:
    """A graph that is a function: for tests."""

    def __init__(
        self,
        function: Callable[[Mapping[str, np.ndarray[Any, Any]]], list[np.ndarray[Any, Any]]],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
    ) -> None:
        self._function = function
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The answer of the function to a batch."""
        return self._function(arrays_taken(inputs, self.inputs))

    def close(self) -> None:
        """Nothing is held."""
