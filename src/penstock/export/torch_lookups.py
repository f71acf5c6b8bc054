"""Take the lookups of some tables out of a module of PyTorch: its graph becomes two.

The graph `ids` gives the ids of every lookup, in the order in which the model makes them.  The graph `model` takes the
distinct rows of each table outside, and for each lookup there the places of its ids among them.

`torch.export` follows the module twice.  Each time its embedding layers are of another class, which knows what to note
and what to take, and they are as before in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor as TorchTensor
from torch import nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn import functional

from penstock.embeddings.torch_layers import reduced_bags
from penstock.errors import ExportRefused
from penstock.export.exporter import GraphSignature
from penstock.export.split_model import LookupNames, SplitModel, TracedLookup, split_signatures
from penstock.export.torch_model import EXAMPLE_ROWS, example_inputs, flat_module, outputs_of

MARKER: Final = "penstock_marker"
"""A row that stands for every row while the ids are traced: what depends on it depends on the table."""
SOME: Final = 11
"""Rows, or ids of no known number, that a graph is traced with: seldom the size of anything else."""


@dataclass(frozen=True)
class _Lookup(TracedLookup):
    axes: tuple[Any, ...] = field(repr=False)
    """For each axis: its length, or (a, b) where it is a times the batch and b, or None where only a run tells."""


def split_module(
    module: nn.Module,
    layers: Mapping[str, nn.Module],
    outside: Mapping[str, int],
    signature: GraphSignature,
    names: LookupNames,
) -> SplitModel:
    """Both graphs of a module that is in eval mode.

    Args:
        module: its layers outside are offloaded, and all others native and filled.
        layers: the layers whose ids are told, by path.
        outside: the width of the rows of each layer outside, by path.
        signature: what the whole module takes and gives.
        names: names for ids, rows and places.

    Raises:
        ExportRefused: the ids of a lookup depend on rows.
        Exception: torch.export cannot follow the module.
    """
    ids, lookups = _trace_ids(module, layers, outside, signature, names)
    model = _trace_model(module, layers, outside, signature, names, lookups)
    ids_signature, model_signature = split_signatures(signature, lookups, outside, names)
    return SplitModel(ids, ids_signature, model, model_signature, lookups)


class _Trace:
    """The lookups of one pass, and the rows and places that they get in the second."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, TorchTensor]] = []
        self.rows: dict[str, TorchTensor] | None = None
        """Rows of each table, by the layer's path; None in the first pass."""
        self.places: Iterator[TorchTensor] = iter(())

    def note(self, path: str, ids: TorchTensor) -> None:
        self.seen.append((path, ids.reshape(1).long() if ids.ndim == 0 else ids.long()))

    def row_places(self, path: str, ids: TorchTensor, marker: TorchTensor | None) -> tuple[TorchTensor, TorchTensor]:
        self.note(path, ids)
        if self.rows is None:
            return marker, torch.zeros_like(ids, dtype=torch.int64)
        places = next(self.places)
        if ids.ndim == 0:
            return self.rows[path], places[0]
        for axis, size in enumerate(ids.shape):
            if isinstance(size, torch.SymInt) and free_unbacked_symbols(size):
                places = places.narrow(axis, 0, size)  # of as many as there are ids, which only a run tells
        return self.rows[path], places


class _Traced:
    """Base of the layers while they are traced."""

    penstock_trace: _Trace
    penstock_path: str


class _FedEmbedding(_Traced, nn.Embedding):  # type: ignore[misc]  # torch may not be there where types are checked
    def forward(self, input: TorchTensor) -> TorchTensor:  # noqa: A002  # torch names it so
        rows, places = self.penstock_trace.row_places(self.penstock_path, input, getattr(self, MARKER, None))
        return functional.embedding(places, rows)


