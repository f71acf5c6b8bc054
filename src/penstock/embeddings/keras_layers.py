"""Embedding layers of Keras, on TensorFlow, whose rows lie in a training store.

Contract
--------
* A layer is swapped by its class: it stays the same object, in whatever model and list it is, and so does the model.
  Neither a list of layers nor a graph of Keras knows of a second layer.
* A lookup reads the distinct rows that it needs, by a Python function that the graph calls.  Its gradient leaves theirs
  with the table, and a step sends them to the store.
* The model's `train_step` ends in a step of the rows.  It comes after all that the train step has done, in eager
  mode, in a graph and in a loop of a graph.
* Ids reach the store as int64; floats are refused, as float32 holds no id beyond 2^24.
* `DenseFeatures` answers what `tf.compat.v1.feature_column.input_layer` does with the same rows, but for the order in
  which float32 numbers are added.  It keeps no column of TensorFlow, and its embeddings are native layers.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from penstock.embeddings.offloading import (
    Framework,
    Offloaded,
    OffloadedRows,
    Rates,
    SeenLookup,
    all_rows,
    check_finite,
    inside_placeholders,
    placeholders,
)
from penstock.embeddings.rules import Ids, Rows
from penstock.embeddings.shared_parameters import SharedParameters
from penstock.embeddings.training_store import CHUNK, TableSpec, TrainingStore, summed
from penstock.errors import ConfigError, EmbeddingError
from penstock.features.tensorflow_columns import DensePart, EmbeddedPart, column_parts

_KERAS_OWN: Final = {"_layers", "_functional", "_operations", "_operations_by_depth", "_nodes", "_nodes_by_depth"}
"""Attributes in which Keras itself lists layers of a model once more."""
_PARTS_KEPT: Final = 16
"""Gradients of so many backward passes are added up, where no step takes them."""
_UNSTEPPED: Final = 1000
"""Backward passes without a step that are told of."""


# -- placeholders -----------------------------------------------------------------------------------------------------


class _WithoutRows(keras.layers.Embedding):  # type: ignore[misc]  # Keras may not be there where types are checked
    def build(self, input_shape: Any = None) -> None:  # noqa: ARG002  # as Keras has it
        self.built = True


class _Placeholder(_WithoutRows):
    def call(self, inputs: Any) -> Any:
        if tf.executing_eagerly():
            raise self._no_rows()
        # Keras makes a graph that it never runs to build a model that is called on a keras.Input.
        with tf.control_dependencies([tf.debugging.Assert(False, [str(self._no_rows())])]):
            return tf.zeros(tf.concat([tf.shape(inputs), [self.output_dim]], axis=0), self.compute_dtype)

    def save_own_variables(self, store: Any) -> None:  # noqa: ARG002  # as Keras has it
        raise self._no_rows()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """A placeholder of its own, as `clone_model` makes one, wherever that is called."""
        with placeholders():
            return keras.layers.Embedding.from_config(config)

    def _no_rows(self) -> EmbeddingError:
        return EmbeddingError(
            f"this Embedding, {self.name!r}, is a placeholder without rows: give its model to "
            "penstock.embeddings.offload"
        )


_Placeholder.__name__, _Placeholder.__module__ = "Embedding", "keras.layers"  # so a config of it is one of Keras


def _set_build(layer: Any) -> None:
    """Have `layer.build`, which Keras keeps on the object, make no rows."""
    layer._own_build = layer.build
    layer.build = functools.partial(_WithoutRows.build, layer)


# -- the layers -------------------------------------------------------------------------------------------------------


class _Gradients:
    """The table of one layer, and the gradients that backward passes have left for it."""

    def __init__(self, path: str, spec: TableSpec, store: TrainingStore, trouble: list[Exception]) -> None:
        self.path = path
        self.spec = spec
        self.store = store
        self.passes = 0
        """Backward passes since the last step."""
        self._looked_up = self._reached = self._told = False
        self.anchor = keras.Variable(0.0, dtype="float32", name="rows")
        """A tape follows a lookup because of this: rows come from no variable that it could know."""
        self.trouble = trouble
        """The error of a lookup or a step, of whichever table: a graph raises another in its place."""
        self._parts: list[tuple[Ids, Rows]] = []
        self.see: Callable[[SeenLookup], object] | None = None
        self._lock = threading.Lock()

    def lookup(self, ids: Any, *, trained: bool) -> Any:
        """The row of each id; where they are trained, a backward pass leaves their gradients here."""
        # TensorFlow keeps what a gradient refers to until the process ends: no `self` in it.
        width, take = self.spec.width, _called(self._take, self.trouble)
        types = [tf.float32, tf.int64, tf.int64]
        fetch = _called(self._fetch_trained if trained else self._fetch, self.trouble)
        rows, distinct, places = tf.numpy_function(fetch, [tf.cast(ids, tf.int64)], types)
        rows.set_shape((None, width))
        distinct.set_shape((None,))
        places.set_shape((None,))
        found = tf.reshape(tf.gather(rows, places), tf.concat([tf.shape(ids), [width]], axis=0))
        found.set_shape((*ids.shape, width))
        if not trained:
            return found

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def watched(_: Any) -> Any:
            def leave(upstream: Any) -> Any:
                each = tf.reshape(upstream, [-1, width])
                total = tf.math.unsorted_segment_sum(each, places, tf.size(distinct))
                return tf.reshape(tf.numpy_function(take, [distinct, total], tf.float32), ())

            return tf.identity(found), leave

        return watched(self.anchor.value)

    def _fetch(self, ids: Ids) -> tuple[Rows, Ids, Ids]:
        distinct, places = np.unique(ids.reshape(-1), return_inverse=True)
        rows = self.store.fetch(self.spec.name, distinct).rows
        if self.see is not None:
            self.see(SeenLookup(self.path, ids.copy(), distinct, rows.copy()))  # the arrays are TensorFlow's
        return rows, distinct, places.astype(np.int64, copy=False)

    def _fetch_trained(self, ids: Ids) -> tuple[Rows, Ids, Ids]:
        self._looked_up = True
        return self._fetch(ids)

    def _take(self, ids: Ids, grads: Rows) -> Any:
        self._reached = True
        with self._lock:
            self._parts.append((ids.copy(), grads.copy()))  # the arrays are TensorFlow's
            if len(self._parts) > _PARTS_KEPT:
                self._parts = [_joined(self._parts)]
            self.passes += 1
            told = self.passes == _UNSTEPPED
        if told:
            _tell_unstepped(self.path, self.passes)
        return np.float32(0.0)

    def taken(self) -> tuple[Ids, Rows] | None:
        """The distinct ids and their gradients, which are not kept; None where there are not any."""
        with self._lock:
            parts, self._parts, self.passes = self._parts, [], 0
        return _joined(parts) if parts else None

    def tell_unreached(self) -> None:
        """Warn once where rows were looked up to be trained, and a step comes before any gradient of them."""
        if self._looked_up and not self._reached and not self._told:
            self._told = True
            warnings.warn(
                f"layer {self.path!r} fetched rows without a backward pass, so they are not trained. "
                "tf.vectorized_map and a tape with watch_accessed_variables=False have none; set "
                "trainable=False if the rows must not be trained",
                stacklevel=2,
            )


@contextmanager
def plain_functions() -> Iterator[None]:
    """Have every `tf.function` of the process be the Python that it was made of.

    TensorFlow runs operations of a graph in several threads.  Python comes in its own order, and where a graph is
    traced all of it is in that graph.
    """
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _joined(parts: list[tuple[Ids, Rows]]) -> tuple[Ids, Rows]:
    if len(parts) == 1:
        return parts[0]
    ids, grads = zip(*parts, strict=True)
    return summed(np.concatenate(ids), np.concatenate(grads))


def _tell_unstepped(path: str, passes: int) -> None:
    warnings.warn(
        f"layer {path!r} has the gradients of {passes} backward passes without a step: call "
        "rows.step() after each, as fit() of the model itself does",
        stacklevel=2,
    )


def _called(method: Callable[..., Any], trouble: list[Exception]) -> Callable[..., Any]:
    """A function that a graph may keep for ever: it keeps no table alive, and leaves its error in `trouble`."""
    weak = weakref.WeakMethod(method)

    def call(*arrays: Any) -> Any:
        try:
            return (weak() or _is_gone)(*arrays)
        except Exception as error:
            trouble[:] = [error]
            raise

    return call


def _is_gone(*_: Any) -> Any:
    raise EmbeddingError("the graph fetches rows of a model that was restored since: create the graph again")


class _OffloadedEmbedding(Offloaded, _WithoutRows):
    _table: _Gradients

    @property
    def embeddings(self) -> Any:
        raise AttributeError(
            f"layer {self._table.path!r} has its rows in a store: penstock.embeddings.restore gives it a weight"
        )

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def call(self, inputs: Any) -> Any:
        if not isinstance(inputs, tf.Tensor):
            raise TypeError(f"layer {self._table.path!r}: ids must be a dense tensor, got a {type(inputs).__name__}")
        if not inputs.dtype.is_integer:
            raise TypeError(
                f"layer {self._table.path!r}: ids must be integers, got {inputs.dtype.name}, which cannot "
                "represent every id: write keras.Input(..., dtype='int64')"
            )
        return tf.cast(self._table.lookup(inputs, trained=self.trainable), self.compute_dtype)

    def get_config(self) -> Any:
        raise _not_saved(f"layer {self._table.path!r}")

    def enable_lora(self, *_: Any, **__: Any) -> None:
        raise ConfigError(f"layer {self._table.path!r} has its rows in a store, but LoRA requires them in the layer")

    def save_own_variables(self, store: Any) -> None:
        """Write nothing: `save_weights` has the weights that are the model's."""

    def load_own_variables(self, store: Any) -> None:
        if len(store.keys()):  # Keras tries once more, elsewhere in the file, after an error that is raised here
            self._table.trouble[:] = [
                EmbeddingError(
                    f"the file has rows for layer {self._table.path!r}, which has its own in a store, and only the "
                    "other weights were loaded: load it before the model is offloaded, or after it is restored"
                )
            ]

    def __repr__(self) -> str:
        return f"<OffloadedEmbedding name={self.name}, table={self._table.spec.name!r}>"


