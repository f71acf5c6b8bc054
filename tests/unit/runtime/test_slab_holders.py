"""Who holds a piece of a slab, and when each lets go: for each ending of an item, with real memory and fake workers.

At the end of each test the rig checks that nothing is held.
"""

from __future__ import annotations

import gc
import math

import pytest

from penstock.codec.formats import Codec
from penstock.config import Batch
from penstock.core.outcome import Result
from penstock.core.payload import Handle, handle_of
from penstock.errors import Cancelled, DeadlineExceeded, NotReady, Overloaded, StageFailed, WorkerLost
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest
from penstock.transport.framing import Kind, Status, encode_answers, encode_slab_note
from penstock.transport.messages import Kept, Problem, pack
from penstock.worker import worker_slabs

PAGE = 4096
SLAB = 64 * PAGE
LARGE = 4 * PAGE
PROBLEM = pack(Problem("builtins.ValueError", ("builtins.ValueError",), "no"))


class Large:
    """A rig whose slabs have 64 pages, in which payloads of 4 pages or more lie."""

    def __init__(self, make_rig, *specs, **options) -> None:
        self.rig = make_rig(*specs, shm_bytes=SLAB, shm_threshold=LARGE, **options)

    async def started(self):
        await self.rig.start()
        return self.rig


@pytest.fixture
def large(make_rig):
    return lambda *specs, **options: Large(make_rig, *specs, **options).started()


def first(x: bytes) -> bytes:
    return x


def second(x: bytes) -> bytes:
    return x


def batched(xs: list[bytes]) -> list[bytes]:
    return xs


async def test_a_body_is_named_and_not_sent_and_its_piece_is_free_with_the_answer(large):
    rig = await large()
    call = await rig.call(rig.body(b"a", LARGE))
    (frame,) = rig.workers[0].frames
    assert frame.handles
    assert frame.nbytes < PAGE
    assert bytes(frame.payloads[0]) == b"a" * LARGE
    assert rig.used_bytes == [LARGE, 0]
    del frame
    rig.workers[0].answer([b"short"])
    await rest()
    assert call.ends == [b"short"]
    assert rig.used_bytes == [0, 0]


async def test_a_result_is_named_and_its_piece_is_free_when_nobody_has_a_view_of_it(large):
    rig = await large()
    call = await rig.call(b"1")
    rig.workers[0].answer([b"r" * LARGE])
    await rest()
    ((outcome,),) = call.told
    assert isinstance(outcome, Result)
    assert handle_of(outcome.payload) is not None
    assert rig.used_bytes == [0, LARGE]
    part = outcome.payload[5:9]
    call.forget()
    del outcome
    assert rig.used_bytes == [0, LARGE], "a slice of it is left"
    assert bytes(part) == b"rrrr"
    del part
    assert rig.used_bytes == [0, 0]


