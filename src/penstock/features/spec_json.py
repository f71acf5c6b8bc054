"""A spec as JSON text, and back without a difference.

Every option is written, also those with their default, so that a spec means the same where a default has changed.
What is not known, or not there, is refused.  `MEAN` and `EMPTY` are objects, as ``{"stand_in": "mean"}``, because a
string may be a stand-in too; infinity, which `ignore` may have, is ``{"float": "inf"}``.
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

SCHEMA: Final = 1
KINDS: Final = {kind.__name__: kind for kind in get_args(Feature)}

Parts = tuple[dict[str, Feature], str | None, dict[str, Statistics] | None]
"""The features, the name of the joined input, and what was learnt."""


def spec_to_json(kinds: Mapping[str, Feature], join: str | None, statistics: Mapping[str, Statistics] | None) -> str:
    """The text of a spec, one feature a line."""
    features = [f"    {_text(name)}: {_text(_kind_out(kind))}" for name, kind in kinds.items()]
    learnt = "null"
    if statistics is not None:
        lines = [f"    {_text(name)}: {_text(_options_out(found))}" for name, found in statistics.items()]
        learnt = "{\n" + ",\n".join(lines) + "\n  }"
    body = "{\n" + ",\n".join(features) + "\n  }"
    return f'{{\n  "schema": {SCHEMA},\n  "join": {_text(join)},\n  "features": {body},\n  "statistics": {learnt}\n}}\n'


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _kind_out(kind: Feature) -> dict[str, Any]:
    return {"kind": type(kind).__name__, **_options_out(kind)}


def _options_out(options: Any) -> dict[str, Any]:
    return {field.name: _value_out(getattr(options, field.name)) for field in dataclasses.fields(options)}


def _value_out(value: Any) -> Any:
    if isinstance(value, FillValue):
        return {"stand_in": value.value}
    if isinstance(value, tuple):
        return [_value_out(one) for one in value]
    if isinstance(value, float) and math.isinf(value):
        return {"float": repr(value)}
    return value


def spec_from_json(text: str | bytes) -> Parts:
    """What the text says.

    Raises:
        ConfigError: it is not of the form that `spec_to_json` writes.
    """
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"not a valid feature spec: {exc}") from None
    top = _object("the text", found, ("schema", "join", "features", "statistics"))
    if type(top["schema"]) is not int or top["schema"] != SCHEMA:
        raise ConfigError(f"the schema of features must be {SCHEMA}, got {shown_value(top['schema'])}")
    join, learnt = top["join"], top["statistics"]
    if join is not None and not isinstance(join, str):
        raise ConfigError(f"join must be a name or null, got {shown_value(join)}")
    kinds = {name: _kind_in(name, kind) for name, kind in _object("features", top["features"]).items()}
    if learnt is None:
        return kinds, join, None
    names = _object("statistics", learnt, tuple(kinds))
    return kinds, join, {name: _statistics_in(name, names[name]) for name in kinds}


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


def _kind_in(name: str, value: Any) -> Feature:
    options = _object(f"the feature {name!r}", value)
    word = options.get("kind")
    kind = KINDS.get(word) if isinstance(word, str) else None
    if kind is None:
        raise ConfigError(f"the feature {name!r} has the kind {shown_value(word)}; kinds: {', '.join(KINDS)}")
    fields = [field.name for field in dataclasses.fields(kind)]
    options = _object(f"the feature {name!r}", value, ("kind", *fields))
    kind_made: Feature = _build(name, kind, {field: options[field] for field in fields})
    return kind_made


def _statistics_in(name: str, value: Any) -> Statistics:
    fields = [field.name for field in dataclasses.fields(Statistics)]
    found: Statistics = _build(name, Statistics, _object(f"the statistics of {name!r}", value, fields))
    return found


def _build(name: str, made: Any, options: Mapping[str, Any]) -> Any:
    try:
        return made(**{key: _value_in(value) for key, value in options.items()})
    except ConfigError as exc:
        raise ConfigError(f"the feature {name!r}: {exc}") from None


def _value_in(value: Any) -> Any:
    match value:
        case {"stand_in": word} if len(value) == 1 and word in [one.value for one in FillValue]:
            return FillValue(word)
        case {"float": "inf" | "-inf" as word} if len(value) == 1:
            return float(word)
        case dict():
            raise ConfigError(f"{shown_value(value)} is not a known value")
        case list():
            return tuple(_value_in(one) for one in value)
        case _:
            return value
