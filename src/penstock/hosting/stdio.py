"""What the server says on its standard streams, and what it does where there are none.

Contract
--------
* A standard stream that is full, closed, or whose reader has gone costs the lines written to it and nothing else.
* A descriptor from 0 to 2 that was closed at the start is `/dev/null` afterwards: it would else become the number of a
  socket, and whatever writes to a standard stream would write there.
"""

from __future__ import annotations

import contextlib
import os
import sys


def fill_standard_streams() -> None:
    """Open `/dev/null` in place of each standard stream that is closed; call it before anything else is opened."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            if opened == fd:
                os.set_inheritable(fd, True)
            else:  # another thread has taken it meanwhile
                os.close(opened)


def tell(words: str) -> None:
    """Write a line to standard error, if that can be."""
    if sys.stderr is None:  # it was closed when Python started
        return
    with contextlib.suppress(OSError, ValueError):  # ValueError: somebody closed the object
        sys.stderr.write(f"penstock: {words}\n")
        sys.stderr.flush()


def give_up_broken_streams() -> None:
    """At the end of a command: what cannot be written is dropped, so that Python does not make a failure of it."""
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
