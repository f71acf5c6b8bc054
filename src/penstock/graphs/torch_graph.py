"""A graph that PyTorch runs, as `torch.export` saved it.  It is run on the CPU, without gradients."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from penstock.errors import ArtifactInvalid
from penstock.features.tensors import TensorSpec
from penstock.graphs.batch_arrays import arrays_taken, check_count, check_names, check_tensor_dtype


class TorchGraph:
    """A graph of the format "pt2"; the model is called with keyword arguments, as it was when it was exported."""

    def __init__(
        self, source: bytes | Path, *, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], threads: int
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        torch.set_num_threads(threads)
        content = source.read_bytes() if isinstance(source, Path) else source
        program = torch.export.load(io.BytesIO(content))
        self._check(program)
        self._model: Any = program.module()

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The tensors of the model's answer to a batch, in order."""
        taken = arrays_taken(inputs, self.inputs)
        with torch.inference_mode():
            answer = self._model(**{name: torch.tensor(array) for name, array in taken.items()})
            # A copy, since a model may answer with a buffer of its own.
            return [tensor.numpy().copy() for tensor in pytree.tree_leaves(answer)]

    def close(self) -> None:
        """Let the model go."""
        self._model = None

    def _check(self, program: Any) -> None:
        signature = program.graph_signature
        dtypes = {node.name: _dtype(node) for node in program.graph.nodes}
        # The structure of the arguments, with the name of each argument's node in its place.
        positional, keywords = pytree.tree_unflatten(signature.user_inputs, program.call_spec.in_spec)
        if positional:
            raise ArtifactInvalid(f"the graph takes {len(positional)} positional arguments, but must take none")
        check_names("input", keywords, self.inputs)
        for tensor in self.inputs:
            check_tensor_dtype("input", tensor, dtypes.get(keywords[tensor.name], "a structure"))
        check_count(len(signature.user_outputs), self.outputs)
        for tensor, name in zip(self.outputs, signature.user_outputs, strict=True):
            check_tensor_dtype("output", tensor, dtypes.get(name, f"the constant {name}"))


def _dtype(node: Any) -> str:
    value = node.meta.get("val")
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__
