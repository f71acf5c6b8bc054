"""What `save` needs of a framework: to ask its model, and to write it in a format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.artifact.manifest import GraphFormat
from penstock.features.tensors import Tensor

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ModelAnswer:
    """What a model answered to a batch."""

    arrays: Sequence[np.ndarray[Any, Any]]
    """Each output, with the batch as its first axis."""
    names: tuple[str, ...] | None = None
    """What the model itself calls them: the keys of its dict; None where they have no names."""
    defaults: tuple[str, ...] | None = None
    """What they are called where nobody names them; None: `output`, or `output_0` and so on."""


@dataclass(frozen=True)
class GraphSignature:
    """What a graph is written for."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    example: Mapping[str, np.ndarray[Any, Any]]
    """Some encoded rows, as the model was asked with."""


class ModelExporter(Protocol):
    """One model of one framework, to be exported."""

    @property
    def libraries(self) -> Sequence[str]:
        """The distributions whose versions the manifest records, where they are installed."""

    @property
    def formats(self) -> Sequence[GraphFormat]:
        """The formats it can be written in, the default first."""

    @property
    def classes(self) -> Sequence[Any] | None:
        """The classes that the model itself knows, as Python values, or None."""

    @property
    def refuses_rows(self) -> bool:
        """Whether the model may refuse a row that the features take, which is then asked of it and of the graph."""

    @property
    def doubt(self) -> str:
        """Why few rows that are answered alike say little of others, as a sentence; "" where nothing is known."""

    def check_inputs(self, inputs: Sequence[Tensor]) -> None:
        """Raise ConfigError where the model cannot take these inputs: too few, of a wrong name or dtype."""

    def answer(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> ModelAnswer:
        """What the model itself answers, in this process; raises ConfigError where it cannot be asked."""

    def materialized(self, inline_limit: int) -> AbstractContextManager[None]:
        """Condition of the model that holds while it is written, and only then; undone at the end, also after an error.

        `inline_limit` is the most bytes of an embedding table that lies outside of the model and is put into the graph.
        Raises ExportRefused where the model cannot be brought there.
        """

    def write(self, format: str, folder: Path, signature: GraphSignature) -> str:  # noqa: A002  # the word users know
        """Write the model into `folder`; the path of the file or folder below it.  Raises ExportRefused."""


class WholeModel:
    """Base of the exporters of models of which nothing lies outside."""

    def materialized(self, inline_limit: int) -> AbstractContextManager[None]:  # noqa: ARG002  # no table to hold to it
        """The model is always as it is written."""
        return nullcontext()
