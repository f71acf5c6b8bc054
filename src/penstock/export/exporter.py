"""What `save` needs of a framework: to ask its model, and to write it in a format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.artifact.manifest import GraphEntry, GraphFormat, TableEntry
from penstock.artifact.recorded import RecordedRows
from penstock.errors import ConfigError
from penstock.features.tensors import TensorSpec

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
    ids: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    """The ids of each lookup, by its name, where tables lie outside of the graph."""
    rows: Mapping[str, RecordedRows] = field(default_factory=dict)
    """The rows that were looked up in each table outside."""


@dataclass(frozen=True)
class GraphSignature:
    """What a graph is written for."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
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

    def check_inputs(self, inputs: Sequence[TensorSpec]) -> None:
        """Raise ConfigError where the model cannot take these inputs: too few, of a wrong name or dtype."""

    def answer(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> ModelAnswer:
        """What the model itself answers, in this process; raises ConfigError where it cannot be asked."""

    def place_tables(self, inline_limit: int, outside: Collection[str]) -> None:
        """Decide which tables of embeddings stay outside of the graph.

        `inline_limit` is the most bytes of a table that is put into the graph; `outside` are the paths of layers whose
        tables stay outside whatever their size.  Raises ConfigError where one is the path of no table, and
        ExportRefused where a table could be in neither place.
        """

    def materialized(self) -> AbstractContextManager[None]:
        """Condition of the model that holds while it is written, and only then; undone at the end, also after an error.

        Raises ExportRefused where the model cannot be brought there.
        """

    def write_graphs(self, format: GraphFormat, folder: Path, signature: GraphSignature) -> Sequence[GraphEntry]:  # noqa: A002  # the word users know
        """Write the model into `folder`, and return what the manifest says of its graphs.  Raises ExportRefused."""

    def write_tables(self, folder: Path, saved: str, shard_bytes: int) -> Sequence[TableEntry]:
        """Write the rows of the tables outside into `folder`, after the graphs; what the manifest says of the tables.

        `saved` is a text that differs from save to save, and `shard_bytes` the most bytes of a file.
        """


class WholeModel(ABC):
    """Base of the exporters of models of which nothing lies outside."""

    def place_tables(self, inline_limit: int, outside: Collection[str]) -> None:  # noqa: ARG002  # no table to hold to it
        """Refuse every path: no table lies outside."""
        for path in outside:
            raise ConfigError(
                f"outside has {path!r}, which is not the path of a table: all weights of this model are in the graph"
            )

    def materialized(self) -> AbstractContextManager[None]:
        """The model is always as it is written."""
        return nullcontext()

    @abstractmethod
    def answer(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> ModelAnswer:
        """As `ModelExporter.answer`."""

    @abstractmethod
    def write(self, format: str, folder: Path, signature: GraphSignature) -> str:  # noqa: A002
        """Write the model into `folder`; the path of the file or folder below it.  Raises ExportRefused."""

    def write_graphs(self, format: GraphFormat, folder: Path, signature: GraphSignature) -> Sequence[GraphEntry]:  # noqa: A002
        """Write the one graph that there is."""
        return [GraphEntry(format, self.write(format, folder, signature), signature.inputs, signature.outputs)]

    def write_tables(self, folder: Path, saved: str, shard_bytes: int) -> Sequence[TableEntry]:  # noqa: ARG002
        """Write nothing."""
        return ()