_OffloadedEmbedding.__name__ = "Embedding"  # files of weights have places by that name


def _not_saved(what: str) -> EmbeddingError:
    return EmbeddingError(
        f"{what} has rows in a store, which no file or copy of Keras can include: "
        "penstock.export.save(rows, ...) saves the model with them, save_weights() the other "
        "weights, and restore(rows) returns the rows to the model"
    )


# -- the model --------------------------------------------------------------------------------------------------------


def _running(name: str) -> Callable[..., Any]:
    """The method of Keras with that name, which raises what a lookup or a step has raised inside of a graph."""

    def call(model: _OffloadedModel, *args: Any, **options: Any) -> Any:
        with model._penstock_rows.running(trains=name in {"fit", "train_on_batch"}):
            return getattr(super(_OffloadedModel, model), name)(*args, **options)

    call.__name__ = name
    return call


class _OffloadedModel:
    """Base of the class that a model has while its rows are elsewhere."""

    _penstock_rows: KerasRows  # a model of the user may have any other name for its own
    _penstock_native: type

    fit = _running("fit")
    evaluate = _running("evaluate")
    predict = _running("predict")
    train_on_batch = _running("train_on_batch")
    test_on_batch = _running("test_on_batch")
    predict_on_batch = _running("predict_on_batch")

    def load_weights(self, *args: Any, **options: Any) -> None:
        trouble = self._penstock_rows.trouble
        trouble.clear()
        super().load_weights(*args, **options)  # type: ignore[misc]  # the class of Keras comes behind this one
        if trouble:
            raise trouble.pop()

    def compile(self, *args: Any, **options: Any) -> None:
        own = super().compile  # type: ignore[misc]  # the class of Keras comes behind this one
        if inspect.signature(own).bind(*args, **options).arguments.get("jit_compile") is True:
            raise ConfigError("jit_compile=True: XLA cannot compile a lookup in a store; leave it 'auto'")
        _check_no_strategy()
        own(*args, **options)

    def train_step(self, data: Any) -> Any:
        _check_no_strategy()
        optimizer: Any = getattr(self, "optimizer", None)
        factor = optimizer.scale_loss(tf.constant(1.0)) if hasattr(optimizer, "scale_loss") else tf.constant(1.0)
        logs = super().train_step(data)  # type: ignore[misc]
        skips = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self._penstock_rows.step_in_graph(1.0 / factor, skips_not_finite=skips)
        return logs

    @property
    def trainable_variables(self) -> Any:
        return super().trainable_variables or self._penstock_rows.anchors()  # type: ignore[misc]

    @property
    def trainable_weights(self) -> Any:
        return super().trainable_weights or self._penstock_rows.anchors()  # type: ignore[misc]

    def get_config(self) -> Any:
        raise _not_saved("the model")

    def save(self, *_: Any, **__: Any) -> None:
        raise _not_saved("the model")

    def export(self, *_: Any, **__: Any) -> None:
        raise _not_saved("the model")


