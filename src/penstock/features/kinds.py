"""The kinds of features, as somebody declares them: frozen, and checked at birth.

Every kind has these options besides its own, where they mean something for it:

* `fill_value` stands for a value that is missing: a value, `MEAN`, or `EMPTY`; without it such a row is rejected.
  Where `EMPTY` may stand for a single id, its weight is an input too: 0 where there is none, else 1.
* `missing_values` count as missing, besides what is absent, None and NaN.
* `one_hot` makes a float32 row of counts of an id.
* `max_length` takes a list of up to that many values, and makes a row of ids, padded with id 0, and a row of weights.
* `weights` names the column with the weight of each value of such a list; None: each weighs 1.
* `column` names the column that is read; None: the one with the feature's own name.
* `cross_only` makes the feature a key of crosses alone, and no input of the model.
"""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

from penstock.config import checked_fields
from penstock.errors import ConfigError
from penstock.features.kind_checks import (
    check_list_options,
    checked_count,
    checked_flag,
    checked_items,
    checked_missing_values,
    checked_name,
    checked_value,
    checked_word,
    store,
)
from penstock.features.values import CategoryReader, IdReader, NumberReader, shown_value

T = TypeVar("T")

SMALLEST_NORMAL: Final = 2.0**-1022
"""Below it TensorFlow takes a float64 for 0, so no boundary may lie there."""
CROSS_KEY: Final = 0xDECAFCAFFE
"""What TensorFlow begins the hash of a cross with."""


class FillValue(enum.Enum):
    """What may stand for a missing value, besides a value."""

    MEAN = "mean"
    """The mean of the column that the feature was fitted on."""
    EMPTY = "empty"
    """Nothing: zeros in a one-hot row, an id of weight 0."""


MEAN: Final = FillValue.MEAN
EMPTY: Final = FillValue.EMPTY


def _checked(kind: type[T]) -> type[T]:
    return checked_fields(kind, "penstock.features")


@_checked
@dataclass(frozen=True, slots=True)
class Numeric:
    """A number, as float32; scaled in float64 and rounded once.

    An integer that float64 cannot hold is refused, and so is a number that becomes infinite.

    Args:
        scale: None leaves the number as it is; "standard" subtracts the mean of the fitted column and divides by its
            standard deviation; "minmax" makes its least value 0 and its greatest 1.  A column without spread is divided
            by 1.
        fill_value: a number, `MEAN`, or None.
        missing_values: values that count as missing.
        column: the column that is read.
    """

    scale: Literal["standard", "minmax"] | None = None
    fill_value: float | FillValue | None = None
    missing_values: tuple[Any, ...] = ()
    column: str | None = None

    def __post_init__(self) -> None:
        if self.scale not in (None, "standard", "minmax"):
            raise ConfigError(f'scale must be "standard", "minmax" or None, got {shown_value(self.scale)}')
        if self.fill_value is EMPTY:
            raise ConfigError("fill_value=EMPTY is for features with ids: use a number, or MEAN")
        store(
            self,
            fill_value=_number_fill_value(self.fill_value),
            missing_values=checked_missing_values(self.missing_values),
            column=None if self.column is None else checked_name("column", self.column),
        )


@_checked
@dataclass(frozen=True, slots=True)
class Bucketized:
    """The bucket that a number falls into, compared in float64; a boundary belongs to the bucket above it."""

    boundaries: tuple[float, ...] | None = None
    quantiles: int | None = None
    """Into how many buckets of about as many rows each the fitted column is cut."""
    one_hot: bool = False
    max_length: int | None = None
    weights: str | None = None
    fill_value: float | FillValue | None = None
    missing_values: tuple[Any, ...] = ()
    column: str | None = None
    cross_only: bool = False

    def __post_init__(self) -> None:
        check_list_options(self)
        if (self.boundaries is None) == (self.quantiles is None):
            raise ConfigError("give either boundaries= or quantiles=")
        if self.boundaries is not None:
            store(self, boundaries=checked_boundaries(self.boundaries))
        else:
            store(self, quantiles=checked_count("quantiles", self.quantiles, least=2, most=2**31 - 1))
        store(self, fill_value=_number_fill_value(self.fill_value))


