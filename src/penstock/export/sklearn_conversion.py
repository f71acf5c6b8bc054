"""Have skl2onnx convert a model part by part, and put around each of its converters what it leaves out.

Contract
--------
* A part that takes one matrix and is given several columns takes these joined; most converters of skl2onnx read the
  first column alone, and do not say so.  An encoder looks at each column by itself, and takes them as they are.
* The nodes of a part are named by its path, so that an error of the runtime names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from penstock.export.class_names import class_names
from penstock.export.sklearn_boosting import boosting_conversions
from penstock.export.sklearn_selection import selection_conversions
from penstock.export.sklearn_steps import parts_of
from penstock.export.sklearn_voting import voting_conversions

Converter: TypeAlias = Callable[[Any, Any, Any], None]
ShapeCalculator: TypeAlias = Callable[[Any], None]

BY_COLUMN: Final = frozenset({"sklearn.OneHotEncoder", "sklearn.OrdinalEncoder"})
"""The classes of what looks at each column by itself, and takes columns of several types."""
HANDS_ON: Final = frozenset(
    {
        "sklearn.BaseSearchCV",
        "sklearn.ColumnTransformer",
        "sklearn.FeatureUnion",
        "sklearn.Pipeline",
        "sklearn.VotingClassifier",
        "sklearn.VotingRegressor",
    }
)
"""The classes of what hands every column on to its parts, of which one may ask for columns by their names."""


def conversion_tables(model: Any) -> tuple[dict[type, Converter], dict[type, ShapeCalculator]]:
    """The converters and the calculators of shapes of the parts of `model`, by class, as skl2onnx takes them."""
    from skl2onnx._supported_operators import sklearn_operator_name_map

    own = [boosting_conversions(), voting_conversions(), selection_conversions()]
    parts = _Parts(
        {id(part): path or type(part).__name__ for path, part in parts_of(model)},
        {kind: convert for converters, _ in own for kind, convert in converters.items()},
        {kind: shape for _, shapes in own for kind, shape in shapes.items()},
    )
    kinds = {type(part) for _, part in parts_of(model)} & sklearn_operator_name_map.keys()
    return dict.fromkeys(kinds, parts.convert), dict.fromkeys(kinds, parts.shape)


class _Parts:
    """The parts of a model while it is converted: skl2onnx asks for the shapes of one, and then has it converted."""

    def __init__(
        self, paths: Mapping[int, str], converters: Mapping[type, Converter], shapes: Mapping[type, ShapeCalculator]
    ) -> None:
        self._paths = paths
        """The path of each part, by the id of the part."""
        self._converters = converters
        self._shapes = shapes
        self._joined: dict[str, list[Any]] = {}
        """The columns that an operator is to take as one matrix, by the operator's name."""

    def shape(self, operator: Any) -> None:
        """Calculate the shapes of what a part gives, where it takes its columns joined."""
        from skl2onnx.common._registration import get_shape_calculator

        if joined := _joined_type(operator):
            self._joined[operator.onnx_name] = list(operator.inputs)
            matrix = operator.scope_inst.declare_local_variable("joined", joined)
            matrix.init_status(is_fed=True)
            operator.inputs = [matrix]
        calculate = self._shapes.get(type(operator.raw_operator)) or get_shape_calculator(operator.type)
        calculate(operator)

    def convert(self, scope: Any, operator: Any, container: Any) -> None:
        """Convert a part, after a node that joins its columns."""
        from skl2onnx.common._registration import get_converter

        start = len(container.nodes)
        if columns := self._joined.get(operator.onnx_name):
            _join(scope, columns, operator.inputs[0], container)
        convert = self._converters.get(type(operator.raw_operator)) or get_converter(operator.type)
        convert(scope, operator, container)
        path = self._paths.get(id(operator.raw_operator), type(operator.raw_operator).__name__)
        for node in container.nodes[start:]:
            node.name = f"{path}/{node.name}"


def _joined_type(operator: Any) -> Any:
    """The type of the matrix that an operator takes instead of its columns; None where it takes them as they are."""
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

    kinds = [type(column.type) for column in operator.inputs]
    if len(kinds) == 1 or (BY_COLUMN | HANDS_ON) & class_names(operator.raw_operator):
        return None
    width = _width(operator.inputs)
    if len(set(kinds)) == 1:
        return kinds[0]([None, width])
    return FloatTensorType([None, width]) if set(kinds) <= {FloatTensorType, Int64TensorType} else None


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
