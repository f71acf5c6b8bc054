"""Have a graph refuse what a part of its model refuses: the nodes that look, and the words.

A part refuses a category that it was not fitted with, a number outside of what it is defined for, and a number that is
not finite.  An input of a model is finite, but what a step computes of it need not be; a graph in float32 comes to
infinity sooner than scikit-learn, which computes much in float64, and refuses the row from there on.

The runtime's own encoder raises for the whole batch at an unknown category.  Here it is told to go on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.export.class_names import class_names
from penstock.export.sklearn_steps import EXACT
from penstock.graphs.refusals import Refusal

BY_COLUMN: Final = frozenset(
    {
        "sklearn.KBinsDiscretizer",
        "sklearn.MaxAbsScaler",
        "sklearn.MinMaxScaler",
        "sklearn.OrdinalEncoder",
        "sklearn.PowerTransformer",
        "sklearn.QuantileTransformer",
        "sklearn.RobustScaler",
        "sklearn.SimpleImputer",
        "sklearn.StandardScaler",
    }
)
"""The classes of what gives a column for each that it takes, in their order, where it gives as many."""
FINITE: Final = EXACT | {
    "sklearn.Binarizer",
    "sklearn.CountVectorizer",
    "sklearn.KBinsDiscretizer",
    "sklearn.TfidfTransformer",
}
"""The classes of what gives finite numbers for finite ones, whatever they are."""
COPIES: Final = frozenset({"SklearnArrayFeatureExtractor", "SklearnConcat", "SklearnIdentity"})
"""skl2onnx's own operators that compute nothing."""
LARGEST: Final = (2 - 2**-23) * 2.0**127
"""The largest number of float32."""
BELOW: Final = 1 - 1e-5
"""Leaves room for how float32 rounds a power and what it is of."""
INT64: Final = 7
FLOAT: Final = 1
"""ONNX's numbers of types."""


class RefusingNodes:
    """The nodes of one graph that look for what is refused."""

    def __init__(self, sources: Mapping[int, Sequence[tuple[str, int]]]) -> None:
        self._sources = sources
        """The inputs that a part takes unchanged, by its id, as pairs of an input and the place in a row of it."""
        self.refusals: list[Refusal] = []
        self.names: list[str] = []
        """The outputs of the nodes: for each row the number of a refusal, or 0."""
        self._seen_finite: set[str] = set()

    def add(self, part: Any, step: str, operator: Any, scope: Any, container: Any) -> None:
        """Look at what a part takes, before its converter adds its nodes."""
        columns = _columns(operator)
        for place, known in enumerate(_categories(part)):
            refusal = self._refusal(part, place, f"is unknown to {step}")
            codes = scope.get_unique_variable_name("unknown")
            name = _column(columns[place], scope, container)
            keys = _keys(known, columns[place][0])
            values = {"values_int64s": [0] * len(known), "default_int64": refusal}
            container.add_node("LabelEncoder", name, codes, op_domain="ai.onnx.ml", op_version=2, **keys, **values)
            self._take(codes, scope, container)
        for place, (low, high, words) in enumerate(_ranges(part)):
            refusal = self._refusal(part, place, f"{words}, which {step} does not take")
            name = _column(columns[place], scope, container)
            self._mark(_outside(name, low, high, scope, container), refusal, scope, container)
        for place, bound in enumerate(_bounds(part)):
            if bound is not None:
                refusal = self._refusal(part, place, f"makes a number too large for float32 in {step}")
                name = _column(columns[place], scope, container)
                self._mark(_outside(name, None, bound, scope, container), refusal, scope, container)
        self._look_for_infinity(part, step, operator, scope, container)
        if "sklearn.CategoricalNB" in class_names(part):  # its nodes look up a category, and raise where there is none
            _hold_inside(_ranges(part), operator, scope, container)

    def _look_for_infinity(self, part: Any, step: str, operator: Any, scope: Any, container: Any) -> None:
        from skl2onnx.common.data_types import FloatTensorType

        for variable in operator.inputs:
            if _is_finite(variable) or not isinstance(variable.type, FloatTensorType) or _hands_on(part):
                continue
            kind = f"{variable.full_name} {_takes_nan(part)}"
            if kind in self._seen_finite:
                continue
            self._seen_finite.add(kind)
            marks = scope.get_unique_variable_name("infinite")
            container.add_node("IsInf", variable.full_name, marks, op_version=10)
            self.refusals.append(Refusal(f"makes a number too large for float32 before {step}"))
            self._mark(marks, len(self.refusals), scope, container)
            if not _takes_nan(part):
                marks = scope.get_unique_variable_name("nan")
                container.add_node("IsNaN", variable.full_name, marks, op_version=13)
                self.refusals.append(Refusal(f"makes no number before {step}"))
                self._mark(marks, len(self.refusals), scope, container)

    def _refusal(self, part: Any, place: int, reason: str) -> int:
        """The number of a new refusal, of a column of a part."""
        sources = self._sources.get(id(part), ())
        source, at = sources[place] if place < len(sources) else ("", 0)
        self.refusals.append(Refusal(reason, source, at))
        return len(self.refusals)

    def _mark(self, marks: str, refusal: int, scope: Any, container: Any) -> None:
        """Take the refusal for the rows in which one of the booleans of a matrix is true."""
        from skl2onnx.common._apply_operation import apply_cast

        whole, code, codes = (scope.get_unique_variable_name(f"refused_{word}") for word in ("whole", "code", "codes"))
        apply_cast(scope, marks, whole, container, to=INT64)
        container.add_initializer(code, INT64, [1], [refusal])
        container.add_node("Mul", [whole, code], codes, op_version=14)
        self._take(codes, scope, container)

    def _take(self, codes: str, scope: Any, container: Any) -> None:
        """Have one number a row of a matrix of them."""
        greatest, axes = scope.get_unique_variable_name("refusal"), scope.get_unique_variable_name("axes")
        container.add_initializer(axes, INT64, [1], [1])
        container.add_node("ReduceMax", [codes, axes], greatest, op_version=18, keepdims=1)
        self.names.append(greatest)


