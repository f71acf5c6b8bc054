"""The shared memory of an engine: bodies in arrival, what is counted and shown, and what is left after its end."""

from __future__ import annotations

import gc
import weakref

import pytest

from penstock.core.arriving import MOVED_BYTES_PER_TURN, ArrivingBody
from penstock.errors import ConfigError
from penstock.runtime.external_spec import remote
from penstock.runtime.slabs import ServiceSlabs
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest

PAGE = 4096
SLAB = 64 * PAGE
LARGE = 4 * PAGE
MIB = 1 << 20


@pytest.fixture
def large(make_rig):
    """Starts an engine with slabs of so many bytes, by default 64 pages."""

    async def start(*specs, shm_bytes=SLAB, **options):
        return await make_rig(*specs, shm_bytes=shm_bytes, shm_threshold=LARGE, **options).start()

    return start


def first(x: bytes) -> bytes:
    return x


def second(x: bytes) -> bytes:
    return x


async def waits(x: bytes) -> bytes:
    return x


def arriving(rig, announced, came=None):
    """A body whose first bytes came now, with a piece if it gets one."""
    body = ArrivingBody(announced)
    body.coming(announced if came is None else came, rig.clock.now())
    body.piece = rig.engine.piece_for(body)
    body.put(b"x" * body.came)
    return body


# -- bodies in arrival ------------------------------------------------------------------------------------------------


async def test_a_large_body_arrives_in_a_piece_of_exactly_its_size(large):
    rig = await large()
    assert arriving(rig, LARGE - 1).piece is None
    body = arriving(rig, LARGE + 5)
    assert body.piece.nbytes == LARGE + 5
    rig.engine.arrived(body)
    assert rig.used_bytes == [LARGE + PAGE, 0]
    del body
    assert rig.used_bytes == [0, 0]
    assert set(rig.engine.inline_reasons.values()) == {0}, "what is too small is not counted"


async def test_a_body_that_finds_no_room_moves_another_out_in_several_turns(large):
    rig = await large(shm_bytes=16 * MIB)
    slow = arriving(rig, 4 * MIB, came=3 * MIB)
    full = rig.engine.piece(12 * MIB)
    await rig.clock.advance(5.0)
    fast = arriving(rig, MIB)
    assert fast.piece is None, "there is no room yet"
    assert slow.piece is not None
    await rest()
    assert slow.piece is None
    assert bytes(slow.content()) == b"x" * 3 * MIB
    assert arriving(rig, MIB).piece is not None
    assert rig.engine.inline_reasons == {"full": 1, "kept": 0, "chunked": 0, "moved": 1, "waiting": 0}
    assert MOVED_BYTES_PER_TURN == MIB
    del full


async def test_a_stop_in_the_midst_of_moving_one_out_is_harmless(large):
    rig = await large(shm_bytes=16 * MIB)
    slow = arriving(rig, 4 * MIB, came=3 * MIB)
    full = rig.engine.piece(12 * MIB)
    await rig.clock.advance(5.0)
    arriving(rig, MIB)
    rig.engine._memory.stop()
    await rest()
    rig.engine.arrived(slow)
    assert bytes(slow.piece[: 3 * MIB]) == b"x" * 3 * MIB
    assert rig.engine.piece_for(ArrivingBody(LARGE)) is None
    del full
    slow.piece = None


async def test_an_engine_without_slabs_gives_no_piece(make_rig):
    rig = await make_rig().start()
    body = arriving(rig, 10 * MIB)
    assert body.piece is None
    rig.engine.arrived(body)
    assert rig.engine.slabs == []
    assert rig.engine.inline_reasons == {}


async def test_where_workers_from_outside_are_first_nothing_arrives_in_a_slab(make_rig):
    theirs = remote("theirs", accepts=("raw",), item=bytes, result=bytes)
    rig = make_rig(theirs, stage(first, name="ours"), shm_threshold=LARGE)
    rig.engine._memory._open = lambda _, specs, options, now: ServiceSlabs.make(
        [0, 1], SLAB, options.shm_threshold, now
    )
    await rig.start()
    assert rig.engine.piece(LARGE) is None
    assert arriving(rig, LARGE).piece is None
    assert [slab.name for slab in rig.engine.slabs] == ["ours"]
    assert set(rig.engine.inline_reasons.values()) == {0}


def counted(rig):
    """What has travelled inline, by reason, without the zeros."""
    return {reason: n for reason, n in rig.engine.inline_reasons.items() if n}


async def test_a_body_lies_in_no_slab_where_the_first_stage_waits(large):
    rig = await large(stage(waits))
    assert rig.engine.piece(LARGE) is None
    assert rig.engine.slabs == []
    call = await rig.call(b"a" * LARGE)
    (frame,) = rig.workers[0].frames
    assert not frame.handles
    assert bytes(frame.payloads[0]) == b"a" * LARGE
    rig.workers[0].answer([b"r" * LARGE])
    await rest()
    assert call.ends == [b"r" * LARGE]
    assert counted(rig) == {"waiting": 2}


