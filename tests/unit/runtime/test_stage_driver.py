"""One stage: which worker gets which batch and when, and what its workers' ends and failures lead to."""

from __future__ import annotations

import math

from penstock.config import Batch
from penstock.core.state import State
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest
from penstock.transport.framing import Status


def spec(**options):
    """A stage that nothing ever runs."""
    return stage(math.sqrt, **options)


def held(rig):
    """How many batches each worker holds."""
    return [len(worker.frames) for worker in rig.workers.started]


async def finish(rig):
    """Answer all that is held or queued."""
    while any(held(rig)):
        for worker in rig.workers.alive:
            if worker.frames:
                worker.answer()
        await rest()


# -- to workers -------------------------------------------------------------------------------------------------------


async def test_idle_workers_are_served_before_a_busy_one_prefetches(make_rig):
    rig = await make_rig(spec(workers=3)).start()
    seen = []
    for _ in range(8):
        await rig.call()
        seen.append(held(rig))
    assert seen[:3] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert seen[3:6] == [[2, 1, 1], [2, 2, 1], [2, 2, 2]]
    assert seen[6:] == [[2, 2, 2]] * 2
    assert rig.engine.stages[0].queued == 2
    assert rig.engine.stages[0].in_flight == 6
    await finish(rig)


async def test_a_stage_that_prefetches_nothing_sends_only_to_idle_workers(make_rig):
    rig = await make_rig(spec(prefetch=0)).start()
    await rig.call()
    await rig.call()
    assert held(rig) == [1]
    await finish(rig)


async def test_a_partial_batch_waits_for_an_idle_worker_and_a_full_one_is_prefetched(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=2))).start()
    await rig.call(b"a")
    await rig.call(b"b")
    assert rig.workers[0].batches == [[b"a"]]
    await rig.call(b"c")
    assert rig.workers[0].batches == [[b"a"], [b"b", b"c"]]
    await finish(rig)


async def test_a_batch_that_waits_for_company_leaves_when_its_time_has_come(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=8, max_wait=0.5))).start()
    await rig.call(b"a")
    assert rig.clock.waiting == [0.5]
    await rig.clock.advance(0.4)
    await rig.call(b"b")
    assert rig.workers[0].frames == []
    await rig.clock.advance(0.1)
    assert rig.workers[0].batches == [[b"a", b"b"]]
    assert rig.engine.stages[0].counters.cuts == {"waited": 1}
    await finish(rig)


async def test_a_batch_that_becomes_due_sooner_is_sent_sooner(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=8, max_wait=5.0))).start()
    await rig.call(b"a")
    await rig.call(b"b", within=1.0)
    assert rig.clock.waiting[0] == 0.99, "in time for the way to the worker and back"
    await rig.clock.advance(0.989)
    assert rig.workers[0].frames == []
    await rig.clock.advance(0.001)
    assert rig.workers[0].batches == [[b"a", b"b"]]
    assert rig.engine.stages[0].counters.cuts == {"deadline": 1}
    await finish(rig)


async def test_a_batch_leaves_earlier_where_the_last_ones_ran_long(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=1, max_wait=5.0))).start()
    await rig.call()
    rig.workers[0].answer(seconds=0.5)
    assert rig.engine.stages[0].queue.expected_run == 0.5
    await rig.call()
    rig.workers[0].answer(seconds=9.0, calls=0)
    assert rig.engine.stages[0].queue.expected_run == 0.5, "a batch that called nothing tells nothing"


async def test_a_frame_says_what_each_item_is_and_how_long_it_has(make_rig):
    rig = await make_rig(spec(name="a"), spec(name="b")).start()
    await rig.call(b"x", within=2.0)
    (frame,) = rig.workers[0].frames
    assert (list(frame.codecs_in), list(frame.codecs_out)) == ([1], [0])
    assert list(frame.remaining) == [2.0]
    assert frame.seconds == rig.clock.now()
    rig.workers[0].answer()
    await rest()
    (frame,) = rig.workers[1].frames
    assert (list(frame.codecs_in), list(frame.codecs_out)) == ([0], [1])
    rig.workers[1].answer()