async def test_a_worker_is_told_what_it_may_write_over_with_its_next_batch(large):
    rig = await large()
    worker = rig.workers[0]
    for _ in range(3 * SLAB // LARGE):
        call = await rig.call(b"1")
        worker.answer([b"r" * LARGE])
        await rest()
        call.forget()
    assert rig.engine.inline_reasons["full"] == 0


async def test_what_finds_no_room_travels_inline_and_is_counted(large):
    rig = await large()
    kept = [rig.body(b"x", SLAB)]
    assert rig.engine.piece(LARGE) is None
    assert rig.engine.piece(LARGE - 1) is None, "it is too small, and not counted"
    call = await rig.call(b"i" * LARGE)
    (frame,) = rig.workers[0].frames
    assert not frame.handles
    rig.workers[0].answer([b"r" * (SLAB + 1)])
    await rest()
    assert call.ends == [b"r" * (SLAB + 1)]
    assert rig.engine.inline_reasons == {"full": 2, "kept": 0, "chunked": 0, "moved": 0, "waiting": 0}
    kept.clear()


async def test_the_input_is_free_as_soon_as_its_item_is_in_the_next_stage(large):
    rig = await large(stage(first), stage(second))
    call = await rig.call(rig.body(b"a", LARGE))
    rig.workers[0].answer([b"b" * LARGE])
    await rest()
    assert rig.used_bytes == [0, LARGE, 0]
    (frame,) = rig.workers[1].frames
    assert frame.handles
    assert bytes(frame.payloads[0]) == b"b" * LARGE
    del frame
    rig.workers[1].answer([b"c" * LARGE])
    await rest()
    assert rig.used_bytes == [0, 0, LARGE]
    assert call.ends == [b"c" * LARGE]


async def test_a_result_outlives_the_worker_that_wrote_it_and_its_successor_leaves_it_alone(large):
    rig = await large(stage(first), stage(second))
    call = await rig.call(rig.body(b"a", LARGE))
    rig.workers[0].answer([b"b" * LARGE])
    await rest()
    rig.workers[0].die()
    await rig.clock.advance(1.0)
    heir = rig.workers[-1]
    heir.become_ready()
    assert heir.launch is not None
    assert heir.launch.slabs is not None
    assert [nbytes for _, nbytes, _ in heir.launch.slabs.held] == [LARGE]
    other = await rig.call(b"1")
    heir.answer([b"d" * LARGE])
    await rest()
    (frame, _) = rig.workers[1].frames
    assert bytes(frame.payloads[0]) == b"b" * LARGE
    del frame
    rig.workers[1].answer([b"1"])
    rig.workers[1].answer([b"2"])
    await rest()
    assert (call.ends, other.ends) == ([b"1"], [b"2"])


@pytest.mark.parametrize("position", [0, 1], ids=["it runs", "it was sent ahead"])
async def test_the_item_of_a_dead_worker_is_sent_again_by_the_same_handle(large, position):
    rig = await large(stage(first, prefetch=1))
    calls = [await rig.call(rig.body(mark, LARGE)) for mark in (b"a", b"b")]
    before = rig.workers[0].frames[position].handles[0][1]
    named = (before.offset, before.serial)
    rig.workers[0].die()
    await rig.clock.advance(1.0)
    rig.workers[1].become_ready()
    await rest()
    again = [(handle.offset, handle.serial) for frame in rig.workers[1].frames for _, handle in frame.handles]
    assert named in again
    while rig.workers[1].frames:
        rig.workers[1].answer()
        await rest()
    assert [call.ends for call in calls] == [[b"a" * LARGE], [b"b" * LARGE]]


async def test_an_item_lets_go_whichever_of_its_dead_workers_batch_still_waits(large):
    rig = await large(stage(batched, batch=Batch(max_size=3, max_wait=1.0), prefetch=0))
    calls = [rig.submit(rig.body(mark, LARGE)) for mark in (b"a", b"b", b"c")]
    await rest()
    rig.workers[0].die()
    await rig.clock.advance(1.0)
    rig.workers[1].become_ready()
    await rest()
    for left in (2, 1, 0):
        assert len(rig.workers[1].batches[0]) == 1, "each runs alone"
        rig.workers[1].answer([b"1"])
        await rest()
        assert rig.used_bytes == [left * LARGE, 0]
    assert [call.ends for call in calls] == [[b"1"]] * 3


async def test_the_item_of_two_dead_workers_lets_go(large):
    rig = await large()
    call = await rig.call(rig.body(b"a", LARGE))
    for life in range(2):
        rig.workers[life].die()
        await rig.clock.advance(1.0)
        rig.workers[life + 1].become_ready()
        await rest()
    assert call.ends == [WorkerLost]
    assert rig.used_bytes == [0, 0]


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
async def test_a_worker_still_reads_what_nobody_waits_for_until_it_has_answered(large, ending):
    rig = await large()
    call = await rig.call(rig.body(b"a", LARGE), within=5.0)
    if ending == "cancelled":
        rig.engine.cancel(call.request)
    else:
        await rig.clock.advance(5.0)
    assert call.ends == [Cancelled if ending == "cancelled" else DeadlineExceeded]
    assert rig.used_bytes == [LARGE, 0], "a worker reads it"
    rig.workers[0].answer([b"r" * LARGE])
    await rest()
    assert rig.used_bytes == [0, 0]


async def test_an_item_that_waits_lets_go_when_it_is_settled(large):
    rig = await large(max_in_flight=2, timeout=math.inf)
    running = await rig.call(b"1")
    ahead = await rig.call(b"2")
    waiting = await rig.call(rig.body(b"a", LARGE), wait=True)
    assert rig.used_bytes == [LARGE, 0]
    rig.engine.cancel(waiting.request)
    assert waiting.ends == [Cancelled]
    assert rig.used_bytes == [0, 0]
    refused = rig.body(b"b", LARGE)
    with pytest.raises(Overloaded):
        rig.engine.submit([refused], Codec.JSON, Codec.JSON, math.inf, lambda _: None)
    del refused
    gc.collect()
    assert rig.used_bytes == [0, 0]
    assert not running.done
    assert not ahead.done


async def test_payloads_that_are_no_list_stay_their_callers(large):
    rig = await large(max_in_flight=1)
    running = await rig.call(b"1")
    told = []
    payloads = (b"2",)
    request = rig.engine.submit(payloads, Codec.JSON, Codec.JSON, math.inf, told.append, wait=True)
    rig.engine.cancel(request)
    ((outcome,),) = told
    assert isinstance(outcome.error, Cancelled)
    assert payloads == (b"2",)
    assert not running.done


async def test_a_failure_and_an_invalid_input_let_go(large):
    rig = await large()
    for status, ending in ((Status.FAILED, StageFailed), (Status.EXPIRED, DeadlineExceeded)):
        call = await rig.call(rig.body(b"a", LARGE))
        rig.workers[0].answer([PROBLEM], [status])
        await rest()
        assert call.ends == [ending]
        assert rig.used_bytes == [0, 0]


async def test_a_stop_lets_go_of_everything(large):
    rig = await large(stage(first), stage(second))
    call = await rig.call(rig.body(b"a", LARGE))
    rig.workers[0].answer([b"b" * LARGE])
    await rest()
    running = await rig.call(rig.body(b"c", LARGE))
    waiting = await rig.call(rig.body(b"d", LARGE))
    await rig.stop()
    assert [one.ends for one in (call, running, waiting)] == [[NotReady]] * 3
    assert rig.engine.piece(LARGE) is None
    assert rig.engine.slabs == [] or all(slab.used_bytes == 0 for slab in rig.engine.slabs)


async def test_a_batch_may_mix_what_lies_in_a_slab_with_what_is_sent(large):
    rig = await large(stage(batched, batch=Batch(max_size=4, max_wait=1.0)))
    calls = [
        rig.submit(rig.body(b"a", LARGE)),
        rig.submit(b"small"),
        rig.submit(b"i" * LARGE),
        rig.submit(rig.body(b"b", LARGE + 1)),
    ]
    await rest()
    assert rig.workers[0].batches == [[b"a" * LARGE, b"small", b"i" * LARGE, b"b" * (LARGE + 1)]]
    rig.workers[0].answer()
    await rest()
    assert [call.ends for call in calls] == [[b"a" * LARGE], [b"small"], [b"i" * LARGE], [b"b" * (LARGE + 1)]]


# -- what a stage keeps -----------------------------------------------------------------------------------------------


async def test_what_a_stage_keeps_stays_until_it_says_that_it_keeps_it_no_more(large, caplog):
    rig = await large()
    worker = rig.workers[0]
    await rig.call(rig.body(b"a", LARGE))
    kept = worker.frames[0].payloads[0][2:4]
    worker.answer([b"1"])
    await rest()
    assert rig.used_bytes == [LARGE, 0]
    assert rig.engine.stages[0].kept_bytes == LARGE
    assert [slab.kept_bytes for slab in rig.engine.slabs] == [LARGE, 0]
    (said,) = caplog.messages
    assert said == (
        "worker 0 of stage 'sqrt' keeps views of its inputs after the batch is done, directly or in reference cycles, "
        "so their shared memory cannot be reused; copy inputs that you keep, with bytes(x) or x.copy()"
    )
    await rig.call(rig.body(b"b", LARGE))
    worker.answer([b"2"])
    await rest()
    assert bytes(kept) == b"aa"
    del kept
    await rig.call(b"3")
    worker.answer([b"3"])
    await rest()
    assert rig.used_bytes == [0, 0]
    assert len(caplog.messages) == 1


async def test_an_idle_worker_is_asked_what_its_stage_keeps_no_more(large):
    rig = await large()
    worker = rig.workers[0]
    await rig.call(rig.body(b"a", LARGE))
    kept = worker.frames[0].payloads[0][2:4]
    worker.answer([b"1"])
    await rig.clock.advance(20.0)
    assert rig.used_bytes == [LARGE, 0]
    assert bytes(kept) == b"aa"
    del kept
    await rig.clock.advance(10.0)
    assert rig.used_bytes == [0, 0]


async def test_a_stage_that_keeps_more_than_a_quarter_gets_its_inputs_inline(large):
    rig = await large()
    worker = rig.workers[0]
    kept = []
    for _ in range(5):
        await rig.call(rig.body(b"a", LARGE))
        assert worker.frames[0].handles
        kept.append(worker.frames[0].payloads[0])
        worker.answer([b"1"])
        await rest()
    await rig.call(rig.body(b"b", LARGE))
    assert not worker.frames[0].handles
    assert worker.batches == [[b"b" * LARGE]]
    worker.answer([b"1"])
    await rest()
    assert rig.engine.inline_reasons["kept"] == 1
    assert rig.used_bytes == [5 * LARGE, 0]
    kept.clear()
    await rig.call(b"1")
    worker.answer([b"1"])
    await rest()
    await rig.call(rig.body(b"b", LARGE))
    assert worker.frames[0].handles
    worker.answer([b"1"])
    await rest()


async def test_what_a_stage_kept_is_free_when_its_worker_has_gone(large):
    rig = await large()
    await rig.call(rig.body(b"a", LARGE))
    kept = rig.workers[0].frames[0].payloads[0]
    rig.workers[0].answer([b"1"])
    await rest()
    assert rig.used_bytes == [LARGE, 0]
    rig.workers[0].die()
    await rest()
    assert rig.used_bytes == [0, 0]
    del kept


# -- what no worker says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "note",
    [Kept([99], []), Kept([], [1]), Kept([], [99])],
    ids=["it keeps what it does not have", "it gives back what it has", "it gives back what it does not have"],
)
async def test_a_worker_that_tells_of_other_pieces_is_ended_and_its_items_run_again(large, note, caplog):
    rig = await large()
    call = await rig.call(rig.body(b"a", LARGE))
    rig.workers[0]._deliver([encode_slab_note(Kind.KEPT, pack(note))])
    await rig.clock.advance(1.0)
    rig.workers[1].become_ready()
    await rest()
    rig.workers[1].answer([b"1"])
    await rest()
    assert call.ends == [b"1"]
    assert "input" in caplog.text


