"""Write a value of a run as JSON, or say why it cannot be written.

Contract
--------
* One value has one text, in ASCII, whatever the order of the keys it was made with.
* Keys are text.  JSON would make text of other keys without a word.
* A value is nested `DEEPEST` times at most, and an integer has at most `MOST_DIGITS`, so that it can be read wherever
  it could be written.
* Its text has `MOST_BYTES` at most, which SQLite keeps.  What must be longer is refused before the text is made, which
  would take the memory again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from penstock.errors import ConfigError

DEEPEST: Final = 100
"""How many lists and dicts may be in each other."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""Longest JSON of a payload or a result."""
MOST_DIGITS: Final = sys.int_info.default_max_str_digits
"""Python reads no longer integer from text, unless somebody lifts its limit."""
_TOO_LONG: Final = 10**MOST_DIGITS
_MORE: Final = "write it to a file and pass the path"
_ENCODER: Final = json.JSONEncoder(sort_keys=True, allow_nan=False, separators=(",", ":"))


def json_text(value: Any, what: str) -> str:
    """The JSON of a value, which `what` names in errors.

    Raises:
        ConfigError: JSON cannot carry the value, or it is too large or too deep.
    """
    _check(value, what)
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{what} cannot be written as JSON: {error}; use dicts, lists, strings, finite numbers, booleans and None"
        ) from error
    _check_size(len(text), what)
    return text


def _check(value: Any, what: str) -> None:
    """Refuse other keys than text, what is too deep, and what is too large whatever its text is."""
    least = 0
    open_: list[Iterator[Any]] = [iter((value,))]
    while open_:
        inside = None
        for each in open_[-1]:
            least += 1 + len(each) if isinstance(each, str) else 1
            if isinstance(each, int) and abs(each) >= _TOO_LONG:
                raise ConfigError(f"{what} has an integer of more than {MOST_DIGITS} digits; write it as a string")
            inside = _inside(each, what)
            if inside is not None:
                break
        if inside is None:
            open_.pop()
        elif len(open_) > DEEPEST:
            raise ConfigError(
                f"{what} is nested more than {DEEPEST} deep, or contains itself; make it flat, or {_MORE}"
            )
        else:
            open_.append(iter(inside))
        _check_size(least, what)


def _inside(value: Any, what: str) -> Iterable[Any] | None:
    """What a list or a dict has in it; None for anything else."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(
                    f"{what} has a dict with a key of the type {type(key).__name__}; use strings as the keys of dicts"
                )
        return value.values()
    return value if isinstance(value, list | tuple) else None


def _check_size(size: int, what: str) -> None:
    if size > MOST_BYTES:
        raise ConfigError(f"{what} has more than {MOST_BYTES // 1024**2} MiB as JSON; {_MORE}")