async def test_a_stage_is_not_fed_while_the_next_one_has_no_room(make_rig):
    rig = await make_rig(spec(name="a", prefetch=0), spec(name="b", prefetch=0, max_queued=1)).start()
    calls = [await rig.call(b"%d" % i) for i in range(4)]
    for _ in range(3):
        rig.workers[0].answer()
        await rest()
        if not rig.workers[0].frames:
            break
    assert rig.engine.stages[1].queued == 1
    assert held(rig) == [0, 1]
    rig.workers[1].answer()
    await rest()
    assert held(rig) == [1, 1]
    await finish(rig)
    assert all(call.done for call in calls)


async def test_the_room_that_counts_is_that_of_the_very_next_stage(make_rig):
    rig = await make_rig(
        spec(name="a", prefetch=0), spec(name="b", prefetch=0, max_queued=1), spec(name="c", prefetch=0)
    ).start()
    calls = [await rig.call(b"%d" % i) for i in range(4)]
    for _ in range(2):
        rig.workers[0].answer()
        await rest()
    assert rig.engine.stages[1].queued == 1
    assert held(rig) == [0, 1, 0]
    await finish(rig)
    assert all(call.done for call in calls)


async def test_a_stage_is_not_fed_while_the_next_queue_holds_more_than_its_share_of_bytes(make_rig):
    rig = await make_rig(spec(name="a", prefetch=0), spec(name="b", prefetch=0), max_queued_bytes=200).start()
    for _ in range(4):
        await rig.call(b"x")
    for _ in range(2):
        rig.workers[0].answer([b"y" * 101])
        await rest()
    assert rig.engine.stages[1].queued == 1, "one batch always passes"
    assert held(rig) == [0, 1]
    rig.workers[1].answer([b""])
    await rest()
    assert held(rig) == [1, 1]
    await finish(rig)


# -- from workers -----------------------------------------------------------------------------------------------------


async def test_a_stage_counts_what_it_did(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=4))).start()
    rig.submit()
    rig.submit()
    await rest()
    await rig.clock.advance(0.2)
    rig.workers[0].answer(seconds=0.15, calls=3)
    counters = rig.engine.stages[0].counters
    assert (counters.batches, counters.bisected, counters.cuts) == (1, 1, {"idle": 1})
    assert counters.batch_size.total == 2
    assert counters.computed.total == 0.15
    assert (counters.waited.count, counters.waited.total) == (2, 0.0)


async def test_singles_that_run_one_by_one_are_not_counted_as_bisected(make_rig):
    rig = await make_rig().start()
    await rig.call()
    rig.workers[0].answer(calls=3)
    assert rig.engine.stages[0].counters.bisected == 0


async def test_a_worker_whose_every_batch_fails_is_recycled_and_what_it_holds_is_no_suspect(make_rig, caplog):
    rig = await make_rig().start()
    for _ in range(4):
        await rig.call()
        rig.workers[0].fail()
    first, second = await rig.call(b"a"), await rig.call(b"b")
    rig.workers[0].fail()
    await rest()
    assert rig.workers[0].orders == ["kill"]
    assert "worker 0 of stage 'sqrt': every batch fails; the worker is restarted" in caplog.text
    counters = rig.engine.stages[0].counters
    assert (counters.recycled, counters.restarts) == (1, 1)
    assert rig.clock.waiting == [0.0], "its restart is not held back"
    await rig.clock.advance(0)
    rig.workers[1].become_ready()
    await rest()
    assert rig.workers[1].batches == [[b"b"]]
    rig.workers[1].answer([b"ok"])
    assert first.done
    assert second.ends == [b"ok"]
    assert counters.retried == 0