async def test_a_waiting_stage_amid_others_is_sent_what_lies_in_their_slabs_and_gives_bytes(large):
    rig = await large(stage(first, name="one"), stage(waits), stage(second, name="three"))
    assert [slab.name for slab in rig.engine.slabs] == ["arrivals", "one", "three"]
    one, two, three = rig.workers
    call = await rig.call(rig.body(b"a", LARGE))
    one.answer([b"1" * LARGE])
    await rest()
    (frame,) = two.frames
    assert not frame.handles
    assert bytes(frame.payloads[0]) == b"1" * LARGE
    del frame
    two.answer([b"2" * LARGE])
    await rest()
    assert rig.used_bytes == [0, 0, 0, 0], "what the first stage gave is read by nobody any more"
    (frame,) = three.frames
    assert not frame.handles
    assert bytes(frame.payloads[0]) == b"2" * LARGE
    del frame
    three.answer([b"3" * LARGE])
    await rest()
    assert call.ends == [b"3" * LARGE]
    assert rig.used_bytes == [0, 0, 0, LARGE]
    assert counted(rig) == {"waiting": 2}


# -- what is shown ----------------------------------------------------------------------------------------------------


async def test_each_slab_is_shown_by_its_name(large):
    rig = await large(stage(first, name="one"), stage(second, name="two", workers=2))
    body = rig.body(b"a", LARGE)
    shown = [(slab.name, slab.nbytes, slab.used_bytes, slab.kept_bytes) for slab in rig.engine.slabs]
    assert shown == [("arrivals", SLAB, LARGE, 0), ("one", SLAB, 0, 0), ("two", SLAB, 0, 0)]
    del body


async def test_a_stage_that_is_called_as_the_slab_of_what_arrives_is_shown_by_another_name(large):
    rig = await large(stage(first, name="arrivals"))
    assert [slab.name for slab in rig.engine.slabs] == ["arrivals", "stage arrivals"]


async def test_views_that_the_second_stage_keeps_are_of_the_slab_of_the_first(large):
    rig = await large(stage(first, name="one"), stage(second, name="two"))
    await rig.call(b"1")
    rig.workers[0].answer([b"r" * LARGE])
    await rest()
    kept = rig.workers[1].frames[0].payloads[0]
    rig.workers[1].answer([b"1"])
    await rest()
    assert [slab.kept_bytes for slab in rig.engine.slabs] == [0, LARGE, 0]
    del kept


# -- the end ----------------------------------------------------------------------------------------------------------


def slabs_of(rig):
    """Weak references to all slabs of the engine; it alone has them from now on."""
    found = [weakref.ref(rig.slabs.arrivals.slab), *[weakref.ref(one.parts[0].slab) for one in rig.slabs.stages]]
    rig.slabs = None
    return found


async def test_a_stopped_engine_has_no_slab_any_more_and_what_somebody_views_stays(large):
    rig = await large(stage(first), stage(second))
    reasons = rig.engine.inline_reasons
    piece = rig.body(b"a", LARGE)
    slabs = slabs_of(rig)
    await rig.stop()
    gc.collect()
    assert [slab() for slab in slabs] == [None] * 3
    assert bytes(piece) == b"a" * LARGE
    assert rig.engine.slabs == []
    assert rig.engine.inline_reasons == reasons, "what was counted stays"
    assert rig.engine.piece(LARGE) is None


async def test_what_an_abandoned_worker_has_sent_before_is_no_fault_of_its(large, caplog):
    """Its end is not waited for, so that its last answers may come after the end of the engine."""
    rig = await large()
    call = await rig.call(rig.body(b"a", LARGE))
    rig.engine.abandon()
    await rest()
    assert call.done
    worker = rig.workers[0]
    worker.ended = False
    kept = worker.frames[0].payloads[0]
    worker.answer([b"r" * LARGE])
    assert "the worker named" not in caplog.text
    worker.ended = True
    del kept
    rig.engine.stages[0].workers[0].ended("abandoned")


async def test_a_start_that_is_refused_its_slabs_leaves_no_timer(make_rig):
    def refuse(*_):
        raise ConfigError("shm_bytes is too much")

    rig = make_rig(min_free_memory=1, read_memory=lambda: 10)
    rig.engine._memory._open = refuse
    with pytest.raises(ConfigError, match="shm_bytes is too much"):
        await rig.engine.start()
    assert rig.clock.waiting == []


async def test_a_start_that_cannot_watch_the_memory_leaves_no_slab(make_rig):
    rig = make_rig(shm_bytes=SLAB, min_free_memory=1, read_memory=lambda: None)
    with pytest.raises(ConfigError, match="min_free_memory needs"):
        await rig.engine.start()
    assert rig.clock.waiting == []
    slabs = slabs_of(rig)
    gc.collect()
    assert [slab() for slab in slabs] == [None] * 2
