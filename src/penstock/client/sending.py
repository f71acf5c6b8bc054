"""Send calls: wait for a turn, try, and try again as the rules say.  What decides is elsewhere.

Contract
--------
* Every call ends: with a value or an error, at the latest `GRACE_SECONDS` behind its deadline.
* All calls of a client share one flow limit, one line and one retry budget.
* A cancelled call, and every call of a client that is closed, has its connection closed.
* All of it runs on one event loop, and belongs to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from penstock.client.client_options import ClientOptions, ServerAddress
from penstock.client.flow_limit import End, FlowLimit
from penstock.client.gate import Gate
from penstock.client.interruption import Interruption
from penstock.client.problem_errors import with_source
from penstock.client.retry_budget import RetryBudget
from penstock.client.retry_rules import Retry, shared_pause_seconds
from penstock.client.single_call import Call, CallHead, Finished
from penstock.client.tries import Setback, Tries
from penstock.client.wire import OutgoingRequest
from penstock.client.world import World
from penstock.errors import Cancelled, ConfigError, DeadlineExceeded, PenstockError
from penstock.hosting.loop_clock import sleep_on

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClientStats:
    """What a client has done, and how much it may do."""

    requests: int
    """Requests that have begun, each with all its tries."""
    attempts: int
    retries: int
    """Tries beyond the first of a request."""
    client_initiated_retries: int
    """Those of them that no server has asked for."""
    in_flight: int
    """Tries under flow control that are with the server."""
    waiting: int
    """Requests that wait for their turn."""
    limit: int
    """How many may be in flight."""
    retry_budget: int
    """How many tries that nobody asks for there may be now."""


class Sender:
    """Sends the calls of one client."""

    def __init__(self, address: ServerAddress, options: ClientOptions, world: World) -> None:
        self._base = address.base
        self._options = options
        self._world = world
        self._clock = world.clock
        self._wire = world.connect(address, options.max_concurrency)
        self._limit = FlowLimit(options.max_concurrency)
        self._gate = Gate(self._limit, self._clock)
        self._budget = RetryBudget()
        self._arrivals = count()
        self._requests = self._tries = self._retries = self._unasked = 0
        self._in_hand: dict[Interruption, CallHead] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._none_left: asyncio.Future[None] | None = None
        """Done once a client that closes has no call in hand."""

    @property
    def stats(self) -> ClientStats:
        """The numbers of this moment."""
        return ClientStats(
            requests=self._requests,
            attempts=self._tries,
            retries=self._retries,
            client_initiated_retries=self._unasked,
            in_flight=self._limit.in_flight,
            waiting=self._gate.waiting,
            limit=self._limit.limit,
            retry_budget=self._budget.left(self._clock.now()),
        )

    def check(self) -> None:
        """Raise ConfigError where the client is closed, or belongs to another event loop."""
        if self._closed:
            raise ConfigError("the client is closed")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise ConfigError("the client's connections belong to another event loop; make a client in this loop")

    async def send(self, call: Call[T], deadline: float | None = None, *, is_part: bool = False) -> T:
        """What comes of `call`, by `deadline`; without one its own time limit counts from now.

        `is_part` says that it belongs to a call that has begun already: where the client was closed meanwhile, it is
        `Cancelled`.
        """
        if self._closed and is_part:
            return call.give_up(_closed(call.head))
        self.check()
        now = self._clock.now()
        end = now + call.head.timeout if deadline is None else deadline
        tries = Tries(now, end, self._options.max_retries, self._budget)
        self._requests += 1
        self._budget.count_request(now)
        try:
            with self._holding(call.head) as ended:
                return await self._try_until_done(call, tries, ended)
        except PenstockError as error:
            # Frames behind them lead back to the error: only the cycle collector would free it, and the input.
            error.__traceback__ = error.__context__ = None
            return call.give_up(error)

    async def pause(self, seconds: float, head: CallHead) -> None:
        """Pause between two requests of one call, of which `head` is that of the first."""
        if self._closed:  # in the turn in which the first one ended
            raise _closed(head)
        with self._holding(head):
            await sleep_on(self._clock, seconds)

    async def close(self) -> None:
        """End every call with `Cancelled`, and close every connection; may be called any number of times.

        What an event loop that is closed has left of them is gone with it.
        """
        if self._closed:
            return
        if self._loop is not None and self._loop.is_closed():
            self._closed = True
            return
        self.check()
        self._closed = True
        for ended, head in list(self._in_hand.items()):
            ended.interrupt(_closed(head))
        if self._in_hand:
            self._none_left = asyncio.get_running_loop().create_future()
            await self._none_left
        self._gate.close()
        await self._wire.close()

    @contextmanager
    def _holding(self, head: CallHead) -> Iterator[Interruption]:
        """What is awaited inside ends where the client is closed."""
        ended = Interruption(self._clock)
        self._in_hand[ended] = head
        try:
            with ended:
                yield ended
        finally:
            del self._in_hand[ended]
            if self._none_left is not None and not self._in_hand and not self._none_left.done():
                self._none_left.set_result(None)

    async def _try_until_done(self, call: Call[T], tries: Tries, ended: Interruption) -> T:
        arrival = next(self._arrivals)
        while True:
            outcome = await self._try(call, tries, ended, arrival)
            if isinstance(outcome, Finished):
                return outcome.value
            now = self._clock.now()
            moment = tries.next_moment(outcome, now, self._world.chance())
            if moment is None:
                raise outcome.error
            self._retries += 1
            self._unasked += outcome.retry is Retry.UNASKED
            await sleep_on(self._clock, moment - now)

    async def _try(self, call: Call[T], tries: Tries, ended: Interruption, arrival: int) -> Finished[T] | Setback:
        head = call.head
        if not head.flow_controlled:
            return await self._send_once(call, tries, ended)
        ended.interrupt_at(tries.deadline, _too_late(head, tries, "while it was queued in the client"))
        begun_in = await self._gate.enter(head.urgency, arrival)
        how, pause = End.NEITHER, 0.0
        try:
            outcome = await self._send_once(call, tries, ended)
            if isinstance(outcome, Finished):
                how = End.SUCCESS
            elif outcome.is_refusal:
                how, pause = End.REFUSAL, shared_pause_seconds(outcome.told)
        finally:
            self._gate.leave(begun_in, how, pause)
        return outcome

    async def _send_once(self, call: Call[T], tries: Tries, ended: Interruption) -> Finished[T] | Setback:
        now = self._clock.now()
        if not tries.begin(now):
            raise _too_late(call.head, tries, "before it could be sent")
        self._tries += 1
        ended.interrupt_at(tries.gives_up, _too_late(call.head, tries, "without a response", may_have_run=True))
        reply = await self._wire.send(self._outgoing(call, tries.headers(now)))
        ended.let_be()
        return call.take(reply, self._world.wall())

    def _outgoing(self, call: Call[T], of_try: dict[str, str]) -> OutgoingRequest:
        head, body = call.head, call.body()
        headers = {**head.headers, "x-request-id": head.request_id, **of_try}
        if body is not None:
            headers["content-type"] = body.content_type
            if body.accept:
                headers["accept"] = body.accept
        sent = b"" if body is None else body.body
        return OutgoingRequest(head.method, self._base + head.path, headers, sent, head.largest)


def _closed(head: CallHead) -> Cancelled:
    return with_source(Cancelled("the client was closed before the result"), None, head.request_id)


def _too_late(head: CallHead, tries: Tries, when: str, *, may_have_run: bool = False) -> DeadlineExceeded:
    error = DeadlineExceeded(f"the call timed out after {tries.seconds:g} s, {when}", ran=may_have_run)
    return with_source(error, None, head.request_id)