async def test_what_was_kept_is_given_back_once(large):
    rig = await large()
    await rig.call(rig.body(b"a", LARGE))
    kept = rig.workers[0].frames[0].payloads[0]
    serial = rig.workers[0].frames[0].handles[0][1].serial
    rig.workers[0].answer([b"1"])
    await rest()
    note = encode_slab_note(Kind.KEPT, pack(Kept([], [serial])))
    rig.workers[0]._deliver([note])
    assert rig.workers.alive
    rig.workers[0]._deliver([note])
    await rest()
    assert rig.workers[0].ended
    del kept


def forged(rig, offset, nbytes, serial, slab="its own"):
    """What a worker of the only stage may name."""
    own, arrivals = rig.slabs.stages[0].parts[0].slab.number, rig.slabs.arrivals.slab.number
    number = {"its own": own, "arrivals": arrivals, "none": own + arrivals}[slab]
    return Handle(number, offset, nbytes, serial)


@pytest.mark.parametrize(
    "numbers",
    [(0, LARGE, 1, "arrivals"), (0, LARGE, 1, "none"), (SLAB - PAGE, LARGE, 1), (0, LARGE, 2)],
    ids=["arrivals", "no slab", "over the end", "too early"],
)
async def test_a_forged_result_ends_the_worker_and_its_item_runs_again(large, numbers, caplog):
    rig = await large()
    handle = forged(rig, *numbers)
    call = await rig.call(b"1")
    frame = rig.workers[0].frames[0]
    rig.workers[0]._deliver(encode_answers(frame.frame_id, 0.0, 1, frame.ids, [b""], [Status.OK], handles={0: handle}))
    await rig.clock.advance(1.0)
    rig.workers[1].become_ready()
    await rest()
    rig.workers[1].answer([b"1"])
    await rest()
    assert call.ends == [b"1"]
    assert "the worker sent " in caplog.text


