"""What connections have in common: who is let in, and how long their end is waited for."""

from __future__ import annotations

import asyncio
import math
import time
from email.utils import parsedate_to_datetime

import pytest

from penstock.config import ServerOptions
from penstock.server.http1.connections import Connections, Entry

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Nobody:
    """A connection that only counts."""


@pytest.fixture
def small(rig):
    """Two are served, one more is refused with an answer."""
    return Connections(rig.app, ServerOptions(max_connections=2), rig.clock, max_excess=1)


def test_connections_are_served_then_refused_then_aborted(small):
    assert [small.enter(Nobody()) for _ in range(5)] == [Entry.SERVED] * 2 + [Entry.REFUSED] + [Entry.ABORTED] * 2
    assert (len(small.open), small.excess) == (5, 1)


def test_whoever_leaves_makes_way_for_one_of_its_kind(small):
    one, _, refused = guests = [Nobody() for _ in range(3)]
    for guest in guests:
        small.enter(guest)
    small.leave(refused, True)
    small.leave(refused, True)  # asyncio says it once; twice must not let more in
    assert small.excess == 0
    assert small.enter(refused) is Entry.REFUSED
    small.leave(one, False)
    assert small.enter(one) is Entry.SERVED


def test_nobody_is_let_in_while_the_server_drains(small):
    small.drain()
    assert small.enter(Nobody()) is Entry.ABORTED


async def test_nobody_is_waited_for_where_nobody_is(rig):
    assert await rig.connections.until_empty(5.0)
    assert rig.clock.timers == []


async def test_the_last_to_leave_ends_the_wait_and_its_timer(rig):
    clients = [rig.connect(), rig.connect()]
    wait = asyncio.ensure_future(rig.connections.until_empty(5.0))
    await asyncio.sleep(0)
    clients[0].leave()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not wait.done()
    clients[1].leave()
    assert await wait
    (timer,) = rig.clock.timers
    assert (timer.due, timer.cancelled) == (rig.now + 5.0, True)


async def test_the_wait_for_the_last_to_leave_has_a_limit(rig):
    rig.connect()
    wait = asyncio.ensure_future(rig.connections.until_empty(5.0))
    await asyncio.sleep(0)
    rig.clock.timers[0].callback()
    assert not await wait


async def test_a_wait_without_limit_sets_no_timer(rig):
    client = rig.connect()
    wait = asyncio.ensure_future(rig.connections.until_empty(math.inf))
    await asyncio.sleep(0)
    assert rig.clock.timers == []
    client.leave()
    assert await wait


async def test_a_cancelled_wait_leaves_no_timer(rig):
    rig.connect()
    wait = asyncio.ensure_future(rig.connections.until_empty(5.0))
    await asyncio.sleep(0)
    wait.cancel()
    await asyncio.wait((wait,))
    assert rig.clock.timers[0].cancelled


def test_all_are_aborted_at_once(rig):
    clients = [rig.connect(), rig.connect()]
    rig.connections.abort()
    assert [client.transport.aborted for client in clients] == [True, True]


def test_the_date_is_that_of_the_machine_unless_told_otherwise(rig):
    connections = Connections(rig.app, ServerOptions(), rig.clock)
    rig.connections = connections
    client = rig.connect()
    client.send(GET)
    date = parsedate_to_datetime(client.answers()[0].headers[b"date"].decode())
    assert abs(date.timestamp() - time.time()) < 60.0
