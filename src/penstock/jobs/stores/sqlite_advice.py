"""Decide from what is known of a queue's file whether jobs are safe in it.  What cannot work at all is never opened."""

from __future__ import annotations

from typing import Final

from penstock.config import MIB
from penstock.jobs.advice import Advice

_IN_MEMORY: Final = frozenset(("tmpfs", "ramfs"))
_MEANINGS: Final = {
    "FULL": "every acknowledged write is on disk: nothing is lost",
    "NORMAL": "a power cut may lose the last moments; synchronous=FULL loses nothing, and is slower",
}


def advise_on_file(path: str, kind: str, synchronous: str, room: tuple[int, int, bool] | None = None) -> list[Advice]:
    """What is right and what is wrong with a file that was opened.

    Args:
        path: where it is.
        kind: the type of its file system, "" where nobody tells it.
        synchronous: how SQLite writes it.
        room: the bytes that are free, those of the reserve, whether the spare file is there; None without a reserve.
    """
    in_memory = kind in _IN_MEMORY
    remedy = "its files are lost when the machine restarts: put the queue on a disk" if in_memory else ""
    return [
        Advice("file", path, remedy="it opens, and a quick check found no damage"),
        Advice("file system", kind or "unknown", in_memory, remedy),
        Advice("synchronous", synchronous, remedy=_MEANINGS[synchronous]),
        _advise_on_room(room),
    ]


def _advise_on_room(room: tuple[int, int, bool] | None) -> Advice:
    if room is None:
        return Advice("disk", "no reserve", remedy="no job can finish on a full disk: set reserve=8388608")
    free, reserve, has_spare = room
    found = f"{free / MIB:.1f} MiB free, {reserve / MIB:g} MiB reserved, {'a' if has_spare else 'no'} spare file"
    short = free < reserve
    return Advice(
        "disk", found, short, "new jobs are rejected: free disk space, or purge finished jobs" if short else ""
    )
