"""Take the lookups of some tables out of a model of Keras: its graph becomes two functions.

The function `ids` gives the ids of every lookup, in the order in which the model makes them, and computes nothing else.
The function `model` takes the distinct rows of each table outside, and for each lookup there the places of its ids
among them.

TensorFlow follows the model twice.  Each time its embedding layers are of another class, which knows what to note and
what to take, and they are as before in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import keras
import tensorflow as tf

from penstock.embeddings.keras_layers import plain_functions
from penstock.errors import ExportRefused
from penstock.export.exporter import GraphSignature
from penstock.export.keras_model import Inputs, tensor_spec
from penstock.export.split_model import LookupNames, SplitModel, TracedLookup, split_signatures

BATCH_SIZES: Final = (1, 2, 3, 5)
"""Batches that tell whether the first axis of ids is the batch: no length is a multiple of all of them by chance."""


def split_model(
    call: Callable[[Inputs], Inputs],
    layers: Mapping[str, Any],
    outside: Mapping[str, int],
    signature: GraphSignature,
    names: LookupNames,
) -> SplitModel:
    """Both functions of a model.

    Args:
        call: the model: encoded inputs to its outputs, by their names.
        layers: the layers whose ids are told, by path.
        outside: the width of the rows of each layer outside, by path.
        signature: what the whole model takes and gives.
        names: names for ids, rows and places.

    Raises:
        ExportRefused: the ids of a lookup depend on rows, or are known inside of a loop or a branch alone.
        Exception: TensorFlow cannot follow the model.
    """

    def split() -> SplitModel:
        ids, lookups = _trace_ids(call, layers, signature, names)
        ids_signature, model_signature = split_signatures(signature, lookups, outside, names)
        model = _trace_model(call, {path: layers[path] for path in outside}, model_signature, names, lookups)
        return SplitModel(ids, ids_signature, model, model_signature, lookups)

    try:
        # A `tf.function` of the user's own may make lookups, and its graph may be kept, with tensors of ours in it.
        with plain_functions():
            return split()
    except ExportRefused:
        raise
    except Exception:  # noqa: BLE001  # a condition on a tensor needs a `tf.function` that is left whole
        return split()


class _IdsTrace:
    """The lookups of one pass: each gets rows that are not there, so what depends on them can be told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.markers: dict[str, str] = {}
        """The layer's path, by the name of the operation that stands for its rows."""

    def rows_of(self, path: str, ids: Any, width: int) -> Any:
        # An operation of its own, also where the ids are an input.
        self.seen.append((path, tf.reshape(ids, [1]) if ids.shape.rank == 0 else tf.identity(ids)))
        marker = tf.compat.v1.placeholder(tf.float32, (1, width), name="rows")
        self.markers[marker.op.name] = path
        return tf.gather(marker, tf.zeros_like(ids))


class _RowsTrace:
    """Rows and places for the lookups of one pass."""

    def __init__(self, rows: Mapping[str, Any], places: Iterator[Any]) -> None:
        self._rows = rows
        self._places = places

    def rows_of(self, path: str, ids: Any, width: int) -> Any:
        places = next(self._places)
        found = tf.gather(self._rows[path], places[0] if ids.shape.rank == 0 else places)
        found.set_shape((*ids.shape, width))
        return found


class _TracedEmbedding(keras.layers.Embedding):  # type: ignore[misc]  # Keras may not be there where types are checked
    _penstock_trace: _IdsTrace | _RowsTrace
    _penstock_path: str

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def call(self, inputs: Any) -> Any:
        rows = self._penstock_trace.rows_of(self._penstock_path, tf.cast(inputs, tf.int64), self.output_dim)
        return tf.cast(rows, self.compute_dtype)


@contextmanager
def _traced(layers: Mapping[str, Any], trace: _IdsTrace | _RowsTrace) -> Iterator[None]:
    before = {path: type(layer) for path, layer in layers.items()}
    try:
        for path, layer in layers.items():
            layer._penstock_trace, layer._penstock_path = trace, path
            layer.__class__ = _TracedEmbedding
        yield
    finally:
        for path, layer in layers.items():
            layer.__class__ = before[path]
            for name in ("_penstock_trace", "_penstock_path"):
                vars(layer).pop(name, None)


def _trace_ids(
    call: Callable[[Inputs], Inputs], layers: Mapping[str, Any], signature: GraphSignature, names: LookupNames
) -> tuple[Any, list[TracedLookup]]:
    specs = {tensor.name: tensor_spec(tensor) for tensor in signature.inputs}
    trace = _IdsTrace()
    taken: Inputs = {}

    def follow(inputs: Inputs) -> None:
        trace.seen.clear()
        taken.update(inputs)
        call(inputs)

    with _traced(layers, trace):
        graph = _function(follow, specs).graph
    named = list(names.of_lookups([path for path, _ in trace.seen]))
    found = {name: ids for (_, name), (_, ids) in zip(named, trace.seen, strict=True)}
    for path, name in named:
        _check_ids(path, found[name], graph, trace.markers)

    def give_ids(inputs: Inputs) -> Inputs:
        return _copied(graph, {taken[name].name: inputs[name] for name in inputs}, found)

    alone = _function(give_ids, specs)
    by_row = _by_row(alone, give_ids, signature)
    return alone, [
        TracedLookup(path, name, tuple(found[name].shape[1:]), by_row=name in by_row) for path, name in named
    ]


