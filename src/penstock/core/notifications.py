"""Decide what a service manager such as systemd is told, and when.  Pure: it is told the time, and how things stand.

Contract
--------
* `READY=1` is told when everything is ready, and `STOPPING=1` when the end begins.  Each is due until it was sent.
* `STATUS=` is told when the words have changed: with one of these at once, else 1 s after the last at the earliest.
* `EXTEND_TIMEOUT_USEC=` is told every 5 s before `ready`, and from `stop` until the moment that it was told.
* `WATCHDOG=1` is told at half of the watchdog's time, unless something is stuck.
* What could not be sent is due again: `look` gives it until `sent` says that it was taken.
"""

from __future__ import annotations

import math
from typing import Final

LOOK_SECONDS: Final = 1.0
"""How long the words stay as they were told, and how long after a look the next one is at the latest."""
RETRY_SECONDS: Final = 0.25
"""How long after a message that could not be sent the next look is."""
REPEAT_SECONDS: Final = 5.0
"""How long after an extension of the manager's patience the next one is."""
EXTENSION_SECONDS: Final = 15.0
"""How long each extends it: until the next one, and as much again twice over, for a machine that stands still."""

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
WATCHDOG: Final = "WATCHDOG=1"


class Notifications:
    """What one run of services tells; `watchdog` is how long the manager waits for a sign of life, None for ever."""

    def __init__(self, watchdog: float | None) -> None:
        self._pause = math.inf if watchdog is None else watchdog / 2
        self._news = ""
        """That it is ready, or stops, while that was not told."""
        self._words = ""
        """What was told last."""
        self._extends_until = math.inf
        """Until when the manager is asked for more patience."""
        self._words_due = self._extension_due = self._sign_due = -math.inf
        self._unsent = False

    def ready(self) -> None:
        """Everything is ready: no more patience is needed."""
        self._news = READY
        self._extends_until = -math.inf

    def stop(self, until: float) -> None:
        """The end begins; patience is asked for until the moment `until` at most."""
        self._news = STOPPING
        self._extends_until = until
        self._extension_due = -math.inf

    def look(self, now: float, words: str, *, stuck: bool) -> list[str]:
        """What is due at `now`, where things stand as `words` say; `sent` must be told if it was sent."""
        due = [self._news] if self._news else []
        if words != self._words and (self._news or now >= self._words_due):
            due.append(f"STATUS={words}")
        extension = min(EXTENSION_SECONDS, self._extends_until - now)
        if extension > 0 and now >= self._extension_due:
            due.append(f"EXTEND_TIMEOUT_USEC={math.ceil(extension * 1e6)}")
        if not stuck and now >= self._sign_due and self._pause < math.inf:
            due.append(WATCHDOG)
        self._unsent = bool(due)
        return due

    def sent(self, now: float, told: list[str]) -> None:
        """What `look` gave at `now` was sent."""
        self._unsent = False
        for assignment in told:
            name, _, value = assignment.partition("=")
            match name:
                case "STATUS":
                    self._words, self._words_due = value, now + LOOK_SECONDS
                case "EXTEND_TIMEOUT_USEC":
                    self._extension_due = now + REPEAT_SECONDS
                case "WATCHDOG":
                    self._sign_due = now + self._pause
                case _:
                    self._news = ""

    def next_look(self, now: float) -> float:
        """When to look next, after what was due at `now` was sent or could not be."""
        if self._unsent:
            return now + min(RETRY_SECONDS, self._pause)
        # Where a sign of life was withheld it is overdue: the next look is as soon as if it had been given.
        sign_due = self._sign_due if self._sign_due > now else now + self._pause
        return min(now + LOOK_SECONDS, sign_due)
