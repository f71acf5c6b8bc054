"""Embedding layers of PyTorch whose rows lie in a training store.

Contract
--------
* A layer is swapped by its class: the module stays the same object, so whoever refers to it sees the swap.
* A forward pass reads the distinct rows that it needs, and these end with its graph.  A backward pass leaves their
  gradients with the optimizer, a row for each distinct id, and `step` sends them to the store.
* `restore` gives the module its own class and weight back.
* The other parameters stay in the model.  Where they are shared, each step adds to the store what has changed in them,
  and takes over what other processes have added.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from penstock.embeddings.offloading import (
    Framework,
    Offloaded,
    OffloadedRows,
    SeenLookup,
    all_rows,
    check_finite,
    inside_placeholders,
)
from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.shared_parameters import SharedParameters
from penstock.embeddings.training_store import CHUNK, TableSpec, TrainingStore
from penstock.errors import ConfigError, EmbeddingError

_SHARDED: Final = {"FullyShardedDataParallel", "FSDPModule"}


def _refuse_placeholder(layer: nn.Module, _: Any) -> None:
    raise EmbeddingError(
        f"this {type(layer).__name__} is a placeholder without rows: give its model to penstock.embeddings.offload"
    )


# -- the layers -------------------------------------------------------------------------------------------------------


class _Gradients:
    """The table of one layer, and the gradients that backward passes have left for it."""

    def __init__(self, path: str, spec: TableSpec, store: TrainingStore, weight: nn.Parameter) -> None:
        self.path = path
        self.spec = spec
        self.store = store
        self.device = torch.device("cpu") if weight.is_meta else weight.device
        self.parameter = nn.Parameter(torch.empty(0, spec.width), requires_grad=weight.requires_grad)
        """Its gradient has a row for each id of `ids`; whether it requires one says whether the rows are trained."""
        self.ids: Ids = np.empty(0, np.int64)
        self.see: Callable[[SeenLookup], object] | None = None
        self._lock = threading.Lock()

    def __deepcopy__(self, _: Any) -> _Gradients:
        return self  # a copied model looks its rows up in the same table

    def __reduce__(self) -> Any:
        raise ConfigError(
            f"layer {self.path!r} has its rows in a store, which no copy can include: pickle the return "
            "value of penstock.embeddings.restore"
        )

    def fetch(self, ids: Ids, device: torch.device, spared: int | None) -> Tensor:
        """The rows of distinct ids; a backward pass leaves their gradients here, but for those of the id `spared`."""
        rows = torch.from_numpy(self.store.fetch(self.spec.name, ids).rows).to(device)
        if self.parameter.requires_grad and torch.is_grad_enabled():
            rows.requires_grad_()
            rows.register_post_accumulate_grad_hook(lambda rows: self._take(rows, ids, spared))
        return rows

    def _take(self, rows: Tensor, ids: Ids, spared: int | None) -> None:
        grad, rows.grad = rows.grad.detach(), None
        if spared is not None and not (kept := ids != spared).all():
            ids, grad = ids[kept], grad[torch.from_numpy(kept).to(grad.device)]
        with self._lock:
            before = self.parameter.grad
            if before is None:
                total = grad
            else:
                all_ids, places = np.unique(np.concatenate([self.ids, ids]), return_inverse=True)
                total = torch.zeros(len(all_ids), self.spec.width, device=grad.device)
                where = torch.from_numpy(places).to(grad.device)
                total.index_add_(0, where[: len(self.ids)], before.to(grad.device))
                total.index_add_(0, where[len(self.ids) :], grad)
                ids = all_ids
            self.ids = ids
            self.parameter.grad = None
            self.parameter.data = torch.empty(1, device=total.device).expand(total.shape)
            self.parameter.grad = total

    def forget(self) -> None:
        """Let go of the gradients."""
        with self._lock:
            self.parameter.grad = None
            self.parameter.data = torch.empty(0, self.spec.width)
            self.ids = np.empty(0, np.int64)

    def gradients(self, scale: float) -> tuple[Ids, Rows] | None:
        """The ids and their gradients, or None; FloatingPointError where one is not finite."""
        with self._lock:
            if self.parameter.grad is None or not len(self.ids):
                return None
            grads: Rows = self.parameter.grad.detach().cpu().numpy()
            if scale != 1.0:
                grads = grads * np.float32(scale)
            check_finite(self.spec.name, self.ids, grads)
            return self.ids, grads


class _OffloadedModule(Offloaded, nn.Module):  # type: ignore[misc]  # torch may not be there where types are checked
    """Common part of both kinds of layers once their rows are elsewhere."""

    _table: _Gradients
    padding_idx: int | None

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise AttributeError(
                f"layer {self._table.path!r} has its rows in a store: penstock.embeddings.restore gives it a weight"
            )
        return super().__getattr__(name)

    def _distinct(self, ids: Tensor) -> tuple[Tensor, Ids, Tensor]:
        """The rows of the distinct ids, these ids, and for each of `ids` which of them it is."""
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"layer {self._table.path!r}: ids must be int32 or int64, got {ids.dtype}")
        flat = ids.detach().cpu().numpy().astype(np.int64, copy=False).reshape(-1)
        distinct, places = np.unique(flat, return_inverse=True)
        rows = self._table.fetch(distinct, ids.device, self.padding_idx)
        if self._table.see is not None:
            shaped = flat.reshape(tuple(ids.shape)).copy()
            self._table.see(SeenLookup(self._table.path, shaped, distinct, rows.detach().cpu().numpy().copy()))
        return rows, distinct, torch.from_numpy(places.reshape(tuple(ids.shape))).to(ids.device)


class _OffloadedEmbedding(_OffloadedModule, nn.Embedding):  # type: ignore[misc]
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # torch names it so
        rows, _, places = self._distinct(input)
        # As functional.embedding, with a backward pass of half the time.
        return rows.index_select(0, places.reshape(-1)).view(*places.shape, rows.shape[1])

    def __repr__(self) -> str:
        return f"OffloadedEmbedding({self.extra_repr()}, table={self._table.spec.name!r})"


class _OffloadedBag(_OffloadedModule, nn.EmbeddingBag):  # type: ignore[misc]
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:  # noqa: A002
        rows, distinct, places = self._distinct(input)
        padding = [] if self.padding_idx is None else np.flatnonzero(distinct == self.padding_idx).tolist()
        return reduced_bags(self, rows, places, offsets, per_sample_weights, padding[0] if padding else None)

    def __repr__(self) -> str:
        return f"OffloadedEmbeddingBag({self.extra_repr()}, table={self._table.spec.name!r})"


def reduced_bags(
    layer: nn.EmbeddingBag,
    rows: Tensor,
    places: Tensor,
    offsets: Tensor | None,
    per_sample_weights: Tensor | None,
    padding: int | None = None,
) -> Tensor:
    """The vector of each bag, as `layer` makes it of its rows.

    Args:
        layer: says how the rows of a bag become one.
        rows: distinct rows, (n, width).
        places: for each id the place of its row, in the shape of the ids.
        offsets: as the layer takes them.
        per_sample_weights: likewise.
        padding: the place of the row that counts in no bag.
    """
    return functional.embedding_bag(
        places,
        rows,
        None if offsets is None else offsets.long(),
        mode=layer.mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=layer.include_last_offset,
        padding_idx=padding,
    )


_SWAPPED: Final[dict[type[nn.Module], type[nn.Module]]] = {
    nn.Embedding: _OffloadedEmbedding,
    nn.EmbeddingBag: _OffloadedBag,
}


# -- offload and restore ----------------------------------------------------------------------------------------------


class TorchRows(OffloadedRows, torch.optim.Optimizer):  # type: ignore[misc]
    """The tables of a module, as the optimizer of their rows: a group for each, with `lr` and `table`."""

    def __init__(
        self, model: nn.Module, store: TrainingStore, tables: Mapping[str, _Gradients], shared: _Shared | None
    ) -> None:
        OffloadedRows.__init__(self, model, store, tables)
        self._shared = shared
        groups = [
            {"params": [table.parameter], "lr": table.spec.optimizer.lr, "table": table.spec.name}
            for table in tables.values()
        ]
        torch.optim.Optimizer.__init__(self, groups, {})

    def parameters(self) -> list[nn.Parameter]:
        """A parameter for each table; its gradient has a row for each distinct id since `zero_grad`."""
        return [table.parameter for table in self._gradients.values()]

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002  # as torch has it
        """Forget all gradients."""
        for table in self._gradients.values():
            table.forget()

    def refresh(self) -> None:
        self._check_not_ended()
        if self._shared is not None:
            self._shared.take()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None, *, scale: float = 1.0) -> Any:
        """Have the store take a step for every row that has a gradient.

        Where the other parameters are shared, the store gets what has changed in them since the last step, and they
        become what is there then.

        Args:
            closure: computes the loss anew, as of every optimizer of torch.
            scale: multiplies all gradients: 1 / world size where others average the dense ones.

        Raises:
            ConfigError: the other parameters are shared, and a buffer has changed, or a parameter is new or of another
                dtype; nothing was applied.
            FloatingPointError: a gradient or a shared parameter is not finite; nothing was applied.
        """
        self._check_not_ended()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        tables = zip(self.param_groups, self._gradients.values(), strict=True)
        found = [(group, table.spec.name, table.gradients(scale)) for group, table in tables]
        changes = None if self._shared is None else self._shared.changes()
        for group, name, gradients in found:  # a `state_dict` that was loaded may have another name
            if gradients is not None:
                ids, grads = gradients
                self.store.apply(name, ids, grads, lr=float(group["lr"]))
        if self._shared is not None and changes is not None:
            self._shared.add(changes)
        return loss

    def put_back(self, layers: Mapping[str, Any], sample: Any) -> None:
        if sample is not None:
            raise ConfigError("a model of PyTorch is built already, so restore takes no sample")
        weights = [_weight(layer, layer._table.device) for layer in layers.values()]
        self.refresh()
        for layer, weight in zip(layers.values(), weights, strict=True):
            _put_back(layer, weight)


class _Shared:
    """The other parameters of a model, which are in the store too."""

    def __init__(self, model: nn.Module, store: TrainingStore, parameters: Mapping[str, nn.Parameter]) -> None:
        self._model = model
        self._parameters = list(parameters.values())
        self._buffers = {path: buffer.clone().cpu() for path, buffer in model.named_buffers()}
        shapes = {path: tuple(parameter.shape) for path, parameter in parameters.items()}
        self._there = SharedParameters(store, shapes, self._values())
        self._put(self._there.seen)

    def take(self) -> None:
        self._put(self._there.taken(self._values()))

    def changes(self) -> Rows:
        self._check_same()
        for path, buffer in self._model.named_buffers():
            if path in self._buffers and not torch.equal(buffer.cpu(), self._buffers[path]):
                raise ConfigError(_changed_buffer(path))
        return self._there.changes(self._values())

    def add(self, changes: Rows) -> None:
        self._put(self._there.added(changes))

    def _check_same(self) -> None:
        shared = {id(parameter) for parameter in self._parameters}
        for path, parameter in self._model.named_parameters():
            if id(parameter) not in shared or parameter.dtype != torch.float32:
                raise ConfigError(
                    f"parameter {path!r} is new or of another dtype since the model was offloaded with dense='shared', "
                    "so each process would train its own: change the model before"
                )

    def _values(self) -> Rows:
        flat = [parameter.detach().reshape(-1).cpu() for parameter in self._parameters]
        values: Rows = torch.cat([torch.empty(0), *flat]).numpy()
        return values

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _put(self, values: Rows) -> None:
        parts = torch.from_numpy(values).split([parameter.numel() for parameter in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.copy_(part.view(parameter.shape))


def _changed_buffer(path: str) -> str:
    return (
        f"a step changes the buffer {path!r}, which each process has for itself, so dense='shared' would train another "
        "model in each: use a layer without it, such as LayerNorm"
    )


def _parameters(model: nn.Module, layers: Collection[nn.Module]) -> dict[str, nn.Parameter]:
    """The parameters that are not rows of `layers`, by path; ConfigError where they cannot be shared."""
    rows = {id(layer.weight) for layer in layers}
    named = {path: parameter for path, parameter in model.named_parameters() if id(parameter) not in rows}
    for path, parameter in named.items():
        if nn.parameter.is_lazy(parameter) or parameter.is_meta or parameter.dtype != torch.float32:
            raise ConfigError(f"parameter {path!r} is not float32, but dense='shared' supports only float32")
    for path, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise ConfigError(_changed_buffer(f"{path}.running_mean".lstrip(".")))
    return named


def _places(model: nn.Module) -> dict[int, list[tuple[str, nn.Module]]]:
    """The paths of each parameter, by its id, each with the module that has it there."""
    found: dict[int, list[tuple[str, nn.Module]]] = {}
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            found.setdefault(id(parameter), []).append((f"{path}.{name}".lstrip("."), module))
    return found


def _check_layer(path: str, layer: Any, places: Mapping[int, list[tuple[str, nn.Module]]]) -> None:
    kind = type(layer)
    if kind not in TorchLayers.native:
        raise ConfigError(
            f"{path!r} is a {kind.__name__}, a subclass of {kind.__mro__[1].__name__}, but only the two "
            f"classes of torch.nn can be replaced: leave it native with tables={{path: None}}"
        )
    if layer.max_norm is not None:
        raise ConfigError(f"{path!r} has max_norm, which changes rows where they are read: leave it out")
    if layer.scale_grad_by_freq:
        raise ConfigError(f"{path!r} has scale_grad_by_freq, which a store does not support: leave it out")
    if not isinstance(layer.weight, nn.Parameter) or layer._parameters.get("weight") is None:
        raise ConfigError(f"the weight of {path!r} is computed by a parametrization: remove that first")
    if layer.weight.dtype != torch.float32:
        raise ConfigError(f"{path!r} has rows of {layer.weight.dtype}, and tables are float32: use layer.float()")
    for other_path, other in places[id(layer.weight)]:
        if other is not layer:
            raise ConfigError(
                f"{path!r} shares its weight with {other_path!r}, but training would then change only one of "
                f"them: untie them, or leave the layer native with tables={{path: None}}"
            )


def _in_parts(weight: Tensor) -> Iterator[tuple[Ids, Rows]]:
    for start in range(0, len(weight), CHUNK):
        some = weight[start : start + CHUNK].cpu().contiguous().numpy()
        yield np.arange(start, start + len(some)), some


def _swap(layer: Any, table: _Gradients) -> None:
    del layer._parameters["weight"]
    for key, hook in list(layer._forward_pre_hooks.items()):
        if hook is _refuse_placeholder:
            del layer._forward_pre_hooks[key]
    layer._table = table
    layer.__class__ = _SWAPPED[type(layer)]


def _put_back(layer: Any, weight: nn.Parameter) -> None:
    layer.__class__ = {swapped: native for native, swapped in _SWAPPED.items()}[type(layer)]
    del layer._table
    layer.register_parameter("weight", weight)


def _weight(layer: Any, device: torch.device) -> nn.Parameter:
    table = layer._table
    weight = torch.from_numpy(all_rows(table.store, table.spec))
    return nn.Parameter(weight.to(device), requires_grad=table.parameter.requires_grad)


class TorchLayers(Framework):
    """Embedding layers of PyTorch."""

    native = (nn.Embedding, nn.EmbeddingBag)

    def walk(self, model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
        """Every module by its first path."""
        return model.named_modules()  # type: ignore[no-any-return]  # torch may not be there where types are checked

    def without_rows(self, own: Callable[..., None]) -> Callable[..., None]:
        """The `__init__` of a layer that makes its weight on the meta device, where no rows are given to it."""
        signature = inspect.signature(own)

        @functools.wraps(own)
        def make(layer: nn.Module, *args: Any, **options: Any) -> None:
            bound = signature.bind(layer, *args, **options)
            placeholder = inside_placeholders() and bound.arguments.get("_weight") is None
            if placeholder:
                bound.arguments["device"] = "meta"
            own(*bound.args, **bound.kwargs)
            if placeholder:
                layer.register_forward_pre_hook(_refuse_placeholder)

        return make

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model of which no process has all parameters."""
        for path, module in model.named_modules():
            if _SHARDED & {kind.__name__ for kind in type(module).__mro__}:
                raise ConfigError(f"{path or 'the model'} is sharded by FSDP, and no process has all of its parameters")

    def check_layers(self, model: nn.Module, layers: Mapping[str, Any], dense: str) -> None:
        """Refuse layers that cannot be offloaded, and other parameters that cannot be shared."""
        places = _places(model)
        for path, layer in layers.items():
            _check_layer(path, layer, places)
        if dense == "shared":
            _parameters(model, layers.values())

    def shape(self, layer: Any) -> tuple[int, int]:
        """Rows and width of a layer."""
        return layer.num_embeddings, layer.embedding_dim

    def own_rows(self, layer: Any) -> Iterable[tuple[Ids, Rows]] | None:
        """The rows that the layer has, in parts; None of a placeholder."""
        return None if layer.weight.is_meta else _in_parts(layer.weight.detach())

    def known_rows(self, layer: Any) -> Iterable[tuple[Ids, Rows]]:
        """The row of zeros that stands for padding."""
        if layer.padding_idx is not None:
            yield np.array([layer.padding_idx]), np.zeros((1, layer.embedding_dim), np.float32)

    def swap(
        self,
        model: nn.Module,
        layers: Mapping[str, Any],
        specs: Mapping[str, TableSpec],
        store: TrainingStore,
        dense: str,
    ) -> TorchRows:
        """Have the layers look rows up in the tables."""
        shared = _Shared(model, store, _parameters(model, layers.values())) if dense == "shared" else None
        tables = {path: _Gradients(path, specs[path], store, layer.weight) for path, layer in layers.items()}
        for path, layer in layers.items():
            _swap(layer, tables[path])
        return TorchRows(model, store, tables, shared)

    @contextmanager
    def materialized(self, model: nn.Module, outside: Collection[str] = ()) -> Iterator[None]:
        """Have the layers of `model`, on the CPU, native and filled in the block, and offloaded again behind it."""
        found = self.offloaded_layers(model)
        layers = {path: layer for path, layer in found.items() if layer._table.path not in outside}
        tables = {path: layer._table for path, layer in layers.items()}
        try:
            for layer in layers.values():
                _put_back(layer, _weight(layer, torch.device("cpu")))
            yield
        finally:
            for path, layer in layers.items():
                if not isinstance(layer, Offloaded):
                    _swap(layer, tables[path])
