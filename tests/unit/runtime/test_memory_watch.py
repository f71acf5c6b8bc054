"""A service that leaves memory free: who is refused, who waits, and who goes on."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.errors import ConfigError, Overloaded
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest

ENOUGH, LITTLE = 1000, 999


@pytest.fixture
def memory():
    """What the machine has available, and how often it was asked."""
    return SimpleNamespace(available=ENOUGH, asked=0)


@pytest.fixture
def make(make_rig, memory):
    """Makes engines that leave 1000 bytes free."""

    def read():
        memory.asked += 1
        return memory.available

    def make(*specs, **options):
        return make_rig(*specs, read_memory=read, **{"min_free_memory": 1000, **options})

    return make


async def test_newcomers_are_refused_while_less_is_available_and_the_service_is_busy(make, memory, caplog):
    rig = await make().start()
    assert rig.engine.state is State.READY
    assert rig.engine.refusal() is None
    memory.available = LITTLE
    await rig.clock.advance(0.999)
    assert rig.engine.refusal() is None, "memory is looked at once a second"
    await rig.clock.advance(0.002)
    assert rig.engine.state is State.BUSY
    assert (rig.engine.memory_short, rig.engine.memory_available) == (True, LITTLE)
    refusal = rig.engine.refusal()
    assert isinstance(refusal, Overloaded)
    assert (refusal.reason, refusal.retryable) == ("memory_pressure", True)
    with pytest.raises(Overloaded) as caught:
        rig.submit()
    assert caught.value.reason == "memory_pressure"
    (warning,) = caplog.messages
    assert warning.startswith("service 'service': 999 bytes of memory are available, less than min_free_memory=1000: ")
    memory.available = ENOUGH
    await rig.clock.advance(1.0)
    assert rig.engine.state is State.READY
    assert rig.engine.refusal() is None
    assert "available again" in caplog.messages[1]
    assert len(caplog.messages) == 2


async def test_a_service_that_starts_without_memory_is_busy_at_once(make, memory):
    memory.available = 0
    rig = await make().start()
    assert rig.engine.state is State.BUSY
    assert rig.engine.state.serving


async def test_who_waits_for_room_waits_for_memory_and_is_fed_when_it_is_back(make, memory):
    memory.available = LITTLE
    rig = await make().start()
    first = await rig.call(wait=True)
    many = await rig.call(b"2", b"3", wait=True, lane=Lane.BULK)
    late = await rig.call(wait=True, within=1.5)
    await rig.clock.advance(2.0)
    assert rig.workers[0].batches == []
    assert rig.engine.queued == 0
    assert late.done, "a deadline ends the wait"
    memory.available = ENOUGH
    await rig.clock.advance(1.0)
    for _ in range(3):
        rig.workers[0].answer()
        await rest()
    assert first.done
    assert many.done


async def test_what_was_let_in_before_goes_on_and_is_fed_to_its_end(make, memory):
    rig = await make(max_in_flight=2).start()
    many = await rig.call(b"1", b"2", b"3", b"4", lane=Lane.BULK)
    memory.available = LITTLE
    await rig.clock.advance(1.0)
    for _ in range(4):
        rig.workers[0].answer()
        await rest()
    assert many.done, "its payloads hold memory: to keep them waiting would keep that"


async def test_jobs_that_are_submitted_are_bounded_by_who_submits_them(make, memory):
    memory.available = LITTLE
    rig = await make().start()
    job = await rig.call(lane=Lane.BACK)
    rig.workers[0].answer()
    await rest()
    assert job.done


async def test_memory_that_is_not_told_any_more_refuses_nobody(make, memory):
    memory.available = LITTLE
    rig = await make().start()
    memory.available = None
    await rig.clock.advance(1.0)
    assert rig.engine.refusal() is None
    assert rig.engine.memory_available is None


async def test_a_system_that_does_not_tell_is_a_wrong_option_and_starts_nothing(make, memory):
    memory.available = None
    rig = make(stage(math.sqrt, workers=2))
    with pytest.raises(ConfigError, match=r"^service .service.: min_free_memory needs a memory limit of a cgroup"):
        await rig.engine.start()
    assert rig.workers.alive == []
    assert rig.engine.state is State.STOPPED


async def test_without_the_option_nobody_looks(make, memory):
    rig = await make(min_free_memory=0).start()
    memory.available = 0
    await rig.clock.advance(5.0)
    assert memory.asked == 0
    assert rig.engine.state is State.READY
    assert (rig.engine.memory_short, rig.engine.memory_available) == (False, None)


@pytest.mark.parametrize("how", ["stopped", "abandoned"])
async def test_an_engine_that_has_ended_looks_no_more(make, memory, how):
    rig = await make().start()
    if how == "abandoned":
        rig.engine.abandon()
        await rest()
    else:
        await rig.stop()
    before = memory.asked
    await rig.clock.advance(5.0)
    assert memory.asked == before
    assert rig.clock.waiting == []
