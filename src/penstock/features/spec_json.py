"""A spec as JSON text, and back without a difference.

Every option is written, also those with their default, so that a spec means the same where a default has changed.
An unknown or missing key is rejected.  `MEAN` and `EMPTY` are objects, as ``{"fill_value": "mean"}``, because a
string may be a fill value too; infinity, which `missing_values` may have, is ``{"float": "inf"}``.

Schema 2 is written.  Schema 1 has other words for the same things, and is read.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

from penstock.errors import ConfigError
from penstock.features.kinds import Feature, FillValue
from penstock.features.learnt import Statistics
from penstock.features.values import shown_value
from penstock.spelling import nearest

SCHEMA: Final = 2
KINDS: Final = {kind.__name__: kind for kind in get_args(Feature)}

Parts = tuple[dict[str, Feature], str | None, dict[str, Statistics] | None]
"""The features, the name of the concatenated input, and what was learnt."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Schema:
    """Keys of a schema, where they are not the same in all."""

    concat_into: str
    fill_value: str
    """The key in the object that `MEAN` and `EMPTY` are."""
    options: Mapping[str, str]
    """Keys of options whose name is another today."""


SCHEMAS: Final = {
    1: _Schema(
        concat_into="join",
        fill_value="stand_in",
        options={
            "fill_value": "missing",
            "missing_values": "ignore",
            "max_length": "many",
            "cross_only": "key_only",
            "num_oov_indices": "oov_buckets",
        },
    ),
    SCHEMA: _Schema(concat_into="concat_into", fill_value="fill_value", options={}),
}


def spec_to_json(
    kinds: Mapping[str, Feature], concat_into: str | None, statistics: Mapping[str, Statistics] | None
) -> str:
    """The text of a spec, one feature a line."""
    features = [f"    {_text(name)}: {_text(_kind_out(kind))}" for name, kind in kinds.items()]
    learnt = "null"
    if statistics is not None:
        lines = [f"    {_text(name)}: {_text(_options_out(found))}" for name, found in statistics.items()]
        learnt = "{\n" + ",\n".join(lines) + "\n  }"
    body = "{\n" + ",\n".join(features) + "\n  }"
    head = f'  "schema": {SCHEMA},\n  "concat_into": {_text(concat_into)},\n'
    return f'{{\n{head}  "features": {body},\n  "statistics": {learnt}\n}}\n'


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _kind_out(kind: Feature) -> dict[str, Any]:
    return {"kind": type(kind).__name__, **_options_out(kind)}


def _options_out(options: Any) -> dict[str, Any]:
    return {field.name: _value_out(getattr(options, field.name)) for field in dataclasses.fields(options)}


def _value_out(value: Any) -> Any:
    if isinstance(value, FillValue):
        return {SCHEMAS[SCHEMA].fill_value: value.value}
    if isinstance(value, tuple):
        return [_value_out(one) for one in value]
    if isinstance(value, float) and math.isinf(value):
        return {"float": repr(value)}
    return value


def spec_from_json(text: str | bytes) -> Parts:
    """What the text says.

    Raises:
        ConfigError: it is not of the form that `spec_to_json` writes, or wrote in an earlier schema.
    """
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"not a valid feature spec: {exc}") from None
    schema = _schema_of(_object("the text", found))
    top = _object("the text", found, ("schema", schema.concat_into, "features", "statistics"))
    concat_into, learnt = top[schema.concat_into], top["statistics"]
    if concat_into is not None and not isinstance(concat_into, str):
        raise ConfigError(f"{schema.concat_into} must be a name or null, got {shown_value(concat_into)}")
    kinds = {name: _kind_in(name, kind, schema) for name, kind in _object("features", top["features"]).items()}
    if learnt is None:
        return kinds, concat_into, None
    names = _object("statistics", learnt, tuple(kinds))
    return kinds, concat_into, {name: _statistics_in(name, names[name], schema) for name in kinds}


def _schema_of(top: Mapping[str, Any]) -> _Schema:
    if "schema" not in top:
        raise ConfigError("the text has no 'schema'")
    number = top["schema"]
    if type(number) is not int or number not in SCHEMAS:
        known = " or ".join(map(str, SCHEMAS))
        raise ConfigError(f"the schema of features must be {known}, got {shown_value(number)}")
    return SCHEMAS[number]


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key is given twice in an object with the keys {shown_value([key for key, _ in pairs])}")
    return found


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not valid JSON")


def _object(what: str, value: Any, keys: Sequence[str] | None = None) -> dict[str, Any]:
    """An object with exactly these keys."""
    if not isinstance(value, dict):
        raise ConfigError(f"{what} must be an object, got {shown_value(value)}")
    if keys is None:
        return value
    for key in value:
        if key not in keys:
            near = nearest(key, keys)
            hint = "" if near is None else f"; did you mean {near!r}?"
            raise ConfigError(f"{what} has an unknown key {key!r}{hint}")
    for key in keys:
        if key not in value:
            raise ConfigError(f"{what} has no {key!r}")
    return value


def _kind_in(name: str, value: Any, schema: _Schema) -> Feature:
    options = _object(f"the feature {name!r}", value)
    word = options.get("kind")
    kind = KINDS.get(word) if isinstance(word, str) else None
    if kind is None:
        raise ConfigError(f"the feature {name!r} has the kind {shown_value(word)}; kinds: {', '.join(KINDS)}")
    keys = {field.name: schema.options.get(field.name, field.name) for field in dataclasses.fields(kind)}
    options = _object(f"the feature {name!r}", value, ("kind", *keys.values()))
    kind_made: Feature = _build(name, kind, {field: options[key] for field, key in keys.items()}, schema)
    return kind_made


def _statistics_in(name: str, value: Any, schema: _Schema) -> Statistics:
    fields = [field.name for field in dataclasses.fields(Statistics)]
    found: Statistics = _build(name, Statistics, _object(f"the statistics of {name!r}", value, fields), schema)
    return found


def _build(name: str, made: Any, options: Mapping[str, Any], schema: _Schema) -> Any:
    try:
        return made(**{key: _value_in(value, schema) for key, value in options.items()})
    except ConfigError as exc:
        raise ConfigError(f"the feature {name!r}: {exc}") from None


def _value_in(value: Any, schema: _Schema) -> Any:
    match value:
        case {"float": "inf" | "-inf" as word} if len(value) == 1:
            return float(word)
        case dict():
            for fill_value in FillValue:
                if value == {schema.fill_value: fill_value.value}:
                    return fill_value
            raise ConfigError(f"{shown_value(value)} is not a known value")
        case list():
            return tuple(_value_in(one, schema) for one in value)
        case _:
            return value