class _FedBag(_Traced, nn.EmbeddingBag):  # type: ignore[misc]
    def forward(
        self,
        input: TorchTensor,  # noqa: A002
        offsets: TorchTensor | None = None,
        per_sample_weights: TorchTensor | None = None,
    ) -> TorchTensor:
        rows, places = self.penstock_trace.row_places(self.penstock_path, input, getattr(self, MARKER, None))
        if self.padding_idx is not None:
            # The place of the padding among the rows differs from batch to batch, and embedding_bag wants a constant.
            if offsets is None:
                offsets = torch.arange(input.shape[0]) * input.shape[1]
            kept = input.reshape(-1) != self.padding_idx
            before = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
            places, offsets = places.reshape(-1)[kept], before[offsets.long()]
            if per_sample_weights is not None:
                per_sample_weights = per_sample_weights.reshape(-1)[kept]
        return reduced_bags(self, rows, places, offsets, per_sample_weights)


class _Noted(_Traced):
    def forward(self, input: TorchTensor, *rest: Any, **options: Any) -> Any:  # noqa: A002
        self.penstock_trace.note(self.penstock_path, input)
        return super().forward(input, *rest, **options)  # type: ignore[misc]  # the layer of torch comes behind


class _NotedEmbedding(_Noted, nn.Embedding):  # type: ignore[misc]
    pass


class _NotedBag(_Noted, nn.EmbeddingBag):  # type: ignore[misc]
    pass


@contextmanager
def _traced(layers: Mapping[str, nn.Module], outside: Mapping[str, int], trace: _Trace) -> Iterator[None]:
    """Have the layers note their lookups in `trace`."""
    before = {path: type(layer) for path, layer in layers.items()}
    try:
        for path, layer in layers.items():
            layer.penstock_trace, layer.penstock_path = trace, path
            if path in outside and trace.rows is None:
                layer.register_parameter(MARKER, nn.Parameter(torch.zeros(1, outside[path])))
            is_bag = isinstance(layer, nn.EmbeddingBag)
            kinds = (_FedBag, _FedEmbedding) if path in outside else (_NotedBag, _NotedEmbedding)
            layer.__class__ = kinds[0] if is_bag else kinds[1]
        yield
    finally:
        for path, layer in layers.items():
            layer.__class__ = before[path]
            for name in ("penstock_trace", "penstock_path", MARKER):
                if name in layer.__dict__ or name in layer._parameters:
                    delattr(layer, name)


def _trace_ids(
    module: nn.Module,
    layers: Mapping[str, nn.Module],
    outside: Mapping[str, int],
    signature: GraphSignature,
    names: LookupNames,
) -> tuple[Any, list[_Lookup]]:
    trace = _Trace()

    def forward(**inputs: Any) -> tuple[Any, ...]:
        trace.seen.clear()
        module(**inputs)
        return tuple(ids for _, ids in trace.seen)

    example, batch = example_inputs(signature), torch.export.Dim("batch", min=1)
    shapes = {name: {0: batch} for name in example}
    flat = flat_module(module, forward, list(example))
    with _traced(layers, outside, trace):
        program = torch.export.export(flat, (), kwargs=example, dynamic_shapes=shapes)
        paths = [path for path, _ in trace.seen]
        owners = {id(getattr(layer, MARKER if path in outside else "weight")): path for path, layer in layers.items()}
        named = flat.named_parameters(remove_duplicate=False)
        rows = {name: owners[id(parameter)] for name, parameter in named if id(parameter) in owners}
        _refuse_chained(program, paths, rows)
        lookups = _described(program, paths, next(iter(example)), names)
        return torch.export.export(_with_used_alone(program), (), kwargs=example, dynamic_shapes=shapes), lookups