def _check_no_strategy() -> None:
    if tf.distribute.has_strategy() or keras.distribution.distribution() is not None:
        raise ConfigError(
            "tf.distribute and keras.distribution do not support rows in a store: start a process for "
            "each device, with dense='shared' over one shared: store"
        )


class KerasRows(OffloadedRows):
    """The tables of a model of Keras, and what takes steps for them."""

    def __init__(
        self,
        model: Any,
        store: TrainingStore,
        tables: Mapping[str, _Gradients],
        shared: _Shared | None,
        trouble: list[Exception],
    ) -> None:
        super().__init__(model, store, tables)
        self._shared = shared
        self.trouble = trouble
        self._steps = 0
        self._runs: list[int] = []
        """The thread of each `fit`, `evaluate` or `predict` that goes on."""
        self._changing = threading.RLock()
        """Is held while layers are native, so that none of those begins."""
        self._lr = Rates(self.tables)

    @property
    def lr(self) -> MutableMapping[str, float]:
        """The learning rate of each path's table; one that is set holds from the next step on."""
        return self._lr

    def step(self, *, scale: float = 1.0) -> None:
        """Have the store take a step for every row that has a gradient since the last step.

        `fit` of the model does so at the end of each train step.  Each backward pass through a lookup leaves a
        gradient, whatever variables the tape is asked for, so ask it once: `tape.gradient(loss, (some, others))`.

        Where the other weights are shared, the store gets what has changed in them since the last step, and they become
        what is there then.

        Args:
            scale: multiplies all gradients.

        Raises:
            ConfigError: the other weights are shared, and one that is not trained has changed, or one is new; nothing
                was applied.
            EmbeddingError: the model was restored.
            FloatingPointError: a gradient or a shared weight is not finite; nothing was applied, and the gradients are
                forgotten.
        """
        self._check_not_ended()
        self.step_in_graph(scale)

    def step_in_graph(self, scale: Any, *, skips_not_finite: bool = False) -> None:
        """As `step`, now or, in a graph, behind all that is in it until here.

        Args:
            scale: a number, or a tensor of one.
            skips_not_finite: whether a step is left out, and no error, where a gradient is not finite.
        """
        parameters, others = ([], []) if self._shared is None else self._shared.variables()
        given = [tf.cast(scale, tf.float32), skips_not_finite, _flat(parameters, tf.float32), _flat(others, tf.float64)]
        before: list[Any] = []
        if not tf.executing_eagerly():
            graph = tf.compat.v1.get_default_graph()
            # Python in a function that the graph calls is not in the order that TensorFlow gives to Python beside it.
            before = [operation for operation in graph.get_operations() if operation.op_def.is_stateful]
        with tf.control_dependencies(before):
            values = tf.numpy_function(_called(self._apply, self.trouble), given, tf.float32)
        if self._shared is not None:
            self._shared.put(values)

    def _apply(self, scale: Any, skips_not_finite: Any, values: Rows, others: Any) -> Rows:
        self._steps += 1
        for table in self._gradients.values():
            table.tell_unreached()
        found = {path: gradients for path, table in self._gradients.items() if (gradients := table.taken()) is not None}
        scaled = {
            path: (ids, grads if scale == 1.0 else grads * np.float32(scale)) for path, (ids, grads) in found.items()
        }
        try:
            for path, (ids, grads) in scaled.items():
                check_finite(self._gradients[path].spec.name, ids, grads)
            changes = None if self._shared is None else self._shared.changes(values, others)
        except FloatingPointError:
            if skips_not_finite:
                return values
            raise
        for path, (ids, grads) in scaled.items():
            self.store.apply(self._gradients[path].spec.name, ids, grads, lr=self.lr[path])
        return values if self._shared is None or changes is None else self._shared.added(changes)

    def refresh(self) -> None:
        self._check_not_ended()
        if self._shared is not None:
            self._shared.take()

    def anchors(self) -> list[Any]:
        """Numbers whose gradient is 0, which `fit` trains of a model that has no other weight."""
        layers = self.layers().values() if self._runs else ()
        return [layer._table.anchor for layer in layers if layer.trainable]

    @contextmanager
    def running(self, *, trains: bool) -> Iterator[None]:
        """Raise in place of an error of TensorFlow what a function of ours has raised in its graph.

        Args:
            trains: whether gradients that an error has left without a step are forgotten.
        """
        self._tell_unstepped()
        causes: list[Exception] = []
        whole = False
        with self._changing:
            self._runs.append(threading.get_ident())
        self.trouble.clear()
        try:
            yield
            whole = True
        except tf.errors.OpError as error:
            # Of another graph it may be there still: an error that the user's code has caught, or another thread's.
            causes = [cause for cause in self.trouble if str(cause) in str(error)]
            if not causes:
                raise
        finally:
            self._runs.remove(threading.get_ident())
            if trains and not whole:
                for table in self._gradients.values():
                    table.taken()
        if causes:
            raise causes.pop()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have no other thread in `fit`, `evaluate` or `predict`: a graph that it made of native layers would be kept.

        Raises:
            EmbeddingError: there is one.
        """
        with self._changing:
            if set(self._runs) - {threading.get_ident()}:
                raise EmbeddingError(
                    "another thread is in fit, evaluate or predict of the model, so its layers must not be "
                    "changed now: save or restore it afterwards, or save it in a callback of fit"
                )
            yield

    def put_back(self, layers: Mapping[str, Any], sample: Any) -> None:
        with self.alone():
            if not self.model.built:
                _build(self.model, sample)
            self._tell_unstepped()
            found = [all_rows(layer._table.store, layer._table.spec) for layer in layers.values()]
            self.refresh()
            tables = [layer._table for layer in layers.values()]
            try:
                for layer in layers.values():
                    _put_back(layer, found.pop(0))
            except BaseException:  # out of memory, which may be that of a device
                _swap_back(layers.values(), tables)
                raise
            _forget_graphs(self.model)
            _swap_model(self.model, type(self.model)._penstock_native)

    def _tell_unstepped(self) -> None:
        if not self._steps:
            for table in self._gradients.values():
                if table.passes:
                    _tell_unstepped(table.path, table.passes)
                    return


class _Shared:
    """The other weights of a model, which are in the store too."""

    def __init__(self, model: Any, store: TrainingStore, layers: Iterable[Any]) -> None:
        parameters = _parameters(model, layers)
        rows = [_table_of(layer) for layer in layers]
        self._model = model
        self._parameters = list(parameters.values())
        self._others = [weight for weight in model.weights if not _among(weight, [*self._parameters, *rows])]
        self._other_values = _flat(self._others, tf.float64).numpy()
        shapes = {path: tuple(variable.shape) for path, variable in parameters.items()}
        self._there = SharedParameters(store, shapes, _flat(self._parameters, tf.float32).numpy())
        self.put(self._there.seen)

    def variables(self) -> tuple[list[Any], list[Any]]:
        """The weights that are shared, and those that may not change; ConfigError where there is a new one."""
        for weight in self._model.weights:
            if not _among(weight, self._parameters) and not _among(weight, self._others):
                raise ConfigError(
                    f"weight {weight.path!r} is new since the model was offloaded with dense='shared', so each process "
                    "would train its own: change the model before"
                )
        return self._parameters, self._others

    def take(self) -> None:
        self.put(self._there.taken(_flat(self._parameters, tf.float32).numpy()))

    def changes(self, values: Rows, others: Any) -> Rows:
        if not np.array_equal(others, self._other_values, equal_nan=True):
            ends = np.cumsum([int(np.prod(weight.shape)) for weight in self._others])
            place = int(np.argmax(others != self._other_values))
            raise ConfigError(_changed_weight(self._others[int(np.searchsorted(ends, place, side="right"))].path))
        return self._there.changes(values)

    def added(self, changes: Rows) -> Rows:
        return self._there.added(changes).copy()  # TensorFlow keeps what it is given

    def put(self, values: Any) -> None:
        start = 0
        for variable in self._parameters:
            end = start + int(np.prod(variable.shape))
            variable.assign(tf.reshape(values[start:end], variable.shape))
            start = end


def _among(thing: Any, things: Iterable[Any]) -> bool:
    return any(thing is one for one in things)


def _flat(variables: Iterable[Any], dtype: Any) -> Any:
    parts = [tf.reshape(tf.cast(variable.value, dtype), [-1]) for variable in variables]
    return tf.concat([tf.zeros([0], dtype), *parts], axis=0)


def _changed_weight(path: str) -> str:
    return (
        f"a step changes the weight {path!r}, which is not trained and which each process has for itself, so "
        "dense='shared' would train another model in each: use a layer without it, such as LayerNormalization"
    )


# -- offload and restore ----------------------------------------------------------------------------------------------


def _walk(model: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("", model)]
    while waiting:
        path, thing = waiting.pop()
        before = f"{path}." if path else ""
        found: list[tuple[str, Any]] = []
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, keras.Layer):
            yield path, thing
            if _is_functional(thing) or isinstance(thing, keras.Sequential):
                found += [(f"{before}layers.{place}", layer) for place, layer in enumerate(thing.layers)]
            found += [(f"{before}{name}", value) for name, value in vars(thing).items() if not _is_internal(name)]
        elif isinstance(thing, dict):
            found += [(f"{before}{key}", value) for key, value in thing.items()]
        elif isinstance(thing, list | tuple):
            found += [(f"{before}{place}", value) for place, value in enumerate(thing)]
        waiting += [one for one in reversed(found) if isinstance(one[1], keras.Layer | dict | list | tuple)]


def _is_internal(attribute: str) -> bool:
    return attribute in _KERAS_OWN or attribute.startswith("_self_unconditional_")  # so begin those of TensorFlow


def _is_functional(model: Any) -> bool:
    return "Functional" in {kind.__name__ for kind in type(model).__mro__}


def _check_paths(model: Any) -> None:
    """Refuse a layer that Keras knows and no path leads to, or the path of another does: it would stay native."""
    found: dict[str, Any] = {}
    for path, layer in _walk(model):
        if isinstance(layer, keras.layers.Embedding) and found.setdefault(path, layer) is not layer:
            raise ConfigError(f"two layers have the path {path!r}: rename a key of the dicts that they are in")
    known = {id(layer) for layer in found.values()}
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Embedding) and id(layer) not in known:
            raise ConfigError(
                f"no path leads to the layer {layer.name!r}, which is in a set, or in an attribute that has a name of "
                "one of Keras's own: assign it to another attribute, or put it in a list or a dict"
            )


def _owners(layers: Mapping[str, Any]) -> dict[int, list[tuple[str, Any]]]:
    """The layers that have each weight themselves, by its id, with their paths."""
    found: dict[int, list[tuple[str, Any]]] = {}
    for path, layer in layers.items():
        for weight in (*layer._trainable_variables, *layer._non_trainable_variables):
            found.setdefault(id(weight), []).append((path, layer))
    return found


def _check_layer(path: str, layer: Any, owners: Mapping[int, list[tuple[str, Any]]]) -> None:
    if type(layer) not in {keras.layers.Embedding, _Placeholder}:
        raise ConfigError(
            f"{path!r} is a {type(layer).__name__}, a subclass of Embedding, but only Embedding itself "
            f"can be replaced: leave it native with tables={{path: None}}"
        )
    for what in ("embeddings_regularizer", "embeddings_constraint"):
        if getattr(layer, what) is not None:
            raise ConfigError(f"{path!r} has {what}, which reads all rows at each step: leave it out")
    if layer.quantization_mode is not None:
        raise ConfigError(f"{path!r} is quantized, and tables are float32: offload it before, or leave it native")
    if layer.lora_rank is not None or layer.lora_enabled:
        raise ConfigError(f"{path!r} has LoRA, which changes all rows at each step: leave it out, or the layer native")
    if layer.variable_dtype != "float32":
        raise ConfigError(f"{path!r} has rows of {layer.variable_dtype}, and tables are float32: set its dtype")
    for other_path, other in owners.get(id(_table_of(layer)), ()):
        if other is not layer:
            raise ConfigError(
                f"{path!r} shares its weight with {other_path!r}, but training would then change only one of "
                f"them: untie them, or leave the layer native with tables={{path: None}}"
            )


def _table_of(layer: Any) -> Any:
    """The variable with the rows of a native layer; None where it is not built."""
    return vars(layer).get("_embeddings")


def _check_floats(path: str, functional: Any) -> None:
    """Refuse an input of floats before ids: Keras would change them on the way, without a word."""
    for node in itertools.chain.from_iterable(functional._nodes_by_depth.values()):
        floats = [tensor for tensor in node.input_tensors if keras.backend.is_float_dtype(tensor.dtype)]
        if floats and _takes_ids(node.operation):
            raise ConfigError(
                f"{path or 'the model'} gives {floats[0].dtype} to {node.operation.name!r} as ids, and no float holds "
                "all of them: write keras.Input(..., dtype='int64')"
            )


def _takes_ids(layer: Any) -> bool:
    """Whether the one input of a layer is of ids."""
    if isinstance(layer, keras.layers.Embedding):
        return True
    if isinstance(layer, keras.Sequential):
        return bool(layer.layers) and _takes_ids(layer.layers[0])
    if _is_functional(layer):
        return len(layer.inputs) == 1 and keras.backend.is_int_dtype(layer.inputs[0].dtype)
    return False


def _parameters(model: Any, layers: Iterable[Any]) -> dict[str, Any]:
    """The weights that are trained and are not rows of `layers`, by path; ConfigError where they cannot be shared."""
    if not model.built:
        raise ConfigError(
            "dense='shared' shares the weights of a model that is built: call it once, on a keras.Input for each input"
        )
    rows = [_table_of(layer) for layer in layers]
    named: dict[str, Any] = {}
    for path, layer in _walk(model):
        if getattr(layer, "moving_mean", None) is not None:
            raise ConfigError(_changed_weight(f"{path}.moving_mean".lstrip(".")))
        for variable in layer._trainable_variables:
            name = f"{path}.{variable.name}".lstrip(".")
            while name in named:
                name += "_"
            if not _among(variable, rows) and not _among(variable, named.values()):
                named[name] = variable
    for name, variable in named.items():
        if variable.dtype != "float32":
            raise ConfigError(f"weight {name!r} is {variable.dtype}, but dense='shared' supports only float32")
    return named


def _in_parts(weight: Any) -> Iterator[tuple[Ids, Rows]]:
    for start in range(0, weight.shape[0], CHUNK):
        some = weight[start : start + CHUNK].numpy()
        yield np.arange(start, start + len(some)), some


def _offloaded_class(native: type, rows: KerasRows) -> type:
    """The class of a model while its rows are elsewhere; ConfigError where the user's own can have none below it."""
    own = {
        "_penstock_rows": rows,
        "_penstock_native": native,
        "__module__": native.__module__,
        "__qualname__": native.__qualname__,
    }
    try:
        return types.new_class(native.__name__, (_OffloadedModel, native), {}, lambda body: body.update(own))
    except Exception as error:  # `__init_subclass__` is the user's, and may raise anything
        raise ConfigError(
            f"offload makes a class below {native.__name__}, which refuses it: {type(error).__name__}: {error}"
        ) from error


