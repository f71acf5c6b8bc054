"""Read JSON that somebody else may have written, strictly.  Pure.

Contract
--------
* What is no JSON by the letter is a `ValueError` (or a `RecursionError`): NaN, a key that is there twice, bytes that
  are not UTF-8, half of a surrogate pair, which can be neither written nor shown afterwards.
* `fault_words` says what is wrong on one line of bounded length, whatever is in the file.
"""

from __future__ import annotations

import json
from typing import Any, Final

from penstock.codec.text import cut_line, printable

LONGEST_FAULT: Final = 1000
"""Bytes of what is said of a file; a name or a number in it may be as long as the file."""


def strict_json(content: bytes) -> Any:
    """What the bytes say.

    Raises:
        ValueError: they are no JSON.
        RecursionError: they are nested too deeply.
    """
    found = json.loads(content.decode(), object_pairs_hook=_without_repeats, parse_constant=_no_number)
    if b"\\u" in content:  # bytes that are UTF-8 have no half of a pair but by an escape
        _check_text(found)
    return found


def refuse_other_schema(found: Any, known: int, remedy: str) -> None:
    """Raise ValueError where `found` is no object, or one whose `schema` is a number but not `known`.

    Args:
        found: what `strict_json` gave.
        known: the schema that this Penstock reads.
        remedy: what else can be done than to use another version.
    """
    if not isinstance(found, dict):
        raise ValueError("it has to be an object")  # noqa: TRY004  # it is about what a file says
    schema = found.get("schema")
    if isinstance(schema, int) and not isinstance(schema, bool) and schema != known:
        raise ValueError(
            f"it is of schema {schema}, and this Penstock reads schema {known} alone: "
            f"use the version that wrote it{' or a newer one' if schema > known else ''}, or {remedy}"
        )


def fault_words(error: Exception) -> str:
    """What is wrong with a file, in printable characters; it may repeat a name or a value that somebody else chose."""
    return cut_line(printable(str(error)), LONGEST_FAULT)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} is there twice")
        found[name] = value
    return found


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _check_text(found: Any) -> None:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        text = error.object[error.start : error.end]
        raise ValueError(f"{text!r} is half of a surrogate pair, which is no text") from None
