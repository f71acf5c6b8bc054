"""Make rows for the proof out of those that were given: a model may refuse them, or read their text otherwise.  Pure.

Contract
--------
* Each is the first of the given rows with another value in one column: missing, empty, never seen, at the limits of its
  kind, and for a text what the given texts become in upper case, with other accents and with other white space.
* At most `MOST_MADE` are made.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from penstock.features.encoding import columns_of
from penstock.features.feature_spec import Features
from penstock.features.kinds import Bucketized, Feature, Hashed, Ids, Numeric, Text, Vocabulary

MOST_MADE: Final = 1000
MOST_TEXTS: Final = 20
"""How many texts of a column are written otherwise, and how many known categories are tried."""
NEVER_SEEN: Final = "never seen \u2013 7c1f"
LARGEST: Final = 3.0e38
"""A number that float32 holds, and of which hardly anything can be computed in it."""
LARGEST_ID: Final = 2**63 - 1
UNSIGNED_HALF: Final = 2**31
"""From here to 2**32 the lower half of an int64 is negative as an int32: ONNX Runtime 1.31 takes a wrong minimum."""
FLOAT32_WHOLE: Final = 2**24
"""From here on not every integer is a float32, and a model may count with an id as with a number."""


class MadeRow(NamedTuple):
    """A row that was made."""

    row: dict[str, Any]
    is_compared: bool
    """Whether the model's answer is compared with the graph's, and not only whether there is one.

    Numbers beyond those that were given are not: in float32 such answers differ, and it is told of elsewhere.
    """
    has_far_id: bool = False
    """Whether it has an id that no float32 holds, so that the ids that the model looks up for it are compared alone."""


def made_rows(features: Features, rows: Sequence[Mapping[str, Any]]) -> list[MadeRow]:
    """The rows that are made of `rows`, at least one."""
    return list(islice(_all_made(features, rows), MOST_MADE))


def _all_made(features: Features, rows: Sequence[Mapping[str, Any]]) -> Iterator[MadeRow]:
    base = dict(rows[0])
    for name, kind in features.features.items():
        for column in columns_of(name, kind)[:1]:
            for value in odd_values(kind, [row.get(column) for row in rows]):
                is_many = value is not None and getattr(kind, "max_length", None) is not None
                row = {**base, column: [value] if is_many else value}
                if (weights := getattr(kind, "weights", None)) is not None and is_many:
                    row[weights] = [1.0]
                is_far = isinstance(value, int) and not 0 <= value < FLOAT32_WHOLE
                is_number = isinstance(kind, Numeric | Bucketized)
                yield MadeRow(row, not is_number and not is_far, is_far and isinstance(kind, Ids))


def odd_values(kind: Feature, given: Sequence[Any]) -> list[Any]:
    """Values of one kind that are likely to be refused or read otherwise.

    Args:
        kind: how the column is read.
        given: the values that it has in the given rows; lists count by their elements.
    """
    values = [one for value in given for one in (value if isinstance(value, list) else [value]) if one is not None]
    match kind:
        case Numeric() | Bucketized():
            numbers = [float(value) for value in values if not isinstance(value, str)]
            return [None, 0.0, -1.0, max(numbers, default=0.0) + 1.5, LARGEST, -LARGEST]
        case Ids():
            ids = [int(value) for value in values]
            last = LARGEST_ID if kind.size is None else kind.size - 1
            return [None, 0, -1, *{min(max(ids, default=0) + 1, last), min(UNSIGNED_HALF, last), last}]
        case Text():
            return [None, "", NEVER_SEEN, *rewritten_texts(_distinct(values))]
        case Vocabulary():
            return [None, "", NEVER_SEEN, *(kind.values or ())[:MOST_TEXTS]]
        case Hashed():
            return [None, "", NEVER_SEEN]
        case _:
            return []


def rewritten_texts(texts: Iterable[str]) -> list[str]:
    """Texts in other cases, with other accents and with other white space, in which languages differ."""
    found = dict.fromkeys(way(text) for text in texts for way in WAYS)
    return list(found)


def _distinct(values: Iterable[Any]) -> list[str]:
    return list(islice(dict.fromkeys(map(str, values)), MOST_TEXTS))


def _marked(text: str) -> str:
    """A mark above each letter, as a character of its own."""
    return "".join(f"{letter}\u0301" if letter.isalpha() else letter for letter in text)


WAYS: Final = (
    str.upper,  # the last sigma of a word, and what has no upper case of one letter
    str.swapcase,
    lambda text: text.replace("i", "\u0130").replace("I", "\u0130"),  # Turkish; in lower case it is two characters
    lambda text: text.replace("\u00df", "\u1e9e").replace("ss", "\u1e9e"),
    lambda text: unicodedata.normalize("NFD", text),
    lambda text: unicodedata.normalize("NFKC", text),
    _marked,
    lambda text: text.replace(" ", "\u00a0"),
    lambda text: text.replace(" ", "\n"),
    lambda text: text.replace(" ", "\u200b"),  # no white space in Python, and no letter
    lambda text: text.replace(" ", "\U0001f600"),  # beyond the BMP
    lambda text: text.replace(" ", "\U0001d7d9"),  # a digit beyond the BMP
    lambda text: text.replace(" ", "_"),
    lambda text: f"\u0000{text}\u0000",
    lambda text: f"  {text}  ",
)