def _swap_model(model: Any, kind: type) -> None:
    model.__class__ = kind
    if getattr(model, "compiled", False):
        model.jit_compile = False
    model.train_function = model.test_function = model.predict_function = None  # they have the layers in their graphs


def _swap(layer: Any, table: _Gradients) -> None:
    weight = _table_of(layer)
    if weight is not None:
        # A graph of the user's own may go on to read it: that is an error then, and takes no memory.
        nothing = tf.zeros((0, layer.output_dim))
        tf.raw_ops.AssignVariableOp(resource=weight.value.handle, value=nothing, validate_shape=False)
        layer._untrack_variable(weight)
        layer._embeddings = None  # where a variable is deleted, Keras has all garbage of the process collected
        del layer._embeddings
    if "_own_build" not in vars(layer):
        _set_build(layer)
    layer.__class__ = _OffloadedEmbedding
    layer._table = table
    layer.supports_jit = False


def _forget_graphs(model: Any) -> None:
    """Have every `tf.function` of the model's layers make its graphs anew: those that it has are of other rows."""
    for _, layer in _walk(model):
        for function in itertools.chain.from_iterable(vars(kind).values() for kind in type(layer).__mro__):
            if isinstance(function, tf.types.experimental.PolymorphicFunction):
                function._descriptor_cache.pop(layer, None)  # a decorated method has one for each object
        for name, function in list(vars(layer).items()):
            if isinstance(function, tf.types.experimental.PolymorphicFunction):
                setattr(layer, name, function._clone(None))