def column_sources(model: Any, columns: Sequence[tuple[str, int]]) -> dict[int, Sequence[tuple[str, int]]]:
    """The inputs of the model that its parts take unchanged, column by column, by the ids of the parts.

    Args:
        model: the model.
        columns: its own columns, as pairs of an input and the place in a row of it.
    """
    found: dict[int, Sequence[tuple[str, int]]] = {}
    waiting: list[tuple[Any, Sequence[tuple[str, int]]]] = [(model, columns)]
    while waiting:
        part, given = waiting.pop()
        names = class_names(part)
        found[id(part)] = given
        if "sklearn.Pipeline" in names:
            for _, step in part.steps:
                waiting.append((step, given))
                if not BY_COLUMN & class_names(step) or _width_given(step) != len(given):
                    break
        elif "sklearn.ColumnTransformer" in names:
            places = part._transformer_to_input_indices
            waiting += [(one, [given[place] for place in places[name]]) for name, one, _ in part.transformers_]
        elif "sklearn.FeatureUnion" in names:
            waiting += [(one, given) for _, one in part.transformer_list]
        elif {"sklearn.VotingClassifier", "sklearn.VotingRegressor", "sklearn._BaseStacking"} & names:
            waiting += [(one, given) for one in part.estimators_]
        elif "sklearn.BaseSearchCV" in names:
            waiting.append((part.best_estimator_, given))
    return found


def _width_given(step: Any) -> int:
    """How many columns a step gives that gives one for each; 0 where that is not known."""
    if hasattr(step, "get_feature_names_out"):
        return len(step.get_feature_names_out())
    return 0


def _columns(operator: Any) -> list[tuple[Any, int | None]]:
    """The columns that an operator takes: the variable, and the place in it, None where it is one column."""
    found: list[tuple[Any, int | None]] = []
    for variable in operator.inputs:
        width = variable.get_second_dimension() if len(variable.type.shape or ()) > 1 else 1
        alone = width == 1 or not isinstance(width, int)
        # A matrix whose width is not known is the only one, and has every column.
        width = width if isinstance(width, int) else getattr(operator.raw_operator, "n_features_in_", 1)
        found += [(variable, None if alone and width == 1 else place) for place in range(width)]
    return found


def _column(column: tuple[Any, int | None], scope: Any, container: Any) -> str:
    variable, place = column
    if place is None:
        return str(variable.full_name)
    index, name = scope.get_unique_variable_name("place"), scope.get_unique_variable_name("column")
    container.add_initializer(index, INT64, [1], [place])
    container.add_node("Gather", [variable.full_name, index], name, axis=1)
    return str(name)


def _categories(part: Any) -> Sequence[Any]:
    """The categories of each column of an encoder that refuses others."""
    names = class_names(part)
    if {"sklearn.OneHotEncoder", "sklearn.OrdinalEncoder"} & names and part.handle_unknown == "error":
        found: Sequence[Any] = part.categories_
        return found
    return [part.classes_] if "sklearn.LabelEncoder" in names else []


