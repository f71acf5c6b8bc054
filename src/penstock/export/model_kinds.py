"""Tell which framework a model is of, by the names of its classes: no framework is imported to ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.export.class_names import class_names
from penstock.export.exporter import ModelExporter

if TYPE_CHECKING:
    from penstock.features.feature_spec import Features


def exporter_for(model: Any, features: Features) -> ModelExporter:
    """The exporter of `model`.

    Raises:
        ConfigError: it is of no framework that is known here, or in a state in which it cannot be exported.
    """
    names = class_names(model)
    if "keras.Model" in names:  # first: with another backend, a model of Keras is one of that framework too
        from penstock.export.keras_model import keras_exporter

        return keras_exporter(model, features)
    if "torch.Module" in names:
        from penstock.export.torch_model import torch_exporter

        return torch_exporter(model)
    if "sklearn.BaseEstimator" in names:
        from penstock.export.sklearn_model import sklearn_exporter

        return sklearn_exporter(model)
    if "tf_keras.Model" in names:
        raise ConfigError(
            "the model is of tf_keras, which is Keras 2, and Penstock exports Keras 3: build it with `import keras`, "
            "and load its weights"
        )
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    raise ConfigError(
        f"model is a {kind}: save takes a torch.nn.Module, a keras.Model, or an estimator or pipeline of scikit-learn"
        + (", an object and not its class" if isinstance(model, type) else "")
    )