def _swap_back(layers: Iterable[Any], tables: Iterable[_Gradients]) -> None:
    """Offload once more what is native of these layers."""
    for layer, table in zip(layers, tables, strict=True):
        if not isinstance(layer, Offloaded):
            _swap(layer, table)


def _put_back(layer: Any, rows: Rows) -> None:
    layer.__class__ = keras.layers.Embedding
    del layer._table
    layer.build = layer._own_build
    del layer._own_build
    layer.supports_jit = True
    layer.built = False
    layer._tracker.unlock()
    initializer = layer.embeddings_initializer
    layer.embeddings_initializer = lambda *_, **__: tf.constant(rows)
    try:
        layer.build(None)
    finally:
        layer.embeddings_initializer = initializer


def _have_int64(model: Any) -> None:
    """Give a Sequential model, whose input Keras makes float32 where nobody says what it is, one of int64."""
    first = model._layers[0]
    if isinstance(first, keras.layers.InputLayer):
        if first.dtype != "int64":
            whole = keras.layers.InputLayer(batch_shape=first.batch_shape, dtype="int64", name=first.name)
            model._layers = [whole, *model.layers]
            model._functional = None
            model.build(first.batch_shape)
        return
    own = model.build

    @functools.wraps(own)
    def build(input_shape: Any = None) -> None:
        plain = isinstance(input_shape, list | tuple) and all(isinstance(size, int | None) for size in input_shape)
        if plain and not isinstance(model._layers[0], keras.layers.InputLayer):
            model._layers = [keras.layers.InputLayer(batch_shape=tuple(input_shape), dtype="int64"), *model.layers]
        own(input_shape)

    model.build = build


