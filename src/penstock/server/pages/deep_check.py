"""Send an example through every service, to see whether an answer comes back.

Contract
--------
* What is sent is the first example of the first stage, as a call in process sends it, with the best urgency and 5 s.
  It is a probe: of no tenant, so that it costs none of them a token or a place; a full service refuses it.
* One check is under way at a time.  Who asks meanwhile is told what it finds, and so is who asks within a second after.
* Everybody who asks is told exactly once, perhaps before `ask` returns.  Who has left meanwhile is told, too.
* All is well only if every service gave a result; else the error is that of the first one that ended without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from penstock.codec.text import one_line
from penstock.core.clock import Clock
from penstock.core.outcome import Outcome, Result
from penstock.core.state import State
from penstock.errors import NotReady, RequestError
from penstock.hosting.servable import Servable

LIMIT_SECONDS: Final = 5.0
"""How long an example may take through the whole service."""
SHARED_SECONDS: Final = 1.0
"""For how long what was found is told again: who asks more often does not load the service."""

Tell = Callable[[dict[str, Any]], None]
"""Takes what was found: `ok`, `seconds`, and `error`, which is "" where all is well."""


class DeepCheck:
    """Checks `services`, each of which has examples, or is named by `lacking`."""

    def __init__(self, services: Sequence[Servable], clock: Clock) -> None:
        self._services = services
        self._now = clock.now
        self._waiting: list[Tell] = []
        """Who is told what the check under way finds; empty where none is."""
        self._began = 0.0
        self._unheard_of = 0
        """The services that have not answered it yet."""
        self._error = ""
        self._found: dict[str, Any] = {}
        self._found_at = 0.0

    def lacking(self) -> list[str]:
        """The names of the services whose first stage has no examples: nothing can be sent through them."""
        return [service.name for service in self._services if not len(service.stages[0].examples)]

    def ask(self, tell: Tell) -> None:
        """Have `tell` called with what the check finds that is under way, was just made, or begins now."""
        if not self._waiting and self._found and self._now() - self._found_at < SHARED_SECONDS:
            tell(self._found)
            return
        self._waiting.append(tell)
        if len(self._waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        self._began = self._now()
        self._unheard_of = len(self._services)
        self._error = ""
        for service in self._services:
            try:
                self._send(service)
            except RequestError as error:
                self._heard_of(service, error)

    def _send(self, service: Servable) -> None:
        engine = service.engine
        if engine is None:
            raise NotReady(state=State.STARTING)
        engine.submit_probe(service.stages[0].examples[0], self._began + LIMIT_SECONDS, partial(self._done, service))

    def _done(self, service: Servable, outcomes: list[Outcome]) -> None:
        outcome = outcomes[0]
        self._heard_of(service, None if isinstance(outcome, Result) else outcome.error)

    def _heard_of(self, service: Servable, error: Exception | None) -> None:
        if error is not None and not self._error:
            words = one_line(str(error)) or type(error).__name__
            self._error = f"{service.name}: {words}" if len(self._services) > 1 else words
        self._unheard_of -= 1
        if self._unheard_of:
            return
        self._found_at = self._now()
        seconds = round(self._found_at - self._began, 3)
        self._found = {"ok": not self._error, "seconds": seconds, "error": self._error}
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell(self._found)
