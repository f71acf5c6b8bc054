"""The server, in a process of its own, and what it says of its workers."""

import http.client
import json
import re
import subprocess
import sys
import threading
from typing import Any, Self

from telling import tell


class Server:
    """Serves `service.py` as long as the block, with a socket for workers at `path`."""

    def __init__(self, path: str) -> None:
        command = "-m penstock serve service:service --port 0 --remote-worker-socket"
        self._process = subprocess.Popen([sys.executable, *command.split(), path], stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._listens = threading.Event()
        self._lines: list[str] = []
        self._port = 0

    def _read(self) -> None:
        for line in self._process.stderr or ():
            self._lines.append(line)
            if " penstock.runtime: " in line:
                tell("server", line.rstrip().partition(" penstock.runtime: ")[2])
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self._port = int(found[1])
                self._listens.set()
        self._listens.set()  # it never will

    def __enter__(self) -> Self:
        self._reader.start()
        self._listens.wait()
        if not self._port:
            raise SystemExit("the server has ended:\n" + "".join(self._lines))
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()

    def ask(self, path: str, body: str | None = None) -> tuple[int, bytes]:
        """POST JSON, or GET where there is none; the status and the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        connection.request("GET" if body is None else "POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        status, found = answer.status, answer.read()
        connection.close()
        return status, found

    def workers(self) -> list[dict[str, Any]]:
        """What `/health` says of each worker."""
        stages = json.loads(self.ask("/health")[1])["services"]["square"]["stages"]
        return list(stages["square"]["workers"])
