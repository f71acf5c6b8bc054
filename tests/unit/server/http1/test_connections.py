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
    """A connection that only counts; idle since `since`."""

    def __init__(self, since=math.inf, asked=True):
        self.since = since
        self.asked = asked
        self.told = []

    def idle_since(self):
        return self.since

    def has_asked(self):
        return self.asked

    def make_way(self):
        self.since = math.inf
        self.told.append("make way")

    def abort(self):
        self.told.append("abort")


@pytest.fixture
def small(rig):
    """Two are served, two more may be open."""
    return Connections(rig.app, ServerOptions(max_connections=2), rig.clock, max_excess=2)


def test_beyond_the_bound_connections_are_in_excess_and_the_one_silent_longest_is_aborted(small):
    guests = [Nobody() for _ in range(6)]
    assert [small.enter(guest) for guest in guests] == [Entry.SERVED] * 2 + [Entry.EXCESS] * 4
    assert list(small.excess) == guests[4:]
    assert small.open == {*guests[:2], *guests[4:]}
    assert [guest.told for guest in guests] == [[], [], ["abort"], ["abort"], [], []]


def test_who_was_heard_has_been_silent_for_the_shortest_time(small):
    guests = [Nobody() for _ in range(4)]
    for guest in guests:
        small.enter(guest)
    small.heard(guests[2])
    small.enter(Nobody())
    assert [guest.told for guest in guests] == [[], [], [], ["abort"]]
    small.heard(guests[3])  # what was on its way when it was aborted
    assert guests[3] not in small.excess


def test_whoever_leaves_makes_way_for_one_of_its_kind(small):
    one, _, extra = guests = [Nobody() for _ in range(3)]
    for guest in guests:
        small.enter(guest)
    small.leave(extra)
    small.leave(extra)  # asyncio says it once; twice must not let more in
    assert not small.excess
    assert small.enter(extra) is Entry.EXCESS
    small.leave(one)
    assert small.enter(one) is Entry.SERVED


def test_the_loss_of_an_aborted_connection_lets_nobody_in(small):
    guests = [Nobody() for _ in range(5)]
    for guest in guests:
        small.enter(guest)
    small.leave(guests[2])
    assert small.enter(Nobody()) is Entry.EXCESS


def test_an_idle_connection_makes_way_at_once_and_is_not_counted_as_served(rig, small):
    idle, busy = Nobody(rig.now - 1.0), Nobody()
    newcomers = [Nobody(), Nobody()]
    assert [small.enter(guest) for guest in (idle, busy, *newcomers)] == [Entry.SERVED] * 3 + [Entry.EXCESS]
    assert idle.told == ["make way"]
    assert list(small.leaving) == [idle]
    small.leave(idle)
    assert not small.leaving
    assert small.enter(Nobody()) is Entry.EXCESS


def test_the_first_that_was_told_to_leave_is_aborted_before_anybody_who_waits(rig, small):
    guests = [Nobody(rig.now - 2.0), Nobody(rig.now - 1.0), Nobody(), Nobody()]
    for guest in guests:
        assert small.enter(guest) is Entry.SERVED
    assert list(small.leaving) == guests[:2]
    waiting = Nobody()
    assert small.enter(waiting) is Entry.EXCESS
    assert [guest.told for guest in guests] == [["make way", "abort"], ["make way"], [], []]
    assert small.open == {*guests[1:], waiting}


def test_where_none_may_be_open_beyond_the_bound_the_newcomer_is_aborted(rig):
    tight = Connections(rig.app, ServerOptions(max_connections=1), rig.clock, max_excess=0)
    served, beyond, idle = Nobody(), Nobody(), Nobody(rig.now)
    tight.enter(served)
    tight.enter(beyond)
    assert beyond.told == ["abort"]
    tight.leave(served)
    tight.enter(idle)
    rig.now += 1.0
    assert tight.enter(Nobody()) is Entry.SERVED
    assert idle.told == ["make way", "abort"]
    assert len(tight.open) == 1


def test_who_waited_beyond_the_bound_is_served_once_there_is_room(rig, small):
    idle, busy, waiting, other = Nobody(rig.now), Nobody(), Nobody(), Nobody()
    for guest in (idle, busy, waiting, other):
        small.enter(guest)
    assert not small.promote(waiting)
    rig.now += 1.0
    assert small.promote(waiting)
    assert list(small.excess) == [other]
    assert not small.promote(other)
    small.leave(busy)
    assert small.promote(other)
    assert idle.told == ["make way"]


def test_nobody_makes_way_for_who_comes_while_the_server_drains(rig, small):
    idle = [Nobody(rig.now - 5.0), Nobody(rig.now - 5.0)]
    for guest in idle:
        small.enter(guest)
    small.draining = True
    assert small.enter(Nobody()) is Entry.ABORTED
    assert [guest.told for guest in idle] == [[], []]


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
