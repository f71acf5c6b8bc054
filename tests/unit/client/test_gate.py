"""The gate of a client, however its callers come, are cancelled and go."""

from __future__ import annotations

import asyncio
import random

from night import histories
from penstock.client.flow_limit import End, FlowLimit
from penstock.client.gate import Gate
from penstock.testing.virtual_clock import VirtualClock, rest
from rows import each

PAUSE_SECONDS = 1.0


def split(callers):
    """Those of them who are in, and those who still wait."""
    inside = [caller for caller in callers if caller.done() and not caller.cancelled()]
    return inside, [caller for caller in callers if not caller.done()]


@each("seed", range(histories(8)))
async def test_no_place_is_lost_by_callers_who_are_cancelled_at_any_moment(seed):
    draw = random.Random(seed)
    limit = FlowLimit(12)
    clock = VirtualClock()
    gate = Gate(limit, clock)
    callers = []
    for arrival in range(1500):
        callers.append(asyncio.ensure_future(gate.enter(draw.randrange(3), arrival)))
        for _ in range(draw.randrange(3)):  # some in the turn in which another one leaves
            draw.choice(callers).cancel()
        inside, _ = split(callers)
        if inside and draw.random() < 0.5:
            gone = draw.choice(inside)
            callers.remove(gone)
            gate.leave(gone.result(), draw.choice(list(End)), PAUSE_SECONDS)
        if draw.random() < 0.5:
            await clock.advance(PAUSE_SECONDS)
            await rest()
            inside, waiting = split(callers)
            callers = inside + waiting
            assert (limit.in_flight, gate.waiting) == (len(inside), len(waiting))
            assert not waiting or not limit.has_room, "nobody waits while there is room"
    while callers:
        await clock.advance(PAUSE_SECONDS)
        await rest()
        inside, waiting = split(callers)
        assert inside or not waiting, "whoever waits is let in"
        for caller in inside:
            gate.leave(caller.result(), End.SUCCESS)
        callers = waiting
    await clock.advance(PAUSE_SECONDS)
    assert (limit.in_flight, gate.waiting, clock.waiting) == (0, 0, [])
