"""Have skl2onnx convert gradient boosting over histograms.

Its own converter hands booleans to protobuf, which takes nothing but integers where integers are declared; here they
are made integers on the way.  And it has each threshold rounded to the nearest float32, which may be the very value
that lies above the threshold; here it is rounded down.  Once skl2onnx does both itself, this file can go.
"""

from __future__ import annotations

from typing import Any


class PlainAttributes:
    """A container of nodes, as skl2onnx has it, that puts the attributes of the trees of a model right on their way."""

    def __init__(self, container: Any, model: Any) -> None:
        self._container = container
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    def add_node(self, *args: Any, **attributes: Any) -> Any:
        """Add a node, as the container itself does."""
        plain = {name: _integers(given) if isinstance(given, list) else given for name, given in attributes.items()}
        if "nodes_values" in plain:
            plain["nodes_values"] = _thresholds(self._model)
        return self._container.add_node(*args, **plain)


def boosting_conversions() -> tuple[dict[type, Any], dict[type, Any]]:
    """The converters and the calculators of shapes, by the class that each is for."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kinds = (HistGradientBoostingClassifier, HistGradientBoostingRegressor)
    return dict.fromkeys(kinds, _convert), dict.fromkeys(kinds, shape_as_known)


def convert_as_known(scope: Any, operator: Any, container: Any) -> None:
    """Convert as skl2onnx does by itself."""
    from skl2onnx.common._registration import get_converter

    get_converter(_alias(operator))(scope, operator, container)


def shape_as_known(operator: Any) -> None:
    """Calculate shapes as skl2onnx does by itself."""
    from skl2onnx.common._registration import get_shape_calculator

    get_shape_calculator(_alias(operator))(operator)


def _convert(scope: Any, operator: Any, container: Any) -> None:
    convert_as_known(scope, operator, PlainAttributes(container, operator.raw_operator))


def _alias(operator: Any) -> Any:
    from skl2onnx._supported_operators import sklearn_operator_name_map

    return sklearn_operator_name_map[type(operator.raw_operator)]


def _integers(values: list[Any]) -> list[Any]:
    import numpy as np

    return [int(value) if isinstance(value, bool | np.bool_) else value for value in values]


def _thresholds(model: Any) -> Any:
    """For each node of all trees, the greatest float32 that is not above its threshold; 0 for a leaf.

    A float32 is at most the threshold where it is at most this one, and that is all that a branch asks.
    """
    import numpy as np

    nodes = np.concatenate([tree.nodes for trees in model._predictors for tree in trees])
    exact = np.where(nodes["is_leaf"], 0.0, nodes["num_threshold"])
    with np.errstate(over="ignore"):  # a threshold may be infinite, or nearly so
        rounded = exact.astype(np.float32)
    return np.where(rounded > exact, np.nextafter(rounded, np.float32(-np.inf)), rounded)
