"""Lay out the lines of a file: comments of a readable width, and blocks with an indent.  Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Final

WIDTH: Final = 108
"""Of the text of a comment: with its indent it stays below 120."""


def because(words: str) -> list[str]:
    """A comment: why what follows is as it is.  Line breaks in `words` are spaces."""
    return [f"# {line}" for line in textwrap.wrap(words, WIDTH, break_long_words=False, break_on_hyphens=False)]


def indented(lines: Iterable[str]) -> list[str]:
    """`lines` as the inside of a block."""
    return [f"    {line}" if line else "" for line in lines]
