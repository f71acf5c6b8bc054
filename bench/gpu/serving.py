"""A server in a process of its own that a part has started, and the questions that a part asks it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from part_process import DIES_WITH_PARENT

START_SECONDS = 60.0
"""Longest that a server may take to be ready, if the part gives it no other time."""
_READY = re.compile(r"ready on http://127\.0\.0\.1:(\d+)")


def free_port() -> int:
    """A port of the loopback that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class ServerFailed(Exception):
    """A server has not come up, or has not answered as it should."""


class Server:
    """A process that serves HTTP on the loopback, with its output in a file.  Leaving it ends the process."""

    def __init__(self, command: Sequence[str], log: Path, port: int = 0, **env: str) -> None:
        self.started = time.monotonic()
        self.log = log
        self._port = port
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*DIES_WITH_PARENT, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
            )

    @classmethod
    def penstock(cls, target: str, log: Path, *flags: str, port: int = 0, **env: str) -> Self:
        """`penstock serve target`, on a free port if none is given."""
        command = [sys.executable, "-m", "penstock.cli.main", "serve", target, "--port", str(port), *flags]
        return cls(command, log, port, **env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def output(self) -> str:
        """All that it has written."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def port(self) -> int:
        """The port that it was given, or that it said when it was ready; else 0."""
        return self._port

    def ready(self, seconds: float = START_SECONDS) -> Self:
        """Wait until it says that it is ready, or, where it was given a port, until it answers there."""

        def answers() -> bool:
            if self._port:
                return self._answers_get("/docs")
            if (found := _READY.search(self.output)) is not None:
                self._port = int(found[1])
            return found is not None

        self.until(answers, "it was not ready", seconds)
        return self

    def until(self, seen: Callable[[], bool], otherwise: str, seconds: float = START_SECONDS) -> None:
        """Wait until `seen()`; ServerFailed with the last of its output if that takes too long, or if it ends first."""
        deadline = time.monotonic() + seconds
        while not seen():
            status = self.process.poll()
            if status is not None or time.monotonic() > deadline:
                ended = f"it ended with status {status}" if status is not None else f"{otherwise} after {seconds:.0f} s"
                raise ServerFailed(f"{ended}: {self.output[-1500:].strip()}")
            time.sleep(0.02)

    def ask(self, item: Any, path: str = "/predict", accept: str = "application/json") -> tuple[int, bytes]:
        """Post an item as JSON; the status and the body."""
        body = json.dumps(item)
        return self._exchange("POST", path, body, {"content-type": "application/json", "accept": accept})

    def answer(self, item: Any, path: str = "/predict") -> Any:
        """The answer to an item; ServerFailed if it is none."""
        status, body = self.ask(item, path)
        if status != 200:
            raise ServerFailed(f"status {status} for {str(item)[:100]}: {body[:500].decode(errors='replace')}")
        return json.loads(body)

    def answers(self, item: Any) -> bool:
        """Whether it answers an item now, in any format."""
        try:
            return self.ask(item, accept="*/*")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> bytes:
        """The body at `path`."""
        return self._exchange("GET", path, None, {})[1]

    def health(self) -> dict[str, Any]:
        """The services by name, as /health has them."""
        return dict(json.loads(self.get("/health"))["services"])

    def workers(self) -> list[dict[str, Any]]:
        """The workers of all stages, as /health has them."""
        return [
            worker
            for service in self.health().values()
            for stage in service["stages"].values()
            for worker in stage["workers"]
        ]

    def metric(self, name: str, stage: str = "") -> float:
        """The sum of the samples of that name, or of those of one stage; 0 if there is none."""
        labels = rf'{{.*stage="{re.escape(stage)}".*}}' if stage else "(?:{.*})?"
        pattern = re.compile(rf"^{re.escape(name)}{labels} (\S+)", re.MULTILINE)
        return sum(float(value) for value in pattern.findall(self.get("/metrics").decode()))

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self.process.send_signal(number)

    def _answers_get(self, path: str) -> bool:
        try:
            self._exchange("GET", path, None, {})
        except OSError:
            return False
        return True

    def _exchange(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from None
        finally:
            connection.close()