async def test_a_failure_is_never_read_from_a_slab(large, caplog):
    rig = await large()
    call = await rig.call(b"1")
    frame = rig.workers[0].frames[0]
    handles = {0: forged(rig, 0, LARGE, 1)}
    rig.workers[0]._deliver(encode_answers(frame.frame_id, 0.0, 1, frame.ids, [b""], [Status.FAILED], handles=handles))
    await rest()
    assert rig.workers[0].ended
    assert "sent a reference to memory where bytes are required" in caplog.text
    rig.engine.cancel(call.request)


async def test_a_worker_without_slabs_names_nothing(make_rig, caplog):
    rig = await make_rig().start()
    call = await rig.call(b"1")
    frame = rig.workers[0].frames[0]
    handles = {0: Handle(1, 0, LARGE, 1)}
    rig.workers[0]._deliver(encode_answers(frame.frame_id, 0.0, 1, frame.ids, [b""], [Status.OK], handles=handles))
    await rest()
    assert rig.workers[0].ended
    rig.engine.cancel(call.request)
    assert rig.engine.slabs == []
    assert rig.engine.inline_reasons == {}
    assert rig.engine.piece(LARGE) is None


# -- pages that nobody uses -------------------------------------------------------------------------------------------


async def test_pages_that_nobody_uses_for_a_minute_go_back_to_the_system(large):
    rig = await large()
    call = await rig.call(rig.body(b"a", LARGE))
    rig.workers[0].answer([b"r" * LARGE])
    await rest()
    call.forget()
    arrivals, part = rig.slabs.arrivals.slab.memory, rig.slabs.stages[0].parts[0].slab.memory
    assert arrivals[:LARGE] == b"a" * LARGE
    await rig.clock.advance(55.0)
    assert arrivals[:LARGE] == b"a" * LARGE
    assert part[:LARGE] == b"r" * LARGE
    await rig.clock.advance(15.0)
    assert arrivals[:LARGE] == bytes(LARGE)
    assert part[:LARGE] == bytes(LARGE)


async def test_the_pages_of_a_worker_that_cannot_be_started_go_back_too(large):
    rig = await large()
    call = await rig.call(b"1")
    rig.workers[0].answer([b"r" * LARGE])
    await rest()
    call.forget()
    part = rig.slabs.stages[0].parts[0].slab.memory
    rig.workers.on_start = refuse_to_start
    rig.workers[0].die()
    await rig.clock.advance(300.0)
    assert part[:LARGE] == bytes(LARGE)


def refuse_to_start(worker):
    raise OSError("no process can be started")


async def test_a_worker_that_is_idle_for_a_minute_gives_its_heap_back_once(large, monkeypatch):
    trimmed = []
    monkeypatch.setattr(worker_slabs, "trim_heap", lambda: trimmed.append(1))
    rig = await large()
    for n in (1, 2):
        await rig.call(b"1")
        await rig.clock.advance(70.0)
        assert len(trimmed) == n - 1, "it is at work"
        rig.workers[0].answer([b"1"])
        await rest()
        await rig.clock.advance(59.0)
        assert len(trimmed) == n - 1
        await rig.clock.advance(600.0)
        assert len(trimmed) == n
