"""`GET /scale`: the few numbers by which something outside starts and ends servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.hosting.servable import Servable
from penstock.hosting.service_health import worst_state
from penstock.server.application import HttpRequest, Response
from penstock.server.pages.health import FRESH, JSON


class Scale:
    """Answers for a set of services, as if they were one.

    Its state is the worst of theirs, its backlog the longest, because none can do another's work.  The rest are sums.
    """

    def __init__(self, services: Sequence[Servable]) -> None:
        self._services = services

    def page(self, _request: HttpRequest) -> Response:
        """Always 200: the state is in the body."""
        return Response(200, JSON, msgspec.json.encode(self._numbers()), FRESH)

    def _numbers(self) -> dict[str, Any]:
        engines = [engine for service in self._services if (engine := service.engine) is not None]
        workers = [worker for engine in engines for stage in engine.stages for worker in stage.workers]
        return {
            "state": worst_state(self._services),
            "backlog_seconds": round(max([engine.backlog_seconds for engine in engines], default=0.0), 3),
            "in_flight": sum([engine.queued for engine in engines]),
            "max_in_flight": sum([service.options.max_in_flight for service in self._services]),
            "workers_up": sum([worker.state.up for worker in workers]),
        }
