"""What connections have in common: how long their end is waited for, and the date of their answers."""

from __future__ import annotations

import asyncio
import math
import time
from email.utils import parsedate_to_datetime

from penstock.config import ServerOptions
from penstock.server.http1.connections import Connections

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


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


def test_the_date_is_that_of_the_machine_unless_told_otherwise(rig):
    connections = Connections(rig.app, ServerOptions(), rig.clock)
    rig.connections = connections
    client = rig.connect()
    client.send(GET)
    date = parsedate_to_datetime(client.answers()[0].headers[b"date"].decode())
    assert abs(date.timestamp() - time.time()) < 60.0
