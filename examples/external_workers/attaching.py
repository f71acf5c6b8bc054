"""Workers that this program starts as somebody else would: the server knows of none until it attaches."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from server import Server
from telling import tell

LIMIT = 30.0
"""Seconds that something may take which takes one."""
COMMANDS = {
    "Python": f"{sys.executable} -m penstock worker run squares:Square --log-level warning --connect",
    "Node": "node ../node_worker/worker.mjs",
}


def until(happened: Callable[[], bool]) -> None:
    """Wait, and not for ever."""
    end = time.monotonic() + LIMIT
    while not happened():
        if time.monotonic() > end:
            raise SystemExit("what has to happen here does not")
        time.sleep(0.01)


class Worker:
    """A worker that attaches at `path`."""

    def __init__(self, language: str, path: str) -> None:
        if language == "Node" and shutil.which("node") is None:
            tell("demo", "node is not here: a second worker in Python takes the place of the one in Node")
            language = "Python"
        self._process = subprocess.Popen([*COMMANDS[language].split(), path])
        self.name = f"the worker in {language}, pid {self._process.pid}"
        tell("demo", f"starts {self.name}")

    def state(self, server: Server) -> str:
        """What `/health` says of it; "" where it says nothing."""
        found = [row["state"] for row in server.workers() if row["pid"] == self._process.pid]
        return found[0] if found else ""

    def end(self, number: int) -> int:
        """Send it a signal, and wait; its exit status."""
        self._process.send_signal(number)
        return self._process.wait(LIMIT)

    def close(self) -> None:
        """Have it leave, or end it at once: nothing is left behind."""
        try:
            self.end(signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self.end(signal.SIGKILL)
