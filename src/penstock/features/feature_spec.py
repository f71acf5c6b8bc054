"""The features of a model, as they are declared, fitted and encoded: `Features`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from penstock.config import checked_keywords
from penstock.errors import ConfigError
from penstock.features.columns import Array
from penstock.features.encoding import EncodedRows, EncodingPlan, columns_of, id_count, raw_columns
from penstock.features.framework_parts import load_part
from penstock.features.item_type import make_item_type
from penstock.features.kinds import Feature
from penstock.features.learning import learn
from penstock.features.learnt import Statistics, check_statistics, needs_fit
from penstock.features.spec_checks import check_spec
from penstock.features.spec_json import spec_from_json, spec_to_json
from penstock.features.tables import plain_rows, read_table
from penstock.features.tensors import TensorSpec

if TYPE_CHECKING:
    import msgspec


class Features:
    """The features of a model: what it is given, from what, and how.

    A spec does not change.  `fit` gives a new one that has learnt from a table what has to be learnt; a spec with
    nothing to learn is fitted from the beginning.

    Args:
        features: the features by name, in the order of the model's inputs.
        concat_into: the name of one float32 input that has all numbers and one-hot rows side by side, in declared
            order; None makes each an input of its own.

    Raises:
        ConfigError: the features cannot stand in one spec.
    """

    __slots__ = ("_concat_into", "_item_type", "_kinds", "_plan", "_statistics")

    @checked_keywords("penstock.Features")
    def __init__(self, features: Mapping[str, Feature], *, concat_into: str | None = None) -> None:
        if not isinstance(features, Mapping):
            raise ConfigError(f"features must be a dict of features by name, got {type(features).__name__}")
        check_spec(features, concat_into)
        self._kinds = MappingProxyType(dict(features))
        self._concat_into = concat_into
        learnt = None if any(map(needs_fit, features.values())) else {name: Statistics() for name in features}
        self._take_statistics(learnt)

    def _take_statistics(self, statistics: Mapping[str, Statistics] | None) -> None:
        """Plan the encoding, where everything is known that it needs."""
        self._statistics = None if statistics is None else MappingProxyType(dict(statistics))
        self._plan = None if statistics is None else EncodingPlan(self._kinds, statistics, self._concat_into)
        self._item_type: type[msgspec.Struct] | None = None

    def _with_statistics(self, statistics: Mapping[str, Statistics]) -> Features:
        found = Features(self._kinds, concat_into=self._concat_into)
        for name, kind in self._kinds.items():
            check_statistics(kind, statistics[name])
        found._take_statistics(statistics)
        return found

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features by name, as declared."""
        return self._kinds

    @property
    def concat_into(self) -> str | None:
        """The name of the joined input, or None."""
        return self._concat_into

    @property
    def fitted(self) -> bool:
        """Whether everything has been learnt that has to be."""
        return self._plan is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns that are read."""
        return raw_columns(self._kinds)

    @property
    def statistics(self) -> Mapping[str, Statistics]:
        """What was learnt, by feature.

        Raises:
            ConfigError: the spec is not fitted.
        """
        self._fitted_plan()
        assert self._statistics is not None
        return self._statistics

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the model, in order.

        Raises:
            ConfigError: the spec is not fitted.
        """
        return self._fitted_plan().inputs

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many ids each feature with ids has; `Ids` without a size is not here.

        Raises:
            ConfigError: the spec is not fitted.
        """
        counts = {name: id_count(name, self._kinds, self.statistics) for name in self._kinds}
        return {name: count for name, count in counts.items() if count is not None}

    def column_at(self, name: str, place: int) -> str | None:
        """The raw column from which a value of the input `name` comes, by its place in a row of the input.

        A value of a cross comes of several columns, and has None.

        Raises:
            ConfigError: the spec is not fitted.
        """
        feature = self._fitted_plan().feature_at(name, place)
        columns = columns_of(feature, self._kinds[feature]) if feature in self._kinds else ()
        return columns[0] if columns else None

    def _fitted_plan(self) -> EncodingPlan:
        if self._plan is None:
            names = [name for name, kind in self._kinds.items() if needs_fit(kind)]
            raise ConfigError(f"the features {', '.join(names)} are not fitted: call `features = features.fit(table)`")
        return self._plan

    # -- what it does -------------------------------------------------------------------------------------------------

    def fit(self, table: Any) -> Features:
        """A new spec that has learnt from the table.

        Raises:
            ConfigError: a column is not there, or has no value to learn from.
            InvalidItem: a value is not of its feature's kind.
        """
        return self._with_statistics(learn(self._kinds, table))

    def encode(self, table: Any) -> dict[str, Array]:
        """The inputs of the model for a table; other columns are ignored.

        Raises:
            ConfigError: the spec is not fitted, this is no table, or a column is not there.
            InvalidItem: a row is refused; `path` leads to the first value that is.
        """
        return self._fitted_plan().encode_all(table)

    def encode_rows(self, rows: Sequence[Mapping[str, Any] | msgspec.Struct]) -> EncodedRows:
        """The inputs for the good rows, and why each other row is refused.  A row with another key is refused.

        Raises:
            ConfigError: the spec is not fitted.
        """
        return self._fitted_plan().encode_good(rows)

    def to_rows(self, table: Any) -> list[dict[str, Any]]:
        """The table as rows of plain Python values, only the columns that are read, with None for what is missing.

        JSON carries them exactly, and `encode` of them gives the same bits.
        """
        return plain_rows(read_table(table, self.columns), self.columns)

    def item_type(self) -> type[msgspec.Struct]:
        """The class of one row in a request: its fields, what they take, and what they mean, for OpenAPI.

        Raises:
            ConfigError: the spec is not fitted.
        """
        if self._item_type is None:
            self._item_type = make_item_type(self._kinds, self.statistics)
        return self._item_type

    # -- training -----------------------------------------------------------------------------------------------------

    def torch_dataset(self, table: Any, label: str | None = None) -> Any:
        """The encoded table as a map-style PyTorch dataset, with the column `label` as what is to be learnt."""
        return load_part("torch_dataset", "torch").torch_dataset(self, table, label)

    def tf_dataset(self, table: Any, label: str | None = None, batch_size: int = 32) -> Any:
        """The encoded table as batches of a `tf.data.Dataset`, with the column `label` as what is to be learnt."""
        return load_part("tensorflow_ops", "tensorflow").tf_dataset(self, table, label, batch_size)

    def tf_encode(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """What `encode` does, in TensorFlow's ops: raw columns as tensors become the inputs of the model."""
        return cast("dict[str, Any]", load_part("tensorflow_ops", "tensorflow").tf_encode(self, tensors))

    # -- as text ------------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The spec and what it has learnt, exactly."""
        return spec_to_json(self._kinds, self._concat_into, self._statistics)

    @classmethod
    def from_json(cls, text: str | bytes) -> Features:
        """The spec that `to_json` wrote.

        Raises:
            ConfigError: the text is not of that form, or has something that is not known here.
        """
        features, concat_into, statistics = spec_from_json(text)
        found = cls(features, concat_into=concat_into)
        return found if statistics is None else found._with_statistics(statistics)

    def _identity(self) -> tuple[Any, ...]:
        learnt = None if self._statistics is None else tuple(self._statistics.items())
        return tuple(self._kinds.items()), self._concat_into, learnt

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Features) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> tuple[Any, ...]:
        return Features.from_json, (self.to_json(),)

    def __repr__(self) -> str:
        features = "".join(f"    {name!r}: {kind!r},\n" for name, kind in self._kinds.items())
        concat = "" if self._concat_into is None else f", concat_into={self._concat_into!r}"
        return f"Features({{\n{features}}}{concat})  # {'fitted' if self.fitted else 'not fitted'}"