def _build(model: Any, sample: Any) -> None:
    """Make the weights of the layers that have none yet.

    Raises:
        ConfigError: there is no sample, or the model takes none like it.
    """
    if sample is None:
        raise ConfigError("the model is not built yet, so restore needs a sample: a batch, or the dataset")
    if isinstance(sample, tf.data.Dataset):
        sample = sample.element_spec
        if isinstance(sample, tuple):
            sample = sample[0]
    if isinstance(model, keras.Sequential) and isinstance(sample, Mapping) and len(sample) == 1:
        (sample,) = sample.values()
    try:
        model(keras.tree.map_structure(_symbolic, sample))
    except Exception as error:  # the model is the user's, and may raise anything
        raise ConfigError(f"the model cannot be built from sample: {type(error).__name__}: {error}") from error


def _symbolic(part: Any) -> Any:
    if not hasattr(part, "shape"):
        part = np.asarray(part)
    dtype = keras.backend.standardize_dtype(part.dtype)
    return keras.KerasTensor((None, *tuple(part.shape)[1:]), dtype)


class KerasLayers(Framework):
    """Embedding layers of Keras."""

    native = (keras.layers.Embedding,)

    def walk(self, model: Any) -> Iterable[tuple[str, Any]]:
        """Every layer by its first path: of attributes, keys, and positions, also those in `layers` of a model.

        The names that Keras gives are no part of it, as they depend on what the process has made before.
        """
        return _walk(model)

    def without_rows(self, own: Callable[..., None]) -> Callable[..., None]:
        """The `__init__` of a layer whose `build` makes no table, where no rows are given to it."""

        def make(self: Any, *args: Any, **options: Any) -> None:  # Keras reads that name
            own(self, *args, **options)
            if inside_placeholders() and type(self) is keras.layers.Embedding and not self.built:
                self.__class__ = _Placeholder
                _set_build(self)

        return make

    def check_model(self, model: Any) -> None:
        """Refuse a model that is offloaded already, or is trained in several places at once."""
        if isinstance(model, _OffloadedModel):
            raise ConfigError("the model is offloaded already: restore it, and offload all of its layers in one call")
        _check_no_strategy()
        _check_paths(model)

    def check_layers(self, model: Any, layers: Mapping[str, Any], dense: str) -> None:
        """Refuse layers that cannot be offloaded, and other weights that cannot be shared."""
        everything = dict(_walk(model))
        owners = _owners(everything)
        for path, layer in layers.items():
            _check_layer(path, layer, owners)
        for path, functional in everything.items():
            if _is_functional(functional):
                _check_floats(path, functional)
        if dense == "shared":
            _parameters(model, layers.values())

    def shape(self, layer: Any) -> tuple[int, int]:
        """Rows and width of a layer."""
        return layer.input_dim, layer.output_dim

    def own_rows(self, layer: Any) -> Iterable[tuple[Ids, Rows]] | None:
        """The rows that the layer has, in parts; None of one that is not built."""
        weight = _table_of(layer)
        return None if weight is None else _in_parts(weight.value)

    def swap(
        self, model: Any, layers: Mapping[str, Any], specs: Mapping[str, TableSpec], store: TrainingStore, dense: str
    ) -> KerasRows:
        """Have the layers look rows up in the tables."""
        shared = _Shared(model, store, layers.values()) if dense == "shared" else None
        trouble: list[Exception] = []
        tables = {path: _Gradients(path, specs[path], store, trouble) for path in layers}
        rows = KerasRows(model, store, tables, shared, trouble)
        kind = _offloaded_class(type(model), rows)
        for path, layer in layers.items():
            _swap(layer, tables[path])
        for _, part in reversed(list(_walk(model))):  # a model in another one comes first
            if isinstance(part, keras.Sequential) and _takes_ids(part):
                _have_int64(part)
        _forget_graphs(model)
        _swap_model(model, kind)
        return rows

    def in_order(self) -> AbstractContextManager[None]:
        """Have a graph of the model make its lookups as its Python does."""
        return plain_functions()

    @contextmanager
    def materialized(self, model: Any, outside: Collection[str] = ()) -> Iterator[None]:
        """Have the layers of `model` native and filled in the block, and offloaded again behind it."""
        found = self.offloaded_layers(model)
        layers = {path: layer for path, layer in found.items() if layer._table.path not in outside}
        tables = [layer._table for layer in layers.values()]
        with model._penstock_rows.alone():
            try:
                for layer in layers.values():
                    _put_back(layer, all_rows(layer._table.store, layer._table.spec))
                _forget_graphs(model)
                yield
            finally:
                _swap_back(layers.values(), tables)
                _forget_graphs(model)


