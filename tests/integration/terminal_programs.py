"""A program on a terminal of its own, for tests of what changes there."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import termios
import threading

from served import PATIENCE_SECONDS

from penstock.hosting.line_writer import ERASE_LINE


class Terminal:
    """A terminal with a program on it; what it shows is its rows, after what was erased was erased."""

    def __init__(self, folder, *command, env=None):
        self.master, self._tty = pty.openpty()
        termios.tcsetwinsize(self._tty, (24, 80))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=self._tty,
            stdout=self._tty,
            stderr=self._tty,
            env={**inherited, "TERM": "xterm", **(env or {})},
            start_new_session=True,
        )
        self.written = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with contextlib.suppress(OSError):
            while piece := os.read(self.master, 65536):
                self.written += piece

    @property
    def rows(self):
        rows = self.written.replace(b"\r\n", b"\n").split(b"\n")
        return [row.rpartition(ERASE_LINE)[2].decode() for row in rows]

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_SECONDS)
        os.close(self._tty)
        os.close(self.master)
