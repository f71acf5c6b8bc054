"""Export an estimator or a pipeline of scikit-learn to ONNX, which computes in float32.

It was fitted on ``encode(...)["x"]``, or on a DataFrame with a column for each input.  A classifier has the outputs
`label` and `probabilities`, anything else `output`.  Floats that the model answers are recorded as float32, as the
graph gives them; whether the two are near enough is what the proof says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.artifact.manifest import GraphFormat
from penstock.errors import ConfigError, ExportRefused
from penstock.export.class_names import class_names
from penstock.export.exporter import GraphSignature, ModelAnswer
from penstock.export.quiet import quietly
from penstock.export.sklearn_boosting import boosting_conversions
from penstock.export.sklearn_graph import fit_edges
from penstock.features.tensors import Tensor

if TYPE_CHECKING:
    import numpy as np

OPSETS: Final = {"": 18, "ai.onnx.ml": 3}
"""The versions of ONNX that are written: every converter of skl2onnx has these."""
REASON_CHARS: Final = 700
PYTHON_WORDS: Final = r"(?u)\b\w\w+\b"
"""What scikit-learn takes for a word, where nobody says otherwise."""
WORDS: Final = r"[\p{L}\p{N}_]{2,}"
"""The same for ONNX Runtime: what skl2onnx writes takes every letter beyond ASCII for the end of a word."""


def sklearn_exporter(model: Any) -> SklearnExporter:
    """The exporter of `model`.

    Raises:
        ConfigError: it is not fitted, or predicts several things at once.
    """
    from sklearn.base import is_classifier
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(model)
    except NotFittedError as error:
        raise ConfigError(f"the {type(model).__name__} is not fitted: call fit before save") from error
    classes = getattr(model, "classes_", None) if is_classifier(model) else None
    if isinstance(classes, list):
        raise ConfigError(
            f"the {type(model).__name__} predicts {len(classes)} things at once, each with classes of its own: save a "
            "classifier for each of them"
        )
    return SklearnExporter(model, None if classes is None else classes.tolist())


class SklearnExporter:
    """A fitted model."""

    libraries = ("scikit-learn", "skl2onnx", "onnx")
    formats: Final[tuple[GraphFormat, ...]] = ("onnx",)

    def __init__(self, model: Any, classes: list[Any] | None) -> None:
        self._model = model
        self.classes = classes
        """The classes of a classifier, in the order of its probabilities."""

    def check_inputs(self, inputs: Sequence[Tensor]) -> None:
        """Refuse inputs that are neither one matrix nor the columns of the DataFrame that the model was fitted on."""
        names = [tensor.name for tensor in inputs]
        columns = getattr(self._model, "feature_names_in_", None)
        if columns is None:
            if len(inputs) > 1:
                raise ConfigError(
                    f"the features give the inputs {', '.join(names)}, and the model was fitted on an array: join them "
                    "with Features(..., join='x') and fit on encode(...)['x'], or fit on a DataFrame of the inputs"
                )
            return
        if sorted(columns) != sorted(names):
            raise ConfigError(
                f"the model was fitted on a DataFrame with the columns {', '.join(columns)}, and the features give "
                f"{', '.join(names)}: fit it on pandas.DataFrame(features.encode(...)), or on encode(...)['x']"
            )
        for tensor in inputs:
            if tensor.shape:
                raise ConfigError(
                    f"input {tensor.name!r} has {list(tensor.shape)} values a row, and a column of a DataFrame has one"
                )

    def answer(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> ModelAnswer:
        """What `predict` and `predict_proba` answer, or else `transform`."""
        rows = self._rows(inputs)
        arrays = [_as_recorded(self._call(method, rows)) for method in self._methods()]
        names = ("label", "probabilities") if self.classes is not None else ("output",)
        return ModelAnswer(arrays, defaults=names[: len(arrays)])

    def _call(self, method: str, rows: Any) -> Any:
        try:
            return getattr(self._model, method)(rows)
        except Exception as error:  # the model is the user's, and may raise anything
            raise ConfigError(
                f"{type(self._model).__name__}.{method} raised {type(error).__name__}: {error}"
            ) from error

    def write(self, format: str, folder: Path, signature: GraphSignature) -> str:  # noqa: A002  # the word users know
        """Write `model.onnx`."""
        _refuse_unlike(self._model, format)
        try:
            from skl2onnx import convert_sklearn
        except ImportError as error:
            raise ConfigError(f"{error}; to export from scikit-learn: pip install 'penstock[sklearn]'") from error
        types = [_initial(tensor) for tensor in signature.inputs]
        with quietly():
            try:
                model = convert_sklearn(
                    self._model,
                    initial_types=types,
                    options=self._options(),
                    target_opset=OPSETS,
                    **boosting_conversions(),
                )
            except Exception as error:  # skl2onnx and its converters have errors of their own, and of no common kind
                raise ExportRefused(
                    f"{_step_of(self._model, error)} does not convert to ONNX: {_reason(error)}",
                    format=format,
                ) from error
            fit_edges(model, signature.inputs, signature.outputs)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return "model.onnx"

    def _options(self) -> dict[int, dict[str, Any]]:
        """Probabilities as one matrix and not as dicts, and words that are split as scikit-learn does."""
        found = {id(step): {"tokenexp": WORDS} for _, step in _steps("", self._model) if _splits_words(step)}
        return {**found, id(self._model): {"zipmap": False}} if "predict_proba" in self._methods() else found

    def _methods(self) -> tuple[str, ...]:
        if self.classes is not None and hasattr(self._model, "predict_proba"):
            return "predict", "predict_proba"
        return ("predict",) if hasattr(self._model, "predict") else ("transform",)

    def _rows(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        """The inputs as the model was fitted on them."""
        columns = getattr(self._model, "feature_names_in_", None)
        if columns is not None:
            pandas = sys.modules.get("pandas")
            if pandas is None:
                raise ConfigError("the model was fitted on a DataFrame: import pandas before it is saved")
            return pandas.DataFrame({name: inputs[name] for name in columns})
        (array,) = inputs.values()
        is_text = array.dtype.kind in "OTU"
        if array.ndim > 1 or (is_text and not hasattr(self._model, "n_features_in_")):
            return array  # what vectorizes takes a list of texts
        return array.reshape(-1, 1)


def _as_recorded(array: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    found: np.ndarray[Any, Any] = np.asarray(array.toarray() if hasattr(array, "toarray") else array)
    if found.dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinity is refused by the proof
            return found.astype(np.float32)
    return found.astype(object) if found.dtype.kind in "TU" else found


def _splits_words(step: Any) -> bool:
    is_vectorizer = "sklearn.CountVectorizer" in class_names(step)
    return is_vectorizer and step.analyzer == "word" and step.token_pattern == PYTHON_WORDS


def _initial(tensor: Tensor) -> tuple[str, Any]:
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType

    kinds = {"float32": FloatTensorType, "int64": Int64TensorType, "str": StringTensorType}
    return tensor.name, kinds[tensor.dtype]([None, *(tensor.shape or (1,))])


def _refuse_unlike(model: Any, format: str) -> None:  # noqa: A002  # the word users know
    """Refuse what skl2onnx converts to something else, which only some rows show."""
    for part in _parts(model):
        names = class_names(part)
        if "sklearn.TunedThresholdClassifierCV" in names:
            raise ExportRefused(
                "TunedThresholdClassifierCV does not convert to ONNX: skl2onnx leaves the threshold out, so that other "
                "labels would be served; save its estimator_, and compare the probabilities with its best_threshold_",
                format=format,
            )
        if "sklearn.CalibratedClassifierCV" in names and part.method == "isotonic":
            raise ExportRefused(
                "CalibratedClassifierCV with method='isotonic' does not convert to ONNX: skl2onnx takes the nearest of "
                "the points that were fitted, where scikit-learn goes from one to the next; use method='sigmoid'",
                format=format,
            )


def _parts(value: Any) -> Iterator[Any]:
    """The estimators that a value has in it, near and far: in attributes, in lists, in dicts."""
    if "sklearn.BaseEstimator" in class_names(value):
        yield value
        value = list(vars(value).values())
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _parts(one)


def _step_of(model: Any, error: Exception) -> str:
    """The step of a pipeline that an error names, as words."""
    text = str(error)
    for path, step in reversed(list(_steps("", model))):  # what is inside comes before what holds it
        if path and (str(type(step)) in text or type(step).__name__ in text):
            return f"step {path!r} ({type(step).__name__})"
    return f"the {type(model).__name__}"


def _reason(error: Exception) -> str:
    """Why, without the weights of the model that some messages have in them."""
    text = str(error).strip()
    text = text if len(text) <= REASON_CHARS else f"{text[:REASON_CHARS]} [...]"
    return text if error.__cause__ is None else f"{text} ({error.__cause__})"


def _steps(path: str, model: Any) -> Iterator[tuple[str, Any]]:
    yield path, model
    parts = getattr(model, "steps", None) or getattr(model, "transformers_", None)
    parts = parts or getattr(model, "transformer_list", None) or getattr(model, "estimators", None) or ()
    for part in parts:
        if isinstance(part, tuple) and len(part) > 1 and not isinstance(part[1], str):
            yield from _steps(f"{path}.{part[0]}" if path else str(part[0]), part[1])
