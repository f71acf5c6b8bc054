"""What systemd gave this process by variables: where to send notifications, a watchdog, and sockets that listen.

The variables are taken out of the environment when they are first asked for, so that no worker and no other child has
them: they are meant for one process.  What they say is read later, by whoever needs it, and then a mistake is told.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Mapping, MutableMapping
from typing import Final, NamedTuple

from penstock.errors import ConfigError

FIRST_DESCRIPTOR: Final = 3
"""The number of the first descriptor that systemd gives; the others follow it."""
ENDLESS: Final = 2**64 - 1
"""How systemd writes a time without an end, as that of ``WatchdogSec=infinity``."""
VARIABLES: Final = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDNAMES"),
)


class GivenDescriptor(NamedTuple):
    """A descriptor that systemd gave."""

    number: int
    name: str
    """What the unit calls it; "" where it has no name."""

    def __str__(self) -> str:
        """As errors say it."""
        return f"descriptor {self.number} of LISTEN_FDS" + (f" ({self.name!r})" if self.name else "")


class GivenBySystemd:
    """The `variables` as they were set for process `pid`."""

    def __init__(self, variables: Mapping[str, str], pid: int) -> None:
        self._variables = dict(variables)
        self._pid = pid
        self.relay: socket.socket | None = None
        """Where notifications go instead, for process 1 to pass them on (`cli/first_process.py`)."""

    @property
    def notify_address(self) -> str:
        """The socket that wants notifications: a path, or an abstract name behind an `@`; "" where nobody does."""
        return self._variables.get("NOTIFY_SOCKET", "")

    @property
    def watchdog_seconds(self) -> float | None:
        """How long systemd waits for a sign of life of this process; None for ever.

        Raises:
            ConfigError: the variable cannot be read.
        """
        text = self._variables.get("WATCHDOG_USEC", "")
        if not text or not self._is_for_us("WATCHDOG_PID", where_missing=True):
            return None
        microseconds = _number("WATCHDOG_USEC", text)
        if microseconds == ENDLESS:
            return None
        if microseconds == 0:
            raise ConfigError("WATCHDOG_USEC is 0, which is not a valid interval")
        return microseconds / 1e6

    def descriptors(self) -> list[GivenDescriptor]:
        """The descriptors for this process; none where they were given to another one.

        Raises:
            ConfigError: the variable cannot be read.
        """
        text = self._variables.get("LISTEN_FDS", "")
        if not text or not self._is_for_us("LISTEN_PID", where_missing=False):
            return []
        names = self._variables.get("LISTEN_FDNAMES", "").split(":")
        count = _number("LISTEN_FDS", text)
        limit = os.sysconf("SC_OPEN_MAX")
        if count > limit:
            raise ConfigError(f"LISTEN_FDS is {count}, but a process has at most {limit} files")
        return [GivenDescriptor(FIRST_DESCRIPTOR + n, names[n] if n < len(names) else "") for n in range(count)]

    @property
    def for_another(self) -> str:
        """Whose the sockets are, in words, where they were given to another process; else ""."""
        if not self._variables.get("LISTEN_FDS") or self._is_for_us("LISTEN_PID", where_missing=False):
            return ""
        whose = self._variables.get("LISTEN_PID", "")
        return (
            f"the sockets of systemd are not used: LISTEN_PID is {whose!r}, but this is process "
            f"{self._pid}; if a shell starts this command, write `exec` before it"
        )

    def _is_for_us(self, variable: str, *, where_missing: bool) -> bool:
        text = self._variables.get(variable, "")
        return text == str(self._pid) if text else where_missing


def take_variables(environ: MutableMapping[str, str], pid: int) -> GivenBySystemd:
    """Take the variables for process `pid` out of `environ`; what they gave is not inherited by what it starts."""
    given = GivenBySystemd({name: environ.pop(name) for name in VARIABLES if name in environ}, pid)
    with contextlib.suppress(ConfigError, OSError):  # both are told when the sockets are wanted
        for descriptor in given.descriptors():
            os.set_inheritable(descriptor.number, False)
    return given


@functools.cache
def given_by_systemd() -> GivenBySystemd:
    """What systemd gave this process; its variables are taken the first time."""
    return take_variables(os.environ, os.getpid())


def _number(variable: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(ENDLESS)):
        raise ConfigError(f"{variable} must be a number, got {text!r}")
    return int(text)
