"""Write to standard streams that may be full, closed, or not there.

Contract
--------
* If a standard stream is full or closed, or its reader or its terminal has gone, the lines written to it are lost and
  nothing else.  So it is where the user has put an object in place of `sys.stderr` that raises whatever it likes.
* A descriptor from 0 to 2 that was closed at the start is `/dev/null` afterwards.  Otherwise a socket would get that
  number, and what is written to a standard stream would go to the socket.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


def fill_standard_streams() -> None:
    """Open `/dev/null` instead of each standard stream that is closed; call it before anything else is opened."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            if opened == fd:
                os.set_inheritable(fd, True)
            else:  # another thread took `fd` in between
                os.close(opened)


def write_stderr_line(words: str) -> None:
    """Write a line to standard error; a line that cannot be written is lost."""
    if sys.stderr is None:  # it was closed when Python started
        return
    with contextlib.suppress(Exception):  # the object may be the user's
        sys.stderr.write(f"penstock: {words}\n")
        sys.stderr.flush()


def is_terminal(stream: Any) -> bool:
    """Whether a standard stream is there, and people read what is written to it."""
    try:
        return stream is not None and bool(stream.isatty())
    except Exception:  # noqa: BLE001  # somebody closed the object, or it is the user's
        return False


class LossyStream:
    """A text stream that loses what `stream` does not take, as a terminal whose window was closed.

    Everything else is that of `stream`.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write `text`, or lose it."""
        with contextlib.suppress(Exception):  # the object may be the user's
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hand on what is kept back, or lose it."""
        with contextlib.suppress(Exception):
            self._stream.flush()


def give_up_broken_streams() -> None:
    """Drop what cannot be written at the end of a command: Python's own flush of it would change the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except ValueError:  # closed: Python will not flush it either
            continue
        except OSError:
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, stream.fileno())
            os.close(sink)
