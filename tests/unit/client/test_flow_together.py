"""Twenty clients of fifty callers before a server with room for 64, in virtual time: it is busy, and asked little."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from dataclasses import dataclass

from penstock.client.async_client import AsyncClient
from penstock.client.replies import Reply
from penstock.client.world import World
from penstock.core.retry_slots import RetrySlots, whole_milliseconds
from penstock.errors import Overloaded
from penstock.hosting.loop_clock import sleep_on
from penstock.testing.virtual_clock import VirtualClock

CLIENTS, CALLERS = 20, 50
MOST_QUEUED, BATCH, BATCH_SECONDS = 64, 16, 0.1
RATE = BATCH / BATCH_SECONDS
WAY_SECONDS = 0.001
"""A request takes up to so long to the server, and its answer back: so short that a client could be refused a hundred
times while a batch runs."""
WARMUP, SECONDS = 2.0, 3.0


class FullServer:
    """The wire to a server that runs one batch at a time, and tells whom it has no room for when to come again.

    It tells so by the rules of the real server.  Its model answers with the item.
    """

    def __init__(self, clock, chance):
        self._clock = clock
        self._chance = chance
        self._waiting = deque()
        self._running = []
        self._slots = RetrySlots()
        self.asked = self.answered = 0

    async def send(self, request):
        await self._way()
        self.asked += 1
        in_hand = len(self._waiting) + len(self._running)
        if in_hand >= MOST_QUEUED:
            reply = self._refusal(in_hand)
        else:
            answer = asyncio.get_running_loop().create_future()
            self._waiting.append((answer, request.body))
            if not self._running:
                self._begin()
            reply = await answer
        await self._way()
        return reply

    async def close(self):
        pass

    async def _way(self):
        await sleep_on(self._clock, WAY_SECONDS * self._chance.random())

    def _refusal(self, in_hand):
        seconds = self._slots.take(self._clock.now(), in_hand / 2 / RATE, RATE)
        told = {"retry-after-ms": str(whole_milliseconds(seconds)), "x-should-retry": "true"}
        problem = {"type": "urn:penstock:problem:overloaded", "status": 503, "reason": "queue_full"}
        return Reply(503, {"content-type": "application/problem+json", **told}, json.dumps(problem).encode())

    def _begin(self):
        self._running = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        if self._running:
            self._clock.call_later(BATCH_SECONDS, self._end)

    def _end(self):
        for answer, body in self._running:
            self.answered += 1
            if not answer.done():  # it is when the test ends
                answer.set_result(Reply(200, {"content-type": "application/json"}, body))
        self._begin()


@dataclass
class Seen:
    of_capacity: float
    tries_per_answer: float
    failed: int


async def play():
    clock, chance = VirtualClock(), random.Random(1)
    server = FullServer(clock, chance)
    world = World(clock=clock, chance=chance.random, connect=lambda address, most: server)
    clients = [AsyncClient("http://a", _deps=world) for _ in range(CLIENTS)]
    failed = 0

    async def call_on(client):
        nonlocal failed
        while True:
            number = chance.randrange(1_000_000)
            try:
                assert await client.predict(number) == number
            except Overloaded:
                failed += 1

    callers = [asyncio.ensure_future(call_on(client)) for client in clients for _ in range(CALLERS)]
    await clock.advance(WARMUP)
    answered, asked = server.answered, server.asked
    await clock.advance(SECONDS)
    answered, asked = server.answered - answered, server.asked - asked
    for caller in callers:
        caller.cancel()
    for ended in await asyncio.gather(*callers, return_exceptions=True):
        assert isinstance(ended, asyncio.CancelledError), ended
    return Seen(answered / (RATE * SECONDS), asked / answered, failed)


async def test_many_clients_keep_a_full_server_busy_and_ask_little_more_than_it_answers():
    seen = await play()
    assert seen.of_capacity >= 0.95
    assert 1 < seen.tries_per_answer <= 1.3
    assert seen.failed == 0
