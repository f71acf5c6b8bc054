"""Have skl2onnx convert what selects the first column alone.

Its own converter asks whether any place that was selected is not 0, where it means whether any was selected, and
writes a graph that no runtime opens.  Once skl2onnx does not, this file can go.
"""

from __future__ import annotations

from typing import Any

from penstock.export.sklearn_boosting import convert_as_known, shape_as_known


def selection_conversions() -> tuple[dict[type, Any], dict[type, Any]]:
    """The converters and the calculators of shapes, by the class that each is for."""
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from sklearn.feature_selection import SelectorMixin

    kinds = [kind for kind in sklearn_operator_name_map if issubclass(kind, SelectorMixin)]
    return dict.fromkeys(kinds, _convert), dict.fromkeys(kinds, shape_as_known)


def _convert(scope: Any, operator: Any, container: Any) -> None:
    import numpy as np

    if operator.raw_operator.get_support(indices=True).tolist() != [0]:
        convert_as_known(scope, operator, container)
        return
    place = scope.get_unique_variable_name("first")
    container.add_initializer(place, 7, [1], np.zeros(1, np.int64))  # 7: int64
    container.add_node("Gather", [operator.inputs[0].full_name, place], operator.outputs[0].full_name, axis=1)
