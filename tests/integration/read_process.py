"""A process whose output is read as it comes, so that a test can wait for a line of it."""

from __future__ import annotations

import re
import subprocess
import threading


class ReadProcess:
    """A command in a folder; both its streams are read into one text, `output`."""

    process: subprocess.Popen[str]

    def read(self, process: subprocess.Popen[str]) -> None:
        """Begin to read what `process` writes to its standard output."""
        self.process = process
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

    def read_to_end(self, limit: float) -> None:
        """Wait until everything that was written has been read."""
        self._reader.join(limit)
