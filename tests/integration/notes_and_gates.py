"""What stages tell a test through files, and how a test holds them: notes of what ran, and gates that it opens.

Worker processes import this module, so it needs nothing of the tests.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def note(path: str | Path, what: Any) -> None:
    """Add one line to the notes at `path`: a single write, so that workers can share a file."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (json.dumps(what) + "\n").encode())
    os.close(fd)


def notes(path: Path) -> list[Any]:
    """What was noted at `path` so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(gate: Path) -> None:
    """Wait until the file `gate` is there."""
    while not gate.exists():
        time.sleep(0.002)
