"""Convert the columns of `tf.feature_column` to a feature spec that gives what `input_layer` gives, row for row.

TensorFlow is not imported: its columns are named tuples, which are told apart by their class's name.  What cannot be
made equal is refused, by the column's name.

Where the two differ by nature, this is what makes them equal:

* `input_layer` orders columns by name, and so are the features.
* `numeric_column` casts to float32 before a number is compared with a boundary; here it is compared in float64.  So a
  boundary is moved to the least float64 that is rounded to it.
* A number that float32 holds as a subnormal one is 0, as where TensorFlow casts it; one fed as float32 it keeps.
* "" and -1 are dropped by categorical columns, so they are in `missing_values`, with `fill_value=EMPTY`.  A bare name
  in a cross drops nothing.
* The ids of an embedding column have weights beside them, and an id of weight 0 is as if it were not there: a row
  without a value is a row of zeros, whatever the combiner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from penstock.errors import ConfigError
from penstock.features.encoders import FLOAT32_BEGIN, FLOAT32_END, SMALLEST_FLOAT32
from penstock.features.feature_spec import Features
from penstock.features.kind_checks import checked_count
from penstock.features.kinds import (
    CROSS_KEY,
    EMPTY,
    Bucketized,
    Crossed,
    Feature,
    Hashed,
    Ids,
    Numeric,
    Vocabulary,
    has_weights,
)
from penstock.features.spec_checks import is_float
from penstock.features.values import shown_value
from penstock.spelling import nearest

COMBINERS: Final = ("sum", "mean", "sqrtn")
"""How TensorFlow makes one row of several rows of an embedding."""
REFUSED: Final = {
    "SharedEmbeddingColumn": (
        "make an embedding_column of each, or share an Embedding layer in the model and feed it with ids of features"
    ),
    "VocabularyFileCategoricalColumn": "read the file, and use categorical_column_with_vocabulary_list",
    "SequenceCategoricalColumn": "use a feature with max_length=",
}
"""What to do instead of the columns that are known and cannot be converted."""
CATEGORICAL: Final = ("IdentityCategoricalColumn", "HashedCategoricalColumn", "VocabularyListCategoricalColumn")
"""The columns that may have several values a row, and weights."""


def from_feature_columns(
    columns: Iterable[Any], *, integers: Collection[str] = (), max_length: Mapping[str, int] | None = None
) -> Features:
    """A spec of what `tf.compat.v1.feature_column.input_layer` makes of the columns, row for row.

    The input `x` has the columns that are no embeddings, side by side; a spec of embeddings alone has no `x`.  An
    embedding column gives its ids as an input of its name, and their weights as one with `_weight` behind it; buckets
    of a number have no weights.  `penstock.embeddings.DenseFeatures` is the layer that takes all of them.

    Args:
        columns: numeric, bucketized, indicator and embedding columns; the latter two of identity, hash bucket,
            vocabulary list, crossed and bucketized, the first three of these also weighted.
        integers: the bare names in crosses that are fed as integers.  TensorFlow hashes an integer and its decimal
            string differently, and such a key does not say which it is.  A name counts as one of integers also where
            another column says so; others count as strings, as in `make_parse_example_spec`.
        max_length: how many values a row may have at most, by raw key: such a column is of lists, and a longer one is
            refused.  A key of a weighted column is one of lists of at most 1 where it is not here; others have one
            value a row.

    Raises:
        ConfigError: a column cannot be converted; the message names it.
    """
    return _Conversion(tuple(columns), integers, {} if max_length is None else max_length).features()


@dataclass(frozen=True)
class DensePart:
    """A column as a part of what `input_layer` gives: numbers of the input `x`."""

    name: str
    width: int


@dataclass(frozen=True)
class EmbeddedPart:
    """A column as a part of what `input_layer` gives: a row of an embedding."""

    name: str
    buckets: int
    dimension: int
    combiner: str | None
    """Or None, where each row has one id, which has no weight."""
    max_norm: float | None
    initializer: Any
    """That of the column."""
    trainable: bool


def column_parts(columns: Iterable[Any]) -> Iterator[DensePart | EmbeddedPart]:
    """The parts that `input_layer` gives of the columns, side by side in the order of their names.

    Raises:
        ConfigError: a column cannot be converted.
    """
    given = sorted(columns, key=lambda column: str(getattr(column, "name", "")))
    features = from_feature_columns(given)
    for column in given:
        kind = features.features[column.name]
        if not hasattr(column, "dimension"):
            yield DensePart(column.name, 1 if isinstance(kind, Numeric) else features.sizes[column.name])
            continue
        yield EmbeddedPart(
            name=column.name,
            buckets=features.sizes[column.name],
            dimension=int(column.dimension),
            combiner=column.combiner if has_weights(kind) else None,
            max_norm=None if column.max_norm is None else float(column.max_norm),
            initializer=column.initializer,
            trainable=bool(column.trainable),
        )


class _Conversion:
    """The conversion of one list of columns."""

    def __init__(self, columns: tuple[Any, ...], integers: Collection[str], max_length: Mapping[str, int]) -> None:
        for column in columns:
            if not hasattr(column, "_fields") or not hasattr(column, "name"):
                raise ConfigError(f"{column!r} is not a column of tf.feature_column")
        self._columns = sorted(columns, key=lambda column: str(column.name))
        self._integers = integers
        self._kinds: dict[str, Feature] = {}
        self._keys: dict[Any, str] = {}
        """The features made for keys of crosses, by the key."""
        self._dtypes = self._known_dtypes()
        self._max_length = self._known_lists(max_length)
        """How many values a row may have, by raw key; others have one, which is no list."""

    def features(self) -> Features:
        names = [str(column.name) for column in self._columns]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ConfigError(f"there are two columns with the name {min(twice)!r}")
        for column in self._columns:
            self._kinds[column.name] = self._named(column, self._dense)
        return Features({**self._kinds}, concat_into="x" if any(map(is_float, self._kinds.values())) else None)

    def _named(self, column: Any, convert: Callable[[Any], Feature]) -> Feature:
        try:
            return convert(column)
        except ConfigError as exc:
            raise ConfigError(f"column {column.name!r}: {exc}") from None

    def _dense(self, column: Any) -> Feature:
        """The kind of a column that `input_layer` takes."""
        match _class_name(column):
            case "NumericColumn":
                _check_numeric(column)
                return Numeric(column=column.key, fill_value=_default(column))
            case "BucketizedColumn":
                return _bucketized(column, one_hot=True)
            case "IndicatorColumn":
                return self._categorical(column.categorical_column, one_hot=True)
            case "EmbeddingColumn":
                _check_embedding(column)
                return self._categorical(column.categorical_column, one_hot=False)
            case name:
                raise _refusal(name)

    def _categorical(self, column: Any, *, one_hot: bool, weights: str | None = None) -> Feature:
        """The kind of what an indicator or an embedding is made of."""
        name = _class_name(column)
        if weights is not None and name not in CATEGORICAL:
            raise ConfigError(f"{name} cannot be weighted here: {' and '.join(CATEGORICAL)} can")
        max_length = self._max_length.get(column.key) if name in CATEGORICAL else None
        match name:
            case "BucketizedColumn":
                return _bucketized(column, one_hot=one_hot)
            case "IdentityCategoricalColumn":
                return _identity(column, one_hot=one_hot, max_length=max_length, weights=weights)
            case "HashedCategoricalColumn":
                return Hashed(
                    column.hash_bucket_size,
                    one_hot=one_hot,
                    max_length=max_length,
                    weights=weights,
                    fill_value=EMPTY,
                    missing_values=_dropped(column),
                    column=column.key,
                )
            case "VocabularyListCategoricalColumn":
                return _vocabulary(column, one_hot=one_hot, max_length=max_length, weights=weights)
            case "CrossedColumn":
                return self._crossed(column, one_hot=one_hot)
            case "WeightedCategoricalColumn":
                inner = column.categorical_column
                return self._categorical(inner, one_hot=one_hot, weights=column.weight_feature_key)
            case _:
                raise _refusal(name)

    # crosses ---------------------------------------------------------------------------------------------------------

    def _crossed(self, column: Any, *, one_hot: bool) -> Crossed:
        keys = tuple(_leaf_keys(column))
        bare = [isinstance(key, str) for key in keys]
        if any(first and not second for first, second in pairwise(bare)):
            raise ConfigError(
                "a bare name stands before a column among its keys.  TensorFlow hashes these keys in this order where "
                "the name is fed as a SparseTensor, and columns first where it is fed as a Tensor.  Declare a "
                "penstock.features.Crossed with the keys in the order that the model was trained with"
            )
        return Crossed(
            tuple(self._key(key) for key in keys),
            column.hash_bucket_size,
            hash_key=(column.hash_key or CROSS_KEY) % 2**64,
            one_hot=one_hot,
            fill_value=EMPTY,
        )

    def _key(self, key: Any) -> str:
        """The name of the feature that is this key; made where there is none yet."""
        if key not in self._keys:
            kind = self._key_kind(key)
            wanted = key if isinstance(key, str) else key.name
            taken = {*self._kinds, *(column.name for column in self._columns)}
            while wanted in taken:
                wanted = f"{wanted}_key"
            self._kinds[wanted] = kind
            self._keys[key] = wanted
        return self._keys[key]

    def _key_kind(self, key: Any) -> Feature:
        raw = key if isinstance(key, str) else getattr(key, "key", None)
        if raw in self._max_length:
            raise ConfigError(f"{raw!r} has a list in each row, but a cross takes one value of each key")
        if isinstance(key, str):
            return self._bare_key(key)
        match _class_name(key):
            case "BucketizedColumn":
                return _bucketized(key, cross_only=True)
            case "IdentityCategoricalColumn":
                return _identity(key, cross_only=True)
            case "VocabularyListCategoricalColumn":
                raise ConfigError(
                    f"TensorFlow crosses the index of a value in the vocabulary list of {key.name!r}, Penstock "
                    f"the value itself; cross {key.key!r} instead, and train again"
                )
            case "WeightedCategoricalColumn":
                raise ConfigError(f"TensorFlow ignores weights in a cross, but {key.name!r} has some")
            case name:
                raise _refusal(name)

    def _bare_key(self, key: str) -> Feature:
        dtypes = self._dtypes.get(key, set())
        if "float" in dtypes:
            raise ConfigError(
                f"the key {key!r} is a float, which TensorFlow cuts to an integer; cross its buckets instead"
            )
        if key in self._integers or dtypes == {"integer"}:
            return Ids(column=key, cross_only=True)
        return Hashed(1, column=key, cross_only=True)  # a cross takes the string, and never this bucket

    def _known_dtypes(self) -> dict[str, set[str]]:
        """What the columns say of the dtype of each raw column."""
        found: dict[str, set[str]] = {}
        for column in _all_columns(self._columns):
            dtype = getattr(column, "dtype", None) if hasattr(column, "key") else None
            if _class_name(column) == "IdentityCategoricalColumn":
                found.setdefault(column.key, set()).add("integer")
            elif dtype is not None:
                name = "integer" if dtype.is_integer else "string" if dtype.name == "string" else "float"
                found.setdefault(column.key, set()).add(name)
        return found

    def _known_lists(self, max_length: Mapping[str, int]) -> dict[str, int]:
        if not isinstance(max_length, Mapping):
            raise ConfigError(f"max_length must be a dict of numbers by raw key, got {shown_value(max_length)}")
        found = [*_all_columns(self._columns)]
        keys = {column.key for column in found if _class_name(column) in CATEGORICAL}
        for key in max_length:
            if key not in keys:
                near = nearest(key, keys, 0.6) if isinstance(key, str) else None
                hint = "" if near is None else f"; did you mean {near!r}?"
                raise ConfigError(
                    f"max_length= has {shown_value(key)}, which is not the key of a categorical column{hint}"
                )
        weighted = [column.categorical_column for column in found if _class_name(column) == "WeightedCategoricalColumn"]
        lists = {column.key: 1 for column in weighted if _class_name(column) in CATEGORICAL}
        return lists | {key: checked_count(f"max_length of {key!r}", most) for key, most in max_length.items()}


def _class_name(column: Any) -> str:
    return type(column).__name__.lstrip("_")


def _refusal(name: str) -> ConfigError:
    instead = REFUSED.get(name)
    if instead is None and name.endswith("CategoricalColumn"):
        instead = "wrap it in an indicator_column or an embedding_column"
    return ConfigError(f"{name} cannot be converted" + ("" if instead is None else f": {instead}"))


def _all_columns(columns: Iterable[Any]) -> Iterator[Any]:
    """The columns and what they are made of, without bare names."""
    for column in columns:
        if not isinstance(column, str):
            yield column
            parts = (getattr(column, part, None) for part in ("source_column", "categorical_column"))
            yield from _all_columns([part for part in parts if part is not None])
            yield from _all_columns(getattr(column, "keys", ()))


def _leaf_keys(column: Any) -> Iterator[Any]:
    """The keys of a cross; of a cross among them its own keys, as TensorFlow takes them."""
    for key in column.keys:
        if not isinstance(key, str) and _class_name(key) == "CrossedColumn":
            yield from _leaf_keys(key)
        else:
            yield key


def _check_numeric(column: Any) -> None:
    if column.normalizer_fn is not None:
        raise ConfigError(
            "normalizer_fn is a function, which cannot be converted: use Numeric(scale=), or move it into the model"
        )
    if tuple(column.shape) != (1,):
        raise ConfigError(f"shape must be (1,), got {tuple(column.shape)}: create a column for each number")


def _default(column: Any) -> float | None:
    """What `make_parse_example_spec` puts where there is no value."""
    return None if column.default_value is None else float(column.default_value[0])


def _dropped(column: Any) -> tuple[Any, ...]:
    """The value that TensorFlow drops as a missing one."""
    return ("",) if column.dtype.name == "string" else (-1,)


def _check_embedding(column: Any) -> None:
    if column.combiner not in COMBINERS:
        raise ConfigError(f"combiner must be one of {', '.join(COMBINERS)}, got {shown_value(column.combiner)}")
    if column.ckpt_to_load_from is not None:
        raise ConfigError(
            "ckpt_to_load_from is a file of TensorFlow 1: leave it out, and set the rows of the layer, as read by "
            "tf.train.load_variable"
        )
    if not getattr(column, "use_safe_embedding_lookup", True):
        raise ConfigError(
            "use_safe_embedding_lookup=False leaves open what a row without a value is: leave it out, and it is zeros"
        )


def _bucketized(column: Any, *, one_hot: bool = False, cross_only: bool = False) -> Bucketized:
    source = column.source_column
    _check_numeric(source)
    return Bucketized(
        tuple(least_rounded_to(boundary) for boundary in column.boundaries),
        one_hot=one_hot,
        cross_only=cross_only,
        fill_value=_default(source),
        column=source.key,
    )


def _identity(column: Any, **form: Any) -> Ids:
    return Ids(
        column.number_buckets,
        unknown=column.default_value,
        fill_value=EMPTY,
        missing_values=(-1,),
        column=column.key,
        **form,
    )


def _vocabulary(column: Any, *, one_hot: bool, max_length: int | None, weights: str | None) -> Vocabulary:
    values = tuple(value.decode() if isinstance(value, bytes) else value for value in column.vocabulary_list)
    unknown: Any = None
    if not column.num_oov_buckets:
        if not one_hot and column.default_value >= len(values):
            raise ConfigError(f"default_value {column.default_value} is not the id of one of the {len(values)} values")
        # An id outside of the list is a row of zeros; -1 is the default
        known = 0 <= column.default_value < len(values)
        unknown = values[column.default_value] if known else EMPTY
    return Vocabulary(
        values,
        num_oov_indices=column.num_oov_buckets,
        unknown=unknown,
        one_hot=one_hot,
        max_length=max_length,
        weights=weights,
        fill_value=EMPTY,
        missing_values=_dropped(column),
        column=column.key,
    )


def least_rounded_to(boundary: float) -> float:
    """The least float64 that TensorFlow, which compares in float32, puts above a boundary.

    Raises:
        ConfigError: the boundary is too large for float32.
    """
    if abs(boundary) >= FLOAT32_END:
        raise ConfigError(f"the boundary {boundary!r} is not a finite number as float32")
    single = np.float32(boundary)
    if abs(single) < SMALLEST_FLOAT32:  # it counts as 0, and so does every number as small
        return math.nextafter(-FLOAT32_BEGIN, math.inf)
    if single == SMALLEST_FLOAT32:
        return FLOAT32_BEGIN
    with np.errstate(over="ignore"):  # below the least float32 is -inf, which counts as -2**128 here
        below = float(np.nextafter(single, np.float32(-np.inf)))
    middle = (float(single) + (below if math.isfinite(below) else -(2.0**128))) / 2
    # The middle between two float32 is rounded to the one whose last bit is 0
    return math.nextafter(middle, math.inf) if int(single.view(np.uint32)) & 1 else middle
