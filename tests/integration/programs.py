"""A program that a test starts: what it writes is read as it comes, and its processes are known by a mark.

The mark is a variable in its environment, and so in that of its children and theirs: when a program ends, nothing with
its mark may be left.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from processes import with_variable

MARK = "PENSTOCK_TEST_PROGRAM"
END_LIMIT = 20.0
"""Seconds that a program and what it wrote may take to end once it was told to, or killed."""


class MarkedProgram:
    """A command in a folder; both its streams are read into one text, `output`."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str], **options: Any) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**env, "PYTHONUNBUFFERED": "1", MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )
        self.output = ""
        self._grown = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grown:
                self.output += line
                self._grown.notify_all()
        with self._grown:
            self._ended = True
            self._grown.notify_all()

    def wait_for(self, pattern: str, limit: float) -> re.Match[str]:
        """The first match of `pattern` in the output, now or later."""
        with self._grown:
            self._grown.wait_for(lambda: self._ended or re.search(pattern, self.output), limit)
            found = re.search(pattern, self.output)
        assert found, f"no {pattern!r} in the output:\n{self.output}"
        return found

    def read_to_end(self) -> None:
        """Wait until everything that was written has been read."""
        self._reader.join(END_LIMIT)

    def survivors(self) -> dict[int, str]:
        """What still runs of this program: itself, its children, theirs."""
        return with_variable(MARK, self.mark)

    def leave_nothing(self) -> None:
        """Fail if anything of this program, which has ended, goes on; what ends by itself is given time for that."""
        deadline = time.monotonic() + END_LIMIT
        while (left := self.survivors()) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert not left, f"processes left behind: {left}\n{self.output}"

    def destroy(self) -> None:
        """Leave nothing running, whatever the test found."""
        for pid in self.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(END_LIMIT)
        self.read_to_end()
        assert self.process.stdout is not None
        self.process.stdout.close()
