"""Let calls through as the flow limit allows, in their order; the others wait.

It belongs to one event loop: nobody else may call it.
"""

from __future__ import annotations

import asyncio

from penstock.client.flow_limit import End, FlowLimit
from penstock.client.waiting_line import WaitingLine
from penstock.core.clock import Clock, Timer


class Gate:
    """The gate of one client."""

    def __init__(self, limit: FlowLimit, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._pause: Timer | None = None
        self._line: WaitingLine[asyncio.Future[int]] = WaitingLine()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line)

    async def enter(self, urgency: int, arrival: int) -> int:
        """Return once the caller may send a request; what it gives is told to `leave`."""
        if self._limit.has_room and not self._line:
            return self._limit.begin()
        let_in: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._line.join(let_in, urgency, arrival)
        try:
            return await let_in
        except asyncio.CancelledError:
            self._line.leave(arrival)
            if let_in.done() and not let_in.cancelled():  # it was let in, and cancelled in the same turn of the loop
                self.leave(let_in.result(), End.NEITHER)
            raise

    def leave(self, begun_in: int, how: End, pause_seconds: float = 0.0) -> None:
        """A request has ended; after a refusal, `pause_seconds` is how long a pause is to be, if one begins."""
        if self._limit.end(begun_in, how):
            self._pause = self._clock.call_later(pause_seconds, self._go_on)
        self._let_in()

    def close(self) -> None:
        """Forget the pause: nobody comes any more."""
        if self._pause is not None:
            self._pause.cancel()

    def _go_on(self) -> None:
        self._limit.go_on()
        self._let_in()

    def _let_in(self) -> None:
        while self._limit.has_room and (let_in := self._line.next()) is not None:
            if not let_in.done():
                let_in.set_result(self._limit.begin())
