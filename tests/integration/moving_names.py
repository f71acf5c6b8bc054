"""Look hosts up in a file of a test, which moves them while programs run.  No process keeps what it has read."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

VARIABLE = "MOVING_NAMES"
"""The path of the file, for programs that a test starts."""
found_by_the_system = socket.getaddrinfo


def look_up_in(path: str) -> None:
    """From now on this process looks the names in the file up there; all others as ever."""

    def find(host: Any, *words: Any, **options: Any) -> Any:
        return found_by_the_system(json.loads(Path(path).read_text()).get(host, host), *words, **options)

    socket.getaddrinfo = find


class MovingName:
    """The name `name`, which leads to one address after the other."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name

    def move(self, address: str) -> None:
        """Have it lead to `address`, for everybody who looks it up from now on."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({self.name: address}))
        new.replace(self.path)