@_checked
@dataclass(frozen=True, slots=True)
class Hashed:
    """The bucket of a category by FarmHash64, as TensorFlow and Keras hash it."""

    buckets: int
    one_hot: bool = False
    max_length: int | None = None
    weights: str | None = None
    fill_value: str | int | float | FillValue | None = None
    missing_values: tuple[Any, ...] = ()
    column: str | None = None
    cross_only: bool = False

    def __post_init__(self) -> None:
        check_list_options(self, categories=True)
        store(self, buckets=checked_count("buckets", self.buckets), fill_value=_category_fill_value(self))


@_checked
@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The place of a category among the known ones, and behind them the bucket of one that is not known."""

    values: tuple[str, ...] | None = None
    max_size: int | None = None
    min_count: int = 1
    num_oov_indices: int = 1
    unknown: str | FillValue | None = None
    """With no `num_oov_indices`: the known value that stands for one that is not known, or `EMPTY`; None refuses it."""
    one_hot: bool = False
    max_length: int | None = None
    weights: str | None = None
    fill_value: str | int | float | FillValue | None = None
    missing_values: tuple[Any, ...] = ()
    column: str | None = None
    cross_only: bool = False

    def __post_init__(self) -> None:
        check_list_options(self, categories=True)
        if (self.values is None) == (self.max_size is None):
            raise ConfigError("give either values= or max_size=")
        if self.values is not None:
            if self.min_count != 1:
                raise ConfigError("min_count= needs max_size=: values that are given are not counted")
            store(self, values=checked_vocabulary(self.values))
        else:
            store(self, max_size=checked_count("max_size", self.max_size))
        store(
            self,
            min_count=checked_count("min_count", self.min_count),
            num_oov_indices=checked_count("num_oov_indices", self.num_oov_indices, least=0),
            fill_value=_category_fill_value(self),
        )
        self._check_unknown()

    def _check_unknown(self) -> None:
        if self.unknown is None:
            return
        if self.num_oov_indices:
            raise ConfigError(
                "unknown= needs num_oov_indices=0: with num_oov_indices an unknown value has an id of its own"
            )
        if self.unknown is EMPTY:
            return
        if self.unknown is MEAN:
            raise ConfigError("unknown=MEAN is not possible: a category has no mean")
        store(self, unknown=checked_value("unknown", self.unknown, CategoryReader()))
        if self.values is not None and self.unknown not in self.values:
            raise ConfigError(f"unknown must be one of the values, got {shown_value(self.unknown)}")


@_checked
@dataclass(frozen=True, slots=True)
class Crossed:
    """The bucket of a combination of other features, as `tf.sparse.cross_hashed` finds it."""

    keys: tuple[str, ...]
    """Names of features.  `Bucketized` and `Ids` count by their number, others by their string."""
    buckets: int
    hash_key: int = CROSS_KEY
    one_hot: bool = False
    fill_value: FillValue | None = None
    """`EMPTY` or None.  A cross with a missing key is missing."""

    def __post_init__(self) -> None:
        keys = tuple(checked_name("keys", key) for key in checked_items("keys", self.keys))
        if len(keys) < 2:
            raise ConfigError(f"keys must name at least two features, got {shown_value(keys)}")
        if len(set(keys)) < len(keys):
            raise ConfigError(f"keys must name each feature once, got {shown_value(keys)}")
        store(
            self,
            keys=keys,
            buckets=checked_count("buckets", self.buckets),
            hash_key=checked_count("hash_key", self.hash_key, least=0, most=2**64 - 1),
            one_hot=checked_flag("one_hot", self.one_hot),
        )
        if self.fill_value not in (None, EMPTY):
            raise ConfigError(f"fill_value of a cross must be EMPTY or None, got {shown_value(self.fill_value)}")


@_checked
@dataclass(frozen=True, slots=True)
class Ids:
    """An id that is a number already, unchanged."""

    size: int | None = None
    unknown: int | FillValue | None = None
    """With a size: the id that stands for one outside of 0 to size - 1, or `EMPTY`; None refuses it."""
    one_hot: bool = False
    max_length: int | None = None
    weights: str | None = None
    fill_value: int | FillValue | None = None
    missing_values: tuple[Any, ...] = ()
    column: str | None = None
    cross_only: bool = False

    def __post_init__(self) -> None:
        check_list_options(self)
        if self.size is not None:
            store(self, size=checked_count("size", self.size))
        elif self.one_hot:
            raise ConfigError("one_hot=True needs size=: it is the length of the row")
        elif self.unknown is not None:
            raise ConfigError("unknown= needs size=: without a size every id is known")
        store(self, fill_value=self._checked_substitute("fill_value"), unknown=self._checked_substitute("unknown"))

    def _checked_substitute(self, what: str) -> int | FillValue | None:
        value: int | FillValue | None = getattr(self, what)
        if value is None or value is EMPTY:
            return value
        if value is MEAN:
            raise ConfigError(f"{what}=MEAN is not possible: an id has no mean")
        number: int = checked_value(what, value, IdReader())
        if self.size is not None and not 0 <= number < self.size:
            raise ConfigError(f"{what} must be an id of 0 to {self.size - 1}, got {number}")
        return number


@_checked
@dataclass(frozen=True, slots=True)
class Text:
    """A string, for a model that preprocesses itself."""

    fill_value: str | None = None
    missing_values: tuple[Any, ...] = ()
    column: str | None = None

    def __post_init__(self) -> None:
        if self.fill_value is not None and not isinstance(self.fill_value, str):
            raise ConfigError(f"fill_value of a text must be a string or None, got {shown_value(self.fill_value)}")
        store(
            self,
            fill_value=None if self.fill_value is None else checked_word("fill_value", self.fill_value),
            missing_values=checked_missing_values(self.missing_values),
            column=None if self.column is None else checked_name("column", self.column),
        )


Feature: TypeAlias = Numeric | Bucketized | Hashed | Vocabulary | Crossed | Ids | Text


def has_weights(kind: Feature) -> bool:
    """Whether ids of this kind have their weights beside them, as the input `NAME_weight` of the model."""
    if isinstance(kind, (Numeric, Text)) or kind.one_hot or getattr(kind, "cross_only", False):
        return False
    return getattr(kind, "max_length", None) is not None or EMPTY in (kind.fill_value, getattr(kind, "unknown", None))


def checked_boundaries(boundaries: Any) -> tuple[float, ...]:
    """Boundaries of buckets as floats: at least one, each above the one before."""
    found = tuple(checked_value("boundaries", one, NumberReader()) for one in checked_items("boundaries", boundaries))
    if not found:
        raise ConfigError("boundaries must have at least one number")
    if any(low >= high for low, high in itertools.pairwise(found)):
        raise ConfigError(f"boundaries must rise, got {shown_value(found)}")
    if any(0 < abs(one) < SMALLEST_NORMAL for one in found):
        raise ConfigError("boundaries must be 0 or at least 2**-1022 from 0: TensorFlow treats a smaller number as 0")
    return found


def checked_vocabulary(values: Any) -> tuple[str, ...]:
    """The known values as categories: at least one, none of them twice."""
    found = tuple(checked_value("values", one, CategoryReader()) for one in checked_items("values", values))
    if not found:
        raise ConfigError("values must have at least one value")
    if len(set(found)) < len(found):
        twice = next(one for place, one in enumerate(found) if one in found[:place])
        raise ConfigError(f"values has {shown_value(twice)} twice; 9, 9.0 and '9' are one category")
    return found


def _number_fill_value(value: Any) -> float | FillValue | None:
    if value is None or isinstance(value, FillValue):
        return value
    return checked_value("fill_value", value, NumberReader())


def _category_fill_value(kind: Hashed | Vocabulary) -> str | FillValue | None:
    if kind.fill_value is None or kind.fill_value is EMPTY:
        return kind.fill_value
    if kind.fill_value is MEAN:
        raise ConfigError("fill_value=MEAN is for numbers: a category has no mean")
    return checked_value("fill_value", kind.fill_value, CategoryReader())
