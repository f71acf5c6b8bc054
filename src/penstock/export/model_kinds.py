"""Find the exporter of a model: each says by a predicate which models are its own, and they are asked in order.

A predicate goes by the names of the model's classes: no framework is imported to ask.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import ConfigError
from penstock.export.class_names import class_names
from penstock.export.exporter import ModelExporter

if TYPE_CHECKING:
    from penstock.features.feature_spec import Features


class ExporterKind(NamedTuple):
    """A kind of models, and what exports them."""

    claims: Callable[[Any], bool]
    """Whether a model is of this kind."""
    module: str
    """The module that makes the exporter; it is imported where there is such a model."""
    make: str
    """The name there of a function of the model and the features.  It may raise ConfigError."""


def _is_a(name: str) -> Callable[[Any], bool]:
    """A predicate: the model is of a class that has this name."""
    return lambda model: name in class_names(model)


EXPORTERS: Final = (
    ExporterKind(_is_a("penstock.OffloadedRows"), "penstock.export.offloaded_model", "offloaded_exporter"),
    # First: with another backend, a model of Keras is one of that framework too.
    ExporterKind(_is_a("keras.Model"), "penstock.export.keras_model", "keras_exporter"),
    ExporterKind(_is_a("torch.Module"), "penstock.export.torch_model", "torch_exporter"),
    ExporterKind(_is_a("sklearn.BaseEstimator"), "penstock.export.sklearn_model", "sklearn_exporter"),
)
"""The kinds in the order in which they are asked."""


def exporter_for(model: Any, features: Features) -> ModelExporter:
    """The exporter of `model`.

    Raises:
        ConfigError: it is of no framework that is known here, or in a state in which it cannot be exported.
    """
    kind = next((kind for kind in EXPORTERS if kind.claims(model)), None)
    if kind is not None:
        exporter: ModelExporter = getattr(import_module(kind.module), kind.make)(model, features)
        return exporter
    if "tf_keras.Model" in class_names(model):
        raise ConfigError(
            "the model is from tf_keras (Keras 2), but Penstock exports Keras 3: build it with `import "
            "keras`, and load its weights"
        )
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    raise ConfigError(
        f"model is a {name}: save takes a torch.nn.Module, a keras.Model, an estimator or pipeline of scikit-learn, or "
        "what penstock.embeddings.offload returned"
        + (", an object and not its class" if isinstance(model, type) else "")
    )
