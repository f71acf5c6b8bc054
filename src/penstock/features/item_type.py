"""One row of a request as a class: what JSON may bring for each column, and what OpenAPI says of it.

The class is as wide as the spec: a number is declared as integer or float, because msgspec would round an integer that
is sent for a float.  What a value means, and whether it is one, is found by `encode_rows`, for requests and in process
alike.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final

import msgspec

from penstock.features.encoding import columns_of
from penstock.features.kinds import Bucketized, Crossed, Feature, Hashed, Ids, Numeric, Text, Vocabulary
from penstock.features.learnt import Statistics

LONGEST_VOCABULARY: Final = 1000
"""Most known values that OpenAPI lists."""


def make_item_type(kinds: Mapping[str, Feature], statistics: Mapping[str, Statistics]) -> type[msgspec.Struct]:
    """A class with a field for each column, that takes no other."""
    readers: dict[str, dict[str, Feature]] = {}
    for name, kind in kinds.items():
        for column in columns_of(name, kind):
            readers.setdefault(column, {})[name] = kind
    fields: list[Any] = []
    renamed: dict[str, str] = {}
    for place, (column, features) in enumerate(readers.items()):
        field = attribute_name(column, place, readers)
        renamed[field] = column
        fields.append(_field(field, column, features, statistics))
    return msgspec.defstruct("Item", fields, rename=renamed, forbid_unknown_fields=True, frozen=True, kw_only=True)


def attribute_name(column: str, place: int, columns: Mapping[str, Any]) -> str:
    """The column's own name where Python takes it for a field, else one made of its place."""
    if column.isidentifier() and not keyword.iskeyword(column) and not column.startswith("_"):
        return column
    name = f"column_{place}"
    while name in columns:
        name += "_"
    return name


def _field(field: str, column: str, features: Mapping[str, Feature], statistics: Mapping[str, Statistics]) -> Any:
    is_weights = all(column != columns_of(name, kind)[0] for name, kind in features.items())
    types = {int, float} if is_weights else set[type]().union(*map(taken_types, features.values()))
    value: Any = reduce(or_, sorted(types, key=str))
    longest = max((getattr(kind, "max_length", None) or 0 for kind in features.values()), default=0)
    if longest:
        element: Any = value if is_weights else value | None
        value = Annotated[list[element], msgspec.Meta(max_length=longest)]
    words = (
        _weight_words(features) if is_weights else {name: _words(features[name], statistics[name]) for name in features}
    )
    meta = msgspec.Meta(
        description="; ".join(f"{name}: {says['meaning']}" for name, says in words.items()),
        extra_json_schema={"x-features": words},
    )
    if all(getattr(kind, "fill_value", None) is not None for kind in features.values()):
        return field, Annotated[value | None, meta], None
    return field, Annotated[value, meta]


def taken_types(kind: Feature) -> set[type]:
    """The types in which JSON may bring a value of a kind, or one that it ignores."""
    match kind:
        case Numeric() | Bucketized():
            types: set[type] = {int, float}
        case Text():
            types = {str}
        case Hashed() | Vocabulary():
            types = {int, float, str, bool}
        case _:
            types = {int, float, str}
    ignored = () if isinstance(kind, Crossed) else kind.missing_values
    return types | {type(value) for value in ignored}


def _weight_words(features: Mapping[str, Feature]) -> dict[str, dict[str, Any]]:
    return {name: {"kind": "weights", "meaning": f"the weight of each value of {name}"} for name in features}


def _words(kind: Feature, statistics: Statistics) -> dict[str, Any]:
    """What OpenAPI says of one feature."""
    words: dict[str, Any] = {"kind": type(kind).__name__, "meaning": _meaning(kind, statistics)}
    if isinstance(kind, Vocabulary):
        words["vocabulary"] = list(_known(kind, statistics)[:LONGEST_VOCABULARY])
    if isinstance(kind, Bucketized):
        words["boundaries"] = list(kind.boundaries or statistics.boundaries or ())
    return words


def _known(kind: Vocabulary, statistics: Statistics) -> tuple[str, ...]:
    return kind.values if kind.values is not None else statistics.values or ()


def _meaning(kind: Feature, statistics: Statistics) -> str:
    match kind:
        case Numeric():
            return "a finite number"
        case Bucketized():
            buckets = len(kind.boundaries or statistics.boundaries or ()) + 1
            return f"a finite number, of which the bucket counts, one of {buckets}"
        case Hashed():
            return f"a category, hashed into {kind.buckets} buckets"
        case Vocabulary():
            return _vocabulary_meaning(kind, len(_known(kind, statistics)))
        case Ids():
            limits = "any int64" if kind.size is None else f"0 to {kind.size - 1}"
            return f"an id, {limits}; send one beyond 2^53 as a decimal string"
        case _:
            return "a string"


def _vocabulary_meaning(kind: Vocabulary, known: int) -> str:
    takes_unknown = kind.num_oov_indices or kind.unknown is not None
    return f"a category, one of {known} known ones" + (" or any other" if takes_unknown else "")
