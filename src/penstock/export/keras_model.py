"""Export a model of Keras 3 with the TensorFlow backend, as a SavedModel with two signatures.

`serving_default` takes raw features, as `tf_encode` does, so that TensorFlow alone serves them; `model` takes encoded
inputs.  Each is traced with the dtypes that the encoded inputs have: what Keras takes by itself is float32, which holds
no id beyond 2^24.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from penstock.artifact.manifest import GraphFormat
from penstock.errors import ConfigError, ExportRefused
from penstock.export.class_names import class_names
from penstock.export.exporter import GraphSignature, ModelAnswer, WholeModel
from penstock.export.naming import split_outputs
from penstock.export.quiet import quietly
from penstock.features.tensors import TensorSpec

if TYPE_CHECKING:
    import numpy as np

    from penstock.features.feature_spec import Features

FOLDER: Final = "saved_model"
HOLDS: Final = {"float32": {"float32", "float64"}, "int64": {"int64"}, "str": {"string"}}
"""For each dtype of an encoded input, the dtypes of `keras.Input` that hold all of its values."""

T = TypeVar("T")
Inputs: TypeAlias = dict[str, Any]
"""Tensors by the names of the encoded inputs."""


def keras_exporter(model: Any, features: Features) -> KerasExporter:
    """The exporter of `model`.

    Raises:
        ConfigError: Keras runs on another backend than TensorFlow, or rows of the model are in a training store.
    """
    import keras

    for layer in model._flatten_layers():
        if "penstock.Offloaded" in class_names(layer):
            raise ConfigError(
                f"layer {layer.name!r} has its rows in a training store: pass the object that "
                "penstock.embeddings.offload returned to save, not the model"
            )

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ConfigError(
            f"Keras runs on the backend {backend!r}, but save supports only 'tensorflow': set "
            "KERAS_BACKEND=tensorflow before keras is imported, and load the model again"
        )
    return KerasExporter(model, features)


class KerasExporter(WholeModel):
    """A model of Keras, and the features that its raw signature encodes."""

    libraries = ("keras", "tensorflow", "tensorflow-cpu")
    formats: Final[tuple[GraphFormat, ...]] = ("saved_model",)
    classes = None
    doubt = ""
    refuses_rows = False

    def __init__(self, model: Any, features: Features) -> None:
        self._model = model
        self._features = features
        self._takes_tensor = False
        """Whether a subclassed model with one input takes that tensor, and no dict of one."""

    def check_inputs(self, inputs: Sequence[TensorSpec]) -> None:
        """Refuse names that a SavedModel cannot have, and what does not fit the model's own inputs."""
        for name in dict.fromkeys([*(tensor.name for tensor in inputs), *self._features.columns]):
            if not name.isidentifier() or not name.isascii() or name.startswith("_"):
                raise ConfigError(
                    f"{name!r} cannot be the name of an input or a column of a SavedModel: give it a name of ASCII "
                    "letters, digits and `_` that begins with a letter"
                )
        if "Sequential" in _own_kinds(self._model) and len(inputs) > 1 and not _takes_dict(self._model):
            raise ConfigError(
                "a Sequential model has one input, but the features have "
                f"{', '.join(tensor.name for tensor in inputs)}: join them with Features(..., concat_into='x')"
            )
        declared = _declared_inputs(self._model)
        if declared is None:
            return
        wanted = {inputs[0].name: next(iter(declared.values()))} if len(declared) == len(inputs) == 1 else declared
        given = {tensor.name: tensor for tensor in inputs}
        if set(wanted) != set(given):
            raise ConfigError(
                f"the model has the inputs {', '.join(sorted(wanted))}, but the features have "
                f"{', '.join(sorted(given))}: name each keras.Input after its feature"
            )
        for name, tensor in given.items():
            _check_holds(tensor, wanted[name])

    def answer(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> ModelAnswer:
        """What the model answers with ``training=False``."""
        import tensorflow as tf

        tensors = {name: tf.constant(array) for name, array in inputs.items()}
        try:
            parts, names = split_outputs(self._ask(tensors))
        except ConfigError:
            raise
        except Exception as error:  # the model is the user's, and may raise anything
            called = ", ".join(f"{name!r}: {array.dtype}{list(array.shape)}" for name, array in inputs.items())
            raise ConfigError(
                f"the model could not be called with {{{called}}}: {type(error).__name__}: {error}"
            ) from error
        shown = names or [f"number {place}" for place in range(len(parts))]
        return ModelAnswer([_to_array(part, name) for part, name in zip(parts, shown, strict=True)], names)

    def write(self, format: str, folder: Path, signature: GraphSignature) -> str:  # noqa: A002  # the word users know
        """Write the folder `saved_model`."""
        import tensorflow as tf

        from penstock.features.tensorflow_ops import tf_signature

        names = [tensor.name for tensor in signature.outputs]
        specs = {tensor.name: tensor_spec(tensor) for tensor in signature.inputs}

        def answer_encoded(inputs: Inputs) -> Inputs:
            return self.answer_named(inputs, names)

        def answer_raw(columns: Inputs) -> Inputs:
            return answer_encoded(self._features.tf_encode(columns))

        def trace(answer: Callable[[Inputs], Inputs], takes: Inputs) -> Any:
            return tf.function(answer, input_signature=[takes], autograph=False).get_concrete_function()

        encoded = traced(lambda: trace(answer_encoded, specs), format)
        refuse_python(encoded, format)
        raw = traced(lambda: trace(answer_raw, tf_signature(self._features)), format)
        self.save({"serving_default": raw, "model": encoded}, format, folder)
        return FOLDER

    def answer_named(self, inputs: Inputs, names: Sequence[str]) -> Inputs:
        """Tensors of the outputs by their names, for a graph that is traced."""
        return dict(zip(names, split_outputs(self._call(inputs))[0], strict=True))

    def save(self, signatures: Mapping[str, Any], format: str, folder: Path) -> None:  # noqa: A002
        """Write the folder `saved_model` with these signatures, concrete functions of the one model.

        Raises:
            ExportRefused: one uses what the model does not hold.
        """
        import tensorflow as tf

        with quietly():
            try:
                held = tf.Module()
                held.model = self._model
                held.weights = list(self._model.variables)  # TensorFlow itself finds none in a list inside of a list
                held.functions = dict(signatures)
                with _without_own_signatures(self._model):
                    tf.saved_model.save(held, str(folder / FOLDER), signatures=held.functions)
            except Exception as error:  # many of TensorFlow's
                raise ExportRefused(
                    f"TensorFlow cannot save the model: {_why_unsaved(error)}", format=format
                ) from error

    def _ask(self, tensors: Inputs) -> Any:
        """The model's answer; finds out what a subclassed model with one input takes."""
        kinds = _own_kinds(self._model)
        if len(tensors) > 1 or kinds & {"Sequential", "Functional"}:
            return self._call(tensors)
        self._takes_tensor = False
        try:
            return self._call(tensors)
        except Exception as of_dict:  # noqa: BLE001  # the user's own code; told below
            self._takes_tensor = True
            try:
                return self._call(tensors)
            except Exception as of_tensor:  # the user's own code too
                raise ConfigError(
                    "the model takes neither a dict of its one input nor the tensor itself.  With a dict: "
                    f"{_reason(of_dict)}.  With the tensor: {_reason(of_tensor)}"
                ) from of_tensor

    def _call(self, tensors: Inputs) -> Any:
        kinds = _own_kinds(self._model)
        of_tensor = not _takes_dict(self._model) if "Sequential" in kinds else self._takes_tensor
        if of_tensor and len(tensors) == 1:
            (tensor,) = tensors.values()
            return self._model(tensor, training=False)
        if "Functional" in kinds:
            return self._model(_as_declared(self._model, tensors), training=False)
        return self._model(dict(tensors), training=False)


@contextlib.contextmanager
def _without_own_signatures(model: Any) -> Iterator[None]:
    """Keep Keras from tracing each model in `model` once more, as it was first called: nobody asks for that signature.

    It cannot be traced where `call` needs `training`, or where the first call failed.
    """
    name = "_default_save_signature"
    holder = next((kind for kind in type(model).__mro__ if name in vars(kind)), None)
    if holder is None:
        yield
        return
    before = vars(holder)[name]
    setattr(holder, name, None)
    try:
        yield
    finally:
        setattr(holder, name, before)


def _own_kinds(model: Any) -> set[str]:
    """Which of the kinds of Keras `model` is, besides a Model."""
    return {"Sequential", "Functional"} & {name.removeprefix("keras.") for name in class_names(model)}


def _declared_inputs(model: Any) -> dict[str, Any] | None:
    """The inputs that the model was made with, by the names that a dict of them has; None where it has not any."""
    if "Functional" in _own_kinds(model):
        if isinstance(model.input, dict):
            return dict(model.input)
        return {tensor.name: tensor for tensor in model.inputs}
    if "Sequential" in _own_kinds(model) and hasattr(model, "inputs"):
        return {tensor.name: tensor for tensor in model.inputs}
    return None


def _takes_dict(model: Any) -> bool:
    """Whether a Sequential takes a dict: it was built by a call on one, or its first layer is one that takes a dict."""
    if hasattr(model, "inputs"):
        return False
    return model.built or any("penstock.DenseFeatures" in class_names(layer) for layer in model.layers[:1])


def _as_declared(model: Any, tensors: Inputs) -> Any:
    """The tensors as the functional `model` takes them: each where its input is, whatever the order of their names."""
    import keras

    declared = model.input
    if len(model.inputs) == 1 and len(tensors) == 1:
        (tensor,) = tensors.values()
        return keras.tree.map_structure(lambda _: tensor, declared)
    if isinstance(declared, dict):
        return {name: tensors[name] for name in declared}
    return keras.tree.map_structure(lambda wanted: tensors[wanted.name], declared)


def _check_holds(tensor: TensorSpec, declared: Any) -> None:
    if declared.dtype not in HOLDS[tensor.dtype]:
        wanted = "string" if tensor.dtype == "str" else tensor.dtype
        raise ConfigError(
            f"input {tensor.name!r}: the model takes {declared.dtype}, but the feature is {wanted!r}, so "
            f"Keras would convert values silently; write keras.Input(..., dtype={wanted!r}, "
            f"name={tensor.name!r})"
        )


def tensor_spec(tensor: TensorSpec, batch: int | None = None) -> Any:
    """Spec of `tensor` for a function of TensorFlow: of any batch, or one of that size."""
    import tensorflow as tf

    dtype = tf.string if tensor.dtype == "str" else tf.as_dtype(tensor.dtype)
    return tf.TensorSpec((batch, *tensor.shape), dtype, name=tensor.name)


def traced(trace: Callable[[], T], format: str) -> T:  # noqa: A002
    """Have TensorFlow follow a model, which `trace` does, and return its result; ExportRefused where it cannot."""
    with quietly():
        try:
            return trace()
        except ExportRefused:
            raise
        except Exception as error:  # tracing raises the model's errors, and many of TensorFlow's
            raise ExportRefused(f"TensorFlow cannot trace the model: {_reason(error)}", format=format) from error


def refuse_python(function: Any, format: str) -> None:  # noqa: A002  # the word users know
    """Raise ExportRefused for an operation that calls Python in this process: in another one it is not there."""
    for node in _nodes(function.graph.as_graph_def()):
        if "PyFunc" in node.op or "NumpyFunction" in node.op:
            raise ExportRefused(
                "the model runs Python code inside of its graph, which no other process can run: operation "
                f"{node.name!r} is a {node.op}, as tf.py_function and tf.numpy_function create; write it with "
                "operations of keras.ops",
                format=format,
            )


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _to_array(part: Any, name: str) -> np.ndarray[Any, Any]:
    import numpy as np
    import tensorflow as tf

    if not isinstance(part, tf.Tensor):
        raise ConfigError(
            f"output {name} is a {type(part).__name__}: the model must return a dense tensor, or a dict or list of "
            "such tensors"
        )
    if part.dtype == tf.bfloat16:
        raise ConfigError(f"output {name} is bfloat16, which numpy does not have: cast it to float32")
    array: np.ndarray[Any, Any] = np.array(part.numpy())
    if part.dtype == tf.string:
        decode: Callable[[bytes], str] = bytes.decode
        return np.array([decode(text) for text in array.ravel()], dtype=object).reshape(array.shape)
    return array


def _why_unsaved(error: Exception) -> str:
    if "'untracked' resource" not in str(error):
        return _reason(error)
    return (
        "it uses a table or a variable that TensorFlow does not track, such as one in a list inside "
        "of a list: assign it, or the layer that has it, to an attribute of the model.  "
        f"{_reason(error)}"
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1500]
