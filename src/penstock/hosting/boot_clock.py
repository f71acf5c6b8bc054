"""The clock of leases: the seconds since the machine was started, those included in which it slept.

Nobody sets it, and every process of the machine reads the same.  The monotonic clock stands still while a machine
sleeps, so a lease measured on that could be relied on for hours after it has run out.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has no clock of that name
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_seconds() -> float:
    """The seconds since the machine was started."""
    return time.clock_gettime(_CLOCK)


def boot_id() -> str:
    """A text that another start of the machine does not have; "" where the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
