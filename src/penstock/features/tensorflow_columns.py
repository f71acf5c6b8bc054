"""Convert the columns of `tf.feature_column` to a feature spec that gives what `input_layer` gives, row for row.

TensorFlow is not imported: its columns are named tuples, which are told apart by their class's name.  What cannot be
made equal is refused, by the column's name.

Where the two differ by nature, this is what makes them equal:

* `input_layer` orders columns by name, and so are the features.
* `numeric_column` casts to float32 before a number is compared with a boundary; here it is compared in float64.  So a
  boundary is moved to the least float64 that is rounded to it.
* A number that float32 holds as a subnormal one is 0, as where TensorFlow casts it; one fed as float32 it keeps.
* "" and -1 are dropped by categorical columns, so they are in `ignore`, with `missing=EMPTY`.  A bare name in a cross
  drops nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np

from penstock.errors import ConfigError
from penstock.features.encoders import FLOAT32_BEGIN, FLOAT32_END, SMALLEST_FLOAT32
from penstock.features.feature_spec import Features
from penstock.features.kinds import CROSS_KEY, EMPTY, Bucketized, Crossed, Hashed, Ids, Kind, Numeric, Vocabulary

REFUSED: Final = {
    "EmbeddingColumn": "put the embedding into the model, and feed it with the ids of a feature",
    "SharedEmbeddingColumn": "put the embedding into the model, and feed it with the ids of two features",
    "WeightedCategoricalColumn": "use a feature with many= and weights=",
    "VocabularyFileCategoricalColumn": "read the file, and use categorical_column_with_vocabulary_list",
    "SequenceCategoricalColumn": "use a feature with many=",
}
"""What to do instead of the columns that are known and cannot be converted."""


def from_feature_columns(columns: Iterable[Any], *, integers: Collection[str] = ()) -> Features:
    """A spec whose one input `x` equals `tf.compat.v1.feature_column.input_layer` of the columns, row for row.

    Args:
        columns: numeric, bucketized and indicator columns; these of identity, hash bucket, vocabulary list and crossed.
        integers: the bare names in crosses that are fed as integers.  TensorFlow hashes an integer and its decimal
            string differently, and such a key does not say which it is.  A name counts as one of integers also where
            another column says so; others count as strings, as in `make_parse_example_spec`.

    Raises:
        ConfigError: a column cannot be converted; the message names it.
    """
    return _Conversion(tuple(columns), integers).features()


class _Conversion:
    """The conversion of one list of columns."""

    def __init__(self, columns: tuple[Any, ...], integers: Collection[str]) -> None:
        for column in columns:
            if not hasattr(column, "_fields") or not hasattr(column, "name"):
                raise ConfigError(f"{column!r} is no column of tf.feature_column")
        self._columns = sorted(columns, key=lambda column: str(column.name))
        self._integers = integers
        self._kinds: dict[str, Kind] = {}
        self._keys: dict[Any, str] = {}
        """The features made for keys of crosses, by the key."""
        self._dtypes = self._known_dtypes()

    def features(self) -> Features:
        names = [str(column.name) for column in self._columns]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ConfigError(f"there are two columns of the name {min(twice)!r}")
        for column in self._columns:
            self._kinds[column.name] = self._named(column, self._dense)
        return Features({**self._kinds}, join="x")

    def _named(self, column: Any, convert: Callable[[Any], Kind]) -> Kind:
        try:
            return convert(column)
        except ConfigError as exc:
            raise ConfigError(f"column {column.name!r}: {exc}") from None

    def _dense(self, column: Any) -> Kind:
        """The kind of a column that `input_layer` takes."""
        match _class_name(column):
            case "NumericColumn":
                _check_numeric(column)
                return Numeric(column=column.key, missing=_default(column))
            case "BucketizedColumn":
                return _bucketized(column, one_hot=True)
            case "IndicatorColumn":
                return self._indicator(column.categorical_column)
            case name:
                raise _refusal(name)

    def _indicator(self, column: Any) -> Kind:
        match _class_name(column):
            case "BucketizedColumn":
                return _bucketized(column, one_hot=True)
            case "IdentityCategoricalColumn":
                return _identity(column, one_hot=True)
            case "HashedCategoricalColumn":
                return Hashed(
                    column.hash_bucket_size, one_hot=True, missing=EMPTY, ignore=_dropped(column), column=column.key
                )
            case "VocabularyListCategoricalColumn":
                return _vocabulary(column)
            case "CrossedColumn":
                return self._crossed(column)
            case name:
                raise _refusal(name)

    # crosses ---------------------------------------------------------------------------------------------------------

    def _crossed(self, column: Any) -> Crossed:
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
            one_hot=True,
            missing=EMPTY,
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

    def _key_kind(self, key: Any) -> Kind:
        if isinstance(key, str):
            return self._bare_key(key)
        match _class_name(key):
            case "BucketizedColumn":
                return _bucketized(key, one_hot=False)
            case "IdentityCategoricalColumn":
                return _identity(key, one_hot=False)
            case "VocabularyListCategoricalColumn":
                raise ConfigError(
                    f"TensorFlow crosses the place of a value in the vocabulary list of {key.name!r}, and Penstock the "
                    f"value itself; cross {key.key!r} instead, and train again"
                )
            case name:
                raise _refusal(name)

    def _bare_key(self, key: str) -> Kind:
        dtypes = self._dtypes.get(key, set())
        if "float" in dtypes:
            raise ConfigError(
                f"the key {key!r} is a float, which TensorFlow cuts to an integer; cross its buckets instead"
            )
        if key in self._integers or dtypes == {"integer"}:
            return Ids(column=key, key_only=True)
        return Hashed(1, column=key, key_only=True)  # a cross takes the string, and never this bucket

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


def _class_name(column: Any) -> str:
    return type(column).__name__.lstrip("_")


def _refusal(name: str) -> ConfigError:
    instead = REFUSED.get(name)
    if instead is None and name.endswith("CategoricalColumn"):
        instead = "put it into an indicator_column"
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
            "normalizer_fn is a function, which cannot be converted: use Numeric(scale=), or put it into the model"
        )
    if tuple(column.shape) != (1,):
        raise ConfigError(f"shape must be (1,), got {tuple(column.shape)}: make a column of each number")


def _default(column: Any) -> float | None:
    """What `make_parse_example_spec` puts where there is no value."""
    return None if column.default_value is None else float(column.default_value[0])


def _dropped(column: Any) -> tuple[Any, ...]:
    """The value that TensorFlow drops as a missing one."""
    return ("",) if column.dtype.name == "string" else (-1,)


def _bucketized(column: Any, *, one_hot: bool) -> Bucketized:
    source = column.source_column
    _check_numeric(source)
    return Bucketized(
        tuple(least_rounded_to(boundary) for boundary in column.boundaries),
        one_hot=one_hot,
        key_only=not one_hot,
        missing=_default(source),
        column=source.key,
    )


def _identity(column: Any, *, one_hot: bool) -> Ids:
    return Ids(
        column.number_buckets,
        unknown=column.default_value,
        one_hot=one_hot,
        key_only=not one_hot,
        missing=EMPTY,
        ignore=(-1,),
        column=column.key,
    )


def _vocabulary(column: Any) -> Vocabulary:
    values = tuple(value.decode() if isinstance(value, bytes) else value for value in column.vocabulary_list)
    unknown: Any = None
    if not column.num_oov_buckets:
        # An id outside of the list is a row of zeros; -1 is the default
        known = 0 <= column.default_value < len(values)
        unknown = values[column.default_value] if known else EMPTY
    return Vocabulary(
        values,
        oov_buckets=column.num_oov_buckets,
        unknown=unknown,
        one_hot=True,
        missing=EMPTY,
        ignore=_dropped(column),
        column=column.key,
    )


def least_rounded_to(boundary: float) -> float:
    """The least float64 that TensorFlow, which compares in float32, puts above a boundary.

    Raises:
        ConfigError: the boundary is too large for float32.
    """
    if abs(boundary) >= FLOAT32_END:
        raise ConfigError(f"the boundary {boundary!r} is no finite number as float32")
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
