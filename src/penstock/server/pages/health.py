"""What a load balancer and a person may ask: is the process alive, should traffic come here, what is going on.

`/livez` answers while the process works.  `/readyz` is 200 while every service is READY or BUSY, else 503 with the
state and the reason.  `/health` is always 200, and its body says what every service, stage and worker is doing; with
`deep=1` it is 503 where an example that was sent through a service did not come back (`deep_check.py`).  The path of
the option `health_path` tells `/readyz` in one of five words, for what looks for a word in a body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.codec.text import one_line
from penstock.core.clock import Clock
from penstock.core.state import State
from penstock.errors import NotReady
from penstock.hosting.host_part import HostPart
from penstock.hosting.servable import Servable
from penstock.hosting.service_health import describe_process, state_of, stuck_because, worst_state
from penstock.server.application import HttpRequest, Response
from penstock.server.status import Problems

JSON = b"application/json"
FRESH = ((b"cache-control", b"no-store"),)
_WORDS: dict[State, bytes] = {
    State.READY: b"ready",
    State.BUSY: b"busy",
    State.STARTING: b"starting",
    State.FAILED: b"failed",
    State.STALLED: b"failed",
    State.DRAINING: b"draining",
    State.STOPPED: b"draining",
}
"""What the health path says of a state.  Who asks there knows these five words only."""


class Health:
    """Answers these questions for a set of services; with `unready_when_full` a full service takes no traffic."""

    def __init__(
        self, services: Sequence[Servable], problems: Problems, clock: Clock, *, busy_is_unready: bool = False
    ) -> None:
        self._services = services
        self._busy_is_unready = busy_is_unready
        self._problems = problems
        self._now = clock.now
        self._started = self._now()
        self._parts: list[HostPart] = []
        self.chaos = ""
        """The faults that are caused on purpose, in words; "" where none are."""

    def watch(self, part: HostPart) -> None:
        """Ask `part` too from now on."""
        self._parts.append(part)

    def livez(self, request: HttpRequest) -> Response:
        """200, because a process that does not work cannot answer; 503 where something of it is stuck."""
        if stuck := stuck_because(self._services, self._parts):
            return self._problems.refuse(503, stuck, request.id)
        return Response(200, JSON, b'{"status":"alive"}', FRESH)

    def readyz(self, request: HttpRequest) -> Response:
        """200 if every service takes traffic, else 503 with the names of those that do not."""
        down = [service for service in self._services if not self._ready(state_of(service))]
        unready = [why for part in self._parts if (why := part.unready_because())]
        if unready and not down:
            return self._problems.refuse(503, one_line("; ".join(unready)), request.id)
        if not down:
            return Response(200, JSON, msgspec.json.encode({"state": worst_state(self._services)}), FRESH)
        detail = "; ".join(self._describe_down(service) for service in down)
        refusal = NotReady(detail, state=worst_state(self._services), retry_after=max(map(_retry_after, down)))
        return self._problems.answer(refusal, request)

    def _ready(self, state: State) -> bool:
        return state.serving and not (self._busy_is_unready and state is State.BUSY)

    def status(self, _request: HttpRequest) -> Response:
        """How all services are, in one word: 200 where traffic should come here, else 503.

        Where a part of the host is unready or stuck the word is `failed`, unless the services say worse.
        """
        state = worst_state(self._services)
        ready = self._ready(state)
        if state.serving and any(part.unready_because() or part.stuck_because() for part in self._parts):
            state, ready = State.FAILED, False
        return Response(200 if ready else 503, JSON, b'{"status":"%s"}' % _WORDS[state], FRESH)

    def _describe_down(self, service: Servable) -> str:
        engine = service.engine
        if engine is None:
            return f"{service.name} is {State.STARTING}: {self._problems.unstarted}"
        # Only the first line: a traceback may follow it, and this page is shown without an API key.
        reason = one_line(engine.reason)
        if engine.state is State.STOPPED:  # the host knows why: a start has failed, or there was none yet
            reason = reason or self._problems.unstarted
        return f"{service.name} is {engine.state}" + (f": {reason}" if reason else "")

    def health(self, _request: HttpRequest) -> Response:
        """Always 200: the state is in the body."""
        return self.answer(None)

    def answer(self, deep: dict[str, Any] | None) -> Response:
        """What everything is doing, with what a deep check has found; 503 if that is not well."""
        body = describe_process(self._services, self._now() - self._started)
        body |= {part.name: part.describe() for part in self._parts}
        if self.chaos:
            body["chaos"] = self.chaos
        if deep is not None:
            body["deep"] = deep
        status = 200 if deep is None or deep["ok"] else 503
        return Response(status, JSON, msgspec.json.encode(body), FRESH)


def _retry_after(service: Servable) -> int:
    """In how many seconds a service that takes no traffic is worth another try."""
    engine = service.engine
    # One that takes what comes is not asked: to be refused would take a place in the line of those who are.
    refusal = None if engine is None or engine.accepting else engine.refusal()
    return refusal.retry_after if isinstance(refusal, NotReady) else 1
