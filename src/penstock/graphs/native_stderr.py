"""Leave out lines that a library in C++ writes to stderr when it is imported, and that no option of its own stops."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence

STDERR = 2


@contextlib.contextmanager
def without_lines(parts: Sequence[bytes]) -> Iterator[None]:
    """Hold back what any part of the process writes to stderr; then write all lines but those with `parts`.

    A process that crashes inside loses what it wrote there.
    """
    try:
        before = os.dup(STDERR)
    except OSError:  # there is no stderr
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, STDERR)
            os.close(before)
            held.seek(0)
            for line in held:
                if not any(part in line for part in parts):
                    os.write(STDERR, line)
