"""Make text that UTF-8 can carry, in a bounded size.

File names and error texts may have lone surrogates, which UTF-8 has not, and an error text may be of any length.
"""

from __future__ import annotations

import re

_NOTE = re.compile(r" \[\.\.\. cut: ([0-9]{1,15}) characters in all \.\.\.\] ")

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def utf8(text: str) -> str:
    """`text` with each lone surrogate written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """`text`, a file's name for one, with an escape for each character that could break a line or cannot be shown."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """`text` as `printable` gives it, but for its line breaks, which stay."""
    return "\n".join(map(printable, text.split("\n")))


def without_controls(text: str) -> str:
    """`text` with an escape for each control character but line breaks and tabs: on a terminal the others act."""
    return text.translate(_CONTROLS)


def cut_middle(text: str, limit: int) -> str:
    """`text` as `utf8` gives it, in at most `limit` bytes of UTF-8; `limit` is at least 100.

    A longer one loses its middle, and says there how long it was.  What is cut away is never copied, so the length is
    told in characters: its bytes would have to be made to be counted.
    """
    if len(text) <= limit:
        whole = text.encode("utf-8", "backslashreplace")
        if len(whole) <= limit:
            return whole.decode()
    return _without_middle(text, limit, str(len(text)))


def cut_line(text: str, limit: int) -> str:
    """`text` as `one_line` gives it, in at most `limit` bytes of UTF-8; `limit` is at least 100.

    If its middle was cut before, the length that is told there stays: what is left of `text` was never all.
    """
    line = one_line(text)
    if len(line.encode()) <= limit:
        return line
    cut_before = _NOTE.search(line)
    return _without_middle(line, limit, cut_before[1] if cut_before else str(len(line)))


def _without_middle(text: str, limit: int, length: str) -> str:
    note = f" [... cut: {length} characters in all ...] "
    half = (limit - len(note)) // 2
    # A character takes a byte at least, so `half` characters are enough; one that is cut in two is left out.
    head = text[:half].encode("utf-8", "backslashreplace")[:half].decode("utf-8", "ignore")
    tail = text[-half:].encode("utf-8", "backslashreplace")[-half:].decode("utf-8", "ignore")
    return head + note + tail


def one_line(text: str) -> str:
    """The first line of `text`, each lone surrogate in it replaced by a question mark.

    Error texts may have a remote traceback after their first line.
    """
    return text.strip().partition("\n")[0].encode("utf-8", "replace").decode()
