"""Load a server through the Python client, and tell what became of the calls.

    python client_load.py '{"url": "http://127.0.0.1:8000", "clients": 20, "callers": 50, "warmup": 2, "seconds": 5}'

It makes the clients in one process, on one event loop.  Each client has so many callers, and each caller calls again
when its call has ended.  Each call has a number of its own, and its answer is compared with what is right.
`client_load.mjs` does the same through the TypeScript client, with the same plan and the same report.

An error that is not one of the client's ends it: clients promise typed errors.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from itertools import count

import msgspec

from penstock.client import AsyncClient
from penstock.client.flow_limit import FlowLimit
from penstock.errors import RequestError


class Plan(msgspec.Struct, frozen=True):
    """What a load generator is to do."""

    url: str
    clients: int = 1
    callers: int = 50
    """Callers of each client."""
    flow_control: bool = True
    """Without it a client sends up to `max_concurrency` requests at once, whatever is refused."""
    retry_unsafe: bool = False
    requests: int = 0
    """How many calls there are; 0 is as many as there is time for."""
    warmup: float = 0.0
    """Seconds before anything is counted."""
    seconds: float = 0.0
    """Seconds in which calls that end are counted, where `requests` is 0."""


class ClientsSeen(msgspec.Struct, frozen=True):
    """What became of the calls that ended while they were counted."""

    right: int
    wrong: int
    errors: dict[str, int]
    """How many calls ended with an error, by the class."""
    tries: int
    seconds: float
    cpu_seconds: float
    """CPU of the load generator, client included."""

    @property
    def calls(self) -> int:
        """All calls that ended."""
        return self.right + self.wrong + sum(self.errors.values())

    @property
    def answered(self) -> float:
        """The share of the calls that had the right answer."""
        return self.right / self.calls

    @property
    def tries_per_answer(self) -> float:
        """How often the server was asked for each right answer."""
        return self.tries / self.right

    @property
    def rate(self) -> float:
        """Right answers a second."""
        return self.right / self.seconds

    @property
    def cores(self) -> float:
        """How many cores the load generator kept busy."""
        return self.cpu_seconds / self.seconds


class StillLimit(FlowLimit):
    """A limit that stays at the most there may be."""

    @property
    def has_room(self) -> bool:
        """Whether one more request may be sent."""
        return self.in_flight < self._most


def make_client(plan: Plan) -> AsyncClient:
    """A client; one without flow control is no option of the client, so its limit is exchanged here."""
    client = AsyncClient(plan.url, retry_non_idempotent=plan.retry_unsafe)
    if not plan.flow_control:
        sender = client._core.sender
        sender._limit = sender._gate._limit = StillLimit(sender._options.max_concurrency)
    return client


class Load:
    """The calls of all clients of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._clients = [make_client(plan) for _ in range(plan.clients)]
        self._numbers = count()
        self._right = self._wrong = 0
        self._errors: Counter[str] = Counter()

    async def run(self) -> ClientsSeen:
        """Call until the plan is done."""
        callers = [
            asyncio.ensure_future(self._call_on(client)) for client in self._clients for _ in range(self._plan.callers)
        ]
        ending = asyncio.gather(*callers)  # ends with the first caller that fails
        if self._plan.warmup:  # else the callers would begin before the first look
            await asyncio.wait([ending], timeout=self._plan.warmup)
        before = self._seen()
        await asyncio.wait([ending], timeout=None if self._plan.requests else self._plan.seconds)
        after = self._seen()
        if ending.done():
            ending.result()
        for caller in callers:
            caller.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        for client in self._clients:
            await client.close()
        return ClientsSeen(
            right=after.right - before.right,
            wrong=after.wrong - before.wrong,
            errors=dict(Counter(after.errors) - Counter(before.errors)),
            tries=after.tries - before.tries,
            seconds=after.seconds - before.seconds,
            cpu_seconds=after.cpu_seconds - before.cpu_seconds,
        )

    async def _call_on(self, client: AsyncClient) -> None:
        while (number := next(self._numbers)) < self._plan.requests or not self._plan.requests:
            try:
                answer = await client.predict(number)
            except RequestError as error:
                self._errors[type(error).__name__] += 1
            else:
                self._right += answer == 2 * number
                self._wrong += answer != 2 * number

    def _seen(self) -> ClientsSeen:
        """All so far; `seconds` is a moment."""
        return ClientsSeen(
            right=self._right,
            wrong=self._wrong,
            errors=dict(self._errors),
            tries=sum(client.stats.attempts for client in self._clients),
            seconds=time.monotonic(),
            cpu_seconds=time.process_time(),
        )


async def main() -> None:
    seen = await Load(msgspec.json.decode(sys.argv[1], type=Plan)).run()
    print(msgspec.json.encode(seen).decode())


if __name__ == "__main__":
    asyncio.run(main())
