"""Say lines to the operator, in the format of the log."""

from __future__ import annotations

import logging
from typing import Protocol

from penstock.hosting.stdio import write_stderr_line


class Say(Protocol):
    """Writes a line; `level` is how much the operator wants to know of it."""

    def __call__(self, words: str, level: int = logging.INFO) -> None:
        """Write `words`."""


def say_text(words: str, level: int = logging.INFO) -> None:  # noqa: ARG001  # lines of text have no level
    """Write a line of text, whatever its level."""
    write_stderr_line(words)


def say_object(words: str, level: int = logging.INFO) -> None:
    """Log a line, where every line must be an object."""
    from penstock.hosting.logs import log

    log.log(level, "%s", words)
