"""Look once a second whether less memory is available than a service leaves free (`min_free_memory`)."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.clock import Clock, Timer
from penstock.errors import ConfigError
from penstock.hosting.guarded_log import guarded_logger

INTERVAL_SECONDS = 1.0

log = guarded_logger("penstock.runtime")


class MemoryWatch:
    """Tells `changed` whether memory is short, whenever that changes.

    It is short while `read` tells of fewer than `least` bytes.  Where it tells of none any more, memory is not short:
    a service is not closed by what it cannot know.
    """

    def __init__(
        self,
        service: str,
        least: int,
        *,
        read: Callable[[], int | None],
        clock: Clock,
        changed: Callable[[bool], object],
    ) -> None:
        self._service = service
        self._least = least
        self._read = read
        self._clock = clock
        self._changed = changed
        self._timer: Timer | None = None
        self._short = False
        self.available: int | None = None
        """The bytes that were available a second ago at most; None where it is not known."""

    def start(self) -> None:
        """Look now, and every second from now on.

        Raises:
            ConfigError: nothing tells how much memory is available.
        """
        self.available = self._read()
        if self.available is None:
            raise ConfigError(
                f"service {self._service!r}: min_free_memory needs a memory limit of a cgroup (version 2) or "
                "MemAvailable in /proc/meminfo, but this system has neither"
            )
        self._judge()

    def stop(self) -> None:
        """Look no more; harmless if it does not look."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.available = self._read()
        self._judge()

    def _judge(self) -> None:
        available = self.available
        short = available is not None and available < self._least
        if short != self._short:
            self._short = short
            if short:
                log.warning(
                    "service %r: %d bytes of memory are available, less than min_free_memory=%d: rejecting new "
                    "requests",
                    self._service,
                    available,
                    self._least,
                )
            else:
                log.warning("service %r: memory is available again: accepting new requests", self._service)
            self._changed(short)
        self._timer = self._clock.call_later(INTERVAL_SECONDS, self._look)
