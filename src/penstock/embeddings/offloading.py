"""Move the rows of a model's embedding layers into a training store, and back: what is the same in every framework.

Contract
--------
* Everything is checked before a layer is changed.
* A layer stays the same object, so whoever refers to it sees that its rows are elsewhere, or its own again.
* Steps go to the store as a whole: where a gradient is not finite, no table is changed.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import operator
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.config import checked_keywords
from penstock.embeddings.opening import open_training_store
from penstock.embeddings.row_optimizers import RowOptimizer
from penstock.embeddings.rules import Ids, Init, MissingRule, Rows
from penstock.embeddings.shared_parameters import SPEC
from penstock.embeddings.training_store import CHUNK, TableSpec, TrainingStore
from penstock.errors import ConfigError, EmbeddingError
from penstock.hosting.available_memory import available_memory

_log = logging.getLogger("penstock.embeddings")
_LIBRARIES: Final = {
    # First: with another backend than TensorFlow, a model of Keras is one of that framework too.
    "keras": ("Model", "penstock.embeddings.keras_layers", "KerasLayers"),
    "torch": ("nn.Module", "penstock.embeddings.torch_layers", "TorchLayers"),
}
"""The class of each library's models, and what moves their rows: a module, and a class in it."""


@dataclass(frozen=True)
class Table:
    """Options of one layer's table."""

    ids: str = "dense"
    """`dense`: from 0 to the number of the layer's rows, and nothing else; `any`: every int64."""
    missing: MissingRule | None = None
    """The rule for a row that is not there; None: `init()`."""
    optimizer: RowOptimizer | None = None
    """Defaults to the one that `offload` was given."""
    name: str | None = None
    """The table's name in the store; None: the layer's path."""


class SeenLookup(NamedTuple):
    """A lookup that a layer has made."""

    path: str
    ids: NDArray[np.int64]
    """All of them, as the layer was given them."""
    distinct: Ids
    rows: Rows
    """A row for each of `distinct`."""


class LayerTable(Protocol):
    """Table of one layer that is offloaded."""

    path: str
    spec: TableSpec
    store: TrainingStore
    see: Callable[[SeenLookup], object] | None
    """Hears of each lookup."""


class Offloaded:
    """Base of a layer whose rows are elsewhere."""

    _table: LayerTable