async def test_a_batch_with_a_result_or_of_bad_input_alone_recycles_nobody(make_rig):
    rig = await make_rig(spec(batch=Batch())).start()
    for statuses in (
        [Status.FAILED, Status.OK],
        [Status.INVALID, Status.INVALID],
        [Status.EXPIRED, Status.INVALID],
    ) * 5:
        rig.submit()
        rig.submit()
        await rest()
        rig.workers[0].answer([b"\x80"] * 2, statuses)
    assert rig.workers[0].orders == []


async def test_a_thread_is_not_recycled(make_rig):
    rig = await make_rig(inline=True).start()
    for _ in range(6):
        await rig.call()
        rig.workers[0].fail()
    assert rig.workers[0].orders == []


async def test_no_worker_is_recycled_while_the_stage_stops(make_rig):
    rig = await make_rig(obedient=False).start()
    for _ in range(4):
        await rig.call()
        rig.workers[0].fail()
    await rig.call()
    rig.engine.stages[0].stopping = True
    rig.workers[0].fail()
    assert rig.workers[0].orders == []
    rig.engine.stages[0].stopping = False


async def test_of_a_dead_worker_only_the_frame_it_ran_is_suspect_and_its_items_run_alone(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=2))).start()
    calls = [await rig.call(word) for word in (b"a", b"b", b"c")]
    assert rig.workers[0].batches == [[b"a"], [b"b", b"c"]]
    rig.workers[0].die()
    await rig.clock.advance(0)
    rig.workers[1].become_ready()
    await rest()
    assert rig.workers[1].batches == [[b"a"], [b"b", b"c"]]
    assert rig.engine.stages[0].counters.cuts["retry"] == 1
    assert rig.engine.stages[0].counters.retried == 1
    await finish(rig)
    assert all(call.done for call in calls)


async def test_without_retry_the_items_of_a_dead_worker_are_lost_at_once(make_rig):
    rig = await make_rig(spec(retry=False)).start()
    first, second = await rig.call(b"a"), await rig.call(b"b")
    rig.workers[0].die()
    assert "WorkerLost" in repr(first.error)
    assert not second.done
    await rig.clock.advance(0)
    rig.workers[1].become_ready()
    await rest()
    assert rig.workers[1].batches == [[b"b"]]
    await finish(rig)


async def test_the_items_of_a_thread_that_ended_are_lost(make_rig):
    rig = await make_rig(inline=True).start()
    call = await rig.call()
    rig.workers[0].die("the thread ended")
    assert "WorkerLost" in repr(call.error)


async def test_a_suspect_that_lay_behind_another_is_retried_before_the_others(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=2), workers=2, prefetch=1)).start()
    rig.submit(b"a"), rig.submit(b"b")
    await rest()
    rig.workers[1].die()
    assert held(rig) == [1, 0]
    rig.workers[0].die()
    assert rig.engine.stages[0].queued == 2
    await rig.clock.advance(0)
    rig.workers[2].become_ready()
    await rest()
    assert rig.workers[2].batches == [[b"a"], [b"b"]]
    rig.workers[2].die()
    # The second suspect lay behind the first: it keeps its one try.
    await rig.clock.advance(1.0)
    for worker in rig.workers.alive:
        worker.become_ready()
    await rest()
    assert sum(len(worker.batches) for worker in rig.workers.alive) == 1
    await finish(rig)
    assert rig.engine.counters.lost == 1


async def test_a_stage_without_a_ready_worker_sends_nothing(make_rig):
    rig = await make_rig().start()
    rig.workers[0].die()
    call = await rig.call()
    assert rig.engine.state is State.READY
    assert rig.engine.stages[0].queued == 1
    await rig.clock.advance(0)
    rig.workers[1].become_ready()
    await rest()
    rig.workers[1].answer()
    assert call.done


async def test_a_stage_that_stops_forgets_its_timer(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=8, max_wait=60.0))).start()
    await rig.call()
    assert rig.clock.waiting == [60.0]
    await rig.stop()
    assert rig.clock.waiting == []