def _trace_model(
    module: nn.Module,
    layers: Mapping[str, nn.Module],
    outside: Mapping[str, int],
    signature: GraphSignature,
    names: LookupNames,
    lookups: Sequence[_Lookup],
) -> Any:
    trace = _Trace()
    trace.rows = {}
    fed = [lookup for lookup in lookups if lookup.path in outside]

    def forward(**inputs: Any) -> tuple[Any, ...]:
        trace.seen.clear()
        trace.rows = {path: inputs.pop(names.rows(path)) for path in outside}
        trace.places = iter([inputs.pop(names.places(lookup.name)) for lookup in fed])
        return outputs_of(module(**inputs))

    example, batch = example_inputs(signature), torch.export.Dim("batch", min=1)
    shapes: dict[str, Any] = {name: {0: batch} for name in example}
    for number, (path, width) in enumerate(outside.items()):
        example[names.rows(path)] = torch.zeros(SOME, width)
        shapes[names.rows(path)] = {0: torch.export.Dim(f"rows_{number}", min=1)}
    for number, lookup in enumerate(fed):
        sizes, axes = _example_axes(lookup, number, batch)
        example[names.places(lookup.name)] = torch.zeros(sizes, dtype=torch.int64)
        shapes[names.places(lookup.name)] = axes
    with _traced(layers, outside, trace):
        flat = flat_module(module, forward, list(example))
        return torch.export.export(flat, (), kwargs=example, dynamic_shapes=shapes)


def _example_axes(lookup: _Lookup, number: int, batch: Any) -> tuple[list[int], dict[int, Any]]:
    """The shape of an example of places, and the axes of it that have any length."""
    sizes, axes = [], dict[int, Any]()
    for axis, length in enumerate(lookup.axes):
        match length:
            case (1, 0):
                axes[axis] = batch
                sizes.append(EXAMPLE_ROWS)
            case (times, more):
                axes[axis] = times * batch + more if more else times * batch
                sizes.append(times * EXAMPLE_ROWS + more)
            case None:
                axes[axis] = torch.export.Dim(f"ids_{number}_{axis}", min=0)
                sizes.append(SOME)
            case _:
                sizes.append(length)
    return sizes, axes


def _refuse_chained(program: Any, paths: Sequence[str], rows: Mapping[str, str]) -> None:
    """Refuse ids that depend on the rows of a table, by the names of the parameters with rows."""
    parameters = program.graph_signature.inputs_to_parameters
    for path, node in zip(paths, _output_nodes(program), strict=True):
        seen, waiting = set(), [node]
        while waiting:
            one = waiting.pop()
            if one in seen:
                continue
            seen.add(one)
            waiting += one.all_input_nodes
            table = rows.get(parameters.get(one.name, ""))
            if table is not None:
                raise ExportRefused(
                    f"the ids of layer {path!r} depend on the rows of layer {table!r}, and rows are fetched once for a "
                    "batch, before the model runs: compute the ids from the inputs"
                )


def _described(program: Any, paths: Sequence[str], first: str, names: LookupNames) -> list[_Lookup]:
    inputs = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    batch = inputs[first].meta["val"].shape[0].node.expr
    found = []
    for (path, name), node in zip(names.of_lookups(paths), _output_nodes(program), strict=True):
        axes = tuple(_length(size, batch) for size in node.meta["val"].shape)
        shape = tuple(length if isinstance(length, int) else None for length in axes[1:])
        found.append(_Lookup(path, name, shape, axes[:1] == ((1, 0),), axes))
    return found


def _length(size: Any, batch: Any) -> int | tuple[int, int] | None:
    if isinstance(size, int):
        return size
    expression = size.node.expr
    times, more = expression.coeff(batch, 1), expression.coeff(batch, 0)
    is_linear = times.is_Integer and more.is_Integer and expression == times * batch + more
    return (int(times), int(more)) if is_linear else None


def _output_nodes(program: Any) -> Sequence[Any]:
    nodes: Sequence[Any] = next(node for node in program.graph.nodes if node.op == "output").args[0]
    return nodes


def _with_used_alone(program: Any) -> Any:
    """The module of a program without the weights that nothing in it uses, which would lie in its file."""
    module = program.module()
    module.graph.eliminate_dead_code()
    module.recompile()
    used = {node.target for node in module.graph.nodes if node.op == "get_attr"}
    for name, _ in [*module.named_parameters(), *module.named_buffers()]:
        if name not in used:
            owner, _, key = name.rpartition(".")
            delattr(module.get_submodule(owner), key)
    return module
