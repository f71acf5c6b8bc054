"""Make text that UTF-8 can carry: file names and error texts may have lone surrogates, which UTF-8 has not."""

from __future__ import annotations


def utf8(text: str) -> str:
    """`text` with each lone surrogate written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def one_line(text: str) -> str:
    """The first line of `text`, each lone surrogate in it replaced by a question mark.

    Error texts may have a remote traceback after their first line.
    """
    return text.strip().partition("\n")[0].encode("utf-8", "replace").decode()
