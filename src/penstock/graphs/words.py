"""Take the words of a text as scikit-learn's vectorizers do, before a graph counts them.

A runtime has text functions of its own: it makes "ΟΔΟΣ" lower case without the sigma that ends a word, and knows
another Unicode.  A graph that counts words is given them, and says in its own file how they are taken.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, Literal

import msgspec
import numpy as np

from penstock.errors import ArtifactInvalid

WORDS: Final = "_words"
"""The name of the list in the metadata of the file."""
END_OF_WORD: Final = "\x1f"
"""Between the terms that a graph is given, which counts none with this character."""
_WHITE_SPACES: Final = re.compile(r"\s\s+")


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The words of one input, as one input of the graph."""

    name: str
    """The graph's input."""
    input: str
    """The input of the model with the text."""
    analyzer: Literal["word", "char", "char_wb"]
    lower: bool
    accents: Literal["ascii", "unicode"] | None
    """How accents are stripped; None: they stay."""
    pattern: str
    """The pattern of a word, for the analyzer "word"."""
    shortest: int
    longest: int
    """The words, or characters, that a term has at most; `shortest` are those that it has at least."""
    stop_words: frozenset[str] | None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def terms(self, text: str) -> list[str]:
        """The terms of a text that are counted."""
        if self.lower:
            text = text.lower()
        if self.accents is not None:
            text = _without_accents(text, self.accents)
        if self.analyzer == "word":
            words = self._pattern.findall(text)
            if self.stop_words is not None:
                words = [word for word in words if word not in self.stop_words]
            return [" ".join(run) for run in self._runs(words)] if self.longest > 1 else words
        text = _WHITE_SPACES.sub(" ", text)
        if self.analyzer == "char":
            return ["".join(run) for run in self._runs(text)]
        return [term for word in text.split() for term in self._padded(f" {word} ")]

    def given(self, texts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The terms of each text as the graph takes them: a matrix with one column."""
        joined = np.empty((len(texts), 1), dtype=object)
        for place, text in enumerate(texts.ravel()):
            joined[place, 0] = END_OF_WORD.join(term for term in self.terms(text) if END_OF_WORD not in term)
        return joined

    def _runs(self, parts: list[str] | str) -> list[list[str] | str]:
        """Neighbours that make one term, for each length."""
        longest = min(self.longest, len(parts))
        return [
            parts[start : start + size]
            for size in range(self.shortest, longest + 1)
            for start in range(len(parts) - size + 1)
        ]

    def _padded(self, word: str) -> list[str]:
        """The terms of one word; a word that is shorter than a term counts once."""
        found = []
        for size in range(self.shortest, self.longest + 1):
            count = max(len(word) - size, 0)
            found += [word[start : start + size] for start in range(count + 1)]
            if not count:
                break
        return found


def words_to_text(words: list[Words]) -> str:
    """The list as the file has it."""
    return msgspec.json.encode(words).decode()


def words_from_text(text: str) -> list[Words]:
    """The list that `words_to_text` wrote.

    Raises:
        ArtifactInvalid: it is none.
    """
    try:
        found = msgspec.json.decode(text, type=list[Words])
        for one in found:
            re.compile(one.pattern)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, re.error) as error:
        raise ArtifactInvalid(f"cannot read the list {WORDS!r} of the graph: {error}") from error
    return found


def with_words(inputs: Mapping[str, np.ndarray[Any, Any]], words: list[Words]) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs, and the words that a graph takes besides."""
    return {**inputs, **{one.name: one.given(inputs[one.input]) for one in words}}


def _without_accents(text: str, how: str) -> str:
    if text.isascii():
        return text
    parts = unicodedata.normalize("NFKD", text)
    if how == "ascii":
        return parts.encode("ascii", "ignore").decode("ascii")
    return "".join(letter for letter in parts if not unicodedata.combining(letter))
