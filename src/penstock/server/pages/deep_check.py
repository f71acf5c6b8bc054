"""Send an example through every service, to see whether an answer comes back.

Contract
--------
* What is sent is the first example of the first stage, as a call in process sends it, with the best urgency and 5 s.
  It is a probe: of no tenant, so that it costs none of them a token or a place; a full service refuses it.
* One check is under way at a time.  Who asks meanwhile is told what it finds, and so is who asks within a second after.
* Everybody who asks is told exactly once, perhaps before `ask` returns.  Who has left meanwhile is told, too.
* All is well only if every service gave a result, and of one stage that is the one which its example wants; else the
  error is that of the first service of which this is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from penstock.codec.encode import ItemEncoder
from penstock.codec.example import Example, WrongAnswer, difference, input_of
from penstock.codec.formats import Codec
from penstock.codec.text import one_line
from penstock.core.clock import Clock
from penstock.core.outcome import Outcome, Result
from penstock.core.payload import Buffer, Payload, join_payload
from penstock.core.state import State
from penstock.errors import NotReady, RequestError
from penstock.hosting.servable import Servable, StageDescription

LIMIT_SECONDS: Final = 5.0
"""How long an example may take through the whole service."""
SHARED_SECONDS: Final = 1.0
"""For how long what was found is told again: who asks more often does not load the service."""

_READERS: Final[Mapping[Codec, Callable[[Buffer], Any]]] = {
    Codec.MSGPACK: msgspec.msgpack.decode,  # first: it has bytes, NaN and whole floats
    Codec.JSON: msgspec.json.decode,
}

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
        first, *others = service.stages
        example = first.examples[0]
        codec = None if others or type(example) is not Example else _readable(first)
        done = partial(self._done, service, None if codec is None else example, codec)
        engine.submit_probe(input_of(example), self._began + LIMIT_SECONDS, done, codec)

    def _done(self, service: Servable, example: Example | None, codec: Codec | None, outcomes: list[Outcome]) -> None:
        outcome = outcomes[0]
        if not isinstance(outcome, Result):
            self._heard_of(service, outcome.error)
        elif example is None or codec is None:
            self._heard_of(service, None)
        else:
            words = _wrong(example, service.stages[0], codec, outcome.payload)
            self._heard_of(service, WrongAnswer(f"examples[0]: {words}") if words else None)

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


def _readable(stage: StageDescription) -> Codec | None:
    """A format in which the results of `stage` can be read here, where its user's libraries are not loaded."""
    offered = stage.offers()
    return next((codec for codec in _READERS if codec in offered), None)


def _wrong(example: Example, stage: StageDescription, codec: Codec, payload: Payload) -> str:
    """How the answer of `stage` to `example` differs from the one that is wanted; "" where it does not."""
    read = _READERS[codec]
    try:
        wanted = read(join_payload(ItemEncoder(stage.signature().result).encode(codec, example.output)))
    except Exception:  # noqa: BLE001  # the user's own encoding: what cannot be written was compared in the workers
        return ""
    return difference(wanted, read(join_payload(payload)), example.tolerance)
