"""The file where a stage notes when it began to wait and when it was cancelled, for the bench to read."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

NOTES_VARIABLE = "WAITING_NOTES"
"""The environment variable with the path of the file."""

_NOTE = struct.Struct("=?d")


def note(path: str, *, cancelled: bool) -> None:
    """Add this moment, by the clock that all processes of the machine share."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, _NOTE.pack(cancelled, time.monotonic()))
    finally:
        os.close(file)


def read_notes(path: Path) -> tuple[list[float], list[float]]:
    """All moments so far: those of beginnings, and those of cancels."""
    found = list(_NOTE.iter_unpack(path.read_bytes()))
    return [moment for cancelled, moment in found if not cancelled], [
        moment for cancelled, moment in found if cancelled
    ]
