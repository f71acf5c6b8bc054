"""The memory into which a worker process writes its stacks; `worker/stacks.py` is the other end."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from penstock.worker.stacks import ASKING_SIGNALS

MOST_BYTES = 64 * 1024
"""Most bytes of stacks that are read from one worker."""


class StackMemory:
    """Memory that this process shares with one worker; `fd` is what the worker gets.

    Once it is closed, with the worker's end, it reads as empty, and nobody is asked: the worker's process id may be
    another's by then.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def make(cls) -> StackMemory | None:
        """New memory, or None on a system that has none, or has no real-time signals to ask by."""
        if not ASKING_SIGNALS or not hasattr(os, "memfd_create"):
            return None
        fd = os.memfd_create("penstock-stacks")
        # The position is shared with the worker, and stays where its last answer ended.
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
        return cls(fd)

    def ask(self, pid: int) -> bool:
        """Forget what was written, and ask the worker `pid` for its main thread.

        False says that it was not asked, because the signal has no handler there and would end it.
        """
        if self.fd < 0:
            return True
        os.ftruncate(self.fd, 0)
        return _ask(pid, ASKING_SIGNALS[0])

    def ask_for_all(self, pid: int) -> None:
        """Ask for all threads, after the answer to `ask`: of two signals at once, the second is answered first."""
        if self.fd >= 0:
            _ask(pid, ASKING_SIGNALS[1])

    def read(self) -> str:
        """What the worker has written since it was asked."""
        if self.fd < 0:
            return ""
        return os.pread(self.fd, MOST_BYTES, 0).decode(errors="replace")

    def close(self) -> None:
        """Give the memory back; harmless the second time."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _ask(pid: int, number: int) -> bool:
    handled = _handles(pid, number)
    if handled:
        _send(pid, number)
    return handled


def _handles(pid: int, number: int) -> bool:
    """Whether process `pid` has a handler for signal `number`; False also where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    return caught(status, number)


def caught(status: str, number: int) -> bool:
    """Whether `status`, which is `/proc/PID/status`, has signal `number` among those with a handler."""
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
