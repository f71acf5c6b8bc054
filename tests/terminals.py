"""Terminals for what shows itself otherwise where people read it: one in memory, and one of the system."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import subprocess
from collections.abc import Sequence
from typing import Any


class Terminal(io.StringIO):
    """Keeps what is written to it, and says that people read it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """It is a terminal."""
        return True


def run_on_terminal(command: Sequence[str], **options: Any) -> str:
    """Run a command whose standard output is a terminal; what it has written there."""
    reader, terminal = pty.openpty()
    try:
        subprocess.run(command, stdout=terminal, check=True, **options)
    finally:
        os.close(terminal)
    written = b""
    # One read gives what has come through by then.  The last one fails, since nobody has the other end open.
    with os.fdopen(reader, "rb", buffering=0) as file, contextlib.suppress(OSError):
        while piece := file.read(65536):
            written += piece
    return written.decode()
