"""A graph that ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from penstock.features.tensors import TensorSpec
from penstock.graphs.batch_arrays import arrays_taken, check_count, check_names, check_tensor_axes, check_tensor_dtype
from penstock.graphs.refusals import REFUSED, check_rows, refusals_from_text
from penstock.graphs.words import WORDS, with_words, words_from_text

DTYPES: Final = {
    "tensor(bool)": "bool",
    "tensor(string)": "str",
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""numpy's names of ONNX Runtime's types."""
FATAL: Final = 4
"""ONNX Runtime's level of log lines from which on it writes to stderr: what is an error is raised anyway."""


class OnnxGraph:
    """A graph of the format "onnx".

    It is opened from bytes, so no file is read besides the one that was checked: `nowhere` is where ONNX Runtime would
    look for weights that a graph says are in other files.
    """

    def __init__(
        self, source: bytes | Path, *, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], threads: int
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = FATAL
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/dev/null/nowhere")
        content = source.read_bytes() if isinstance(source, Path) else source
        self._session: Any = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._quiet = onnxruntime.RunOptions()
        self._quiet.log_severity_level = FATAL
        self._output_names = [output.name for output in self._session.get_outputs()]
        told = self._session.get_modelmeta().custom_metadata_map
        self._refusals = refusals_from_text(told[REFUSED]) if told.get(REFUSED) else []
        self._words = words_from_text(told[WORDS]) if told.get(WORDS) else []
        self._check()

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The outputs of the graph for a batch, by their position; raises RowsRefused where it refuses rows."""
        taken = arrays_taken(inputs, self.inputs)
        if self._words:
            taken = with_words(taken, self._words)
        found: list[np.ndarray[Any, Any]] = self._session.run(self._output_names, taken, self._quiet)
        if self._refusals:
            check_rows(found.pop(), self._refusals)
        return found

    def close(self) -> None:
        """Let the session go, with its threads and its weights."""
        self._session = None

    def _check(self) -> None:
        words = {one.name for one in self._words}
        taken = {node.name: node for node in self._session.get_inputs() if node.name not in words}
        check_names("input", taken, self.inputs)
        for tensor in self.inputs:
            check_tensor_dtype("input", tensor, DTYPES.get(taken[tensor.name].type, taken[tensor.name].type))
            check_tensor_axes(tensor, taken[tensor.name].shape)
        given = self._session.get_outputs()
        if self._refusals:
            check_tensor_dtype("output", TensorSpec(REFUSED, "int64"), DTYPES.get(given[-1].type, given[-1].type))
            given = given[:-1]
        check_count(len(given), self.outputs)
        for tensor, node in zip(self.outputs, given, strict=True):
            check_tensor_dtype("output", tensor, DTYPES.get(node.type, node.type))
