"""Points in the code at which a test, or an operator who wants to know, can have the process die, stop or fail.

They are armed by the variable ``PENSTOCK_FAILPOINTS`` when the process starts, and do nothing otherwise: a list of
``POINT=ACTION`` or ``POINT=ACTION:N`` with commas, where N is the visit of the point that counts, 1 without it.  The
actions are ``kill`` (SIGKILL), ``stop`` (SIGSTOP, until somebody sends SIGCONT) and ``raise`` (an `InjectedFault`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from penstock.errors import ConfigError, PenstockError

VARIABLE = "PENSTOCK_FAILPOINTS"
_ACTIONS = ("kill", "stop", "raise")


class InjectedFault(PenstockError):
    """A fault point was armed to fail."""


class FaultPoints:
    """The points of one process that are armed."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read the variable; raises ConfigError where it cannot be read."""
        self._armed: dict[str, tuple[str, int]] = {}
        for entry in filter(None, environ.get(VARIABLE, "").split(",")):
            point, _, rest = entry.strip().partition("=")
            action, _, visit = rest.partition(":")
            if not point or action not in _ACTIONS or not (visit or "1").isdecimal():
                raise ConfigError(f"{VARIABLE}: invalid entry {entry!r}; write POINT=ACTION or POINT=ACTION:N")
            self._armed[point] = (action, int(visit or "1"))

    def hit(self, point: str) -> None:
        """Do what `point` is armed for, if it is."""
        if not self._armed:
            return
        action, left = self._armed.get(point, ("", 0))
        if not action:
            return
        if left > 1:
            self._armed[point] = (action, left - 1)
            return
        del self._armed[point]
        if action == "raise":
            raise InjectedFault(f"fault point {point!r}")
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)


_points: FaultPoints | None = None


def hit(point: str) -> None:
    """Do what `point` is armed for in this process, if it is."""
    global _points  # noqa: PLW0603  # read once, at the first point that is visited
    if _points is None:
        _points = FaultPoints(os.environ)
    _points.hit(point)
