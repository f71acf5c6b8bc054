"""Export an estimator or a pipeline of scikit-learn to ONNX, which computes in float32.

It was fitted on ``encode(...)["x"]``, or on a DataFrame with a column for each input.  A classifier has the outputs
`label` and `probabilities`, anything else `output`.  Floats that the model answers are recorded as float32, as the
graph gives them; whether the two are near enough is what the proof says.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.artifact.manifest import GraphFormat
from penstock.errors import ConfigError, ExportRefused
from penstock.export.class_names import class_names
from penstock.export.exporter import GraphSignature, ModelAnswer, WholeModel
from penstock.export.quiet import quietly
from penstock.export.sklearn_conversion import Conversion
from penstock.export.sklearn_graph import add_refusals, add_words, fit_edges
from penstock.export.sklearn_steps import deciding_part, has_trees_behind_steps, parts_of, refusal_of, told
from penstock.export.sklearn_words import own_function
from penstock.features.tensors import TensorSpec

if TYPE_CHECKING:
    import numpy as np

    from penstock.features.feature_spec import Features

OPSETS: Final = {"": 18, "ai.onnx.ml": 3}
"""The versions of ONNX that are written: every converter of skl2onnx has these."""
BRANCHES: Final = (
    "trees use values computed by steps before them, and in float32 a value that is rounded "
    "across a threshold takes another branch, so that the output for single rows can differ much"
)


def sklearn_exporter(model: Any, features: Features | None = None) -> SklearnExporter:  # noqa: ARG001  # a model of Keras needs them
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
            f"the {type(model).__name__} predicts {len(classes)} targets, each with classes of its own: "
            "save a classifier for each of them"
        )
    return SklearnExporter(model, None if classes is None else classes.tolist())


class SklearnExporter(WholeModel):
    """A fitted model."""

    libraries = ("scikit-learn", "skl2onnx", "onnx")
    formats: Final[tuple[GraphFormat, ...]] = ("onnx",)
    refuses_rows = True

    def __init__(self, model: Any, classes: list[Any] | None) -> None:
        self._model = model
        self.classes = classes
        """The classes of a classifier, in the order of its probabilities."""
        self.doubt = BRANCHES if has_trees_behind_steps(model) else ""

    def check_inputs(self, inputs: Sequence[TensorSpec]) -> None:
        """Refuse inputs that are neither one matrix nor the columns of the DataFrame that the model was fitted on."""
        names = [tensor.name for tensor in inputs]
        columns = getattr(self._model, "feature_names_in_", None)
        if columns is None:
            if len(inputs) > 1:
                raise ConfigError(
                    f"the features have the inputs {', '.join(names)}, but the model was fitted on an array: "
                    "join them with Features(..., concat_into='x') and fit on encode(...)['x'], or fit on a DataFrame "
                    "of the inputs"
                )
            return
        if sorted(columns) != sorted(names):
            raise ConfigError(
                f"the model was fitted on a DataFrame with the columns {', '.join(columns)}, but the features "
                f"have {', '.join(names)}: fit it on pandas.DataFrame(features.encode(...)), or on "
                "encode(...)['x']"
            )
        for tensor in inputs:
            if tensor.shape:
                raise ConfigError(
                    f"input {tensor.name!r} has {list(tensor.shape)} values a row, but a column of a DataFrame has one"
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
            import skl2onnx  # noqa: F401  # here, for what comes next may raise anything
        except ImportError as error:
            raise ConfigError(f"{error}; to export from scikit-learn: pip install 'penstock[sklearn]'") from error
        with quietly():
            try:
                model = self._convert(signature)
            except Exception as error:  # skl2onnx and its converters have errors of their own, and of no common kind
                raise ExportRefused(refusal_of(self._model, error), format=format) from error
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return "model.onnx"

    def _convert(self, signature: GraphSignature) -> Any:
        from skl2onnx import convert_sklearn

        names = [tensor.name for tensor in signature.inputs]
        columns = list(getattr(self._model, "feature_names_in_", names))  # joined in the order of the DataFrame
        tensors = sorted(signature.inputs, key=lambda tensor: columns.index(tensor.name))
        places = [(tensor.name, place) for tensor in tensors for place in range((tensor.shape or (1,))[0] or 1)]
        conversion = Conversion(self._model, places)
        converters, shapes = conversion.tables()
        model = convert_sklearn(
            self._model,
            initial_types=[_initial(tensor) for tensor in tensors],
            options=self._options(),
            target_opset=OPSETS,
            custom_conversion_functions=converters,
            custom_shape_calculators=shapes,
        )
        words = [value for value in model.graph.input if value.name in {one.name for one in conversion.words}]
        given = [model.graph.input[columns.index(name)] for name in names]
        del model.graph.input[:]
        model.graph.input.extend(given)
        fit_edges(model, signature.inputs, signature.outputs)
        add_refusals(model, conversion.refusing.names, conversion.refusing.refusals)
        add_words(model, words, conversion.words)
        return model

    def _options(self) -> dict[int, dict[str, Any]]:
        """Probabilities as one matrix and not as dicts."""
        # Without its own a pipeline sets an option for LinearSVC that its converter lacks.
        steps = [step for _, step in parts_of(self._model) if "sklearn.LinearSVC" in class_names(step)]
        found: dict[int, dict[str, Any]] = {id(step): {"raw_scores": False} for step in steps}
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


def _initial(tensor: TensorSpec) -> tuple[str, Any]:
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType

    kinds = {"float32": FloatTensorType, "int64": Int64TensorType, "str": StringTensorType}
    return tensor.name, kinds[tensor.dtype]([None, *(tensor.shape or (1,))])


def _refuse_unlike(model: Any, format: str) -> None:  # noqa: A002  # the word users know
    """Refuse what skl2onnx converts to something else, which only some rows show, and what it takes for a mistake."""
    for path, part in parts_of(model):
        if reason := _unlike(part) or (_unlike_labels(part) if part is deciding_part(model) else ""):
            raise ExportRefused(f"{told(path, part)} cannot be converted to ONNX: {reason}", format=format)


def _unlike_labels(part: Any) -> str:
    """Why the labels of a classifier are not those of its graph; "" where they are.

    These predict the class of the greatest decision value, and skl2onnx takes that of the greatest probability.  Far
    from the rows of training, several probabilities are 1 in float32, and the first of them wins.
    """
    names = class_names(part)
    decides = "sklearn.SGDClassifier" in names and part.loss == "log_loss"
    decides |= "sklearn.OneVsRestClassifier" in names and any(
        hasattr(member, "decision_function") for member in part.estimators_
    )
    if not decides or len(part.classes_) <= 2:
        return ""
    return (
        "it predicts the class of the greatest decision value, but skl2onnx that of the greatest "
        "probability, of which several are 1 in float32; use LogisticRegression, which has the same "
        "labels in both"
    )


def _unlike(part: Any) -> str:
    """Why a part must not be handed to skl2onnx; "" where it may."""
    names = class_names(part)
    if "sklearn.TunedThresholdClassifierCV" in names:
        return (
            "skl2onnx ignores the threshold, so that other labels would be served; save its estimator_, "
            "and compare the probabilities with its best_threshold_"
        )
    if "sklearn.CalibratedClassifierCV" in names and part.method == "isotonic":
        return (
            "with method='isotonic' skl2onnx uses the nearest fitted point, where scikit-learn "
            "interpolates; use method='sigmoid'"
        )
    if "sklearn.VotingClassifier" in names and part.voting == "hard":
        return (
            "with voting='hard' skl2onnx counts the most probable class of each member, and not its "
            "prediction; use voting='soft', which requires predict_proba"
        )
    if "sklearn.KBinsDiscretizer" in names and part.encode == "onehot":
        return "with encode='onehot', its default, it returns a sparse matrix; use encode='onehot-dense'"
    if _has_empty_column(part):
        remedy = ", or set keep_empty_features=True" if "sklearn.SimpleImputer" in names else ""
        return (
            "one of its columns had only missing values when it was fitted, which skl2onnx does not "
            f"support; remove the column{remedy}"
        )
    if parameter := own_function(part):
        return (
            f"{parameter}= is a function, and a graph holds no code; prepare the text before it is passed "
            "to the features"
        )
    if "sklearn.Pipeline" in names:
        idle = [name for name, step in part.steps if step is None or step == "passthrough"]
        if idle:
            return f"skl2onnx does not support a step that passes everything through, such as {idle[0]!r}; remove it"
    return ""


def _has_empty_column(part: Any) -> bool:
    """Whether an imputer was fitted with a column of which it knows nothing: it leaves that out, or makes it zeros."""
    names = class_names(part)
    if not hasattr(part, "n_features_in_"):  # what a ColumnTransformer was made of is not fitted itself
        return False
    if "sklearn.KNNImputer" in names:
        return not part._valid_mask.all()
    if "sklearn.SimpleImputer" not in names:
        return False
    indicators = 0 if part.indicator_ is None else len(part.indicator_.features_)
    return bool(len(part.get_feature_names_out()) - indicators < part.n_features_in_)