# -- feature columns --------------------------------------------------------------------------------------------------

_INITIALIZERS: Final = {
    "TruncatedNormal": ("mean", "stddev", "seed"),
    "RandomNormal": ("mean", "stddev", "seed"),
    "RandomUniform": ("minval", "maxval", "seed"),
    "Constant": ("value",),
    "Zeros": (),
    "Ones": (),
}
"""The initializers that have one name and one meaning in TensorFlow and in Keras, and their options."""


@keras.saving.register_keras_serializable(package="penstock")
class DenseFeatures(keras.layers.Layer):  # type: ignore[misc]
    """The columns of `tf.feature_column` as one tensor, side by side in the order of their names.

    It stands in place of `keras.layers.DenseFeatures`, which Keras 3 has not.  It is called on a dict with the inputs
    of `penstock.features.from_feature_columns`, and ignores others; without an embedding also on the tensor `x`.

    Args:
        columns: the columns that the spec is made of; or their descriptions, as `get_config` gives them.
        options: those of `keras.layers.Layer`.

    Attributes:
        embeddings: a `keras.layers.Embedding` for each embedding column, by its name.

    Raises:
        ConfigError: a column cannot be converted, or Keras has no initializer like that of an embedding.
    """

    def __init__(self, columns: Iterable[Any], **options: Any) -> None:
        super().__init__(**options)
        given = list(columns)
        described = bool(given) and all(isinstance(column, Mapping) for column in given)
        self._columns = tuple(map(_read, given) if described else map(_with_initializer, column_parts(given)))
        self.embeddings = {
            column.name: keras.layers.Embedding(
                column.buckets,
                column.dimension,
                embeddings_initializer=keras.initializers.get(column.initializer),
                trainable=column.trainable,
                dtype=self.dtype_policy,
                name=column.name,
            )
            for column in self._columns
            if isinstance(column, EmbeddedPart)
        }

    def build(self, input_shape: Any) -> None:
        """Check the inputs, and build the embeddings that are not built yet.

        Raises:
            ConfigError: an input is not there, or `x` is not as wide as the columns.
        """
        shapes = _by_name(input_shape)
        for name in self._input_names():
            if name not in shapes:
                raise ConfigError(
                    f"DenseFeatures was called without the input {name!r}; it has {', '.join(shapes)}.  Call it on the "
                    "inputs of from_feature_columns of the same columns"
                )
        width = sum(column.width for column in self._columns if isinstance(column, DensePart))
        if width and shapes["x"][-1] != width:
            raise ConfigError(
                f"the input 'x' has {shapes['x'][-1]} values, but the columns of DenseFeatures have {width}: "
                "create the features and the layer from the same columns"
            )
        for name, layer in self.embeddings.items():
            if not layer.built:
                layer.build(shapes[name])

    def _input_names(self) -> list[str]:
        embedded = [column for column in self._columns if isinstance(column, EmbeddedPart)]
        names = ["x"] if len(embedded) < len(self._columns) else []
        for column in embedded:
            names += [column.name] if column.combiner is None else [column.name, _weight(column)]
        return names

    def call(self, inputs: Any) -> Any:
        """The columns side by side, `(batch, width)`."""
        tensors = _by_name(inputs)
        start = 0
        parts = []
        for column in self._columns:
            if isinstance(column, EmbeddedPart):
                parts.append(self._embedded(column, tensors))
            else:
                parts.append(tensors["x"][:, start : start + column.width])
                start += column.width
        return keras.ops.concatenate(parts, axis=1)

    def _embedded(self, column: EmbeddedPart, tensors: Mapping[str, Any]) -> Any:
        """A row for each row of ids, as `tf.nn.safe_embedding_lookup_sparse` makes it."""
        rows = self.embeddings[column.name](tensors[column.name])
        if column.max_norm is not None:
            rows = _clipped(rows, column.max_norm)
        if column.combiner is None:
            return rows
        weights = keras.ops.cast(tensors[_weight(column)], rows.dtype)
        if len(weights.shape) == 1:
            rows, weights = keras.ops.expand_dims(rows, 1), keras.ops.expand_dims(weights, 1)
        if column.combiner != "sum":
            # TensorFlow drops a value whose weight is not positive, but for a sum.
            weights = keras.ops.maximum(weights, 0)
        total = keras.ops.sum(rows * keras.ops.expand_dims(weights, -1), axis=1)
        if column.combiner == "sum":
            return total
        squared = column.combiner == "sqrtn"
        divisor = keras.ops.sum(keras.ops.square(weights) if squared else weights, axis=1, keepdims=True)
        return keras.ops.divide_no_nan(total, keras.ops.sqrt(divisor) if squared else divisor)

    def get_config(self) -> dict[str, Any]:
        """The options of the layer, and a description of each column."""
        return {**super().get_config(), "columns": [dataclasses.asdict(column) for column in self._columns]}


