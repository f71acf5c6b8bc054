"""Idle pages of slabs go back to the system: how much at once, whose, and when nobody can say."""

from __future__ import annotations

import errno
import math
import os

from penstock.runtime.slab_upkeep import INTERVAL_SECONDS, MOST_BYTES, SlabUpkeep
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import VirtualClock, rest
from penstock.transport import slab as slab_
from penstock.transport.slab import Slab

MIB = 1 << 20
SLAB = 64 * MIB


def touched(slab):
    """The bytes of the pages that the system has given."""
    return os.fstat(slab.descriptor).st_blocks * 512


async def test_much_is_given_back_in_several_turns(make_rig, monkeypatch):
    rig = await make_rig(shm_bytes=SLAB, shm_threshold=MIB).start()
    arrivals, part = rig.slabs.arrivals.slab, rig.slabs.stages[0].parts[0].slab
    call = await rig.call(rig.body(b"a", 20 * MIB))
    rig.workers[0].answer([b"r" * 20 * MIB])
    await rest()
    call.forget()
    assert (touched(arrivals), touched(part)) == (20 * MIB, 20 * MIB)
    give_back, given_back = Slab.give_back, []

    def give_back_and_note(slab, offset, nbytes):
        given_back.append(nbytes)
        give_back(slab, offset, nbytes)

    monkeypatch.setattr(Slab, "give_back", give_back_and_note)
    await rig.clock.advance(70.0)
    assert given_back == [MOST_BYTES, MOST_BYTES, 4 * MIB]
    assert (touched(arrivals), touched(part)) == (0, 0)


async def test_the_part_of_a_worker_that_starts_is_left_alone_until_it_is_ready(make_rig):
    rig = await make_rig(shm_bytes=SLAB, shm_threshold=MIB).start()
    part = rig.slabs.stages[0].parts[0].slab
    call = await rig.call(b"1")
    rig.workers[0].answer([b"r" * MIB])
    await rest()
    call.forget()
    rig.workers[0].die()
    await rig.clock.advance(1.0)
    heir = rig.workers[1]
    heir.greet()
    await rig.clock.advance(300.0)
    assert touched(part) == MIB
    heir.become_ready()
    await rig.clock.advance(70.0)
    assert touched(part) == 0


async def test_a_worker_is_told_of_what_it_wrote_before_of_its_idle_pages(make_rig):
    """Else it would take them for read still, and keep them."""
    rig = await make_rig(shm_bytes=SLAB, shm_threshold=MIB).start()
    part = rig.slabs.stages[0].parts[0]
    first = await rig.call(b"1")
    rig.workers[0].answer([b"1" * MIB])
    await rest()
    first.forget()
    await rig.call(b"2")
    rig.workers[0].answer([b"s"])  # it was told of the end of the first
    await rest()
    second = await rig.call(b"3")
    rig.workers[0].answer([b"3" * MIB])
    await rest()
    await rig.clock.advance(50.0)
    second.forget()
    await rig.clock.advance(80.0)
    assert touched(part.slab) == 0
    assert not part.has_touched


async def test_a_system_that_takes_no_pages_back_is_told_of_once(make_rig, monkeypatch, caplog):
    rig = await make_rig(shm_bytes=SLAB, shm_threshold=MIB).start()
    asked = []

    def refuse(memory, offset, nbytes):
        asked.append(nbytes)
        return OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(slab_, "give_back_pages", refuse)
    for _ in range(2):
        await rig.call(rig.body(b"a", MIB))
        rig.workers[0].answer([b"1"])
        await rest()
        await rig.clock.advance(70.0)
    assert asked == [MIB, MIB]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "service 'service': unused shared memory stays allocated, because the system cannot release parts of it: "
        "Invalid argument"
    )


async def test_workers_without_a_part_for_results_are_told_to_give_their_heaps_back(make_rig):
    """Each of three workers has less than a page, so all of their results are sent."""
    rig = await make_rig(stage(math.sqrt, workers=3), shm_bytes=2 * 4096, shm_threshold=4096).start()
    await rig.clock.advance(70.0)
    assert [worker.ended for worker in rig.workers] == [False] * 3


async def test_without_arrivals_and_without_parts_it_only_looks():
    clock = VirtualClock()
    upkeep = SlabUpkeep("s", None, [], clock)
    upkeep.stop()
    upkeep.start()
    await clock.advance(10 * INTERVAL_SECONDS)
    assert clock.waiting == [INTERVAL_SECONDS]
    upkeep.stop()
    upkeep.stop()
    assert clock.waiting == []