def _check_ids(path: str, ids: Any, graph: Any, markers: Mapping[str, str]) -> None:
    if ids.graph is not graph:
        raise ExportRefused(
            f"layer {path!r} is called inside of a loop, a branch or a required tf.function, so its ids "
            "are not known outside of it: fetch the rows before, and pass them in"
        )
    if ids.shape.rank is None:
        raise ExportRefused(f"the ids of layer {path!r} have an unknown number of axes: set it with a reshape")
    for operation in _operations(ids):
        if operation in markers:
            raise ExportRefused(
                f"the ids of layer {path!r} depend on the rows of layer {markers[operation]!r}, and rows are fetched "
                "once for a batch, before the model runs: compute the ids from the inputs"
            )


def _operations(*tensors: Any) -> set[str]:
    """The names of the operations that make the values of tensors of a graph."""
    seen: set[str] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        one = waiting.pop()
        if one.name not in seen:
            seen.add(one.name)
            waiting += [tensor.op for tensor in one.inputs]
    return seen


def _copied(graph: Any, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> Inputs:
    """Tensors of another graph, in the one that is made now, with what makes their values and nothing else.

    Args:
        graph: the other graph.
        given: tensors in place of some of its own, by the names of these.
        wanted: tensors of that graph.
    """
    needed = _operations(*wanted.values())
    here = tf.compat.v1.get_default_graph()
    captured = {inside.name: outside for outside, inside in graph.captures if inside.op.name in needed}
    sources = {name: tensor for name, tensor in given.items() if name.partition(":")[0] in needed}
    sources |= {name: here.capture(tensor) for name, tensor in captured.items()}
    definition = graph.as_graph_def()
    kept = tf.compat.v1.GraphDef(library=definition.library, versions=definition.versions)
    given_nodes = {name.partition(":")[0] for name in sources}
    for node in definition.node:
        if node.name in needed - given_nodes:
            copied = kept.node.add()
            copied.CopyFrom(node)
            # A check that the model makes on the way is made by the other function.
            copied.input[:] = [name for name in node.input if not name.startswith("^")]
    elements = [tensor.name for tensor in wanted.values()]
    found = tf.graph_util.import_graph_def(kept, input_map=sources, return_elements=elements, name="")
    return {name: tf.identity(tensor, name=name) for name, tensor in zip(wanted, found, strict=True)}


def _by_row(function: Any, give_ids: Callable[[Inputs], Inputs], signature: GraphSignature) -> set[str]:
    """The lookups whose first axis is the batch, whatever is in it."""
    fixed = []
    for size in BATCH_SIZES:
        specs = {tensor.name: tensor_spec(tensor, size) for tensor in signature.inputs}
        shapes = _function(give_ids, specs).output_shapes
        # Of a length that follows from values, as of the ids that are not 0, TensorFlow knows nothing here.
        fixed.append({name for name, shape in shapes.items() if shape.rank and shape[0] == size})
    good = set.intersection(*fixed)
    together = _ids_of(function, signature, slice(None))
    for row in range(len(next(iter(signature.example.values())))):
        alone = _ids_of(function, signature, slice(row, row + 1))
        good = {name for name in good if (together[name][row] == alone[name][0]).all()}
    return good


def _ids_of(function: Any, signature: GraphSignature, rows: slice) -> dict[str, Any]:
    inputs = {name: tf.constant(array[rows]) for name, array in signature.example.items()}
    return {name: tensor.numpy() for name, tensor in function(inputs).items()}


def _trace_model(
    call: Callable[[Inputs], Inputs],
    outside: Mapping[str, Any],
    signature: GraphSignature,
    names: LookupNames,
    lookups: Sequence[TracedLookup],
) -> Any:
    def answer(inputs: Inputs) -> Inputs:
        given = dict(inputs)
        rows = {path: given.pop(names.rows(path)) for path in outside}
        places = [given.pop(names.places(lookup.name)) for lookup in lookups if lookup.path in outside]
        with _traced(outside, _RowsTrace(rows, iter(places))):
            return call(given)

    return _function(answer, {tensor.name: tensor_spec(tensor) for tensor in signature.inputs})


def _function(python: Callable[[Inputs], Any], specs: Mapping[str, Any]) -> Any:
    """A concrete function: nothing traces it once more."""
    return tf.function(python, input_signature=[dict(specs)], autograph=False).get_concrete_function()
