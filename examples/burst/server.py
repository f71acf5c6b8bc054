"""A server in a process of its own: where it listens, and when its worker ran which batch."""

import json
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Self


class Server:
    """Runs `command` in this folder, as long as the block."""

    def __init__(self, command: list[str]) -> None:
        self.log: list[tuple[float, str]] = []
        self._process = subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append((time.monotonic(), line))

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()

    def port(self) -> int:
        """The free port that the server has found, once it listens."""
        while self._process.poll() is None:
            for _, line in list(self.log):
                if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                    return int(found[1])
            time.sleep(0.05)
        raise SystemExit("the server has ended:\n" + "".join(line for _, line in self.log))

    def batches(self) -> dict[str, list[float]]:
        """When each batch began and ended, by its numbers."""
        found: dict[str, list[float]] = {}
        for when, line in self.log:
            if batch := re.search(r"batch (\[[\d, ]+\]) (begins|ends)", line):
                found.setdefault(" ".join(map(str, json.loads(batch[1]))), []).append(when)
        return found
