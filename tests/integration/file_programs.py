"""Programs of a few lines that open one file, each a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LIMIT: Final = 30
"""Seconds until such a program must have ended."""

FIRST_LINES: Final = """
import sys

def say(*words):
    print(*words, flush=True)

path = sys.argv[1]
"""


class FilePrograms:
    """Programs that begin with the lines `preamble`, know the `path` of the file, and `say` words."""

    def __init__(self, preamble: str) -> None:
        self.preamble = FIRST_LINES + textwrap.dedent(preamble)

    @contextmanager
    def program(self, path: str, body: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A process that runs `body`; it is killed in the end, if it still runs."""
        command = [sys.executable, "-c", self.preamble + textwrap.dedent(body), path, *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, path: str, body: str, *arguments: str) -> list[str]:
        """The words that a program prints which ends well, and complains of nothing."""
        with self.program(path, body, *arguments) as process:
            said, complaints = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, said + complaints
        assert complaints == ""
        return said.split()
