"""Causes the faults of the option `chaos` in calls of services; which, `core.chaos` decides.

Contract
--------
* Only `predict` and `batch` calls that were admitted are counted and touched; no page, no job, no call in process.
* A call that is dropped gets nothing else.  One that is delayed may get an error after it.
* An answer that was touched says so in ``x-chaos``: ``error``, ``delay`` or ``kill``, or several of them.
* A worker is killed as somebody else would: the engine learns of it as of any death.  The batch has just been given to
  it; only batches with items of calls are counted.
* A delay ends at the call's deadline, and soon after its service has begun to stop: whoever waits is answered.
* A client that leaves during a delay has its call forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Final

from penstock.core.chaos import Chaos
from penstock.core.clock import Clock, Timer
from penstock.hosting.logs import log
from penstock.hosting.servable import HostedEngine
from penstock.server.application import DROPPED, HttpRequest, Reply, Response
from penstock.server.protocols.route import ServiceRoute
from penstock.server.status import Problems

LOOK_SECONDS: Final = 0.1
"""How often a delayed call looks whether its service still takes calls: far less than the last answers may take."""


class ChaosDoor:
    """Stands before the routes of the services of one app."""

    def __init__(self, chaos: Chaos, problems: Problems, clock: Clock) -> None:
        self._chaos = chaos
        self._problems = problems
        self._clock = clock
        self._calls = count(1)
        self._batches = count(1)
        self._delayed: dict[HttpRequest, Timer] = {}
        self._killed: set[bytes] = set()
        """The ids of the requests in hand that were in a batch whose worker was killed."""
        self._watched: dict[str, HostedEngine] = {}
        """The engine of each service whose batches are counted."""
        log.warning("chaos is enabled, and causes faults in requests: %s", chaos.words)

    def handle(self, route: ServiceRoute, request: HttpRequest, reply: Reply) -> None:
        """Pass a call on to its `route`, now or later, or end it in its own way."""
        chaos, number = self._chaos, next(self._calls)
        self._watch(route)
        if chaos.hits("drop", number):
            self._later(request, 0.0, partial(self._rang, request, partial(reply, DROPPED)))
            return
        fails = chaos.hits("error", number)
        if chaos.seconds and chaos.hits("delay", number):
            due = min(self._clock.now() + chaos.seconds, route.deadline(request))
            self._wait(route, request, due, partial(self._go_on, route, request, reply, [b"delay"], fails))
        else:
            self._go_on(route, request, reply, [], fails)

    def cancel(self, request: HttpRequest) -> None:
        """Forget a call whose client has left."""
        timer = self._delayed.pop(request, None)
        if timer is not None:
            timer.cancel()
        self._killed.discard(request.id)

    def _wait(self, route: ServiceRoute, request: HttpRequest, due: float, act: partial[None]) -> None:
        """Call `act` at `due`, or once the service takes no calls: it says so to this one too, which would find the
        connection closed later.
        """
        engine = route.engine()
        left = due - self._clock.now()
        if left <= 0 or engine is None or not engine.accepting:
            self._later(request, 0.0, partial(self._rang, request, act))
        else:
            self._later(request, min(left, LOOK_SECONDS), partial(self._wait, route, request, due, act))

    def _later(self, request: HttpRequest, seconds: float, act: partial[None]) -> None:
        self._delayed[request] = self._clock.call_later(seconds, act)

    def _rang(self, request: HttpRequest, act: partial[None]) -> None:
        del self._delayed[request]
        act()

    def _go_on(
        self, route: ServiceRoute, request: HttpRequest, reply: Reply, touched: list[bytes], fails: bool
    ) -> None:
        if fails:
            touched.append(b"error")
            self._answer(request, reply, touched, self._problems.chaos(request))
        else:
            route.handle(request, partial(self._answer, request, reply, touched))

    def _answer(self, request: HttpRequest, reply: Reply, touched: list[bytes], response: Response) -> None:
        if request.id in self._killed:
            self._killed.discard(request.id)
            touched.append(b"kill")
        if touched:
            response.headers = (*response.headers, (b"x-chaos", b", ".join(touched)))
        reply(response)

    def _watch(self, route: ServiceRoute) -> None:
        """Count the batches of the service that `route` leads to; it may have a new engine since the last call."""
        engine = route.engine()
        if self._chaos.kill and engine is not None and self._watched.get(route.service.name) is not engine:
            self._watched[route.service.name] = engine
            engine.watch_batches(self._sent)

    def _sent(self, kill: Callable[[], None] | None, ids: Sequence[bytes]) -> None:
        """A batch was given to a worker that `kill` ends; `ids` are those of its requests, b"" of calls in process."""
        of_calls = [request_id for request_id in ids if request_id]
        if not of_calls or kill is None or not self._chaos.hits("kill", next(self._batches)):
            return
        self._killed.update(of_calls)
        kill()
