"""Give a graph that skl2onnx made the inputs and outputs of the model that it was made from.

skl2onnx takes a column as a matrix with one column, and gives numbers in shapes and dtypes of its own.  Here the graph
is changed at its edges, so that a column is one value a row, and each output has the shape and dtype that it has in
scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.features.tensors import TensorSpec
from penstock.graphs.refusals import REFUSED, Refusal, refusals_to_text
from penstock.graphs.words import WORDS, Words, words_to_text


def add_refusals(model: Any, names: Sequence[str], refusals: Sequence[Refusal]) -> None:
    """Have the ONNX `model` say which rows it refuses, as `penstock.graphs.refusals` has it.

    Args:
        model: the model, with its outputs as they are to be.
        names: of columns with the number of a refusal for each row, or 0.
        refusals: the list that is numbered.
    """
    from onnx import TensorProto, helper

    if not refusals:
        return
    every, shape, axes = f"{REFUSED}_every", f"{REFUSED}_shape", f"{REFUSED}_axes"
    greatest = f"{REFUSED}_greatest"
    model.graph.node.extend(
        [
            helper.make_node("Concat", list(names), [every], axis=1),
            _constant(axes, [1]),
            helper.make_node("ReduceMax", [every, axes], [greatest], keepdims=0),
            _constant(shape, [-1]),
            helper.make_node("Reshape", [greatest, shape], [REFUSED]),
        ]
    )
    model.graph.output.append(helper.make_tensor_value_info(REFUSED, TensorProto.INT64, ["batch"]))
    _tell(model, REFUSED, refusals_to_text(refusals))


def add_words(model: Any, values: Sequence[Any], words: list[Words]) -> None:
    """Have the ONNX `model` take words besides its inputs, as `penstock.graphs.words` has it.

    Args:
        model: the model, with its inputs as they are to be.
        values: the inputs with words, as ONNX has them.
        words: what they are.
    """
    if words:
        model.graph.input.extend(values)
        _tell(model, WORDS, words_to_text(words))


def _tell(model: Any, key: str, text: str) -> None:
    entry = model.metadata_props.add()
    entry.key, entry.value = key, text


def fit_edges(model: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Change the ONNX `model`: its inputs and outputs become those that are given, in their order."""
    graph = model.graph
    given = [value.name for value in graph.input]  # skl2onnx changes a name such as "rate/h"
    before = [node for name, tensor in zip(given, inputs, strict=True) for node in _fit_input(graph, name, tensor)]
    names = [_free_name(graph, place, tensor.name) for place, tensor in enumerate(outputs)]
    after = [node for place, tensor in enumerate(outputs) for node in _fit_output(graph, place, tensor, names[place])]
    nodes = [*before, *graph.node, *after]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    graph.input.extend(_value(tensor.name, tensor) for tensor in inputs)
    graph.output.extend(_value(name, tensor) for name, tensor in zip(names, outputs, strict=True))


def _fit_input(graph: Any, name: str, tensor: TensorSpec) -> list[Any]:
    """Have the graph read `tensor` instead of its input `name`; what makes a matrix of it where it is a column."""
    from onnx import helper

    column = f"penstock_column_{tensor.name}"
    read = tensor.name if tensor.shape else column
    for node in graph.node:
        node.input[:] = [read if there == name else there for there in node.input]
    if tensor.shape:
        return []
    shape = f"{column}_shape"
    return [_constant(shape, [-1, 1]), helper.make_node("Reshape", [tensor.name, shape], [column])]


def _fit_output(graph: Any, place: int, tensor: TensorSpec, name: str) -> list[Any]:
    """Nodes that make the output `name` of the one that skl2onnx has at the same place."""
    from onnx import helper

    source = graph.output[place].name
    if source == name:  # the name is wanted for what comes out of the new nodes
        source = f"penstock_before_{name}"
        for node in graph.node:
            node.output[:] = [source if there == name else there for there in node.output]
            node.input[:] = [source if there == name else there for there in node.input]
    shape, shaped = f"penstock_shape_{place}", f"penstock_shaped_{place}"
    return [
        _constant(shape, [-1, *(size or 1 for size in tensor.shape)]),
        helper.make_node("Reshape", [source, shape], [shaped]),
        helper.make_node("Cast", [shaped], [name], to=_element(tensor)),
    ]


def _free_name(graph: Any, place: int, name: str) -> str:
    """`name`, or one near it where something else in the graph is called so; outputs are told apart by their places."""
    taken = {there for node in graph.node for there in (*node.input, *node.output)} - {graph.output[place].name}
    return f"{name}_output" if name in taken | {tensor.name for tensor in graph.input} else name


def _constant(name: str, values: list[int]) -> Any:
    from onnx import TensorProto, helper

    value = helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
    return helper.make_node("Constant", [], [name], value=value)


def _value(name: str, tensor: TensorSpec) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, _element(tensor), ["batch", *tensor.shape])


def _element(tensor: TensorSpec) -> int:
    import numpy as np
    from onnx import TensorProto, helper

    if tensor.dtype == "str":
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)))
