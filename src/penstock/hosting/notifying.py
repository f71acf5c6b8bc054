"""Tell systemd how a run of services goes, from its event loop: what is told when is decided in `core/notifications`.

A timer of the event loop looks.  So an event loop that does not turn gives no sign of life, and neither does one of
whose services or parts `/livez` says that it is stuck: systemd then restarts the unit, where it has a watchdog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.core.clock import Clock, Timer
from penstock.core.notifications import Notifications
from penstock.hosting.host_part import HostPart
from penstock.hosting.notify_socket import NotifySocket
from penstock.hosting.servable import Servable
from penstock.hosting.service_health import status_words, stuck_because
from penstock.hosting.systemd import given_by_systemd

END_SECONDS = 10.0
"""How long the end may take after the drain: of workers, 5 s, of connections, and of what they have left."""


class RunObserver(Protocol):
    """Somebody who is told how a run goes.  Every call is made on the event loop's thread."""

    def began(self) -> None:
        """It starts."""

    def ready(self) -> None:
        """Every service is ready."""

    def stopping(self, within: float) -> None:
        """It ends, with a drain and what goes before it of at most `within` seconds."""

    def ended(self) -> None:
        """It has ended."""


class Receiver(Protocol):
    """Who takes what is told: a `NotifySocket`."""

    def send(self, assignments: Sequence[str]) -> bool:
        """Take them as one message, without a wait; whether they were taken."""

    def close(self) -> None:
        """Nothing more comes."""


class NoObserver:
    """Tells nobody."""

    def began(self) -> None:  # see `RunObserver`
        pass

    def ready(self) -> None:
        pass

    def stopping(self, within: float) -> None:
        pass

    def ended(self) -> None:
        pass


class Notifier:
    """Sends what is due, and says with `words`, which is told whether the run ends, how things stand.

    `stuck` says why the process will not go on by itself, or "".
    """

    def __init__(
        self,
        manager: Receiver,
        clock: Clock,
        *,
        watchdog: float | None,
        words: Callable[[bool], str],
        stuck: Callable[[], str],
    ) -> None:
        self._manager = manager
        self._clock = clock
        self._notifications = Notifications(watchdog)
        self._words = words
        self._stuck = stuck
        self._stopping = False
        self._timer: Timer | None = None

    def began(self) -> None:  # see `RunObserver`
        self._look()

    def ready(self) -> None:
        self._notifications.ready()
        self._look()

    def stopping(self, within: float) -> None:
        self._stopping = True
        self._notifications.stop(self._clock.now() + within + END_SECONDS)
        self._look()

    def ended(self) -> None:
        self._cancel()
        self._manager.close()

    def _look(self) -> None:
        self._cancel()
        now = self._clock.now()
        try:
            due = self._notifications.look(now, self._words(self._stopping), stuck=bool(self._stuck()))
            if due and self._manager.send(due):
                self._notifications.sent(now, due)
        finally:  # a fault in one look does not end all of them
            delay = max(0.0, self._notifications.next_look(now) - self._clock.now())
            self._timer = self._clock.call_later(delay, self._look)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def notifier_of(words: Callable[[bool], str], stuck: Callable[[], str], clock: Clock) -> RunObserver:
    """Who tells systemd; nobody, where it does not want to be told.

    Raises:
        ConfigError: a variable of systemd cannot be read.
    """
    given = given_by_systemd()
    if not given.notify_address:
        return NoObserver()
    return Notifier(NotifySocket.of(given), clock, watchdog=given.watchdog_seconds, words=words, stuck=stuck)


def observer_of(services: Sequence[Servable], parts: Sequence[HostPart], clock: Clock) -> RunObserver:
    """Who tells systemd of `services`, and of the other `parts` of this host.

    Raises:
        ConfigError: a variable of systemd cannot be read.
    """
    return notifier_of(
        lambda stopping: status_words(services, parts, stopping=stopping), lambda: stuck_because(services, parts), clock
    )
