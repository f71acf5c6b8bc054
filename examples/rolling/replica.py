"""A server that is replaced by another one at the same Unix socket."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from telling import tell, until

PENSTOCK = (sys.executable, "-m", "penstock")
OPTIONS = ("--drain-delay", "2")
"""What the replicas run with, and what the file of the proxy is made for."""


class Replica:
    """`penstock serve`, in a process of its own."""

    def __init__(self, name: str, folder: Path, runs: Path) -> None:
        self.name = f"replica {name}"
        self.address = f"unix:{folder}/{name}.sock"
        self._log = folder / f"{name}.log"
        self._environ = {**os.environ, "RUNS": str(runs)}
        self._begin()

    def _begin(self) -> None:
        # The proxy may be another user.
        where = ("--uds", self.address.removeprefix("unix:"), "--uds-mode", "666")
        with self._log.open("wb") as log:
            command = [*PENSTOCK, "serve", "service:service", *where, *OPTIONS]
            self._process = subprocess.Popen(command, env=self._environ, stderr=log)

    def ready(self) -> bool:
        """Whether it serves."""
        if self._process.poll() is not None:
            raise SystemExit(f"{self.name} has ended:\n{self._log.read_text()}")
        return "ready on" in self._log.read_text()

    def replace(self, how_it_goes: Callable[[], str]) -> None:
        """End it as a deployment does, and start another one."""
        tell(self.name, "is asked to end (SIGTERM); it serves on for 2 s")
        self._process.send_signal(signal.SIGTERM)
        until(lambda: self._process.poll() is not None, how_it_goes)
        tell(self.name, f"has ended with status {self._process.returncode}; another one is started in its place")
        self._begin()
        until(self.ready, how_it_goes)
        tell(self.name, "is ready")

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Wait for its end."""
        self._process.wait()
