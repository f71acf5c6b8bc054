"""A graph that TensorFlow runs: a signature of a SavedModel.

`model` takes encoded inputs.  Where tables lie outside of the model there are `ids` and `rows` in its place: the ids of
each lookup, and the model that takes the rows of these ids too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.errors import ArtifactInvalid
from penstock.features.tensors import TensorSpec
from penstock.graphs.batch_arrays import arrays_taken, check_count, check_names, check_tensor_dtype
from penstock.graphs.graph import Graph
from penstock.graphs.native_stderr import without_lines

LOG_LEVEL: Final = "TF_CPP_MIN_LOG_LEVEL"
LINES_OF_IMPORT: Final = (b"All log messages before absl::InitializeLog()", b"oneDNN custom operations are on")
"""What TensorFlow writes when it is imported, also where `LOG_LEVEL` says that only fatal errors are written."""

if LOG_LEVEL in os.environ:
    import tensorflow as tf
else:
    os.environ[LOG_LEVEL] = "3"  # it writes of the processor, and of GPUs that it does not find
    with without_lines(LINES_OF_IMPORT):
        import tensorflow as tf

SIGNATURES: Final = {"model": ("rows", "model"), "ids": ("ids",)}
"""By role; the first that a SavedModel has."""


class TensorflowGraph:
    """A graph of the format "saved_model"."""

    def __init__(
        self,
        source: Path,
        *,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        threads: int,
        role: str = "model",
        beside: Graph | None = None,
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        _use_threads(threads)
        self._source = source
        # A signature does not keep the variables alive that it reads: the loaded object does.
        self._loaded: Any
        if isinstance(beside, TensorflowGraph) and beside._source == source:
            self._loaded = beside._loaded  # a second time its variables would be in memory twice
        else:
            self._loaded = tf.saved_model.load(os.fspath(source))
        signatures = self._loaded.signatures
        found = [name for name in SIGNATURES[role] if name in signatures]
        if not found:
            raise ArtifactInvalid(f"the SavedModel has no signature {SIGNATURES[role][-1]!r}, but {sorted(signatures)}")
        self._call: Any = signatures[found[0]]
        self._check()

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The outputs of the signature for a batch."""
        taken = arrays_taken(inputs, self.inputs)
        answer = self._call(**{name: tf.convert_to_tensor(array) for name, array in taken.items()})
        return [_to_array(answer[tensor.name], tensor) for tensor in self.outputs]

    def close(self) -> None:
        """Let the model go."""
        self._loaded = self._call = None

    def _check(self) -> None:
        taken = self._call.structured_input_signature[1]
        check_names("input", taken, self.inputs)
        for tensor in self.inputs:
            check_tensor_dtype("input", tensor, _dtype(taken[tensor.name]))
        given = self._call.structured_outputs
        check_count(len(given), self.outputs)
        check_names("output", given, self.outputs)
        for tensor in self.outputs:
            check_tensor_dtype("output", tensor, _dtype(given[tensor.name]))


def _use_threads(threads: int) -> None:
    with contextlib.suppress(RuntimeError):  # something ran already in this process, and TensorFlow has its threads
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)


def _dtype(spec: Any) -> str:
    return "str" if spec.dtype == tf.string else str(spec.dtype.name)


def _to_array(answer: Any, tensor: TensorSpec) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = answer.numpy()
    if tensor.dtype != "str":
        return array.copy()  # what `numpy` returned may be TensorFlow's own memory
    return np.array([value.decode() for value in array.flat], dtype=object).reshape(array.shape)
