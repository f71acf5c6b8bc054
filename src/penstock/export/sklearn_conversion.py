"""Have skl2onnx convert a model part by part, and put around each of its converters what it leaves out.

Contract
--------
* A part that takes one matrix and is given several columns takes these joined; most converters of skl2onnx read the
  first column alone, and do not say so.  An encoder looks at each column by itself, and takes them as they are.
* A part that counts words is given them: `sklearn_words`.
* Nodes beside those of a part look for what it refuses: `sklearn_refusals`.
* The nodes of a part are named by its path, so that an error of the runtime names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from penstock.export.class_names import class_names
from penstock.export.sklearn_boosting import boosting_conversions
from penstock.export.sklearn_refusals import RefusingNodes, column_sources
from penstock.export.sklearn_selection import selection_conversions
from penstock.export.sklearn_steps import parts_of, told
from penstock.export.sklearn_voting import voting_conversions
from penstock.export.sklearn_words import TERMS, takes_words, words_of
from penstock.graphs.words import Words

Converter: TypeAlias = Callable[[Any, Any, Any], None]
ShapeCalculator: TypeAlias = Callable[[Any], None]

BY_COLUMN: Final = frozenset({"sklearn.OneHotEncoder", "sklearn.OrdinalEncoder", "sklearn.TargetEncoder"})
"""The classes of what looks at each column by itself, and takes columns of several types."""
HANDS_ON: Final = frozenset(
    {
        "sklearn.ColumnTransformer",
        "sklearn.FeatureUnion",
        "sklearn.Pipeline",
        "sklearn.VotingClassifier",
        "sklearn.VotingRegressor",
    }
)
"""The classes of what hands every column on to its parts, of which one may ask for columns by their names."""


class Conversion:
    """The conversion of one model: skl2onnx asks for the shapes of each part, and then has it converted.

    Args:
        model: the model.
        columns: its columns, as pairs of an input and the place in a row of it.
    """

    def __init__(self, model: Any, columns: Sequence[tuple[str, int]]) -> None:
        self.refusing = RefusingNodes(column_sources(model, columns))
        self.words: list[Words] = []
        """The words that the graph is to be given."""
        parts = parts_of(model)
        self._paths = {id(part): path for path, part in parts}
        own = [boosting_conversions(), voting_conversions(), selection_conversions()]
        self._converters = {kind: convert for converters, _ in own for kind, convert in converters.items()}
        self._shapes = {kind: shape for _, shapes in own for kind, shape in shapes.items()}
        self._joined: dict[str, list[Any]] = {}
        """The columns that an operator is to take as one matrix, by the operator's name."""
        self._kinds = {type(part) for _, part in parts}

    def tables(self) -> tuple[dict[type, Converter], dict[type, ShapeCalculator]]:
        """The converters and the calculators of shapes of the parts, by class, as skl2onnx takes them."""
        from skl2onnx._supported_operators import sklearn_operator_name_map

        known = self._kinds & sklearn_operator_name_map.keys()
        return dict.fromkeys(known, self.convert), dict.fromkeys(known, self.shape)

    def shape(self, operator: Any) -> None:
        """Calculate the shapes of what a part gives, where it takes its columns joined."""
        from skl2onnx.common._registration import get_shape_calculator

        if _is_whole(operator) and (joined := _joined_type(operator)):
            self._joined[operator.onnx_name] = list(operator.inputs)
            matrix = operator.scope_inst.declare_local_variable("joined", joined)
            matrix.init_status(is_fed=True, is_root=all(column.is_root for column in operator.inputs))
            operator.inputs = [matrix]
        calculate = self._shapes.get(type(operator.raw_operator)) or get_shape_calculator(operator.type)
        calculate(operator)

    def convert(self, scope: Any, operator: Any, container: Any) -> None:
        """Convert a part, after a node that joins its columns."""
        from skl2onnx.common._registration import get_converter

        start = len(container.nodes)
        if columns := self._joined.get(operator.onnx_name):
            _join(scope, columns, operator.inputs[0], container)
        part = operator.raw_operator
        path = self._paths.get(id(part), "")
        if _is_whole(operator):
            self.refusing.add(part, told(path, part), operator, scope, container)
            if takes_words(part):
                self.words.append(words_of(part, operator, scope))
                self._paths[id(operator.raw_operator)] = path
                container.add_options(id(operator.raw_operator), {"tokenexp": TERMS})
        convert = self._converters.get(type(part)) or get_converter(operator.type)
        convert(scope, operator, container)
        for node in container.nodes[start:]:
            node.name = f"{path or type(part).__name__}/{node.name}"
            _go_on_at_unknown(node)


def _go_on_at_unknown(node: Any) -> None:
    """Have the runtime's encoder give zeros for an unknown category, and not raise for the whole batch."""
    if node.op_type == "OneHotEncoder":
        for attribute in node.attribute:
            if attribute.name == "zeros":
                attribute.i = 1


def _is_whole(operator: Any) -> bool:
    """Whether an operator is all of its part, and not a step that a converter has made of it."""
    from skl2onnx._supported_operators import sklearn_operator_name_map

    return bool(operator.type == sklearn_operator_name_map[type(operator.raw_operator)])


def _joined_type(operator: Any) -> Any:
    """The type of the matrix that an operator takes instead of its columns; None where it takes them as they are."""
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

    kinds = [type(column.type) for column in operator.inputs]
    if len(kinds) == 1 or (BY_COLUMN | HANDS_ON) & class_names(_chosen(operator.raw_operator)):
        return None
    width = _width(operator.inputs)
    if len(set(kinds)) == 1:
        return kinds[0]([None, width])
    return FloatTensorType([None, width]) if set(kinds) <= {FloatTensorType, Int64TensorType} else None


def _chosen(part: Any) -> Any:
    """The part that a search has chosen, whose shapes its converter calculates itself; any other part as it is."""
    while "sklearn.BaseSearchCV" in class_names(part):
        part = part.best_estimator_
    return part


def _width(columns: Sequence[Any]) -> int | None:
    widths = [column.type.shape[1] if len(column.type.shape) > 1 else 1 for column in columns]
    return None if None in widths else sum(widths)


def _join(scope: Any, columns: Sequence[Any], matrix: Any, container: Any) -> None:
    from skl2onnx.common._apply_operation import apply_cast, apply_concat

    names = []
    for column in columns:
        names.append(column.full_name)
        if type(column.type) is not type(matrix.type):
            names[-1] = scope.get_unique_variable_name(f"{column.full_name}_cast")
            element = matrix.type.to_onnx_type().tensor_type.elem_type
            apply_cast(scope, column.full_name, names[-1], container, to=element)
    apply_concat(scope, names, matrix.full_name, container, axis=1)
