"""Have skl2onnx convert ensembles that vote softly, and those of regressors.

Its own converter of classifiers refuses the default of `flatten_transform`, which only `transform` looks at, and both
converters take neither weights in a list nor members that are dropped.  Here they see a copy without these.  Once
skl2onnx does so itself, this file can go.
"""

from __future__ import annotations

import copy
from typing import Any

from penstock.export.sklearn_boosting import convert_as_known, shape_as_known


def voting_conversions() -> tuple[dict[type, Any], dict[type, Any]]:
    """The converters and the calculators of shapes, by the class that each is for."""
    from sklearn.ensemble import VotingClassifier, VotingRegressor

    kinds = (VotingClassifier, VotingRegressor)
    return dict.fromkeys(kinds, _convert), dict.fromkeys(kinds, shape_as_known)


def _convert(scope: Any, operator: Any, container: Any) -> None:
    import numpy as np

    given = operator.raw_operator
    plain = copy.copy(given)
    plain.flatten_transform = False
    if given.weights is not None:
        pairs = zip(given.estimators, given.weights, strict=True)
        plain.weights = np.array([weight for (_, member), weight in pairs if member != "drop"], float)
    operator.raw_operator = plain
    try:
        convert_as_known(scope, operator, container)
    finally:
        operator.raw_operator = given