class Framework(ABC):
    """Embedding layers of one framework."""

    native: ClassVar[tuple[type, ...]]
    """The classes of its layers, and no others, that can be offloaded."""

    @abstractmethod
    def without_rows(self, own: Callable[..., None]) -> Callable[..., None]:
        """The `__init__` of a layer that, inside of `placeholders()`, makes no rows; `own` is that of its class."""

    @abstractmethod
    def walk(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Every layer by its first path."""

    def embedding_layers(self, model: Any) -> dict[str, Any]:
        """The layers whose rows are their own, by their first path."""
        native = {path: layer for path, layer in self.walk(model) if isinstance(layer, self.native)}
        return {path: layer for path, layer in native.items() if not isinstance(layer, Offloaded)}

    def offloaded_layers(self, model: Any) -> dict[str, Any]:
        """The layers whose rows are elsewhere, by their first path."""
        return {path: layer for path, layer in self.walk(model) if isinstance(layer, Offloaded)}

    @abstractmethod
    def check_model(self, model: Any) -> None:
        """Raise ConfigError where no layer of the model could be offloaded."""

    @abstractmethod
    def check_layers(self, model: Any, layers: Mapping[str, Any], dense: str) -> None:
        """Raise ConfigError where one of these layers cannot be offloaded, or the others not be shared."""

    @abstractmethod
    def shape(self, layer: Any) -> tuple[int, int]:
        """Rows and width of a layer."""

    @abstractmethod
    def own_rows(self, layer: Any) -> Iterable[tuple[Ids, Rows]] | None:
        """The rows that the layer has, in parts; None of a layer that has none yet."""

    def known_rows(self, layer: Any) -> Iterable[tuple[Ids, Rows]]:  # noqa: ARG002  # most layers have no such row
        """The rows that a layer without rows needs, whatever its table's rule."""
        return ()

    @abstractmethod
    def swap(
        self, model: Any, layers: Mapping[str, Any], specs: Mapping[str, TableSpec], store: TrainingStore, dense: str
    ) -> OffloadedRows:
        """Have the layers look rows up in the tables.

        Raises:
            TableMismatch: the store has the parameters of another model; no layer is swapped.
        """

    def in_order(self) -> AbstractContextManager[None]:
        """Have the models of this framework make their lookups one after the other, in the order that they have."""
        return nullcontext()

    @abstractmethod
    def materialized(self, model: Any, outside: Collection[str] = ()) -> AbstractContextManager[None]:
        """Have the layers of `model` native and filled in the block, and offloaded again behind it.

        Layers whose tables have a path of `outside` stay as they are.
        """


class OffloadedRows(ABC):
    """The tables of a model, and what takes steps for them."""

    model: Any
    """The model that was given, with its layers swapped."""
    store: TrainingStore

    def __init__(self, model: Any, store: TrainingStore, tables: Mapping[str, Any]) -> None:
        self.model = model
        self.store = store
        self._gradients = dict(tables)
        self._ended = False

    @property
    def tables(self) -> dict[str, TableSpec]:
        """The table of each path."""
        return {path: table.spec for path, table in self._gradients.items()}

    def layers(self) -> dict[str, Any]:
        """The layers that look rows up in these tables, by path.

        Raises:
            EmbeddingError: the model was restored.
        """
        self._check_not_ended()
        own = self._gradients.values()
        found = framework_of(self.model).offloaded_layers(self.model)
        return {path: layer for path, layer in found.items() if layer._table in own}

    @abstractmethod
    def refresh(self) -> None:
        """Take over what other processes have changed in the other parameters, where they are shared.

        A change by the optimizer of this process since the last step is kept, and added by the next.

        Raises:
            EmbeddingError: the model was restored.
        """

    @abstractmethod
    def put_back(self, layers: Mapping[str, Any], sample: Any) -> None:
        """Give these layers their rows; where that fails, nothing is changed."""

    def end(self) -> None:
        """Have every later step fail: the rows are the model's own again."""
        self._gradients.clear()
        self._ended = True

    def _check_not_ended(self) -> None:
        if self._ended:
            raise EmbeddingError("the model was restored and owns its rows again: offload it once more")


class Rates(MutableMapping[str, float]):
    """The learning rate of each table, by the layer's path."""

    def __init__(self, specs: Mapping[str, TableSpec]) -> None:
        self._specs = specs
        self._rates = {path: spec.optimizer.lr for path, spec in specs.items()}

    def __getitem__(self, path: str) -> float:
        return self._rates[path]

    def __setitem__(self, path: str, rate: float) -> None:
        if path not in self._rates:
            raise ConfigError(f"lr has no layer {path!r}; layers: {', '.join(map(repr, self._rates))}")
        if rate is None:
            raise ConfigError(f"lr of {path!r} must be a number, got None")
        self._rates[path] = float(self._specs[path].check_lr(rate))

    def __delitem__(self, path: str) -> None:
        raise ConfigError(f"lr of {path!r} can be changed, but not removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._rates)

    def __len__(self) -> int:
        return len(self._rates)

    def __repr__(self) -> str:
        return repr(self._rates)


# -- placeholders -----------------------------------------------------------------------------------------------------

_inside = threading.local()
_patching = threading.Lock()
_threads_inside = 0
_own_inits: dict[type, Callable[..., None]] = {}


@contextmanager
def placeholders() -> Iterator[None]:
    """Have embedding layers that this thread makes in the block allocate no rows, until they are offloaded."""
    _enter()
    try:
        yield
    finally:
        _leave()


def inside_placeholders() -> bool:
    """Whether this thread is in such a block."""
    return getattr(_inside, "depth", 0) > 0


def _enter() -> None:
    global _threads_inside  # noqa: PLW0603  # the classes are the process's too
    frameworks = _loaded()
    _inside.depth = getattr(_inside, "depth", 0) + 1
    with _patching:
        _threads_inside += 1
        for framework in frameworks:
            for kind in framework.native:
                if kind not in _own_inits:
                    _own_inits[kind] = kind.__init__  # type: ignore[misc]  # of each class, it is put back
                    kind.__init__ = framework.without_rows(kind.__init__)  # type: ignore[misc]


def _leave() -> None:
    global _threads_inside  # noqa: PLW0603
    _inside.depth -= 1
    with _patching:
        _threads_inside -= 1
        if _threads_inside == 0:
            for kind, own in _own_inits.items():
                kind.__init__ = own  # type: ignore[misc]
            _own_inits.clear()


def _loaded() -> list[Framework]:
    """The frameworks that this process has loaded; where it has none yet, those that are installed."""
    there = [library for library in _LIBRARIES if library in sys.modules]
    if there == ["keras", "torch"] and _keras_backend() == "torch":
        there.remove("keras")
    found = there or [library for library in _LIBRARIES if importlib.util.find_spec(library) is not None]
    if not found:
        raise ConfigError("this needs PyTorch or Keras: pip install 'penstock[torch]' or 'penstock[tensorflow]'")
    return [_framework(library) for library in found]


def _framework(library: str) -> Framework:
    if library == "keras" and _keras_backend() != "tensorflow":
        raise ConfigError(
            f"Keras runs on the backend {_keras_backend()!r}, but rows can only be offloaded on "
            "'tensorflow': set KERAS_BACKEND=tensorflow before keras is imported"
        )
    _, module, name = _LIBRARIES[library]
    framework: Framework = getattr(importlib.import_module(module), name)()
    return framework


def _keras_backend() -> str:
    backend: str = importlib.import_module("keras").backend.backend()
    return backend


def framework_of(model: object) -> Framework:
    """The framework of a model.

    Raises:
        ConfigError: it is of no framework that is known here.
    """
    for library, (name, *_) in _LIBRARIES.items():
        loaded: Any = sys.modules.get(library)
        if loaded is not None and isinstance(model, operator.attrgetter(name)(loaded)):
            return _framework(library)
    raise ConfigError(f"offload takes a torch.nn.Module or a keras.Model, got {model!r}")


@contextmanager
def seen_lookups(rows: OffloadedRows) -> Iterator[list[SeenLookup]]:
    """The lookups that the layers of `rows` make in the block, in any thread, in order."""
    seen: list[SeenLookup] = []
    tables = [layer._table for layer in rows.layers().values()]
    try:
        for table in tables:
            table.see = seen.append
        with framework_of(rows.model).in_order():
            yield seen
    finally:
        for table in tables:
            table.see = None


# -- offload and restore ----------------------------------------------------------------------------------------------


@checked_keywords("penstock.embeddings.offload")
def offload(
    model: Any,
    store: str | TrainingStore,
    *,
    optimizer: RowOptimizer,
    tables: Mapping[str, Table | None] | None = None,
    dense: str = "own",
) -> OffloadedRows:
    """Move the rows of every embedding layer of `model` into a training store, in place.

    Args:
        model: a module of PyTorch with `torch.nn.Embedding` or `torch.nn.EmbeddingBag` somewhere in it, or a model of
            Keras with `keras.layers.Embedding`.
        store: the store, or its URL.
        optimizer: the optimizer of the rows.
        tables: what is to hold for the layer at a path; None there leaves it native.
        dense: `own`: the other parameters are this process's; `shared`: they are in the store too, and each step adds
            what has changed in them here to what other processes have changed.

    Raises:
        ConfigError: a layer cannot be offloaded, a path in `tables` is none of an embedding layer, there is none, or
            the other parameters cannot be shared.
        TableMismatch: the store has another table of that name, or the parameters of another model.
    """
    framework = framework_of(model)
    _check_arguments(store, tables, dense)
    framework.check_model(model)
    swapped = _chosen_layers(framework, model, tables or {})
    specs = {
        path: _spec(path, framework.shape(layer), type(layer).__name__, (tables or {}).get(path) or Table(), optimizer)
        for path, layer in swapped.items()
    }
    _check_names([spec.name for spec in specs.values()])
    framework.check_layers(model, swapped, dense)
    opened = open_training_store(store) if isinstance(store, str) else store
    for spec in specs.values():
        opened.create(spec)
    for path, layer in swapped.items():
        _fill(framework, opened, specs[path].name, layer)
    return framework.swap(model, swapped, specs, opened, dense)


@checked_keywords("penstock.embeddings.restore")
def restore(rows: OffloadedRows, sample: Any = None) -> Any:
    """Give the layers a weight with all rows back, and return the model.

    Rows that were never trained are those of their table's rule.  Compile a model of Keras again before you train it
    on: the optimizer that it has does not know its new weights.

    Args:
        rows: what `offload` returned.
        sample: a batch, which builds a model of Keras that is not built yet: tensors or arrays as the model takes them,
            what `Features.encode` returned, or a `tf.data.Dataset`, of which the labels are left out.

    Raises:
        ConfigError: the model is to be built, and there is no sample; or there is one, and it is of PyTorch.
        EmbeddingError: a layer cannot have its rows back; nothing was changed.
    """
    if not isinstance(rows, OffloadedRows):
        raise ConfigError(f"restore takes the return value of offload, got {rows!r}")
    layers, framework = rows.layers(), framework_of(rows.model)
    room, needed = available_memory(), 0
    there = rows.store.tables()
    for path, layer in layers.items():
        needed += _checked_size(path, framework.shape(layer), layer._table.spec, there)
        if room is not None and needed > room:
            raise EmbeddingError(
                f"layer {path!r}: with its rows the tables take {needed} bytes, but only {room} bytes of "
                "memory are free"
            )
    rows.put_back(layers, sample)
    rows.end()
    return rows.model


def check_finite(table: str, ids: Ids, grads: Rows) -> None:
    """Raise FloatingPointError where a gradient is not finite; the message names the ids."""
    finite = np.isfinite(grads)
    if not finite.all():
        wrong = ids[~finite.all(axis=1)]
        shown = ", ".join(map(str, wrong[:10])) + (" and more" if len(wrong) > 10 else "")
        raise FloatingPointError(f"table {table!r}: no finite gradient for the ids {shown}")


def all_rows(store: TrainingStore, spec: TableSpec) -> Rows:
    """Every row of a table with dense ids."""
    assert spec.size is not None, "it is dense"
    found = np.empty((spec.size, spec.width), np.float32)
    for start in range(0, spec.size, CHUNK):
        ids = np.arange(start, min(start + CHUNK, spec.size))
        found[start : start + len(ids)] = store.fetch(spec.name, ids).rows
    return found


def _check_arguments(store: object, tables: object, dense: object) -> None:
    if not isinstance(tables, Mapping | None):
        raise ConfigError(f"tables must be a dict of paths and Tables, got {tables!r}")
    if not isinstance(store, str) and not callable(getattr(store, "fetch", None)):
        raise ConfigError(f"store must be a training store or the URL of one, got {store!r}")
    if dense not in {"own", "shared"}:
        raise ConfigError(f"dense must be 'own' or 'shared', got {dense!r}")


def _chosen_layers(framework: Framework, model: Any, tables: Mapping[str, Table | None]) -> dict[str, Any]:
    layers = framework.embedding_layers(model)
    unknown = [path for path in tables if path not in layers]
    if unknown:
        raise ConfigError(
            f"tables names {unknown[0]!r}, which is not an embedding layer of the model; layers: "
            f"{', '.join(map(repr, layers)) or 'none'}"
        )
    chosen = {path: layer for path, layer in layers.items() if tables.get(path, Table()) is not None}
    if not chosen:
        there = "; its embedding layers are offloaded already" if framework.offloaded_layers(model) else ""
        raise ConfigError(f"the model has no embedding layer to offload{there}")
    return chosen


def _spec(path: str, shape: tuple[int, int], kind: str, table: Table, optimizer: RowOptimizer) -> TableSpec:
    if not isinstance(table, Table):
        raise ConfigError(f"tables takes a penstock.embeddings.Table for {path!r}, got {table!r}")
    size, width = shape
    return TableSpec(
        name=table.name or path or kind,
        width=width,
        ids=table.ids,  # type: ignore[arg-type]  # it is checked there
        size=size if table.ids == "dense" else None,
        missing=table.missing if table.missing is not None else Init(),
        optimizer=table.optimizer if table.optimizer is not None else optimizer,
    )


def _check_names(names: list[str]) -> None:
    if SPEC.name in names:
        raise ConfigError(
            f"the table name {SPEC.name!r} is reserved for the other parameters of the model: use another name"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two layers have the table {twice!r}: give each a name of its own")


def _fill(framework: Framework, store: TrainingStore, table: str, layer: Any) -> None:
    """Move the layer's rows into its table, of a placeholder those that it needs, unless it was filled before."""
    with store.filling(table) as fill:
        rows = framework.own_rows(layer)
        if fill:
            for ids, some in framework.known_rows(layer) if rows is None else rows:
                store.load(table, ids, some)
        elif rows is not None:
            _log.info("table %r exists already: using its rows instead of those of the layer", table)


def _checked_size(path: str, shape: tuple[int, int], spec: TableSpec, tables: Mapping[str, TableSpec]) -> int:
    """The bytes of the layer's rows; EmbeddingError where it cannot have them back."""
    there = tables.get(spec.name)
    if there is None:
        raise EmbeddingError(f"layer {path!r}: the store does not have table {spec.name!r} any more")
    if there.size is None:
        raise EmbeddingError(f"layer {path!r}: its table accepts any id, and a layer cannot have rows for all of them")
    if shape != (there.size, there.width):
        size = f"{shape[0]} x {shape[1]}"
        raise EmbeddingError(f"layer {path!r} is {size}, but its table is {there.size} x {there.width}")
    return 4 * there.size * there.width
