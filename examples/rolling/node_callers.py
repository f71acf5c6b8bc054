"""The same callers with the client in TypeScript: a program in Node, which writes a line for each question."""

import shutil
import subprocess
import threading
from pathlib import Path
from typing import Self

from callers import CALLERS, PAUSE, Callers

PACKAGE = Path(__file__).resolve().parents[2] / "clients" / "typescript"
FIRST = 1_000_000
"""The first number that they ask for: those in Python begin at 0."""


def missing() -> str:
    """Why there can be no such callers; "" where there can be."""
    node = shutil.which("node")
    if node is None:
        return "node is not installed: make node"
    if subprocess.run([node, "load.mjs", str(PACKAGE)], stderr=subprocess.DEVNULL, check=False).returncode:
        return "the TypeScript client is not built: npm ci && npm run build in clients/typescript"
    return ""


class NodeCallers(Callers):
    """Runs `load.mjs`, which ends when its standard input does."""

    def __init__(self, url: str) -> None:
        super().__init__("TypeScript")
        self._command = ["node", "load.mjs", str(PACKAGE), url, str(FIRST), str(CALLERS), str(PAUSE)]
        self._reader = threading.Thread(target=self._read)

    def _read(self) -> None:
        for line in self._process.stdout or ():
            number, _, error = line.strip().partition(" ")
            if error:
                self.failed.append(f"{number}: {error}")
            else:
                self.answered.append(int(number))

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._reader.join()
        if self._process.wait():
            self.failed.append(f"load.mjs has ended with status {self._process.returncode}")
