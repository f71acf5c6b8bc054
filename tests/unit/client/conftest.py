"""A client over a wire that answers as a test says, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.async_client import AsyncClient
from penstock.client.client_options import CallTerms
from penstock.client.world import World
from penstock.testing.virtual_clock import VirtualClock


class FakeWire:
    """Answers a request when a test says so."""

    def __init__(self):
        self.sent = []
        self.waiting = []
        self.cancelled = 0
        self.closed = 0

    async def send(self, request):
        answer = asyncio.get_running_loop().create_future()
        self.sent.append(request)
        self.waiting.append(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def answer(self, reply, place=0):
        self.waiting.pop(place).set_result(reply)

    async def close(self):
        self.closed += 1


class Rig:
    """A client over a fake wire."""

    def __init__(self, **options):
        self.clock = VirtualClock()
        self.wire = FakeWire()
        world = World(clock=self.clock, chance=lambda: 0.0, connect=lambda address, most: self.wire)
        self.client = AsyncClient("http://a", _deps=world, **options)
        self.core = self.client._core
        self.sender = self.core.sender

    def begin(self, item=1, **terms):
        call = self.core.maker.predict(item, CallTerms(**terms))
        return asyncio.ensure_future(self.sender.send(call))

    def begin_many(self, items, *, keep_going=False, **terms):
        calls = self.core.maker.predict_many(items, CallTerms(**terms), 2, keep_going=keep_going)
        return asyncio.ensure_future(self.core.send_many(calls, keep_going=keep_going))


@pytest.fixture(name="Rig")
def rig_class():
    return Rig
