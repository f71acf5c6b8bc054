"""Give back to the system the memory that this process has freed.

The C library keeps freed memory for later.  A crowd of clients, or a burst of large answers, would be seen in the size
of the process for ever after.  glibc gives the memory back on `malloc_trim`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.core.clock import Clock, Timer

INTERVAL_SECONDS = 10.0
KEPT_BYTES = 16 * 1024 * 1024
"""So much more than at the start may be kept: what is given back and then used again costs page faults."""
SHARE_OF_TIME = 0.004
"""The largest part of the event loop's time that goes into giving back.

It takes less than 1 ms; 40 ms where 200 MB are in use in small pieces with as much between them; more on a machine that
is busy with other things, where memory is as scarce.
"""


@contextlib.contextmanager
def freed_memory_returned(
    clock: Clock, resident_bytes: Callable[[], int], give_back: Callable[[], object]
) -> Iterator[None]:
    """Inside, call `give_back` every 10 s if the process has grown by more than 16 MiB since the beginning."""
    at_start = resident_bytes()
    timer: Timer

    def look() -> None:
        nonlocal timer
        pause = INTERVAL_SECONDS
        if resident_bytes() > at_start + KEPT_BYTES:
            began = clock.now()
            give_back()
            pause = max(pause, (clock.now() - began) / SHARE_OF_TIME)
        timer = clock.call_later(pause, look)

    timer = clock.call_later(INTERVAL_SECONDS, look)
    try:
        yield
    finally:
        timer.cancel()


def resident_bytes() -> int:
    """The memory that this process occupies alone; 0 where the system does not tell.

    Files and slabs are not counted, which it shares: of these the C library has nothing to give back.
    """
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")


def trim_heap() -> None:
    """Have glibc give back whole pages of freed memory; nothing happens with another C library."""
    import ctypes  # it takes 2 ms, and many a server never comes here

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