def _keys(known: Any, variable: Any) -> dict[str, Any]:
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

    if isinstance(variable.type, FloatTensorType):
        return {"keys_floats": [float(value) for value in known]}
    if isinstance(variable.type, Int64TensorType):
        return {"keys_int64s": [int(value) for value in known]}
    return {"keys_strings": [str(value).encode() for value in known]}


def _ranges(part: Any) -> list[tuple[float | None, float | None, str]]:
    """For each column that has a range: the greatest number below it, the least above it, and words for the rest."""
    names = class_names(part)
    if "sklearn.CategoricalNB" in names:
        return [(-1, count, f"is no category of 0 to {count - 1}") for count in map(int, part.n_categories_)]
    if "sklearn.PowerTransformer" in names and part.method == "box-cox":
        return [(0, None, "is not above 0")] * int(part.n_features_in_)
    return []


def _bounds(part: Any) -> list[float | None]:
    """For each column the number from which on its power is infinite in float32, of which skl2onnx makes a 0."""
    if "sklearn.PowerTransformer" not in class_names(part):
        return []
    added = 1.0 if part.method == "yeo-johnson" else 0.0
    return [LARGEST ** (1 / power) * BELOW - added if power > 1 else None for power in map(float, part.lambdas_)]


def _outside(name: str, low: float | None, high: float | None, scope: Any, container: Any) -> str:
    """The name of the booleans that say whether a number is `low` or less, or `high` or more."""
    from skl2onnx.common._apply_operation import apply_cast

    number = scope.get_unique_variable_name("number")
    apply_cast(scope, name, number, container, to=FLOAT)
    sides = []
    for bound, compare in ((low, "LessOrEqual"), (high, "GreaterOrEqual")):
        if bound is not None:
            edge, side = scope.get_unique_variable_name("edge"), scope.get_unique_variable_name("side")
            container.add_initializer(edge, FLOAT, [1], [float(bound)])
            container.add_node(compare, [number, edge], side, op_version=16)
            sides.append(side)
    if len(sides) == 1:
        return str(sides[0])
    both = scope.get_unique_variable_name("outside")
    container.add_node("Or", sides, both, op_version=7)
    return str(both)


def _is_finite(variable: Any) -> bool:
    """Whether a variable has finite numbers for each row: an input, or what cannot make others of one."""
    if variable.is_root:
        return True
    parents = variable.operators_outputs_
    return bool(parents) and all(
        (parent.type in COPIES or _gives_finite(parent.raw_operator)) and all(map(_is_finite, parent.inputs))
        for parent in parents
    )


def _gives_finite(part: Any) -> bool:
    if "sklearn.OrdinalEncoder" in class_names(part):
        return part.unknown_value is None or math.isfinite(part.unknown_value)
    return bool(FINITE & class_names(part))


def _hold_inside(
    ranges: Sequence[tuple[float | None, float | None, str]], operator: Any, scope: Any, container: Any
) -> None:
    """Have a part take the nearest whole number inside of its range for one that is outside, and is refused."""
    from skl2onnx.common._apply_operation import apply_cast
    from skl2onnx.common.data_types import FloatTensorType

    (given,) = operator.inputs
    number, below = scope.get_unique_variable_name("number"), scope.get_unique_variable_name("below")
    low, high = scope.get_unique_variable_name("low"), scope.get_unique_variable_name("high")
    held = scope.declare_local_variable("held", FloatTensorType([None, len(ranges)]))
    apply_cast(scope, given.full_name, number, container, to=FLOAT)
    container.add_initializer(low, FLOAT, [1, len(ranges)], [low + 1 for low, _, _ in ranges if low is not None])
    container.add_initializer(high, FLOAT, [1, len(ranges)], [high - 1 for _, high, _ in ranges if high is not None])
    container.add_node("Min", [number, high], below, op_version=13)
    container.add_node("Max", [below, low], held.full_name, op_version=13)
    held.init_status(is_fed=True)
    operator.inputs = [held]


def _takes_nan(part: Any) -> bool:
    from sklearn.utils import get_tags

    return bool(get_tags(part).input_tags.allow_nan)


def _hands_on(part: Any) -> bool:
    """Whether a part looks at nothing itself, which its parts do."""
    return "sklearn.BaseEstimator" not in class_names(part) or bool(
        {"sklearn.Pipeline", "sklearn.BaseSearchCV"} & class_names(part)
    )
