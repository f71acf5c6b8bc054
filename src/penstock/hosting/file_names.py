"""Make the name of a file from a text that somebody chose: an input of a model, an embedding table."""

from __future__ import annotations

from hashlib import sha256
from typing import Final
from urllib.parse import quote

LONGEST_STEM: Final = 200
"""Bytes of a file's name without its ending; Linux has 255 for all of it."""


def file_stem(text: str) -> str:
    """`text` percent-encoded, or the sha256 of that where it is too long for a file's name; it has no slash.

    Dots stay as they are, so something must follow a stem that is "." or "..".
    """
    stem = quote(text, safe="", errors="surrogatepass")
    return stem if len(stem) <= LONGEST_STEM else sha256(stem.encode()).hexdigest()
