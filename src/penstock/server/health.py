"""What a load balancer and a person may ask: is the process alive, should traffic come here, what is going on.

`/livez` answers while the process works.  `/readyz` is 200 for READY and BUSY of every service, else 503 with state
and reason.  `/health` is always 200 and tells everything.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.state import State
from penstock.errors import NotReady
from penstock.server.messages import HttpRequest, Response
from penstock.server.servable import Servable, StageView
from penstock.server.status import Problems, one_line

JSON = b"application/json"
_FRESH = ((b"cache-control", b"no-store"),)

_WORST_FIRST = (State.FAILED, State.STOPPED, State.DRAINING, State.STARTING, State.BUSY, State.READY)


def version() -> str:
    """The installed version of Penstock, or "unknown" where it runs without having been installed."""
    try:
        return importlib.metadata.version("penstock")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def state_of(service: Servable) -> State:
    """The state of a service, STARTING while it has no engine."""
    engine = service.engine
    return State.STARTING if engine is None else engine.state


class Health:
    """Answers the three questions for a set of services."""

    def __init__(self, services: Sequence[Servable], problems: Problems) -> None:
        self._services = services
        self._problems = problems
        self._born = time.monotonic()
        self._version = version()

    def livez(self, _request: HttpRequest) -> Response:
        """200: whoever reads this reached a working process."""
        return Response(200, JSON, b'{"status":"alive"}', _FRESH)

    def readyz(self, request: HttpRequest) -> Response:
        """200 if every service takes traffic, else 503 that names those which do not."""
        down = [service for service in self._services if not state_of(service).serving]
        if not down:
            return Response(200, JSON, msgspec.json.encode({"state": self.worst()}), _FRESH)
        said = "; ".join(self._said(service) for service in down)
        return self._problems.answer(NotReady(said, state=self.worst()), request)

    def _said(self, service: Servable) -> str:
        engine = service.engine
        if engine is None:
            return f"{service.name} is {State.STARTING}: {self._problems.unstarted}"
        reason = one_line(
            engine.reason
        )  # what follows the first line may be a traceback, and nobody was asked for a key
        return f"{service.name} is {engine.state}" + (f": {reason}" if reason else "")

    def health(self, _request: HttpRequest) -> Response:
        """Always 200: the state is in the body."""
        body = {
            "state": self.worst(),
            "version": self._version,
            "uptime": round(time.monotonic() - self._born, 3),
            "services": {service.name: describe(service) for service in self._services},
        }
        return Response(200, JSON, msgspec.json.encode(body), _FRESH)

    def worst(self) -> State:
        """The state that needs attention most."""
        return min((state_of(service) for service in self._services), key=_WORST_FIRST.index)


def describe(service: Servable) -> dict[str, Any]:
    """What one service is doing, in the words of the glossary."""
    engine = service.engine
    if engine is None:
        return {"state": State.STARTING, "reason": "", "queued": 0, "in_flight": 0, "bytes": 0, "stages": {}}
    return {
        "state": engine.state,
        "reason": one_line(engine.reason),
        "queued": engine.queued,
        "in_flight": sum(stage.in_flight for stage in engine.stages),
        "bytes": engine.held_bytes,
        "stages": {stage.name: _describe_stage(stage) for stage in engine.stages},
    }


def _describe_stage(stage: StageView) -> dict[str, Any]:
    return {
        "queued": stage.queued,
        "in_flight": stage.in_flight,
        "workers": [{"index": w.index, "state": w.state, "pid": w.pid, "restarts": w.restarts} for w in stage.workers],
    }
