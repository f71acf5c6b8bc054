"""Name the parts of a model of scikit-learn, and the one that an error of skl2onnx is about.

The path of a part is made of the names that it has in its pipelines and ensembles, as `votingclassifier.tree`, and of
attributes where it has no name, as `calibratedclassifiercv.estimator`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.export.class_names import class_names

HOLDERS: Final = frozenset({"sklearn.BaseEstimator", "sklearn._CalibratedClassifier"})
"""The classes of what has estimators in its attributes."""
TREES: Final = frozenset(
    {
        "sklearn.BaseDecisionTree",
        "sklearn.BaseForest",
        "sklearn.BaseGradientBoosting",
        "sklearn.BaseHistGradientBoosting",
        "sklearn.IsolationForest",
    }
)
EXACT: Final = frozenset(
    {
        "sklearn.OneHotEncoder",
        "sklearn.OrdinalEncoder",
        "sklearn.SelectorMixin",
        "sklearn.SimpleImputer",
        "sklearn.Pipeline",
        "sklearn.ColumnTransformer",
        "sklearn.FeatureUnion",
        "sklearn.FunctionTransformer",  # with a function it does not convert
    }
)
"""What computes no number, or leaves that to its parts: the rest that has `transform` does."""
NO_CONVERTER: Final = frozenset({"skl2onnx.MissingShapeCalculator", "skl2onnx.MissingConverter"})
REASON_CHARS: Final = 700


def parts_of(model: Any) -> list[tuple[str, Any]]:
    """The estimators in `model`, near and far, with their paths; `model` itself comes first and has the path ""."""
    return list(_walk("", model, set()))


def told(path: str, part: Any) -> str:
    """A part as words, the subject of a sentence."""
    return f"step {path!r} ({type(part).__name__})" if path else f"the {type(part).__name__}"


def deciding_part(model: Any) -> Any:
    """The part whose labels are those of `model`: the last of a pipeline or a stack, or what a search has chosen."""
    while True:
        inner = getattr(model, "best_estimator_", getattr(model, "final_estimator_", None))
        if inner is None and "sklearn.Pipeline" in class_names(model):
            inner = model.steps[-1][1]
        if inner is None or isinstance(inner, str):
            return model
        model = inner


def has_trees_behind_steps(model: Any) -> bool:
    """Whether a tree in `model` takes numbers that another step has computed, and not the inputs themselves."""
    return any(_is_behind_steps(part) for _, part in parts_of(model))


def _is_behind_steps(part: Any) -> bool:
    """Whether trees are the last of a stack, or come after a step that computes in a pipeline."""
    if _has(TREES, getattr(part, "final_estimator_", None)):
        return True
    if "sklearn.Pipeline" not in class_names(part):
        return False
    computed = False
    for _, step in part.steps:
        if computed and _has(TREES, step):
            return True
        computed = computed or any(hasattr(one, "transform") and not EXACT & class_names(one) for one in _inside(step))
    return False


def _has(kinds: frozenset[str], value: Any) -> bool:
    return any(kinds & class_names(one) for one in _inside(value))


def _inside(value: Any) -> list[Any]:
    return [part for _, part in parts_of(value)]


def refusal_of(model: Any, error: Exception) -> str:
    """A sentence that says which part of `model` does not convert, why, and what can be done where that is known."""
    path, part = _culprit(parts_of(model), error)
    return f"{told(path, part)} cannot be converted to ONNX: {_reason(part, error)}"


def _walk(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(value) in seen or not HOLDERS & class_names(value):
        return
    seen.add(id(value))
    if "sklearn.BaseEstimator" in class_names(value):
        yield path, value
    attributes = vars(value)
    if "best_estimator_" in attributes:  # a search: what it has tried besides is no part of the model
        attributes = {"best_estimator_": attributes["best_estimator_"]}
    # What has names comes first: a part is told by the first path that leads to it.
    inner = [pair for held in attributes.values() for pair in _named(held)]
    inner += [pair for attribute, held in attributes.items() for pair in _unnamed(attribute, held)]
    for name, one in inner:
        yield from _walk(f"{path}.{name}" if path else name, one, seen)


def _named(held: Any) -> Iterator[tuple[str, Any]]:
    """What a dict holds by its keys, or a list of tuples by their first elements."""
    if isinstance(held, Mapping):
        yield from ((str(name), one) for name, one in held.items())
    if isinstance(held, (list, tuple)):
        for pair in held:
            if isinstance(pair, tuple) and len(pair) > 1 and isinstance(pair[0], str):
                yield pair[0], pair[1]


def _unnamed(attribute: str, held: Any) -> Iterator[tuple[str, Any]]:
    yield attribute, held
    if isinstance(held, (list, tuple)):
        yield from ((f"{attribute}[{place}]", one) for place, one in enumerate(held))


def _culprit(parts: Sequence[tuple[str, Any]], error: Exception) -> tuple[str, Any]:
    """The part whose class the error names, else the one that was being converted, else the whole model."""
    text = str(error)
    named = [(path, part) for path, part in parts if path and str(type(part)) in text]
    named = named or [(path, part) for path, part in parts if path and _has_word(text, type(part).__name__)]
    if named:  # what is inside comes before what holds it, and what has a name before one of a list
        return ([found for found in named if "[" not in found[0]] or named)[-1]
    by_id = {id(part): place for place, (_, part) in enumerate(parts)}
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        operator = frame.f_locals.get("operator")  # as every converter of skl2onnx calls it
        place = by_id.get(id(getattr(operator, "raw_operator", None)))
        if place is not None:
            return parts[place]
    return parts[0]


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text) is not None


def _reason(part: Any, error: Exception) -> str:
    """Why, without the weights of the model that some messages have in them."""
    text = str(error).strip()
    if NO_CONVERTER & class_names(error) or (isinstance(error, KeyError) and error.args == (type(part),)):
        return (
            "skl2onnx has no converter for its class; use one of another class instead, or, if it "
            "prepares inputs, prepare them before they are passed to the features"
        )
    text = text if len(text) <= REASON_CHARS else f"{text[:REASON_CHARS]} [...]"
    return text if error.__cause__ is None else f"{text} ({error.__cause__})"
