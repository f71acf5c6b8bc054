"""Programs of a few lines that open one file, each a process of its own; and disks that are small, and full."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

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


def mounting_alone() -> tuple[str, ...]:
    """The first words of a command that may mount file systems, for itself; where nobody may, a test is skipped."""
    alone = ("unshare", "--user", "--map-root-user", "--mount")
    try:
        mounts = subprocess.run([*alone, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
    except FileNotFoundError:
        mounts = False
    if not mounts:
        pytest.skip("no file system can be mounted in a name space of this user's own: unshare --user --mount")
    return alone


def fill(folder: str) -> int:
    """Leave no byte of the file system of `folder` to others; how many are free all the same."""
    block = b"x" * 65536
    with open(f"{folder}/hog", "ab", buffering=0) as hog:  # noqa: PTH123  # where it is copied to has no Path
        while block:
            try:
                hog.write(block)
            except OSError:
                block = block[: len(block) // 2]
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
