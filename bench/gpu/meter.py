"""Notes of a worker's stage on its own time, which the part reads meanwhile: one small file for each worker."""

from __future__ import annotations

import os
import struct
from dataclasses import astuple, dataclass
from pathlib import Path

_NOTES = struct.Struct("=5d")
VARIABLE = "GPU_METER"
"""The environment variable with the folder of the notes."""


@dataclass(slots=True)
class Notes:
    """What stages have done so far."""

    items: float = 0
    hook_seconds: float = 0
    """In `preprocess`."""
    predict_seconds: float = 0
    """In `predict`, the device included."""
    device_seconds: float = 0
    """Of them the GPU computed, by its own events."""
    copy_seconds: float = 0
    """Of them ids and vectors were copied, by events too."""

    def __add__(self, other: Notes) -> Notes:
        return Notes(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, before: Notes) -> Notes:
        return Notes(*(a - b for a, b in zip(astuple(self), astuple(before), strict=True)))


class Meter:
    """The notes of this process's stage."""

    def __init__(self) -> None:
        self.notes = Notes()
        folder = os.environ.get(VARIABLE)
        self._file = None if folder is None else (Path(folder) / f"{os.getpid()}.meter").open("wb", buffering=0)

    def write(self) -> None:
        """Let others see the notes as they are now."""
        if self._file is not None:
            os.pwrite(self._file.fileno(), _NOTES.pack(*astuple(self.notes)), 0)


def read_notes(folder: Path) -> Notes:
    """The sum of all notes in the folder."""
    written = [path.read_bytes() for path in folder.glob("*.meter")]
    # A file is empty until its worker has run a batch.
    return sum((Notes(*_NOTES.unpack(notes)) for notes in written if len(notes) == _NOTES.size), Notes())


def meter_folder(part_folder: Path, subject: str) -> Path:
    """The folder of the notes of one subject, made if it is not there."""
    folder = part_folder / f"meter-{subject.replace(' ', '-')}"
    folder.mkdir(exist_ok=True)
    return folder
