"""Wait for a condition, never for a time: each fails with what it waited for."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 15.0
"""Seconds; only a broken test waits this long."""


async def until(condition: Callable[[], T], what: str = "", patience: float = PATIENCE) -> T:
    """What `condition` answers once that is true."""
    deadline = time.monotonic() + patience
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        await asyncio.sleep(0.002)
    return answer


def until_now(condition: Callable[[], T], what: str = "", patience: float = PATIENCE) -> T:
    """As `until`, without an event loop."""
    deadline = time.monotonic() + patience
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        time.sleep(0.002)
    return answer


def running(pid: int) -> bool:
    """Whether process `pid` exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def in_group(group: int) -> list[int]:
    """The living processes of process group `group`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and running(int(entry.name)):
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


def open_files() -> set[str]:
    """This process's open file descriptors, as what each leads to."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name} -> {entry.readlink()}")
        except OSError:
            continue
    return found