def _by_name(inputs: Any) -> Mapping[str, Any]:
    """The inputs, or their shapes, by name."""
    return inputs if isinstance(inputs, Mapping) else {"x": inputs}


def _weight(column: EmbeddedPart) -> str:
    return f"{column.name}_weight"


def _clipped(rows: Any, norm: float) -> Any:
    """The rows, each no longer than `norm`."""
    squares = keras.ops.sum(keras.ops.square(rows), axis=-1, keepdims=True)
    positive = squares > 0
    roots = keras.ops.sqrt(keras.ops.where(positive, squares, 1.0))  # sqrt has no gradient at 0
    lengths = keras.ops.where(positive, roots, 0.0)
    return rows * norm / keras.ops.maximum(lengths, norm)


def _read(description: Mapping[str, Any]) -> DensePart | EmbeddedPart:
    return EmbeddedPart(**description) if "buckets" in description else DensePart(**description)


def _with_initializer(part: DensePart | EmbeddedPart) -> DensePart | EmbeddedPart:
    """The part with its initializer as `keras.initializers.serialize` gives it."""
    if isinstance(part, DensePart):
        return part
    return dataclasses.replace(part, initializer=keras.initializers.serialize(_initializer(part)))


def _initializer(column: EmbeddedPart) -> Any:
    """The initializer of Keras that is like the column's."""
    given = column.initializer
    if isinstance(given, keras.initializers.Initializer):
        return given
    name = type(given).__name__
    options = {option: given.get_config()[option] for option in _INITIALIZERS.get(name, ())}
    if name == "RandomUniform" and options["maxval"] is None:
        options["maxval"] = 1.0
    if name not in _INITIALIZERS or np.ndim(options.get("value", 0)):
        raise ConfigError(
            f"column {column.name!r}: Keras has no initializer like this {name}: give the column one of "
            "keras.initializers, or set the rows of the layer afterwards"
        )
    return getattr(keras.initializers, name)(**options)
