"""Tell the time to who keeps leases in a file: one clock to show, and one to measure with.

Contract
--------
* `wall` is Unix time.  Somebody may set it, so it is shown, and measures only what outlives the host's boot.
* `boottime` only grows while the host runs, also while it is suspended, and is the same for all its processes.
* `boot_id` names the boot: of two boots, the readings of `boottime` have nothing to do with each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import ConfigError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    """The clock of leases in this process: `boottime`, or the monotonic clock on a system that has none."""
    return time.clock_gettime(_CLOCK)


def time_now() -> str:
    """The time in UTC, as RFC 3339 writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Reading(NamedTuple):
    """The time on both clocks."""

    wall: float
    boottime: float


@dataclass(frozen=True, slots=True)
class HostClock:
    """The clocks of one boot of one host, in seconds."""

    wall: Callable[[], float]
    boottime: Callable[[], float]
    boot_id: str

    @classmethod
    def of_this_host(cls) -> HostClock:
        """The clocks of the host that this process runs on.

        Raises:
            ConfigError: its system has no clock that counts from its boot.
        """
        try:
            clock = time.CLOCK_BOOTTIME
            boot_id = BOOT_ID.read_text().strip()
        except (AttributeError, FileNotFoundError) as error:
            raise ConfigError(
                f"a queue or a training run in a file needs Linux: this host has no boot-time clock ({error})"
            ) from error
        except OSError as error:
            raise ConfigError(f"cannot read {BOOT_ID}: {error.strerror}") from error
        return cls(time.time, lambda: time.clock_gettime(clock), boot_id)

    def read(self) -> Reading:
        """What both clocks say now."""
        return Reading(self.wall(), self.boottime())
