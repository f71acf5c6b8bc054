"""Read JSON that somebody else may have written, strictly.  Pure.

Contract
--------
* What is no JSON by the letter is refused: NaN, a key that is there twice, bytes that are not UTF-8, half of a
  surrogate pair, which can be neither written nor shown afterwards.
* A refusal says what is wrong on one line of bounded length, whatever is in the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import msgspec

from penstock.codec.text import cut_line, printable
from penstock.codec.type_cache import fill_type_cache
from penstock.errors import ArtifactInvalid

T = TypeVar("T")

LONGEST_FAULT: Final = 1000
"""Bytes of what is said of a file; a name or a number in it may be as long as the file."""


def read_strictly(
    content: bytes,
    kind: type[T],
    *,
    file: str,
    schemas: Collection[int],
    remedy: str,
    check: Callable[[T], None],
    upgrade: Callable[[dict[str, Any]], dict[str, Any]] = lambda found: found,
) -> T:
    """What a file says that holds one object.

    Args:
        content: its bytes.
        kind: what it is to be, a `msgspec.Struct`.
        file: its name.
        schemas: those that this Penstock reads, in order.
        remedy: what else can be done about another schema than to use another version.
        check: raises a ValueError where the file says what cannot be.
        upgrade: returns an object of an earlier schema as one of the newest; it may raise a ValueError.

    Raises:
        ArtifactInvalid: it says something that is not known here, or that cannot be.
    """
    try:
        found = _read_json(content)
        _refuse_other_schema(found, schemas, remedy)
        fill_type_cache(kind)
        read = msgspec.convert(upgrade(found), kind)
        check(read)
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, and msgspec's errors are ValueErrors
        # What it says may repeat a name or a value that somebody else chose.
        raise ArtifactInvalid(f"{file}: {cut_line(printable(str(error)), LONGEST_FAULT)}", file=file) from error
    return read


def _read_json(content: bytes) -> Any:
    found = json.loads(content.decode(), object_pairs_hook=_without_repeats, parse_constant=_no_number)
    if b"\\u" in content:  # bytes that are UTF-8 have no half of a pair but by an escape
        _check_text(found)
    return found


def _refuse_other_schema(found: Any, known: Collection[int], remedy: str) -> None:
    if not isinstance(found, dict):
        raise ValueError("it must be an object")  # noqa: TRY004  # it is about what a file says
    schema = found.get("schema")
    if isinstance(schema, int) and not isinstance(schema, bool) and schema not in known:
        *others, last = map(str, known)
        readable = f"{', '.join(others)} and {last}" if others else last
        raise ValueError(
            f"it has schema {schema}, but this Penstock reads only schema {readable}: use the version that wrote "
            f"it{' or a newer one' if schema > max(known) else ''}, or {remedy}"
        )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} is given twice")
        found[name] = value
    return found


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not valid JSON")


def _check_text(found: Any) -> None:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        text = error.object[error.start : error.end]
        raise ValueError(f"{text!r} is half of a surrogate pair, which is not valid text") from None
