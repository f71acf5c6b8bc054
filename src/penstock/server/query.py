"""Read the query of a request: which parameters there are, each once, with values that can be read.

A parameter that nobody knows is an error and never ignored, because it is mostly a known one that was misspelt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from penstock.errors import ConfigError
from penstock.spelling import nearest

MOST_PARAMETERS: Final = 32
_LIKELY: Final = 0.7
_SHOWN: Final = 100
"""Characters of a name or a value that a message repeats."""


def read_query(query: bytes, known: Mapping[str, type]) -> dict[str, Any]:
    """The values of the parameters in `query`, each of the type that `known` has for its name.

    Raises:
        ConfigError: a parameter is not known, is there twice, or cannot be read; the sentence says which.
    """
    found: dict[str, Any] = {}
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS
        )
    except UnicodeDecodeError:
        raise ConfigError("the query is not percent-encoded UTF-8") from None
    except ValueError:
        raise ConfigError(f"the query has more than {MOST_PARAMETERS} parameters") from None
    for name, text in pairs:
        if name not in known:
            raise ConfigError(_unknown(name, known))
        if name in found:
            raise ConfigError(f"the parameter {name!r} is repeated")
        found[name] = _value(name, text, known[name])
    return found


def _unknown(name: str, known: Mapping[str, type]) -> str:
    shown = name[:_SHOWN]
    if not known:
        return f"unknown parameter {shown!r}: this path has no parameters"
    near = nearest(shown, known, _LIKELY)
    hint = f": did you mean {near!r}?" if near else f"; this path has {', '.join(known)}"
    return f"unknown parameter {shown!r}{hint}"


def _value(name: str, text: str, kind: type) -> str | int | float:
    if kind is str:
        return text
    try:
        number: int | float = kind(text)
    except ValueError:  # too many digits, too
        number = math.nan
    if math.isfinite(number) and "_" not in text and text == text.strip():
        return number
    words = "whole number" if kind is int else "number"
    raise ConfigError(f"the parameter {name!r} must be a {words}, got {text[:_SHOWN]!r}")
