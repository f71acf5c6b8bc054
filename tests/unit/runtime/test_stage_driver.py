"""One stage: which worker gets which batch and when, and what its workers' ends and failures lead to."""

from __future__ import annotations

import math

import pytest

from penstock.config import Batch
from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.errors import InvalidItem, NotReady, StageFailed
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest
from penstock.transport.framing import Kind, Status, encode_slab_note
from penstock.transport.messages import Counts, Lost, Problem, SeriesCount, pack


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


async def test_a_partial_batch_waits_for_an_idle_worker_and_a_full_one_is_prefetched(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=2))).start()
    await rig.call(b"a")
    await rig.call(b"b")
    assert rig.workers[0].batches == [[b"a"]]
    await rig.call(b"c")
    assert rig.workers[0].batches == [[b"a"], [b"b", b"c"]]
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
    assert rig.engine.stages[0].counters.batches_closed == {"deadline": 1}
    await finish(rig)


async def test_a_batch_leaves_earlier_where_the_last_ones_ran_long(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=1, max_wait=5.0))).start()
    await rig.call()
    rig.workers[0].answer(seconds=0.5)
    assert rig.engine.stages[0].queue.expected_run(1) == 0.5
    await rig.call()
    rig.workers[0].answer(seconds=9.0, calls=0)
    assert rig.engine.stages[0].queue.expected_run(1) == 0.5, "a batch that called nothing tells nothing"


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


# -- a bound on the batches of a stage ---------------------------------------------------------------------------------


async def test_of_three_workers_one_has_a_batch_at_a_time_where_one_is_the_bound(make_rig):
    rig = await make_rig(spec(workers=3, max_in_flight_batches=1, batch=Batch(max_size=2, max_wait=0))).start()
    calls = [await rig.call(b"%d" % i) for i in range(6)]
    assert held(rig) == [1, 0, 0]
    assert rig.engine.stages[0].queued == 5
    while any(held(rig)):
        rig.workers[0].answer()
        await rest()
        assert held(rig) in ([1, 0, 0], [0, 0, 0])
    assert all(call.done for call in calls)
    assert rig.engine.stages[0].counters.batches == 4, "the open batch grew meanwhile"


async def test_a_batch_that_was_sent_ahead_counts_towards_the_bound(make_rig):
    rig = await make_rig(spec(workers=2, max_in_flight_batches=3)).start()
    for _ in range(6):
        await rig.call()
    assert held(rig) == [2, 1]
    rig.workers[0].answer()
    await rest()
    assert held(rig) == [2, 1], "there was room for one"
    rig.workers[1].answer()
    await rest()
    assert held(rig) == [2, 1]
    await finish(rig)


async def test_the_end_of_a_worker_makes_the_room_of_its_batches_and_its_suspect_takes_some(make_rig):
    rig = await make_rig(spec(workers=3, max_in_flight_batches=1)).start()
    calls = [await rig.call(b"%d" % i) for i in range(3)]
    rig.workers[0].die()
    await rest()
    assert held(rig) == [0, 1, 0]
    assert rig.workers[1].batches == [[b"0"]], "it runs once more, and nothing beside it"
    rig.workers[1].answer()
    await rest()
    assert held(rig) == [0, 1, 0]
    await finish(rig)
    assert [call.ends for call in calls] == [[b"0"], [b"1"], [b"2"]]


async def test_a_batch_of_jobs_or_of_bulk_items_takes_the_room_of_one(make_rig):
    rig = await make_rig(spec(workers=2, max_in_flight_batches=1)).start()
    job = await rig.call(b"a", lane=Lane.BACK)
    bulk = await rig.call(b"b", b"c", lane=Lane.BULK)
    another = await rig.call(b"d", lane=Lane.BACK)
    assert held(rig) == [1, 0]
    for payload in (b"a", b"b", b"c", b"d"):
        assert [worker.batches for worker in rig.workers.started] == [[[payload]], []]
        rig.workers[0].answer()
        await rest()
    assert [call.ends for call in (job, bulk, another)] == [[b"a"], [b"b", b"c"], [b"d"]]


async def test_an_examination_takes_no_room_of_the_bound(make_rig):
    rig = await make_rig(stage(root, workers=2, max_in_flight_batches=1)).start()
    for _ in range(5):
        await rig.call()
        rig.workers[0].fail("bad item")
        await rest()
    assert rig.workers[0].examined
    await rig.call(b"a")
    assert [worker.batches for worker in rig.workers.started] == [[], [[b"a"]]]
    await rig.call(b"b")
    assert [worker.batches for worker in rig.workers.started] == [[], [[b"a"]]]
    rig.workers[0].finish_examination()
    await finish(rig)


async def test_what_the_stage_can_do_at_once_is_what_the_bound_lets_it(make_rig):
    options = {"workers": 4, "batch": Batch(max_size=8, max_wait=0)}
    for bound, at_once in ((None, 4), (9, 4), (3, 3), (1, 1)):
        rig = await make_rig(spec(max_in_flight_batches=bound, **options)).start()
        await rig.call()
        rig.workers[0].answer(seconds=2.0)
        driver = rig.engine.stages[0]
        assert (driver.most_at_once, driver.known_rate) == (8 * at_once, 4.0 * at_once)


# -- from workers -----------------------------------------------------------------------------------------------------


async def test_a_stage_counts_what_it_did(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=4))).start()
    rig.submit()
    rig.submit()
    await rest()
    await rig.clock.advance(0.2)
    rig.workers[0].answer(seconds=0.15, calls=3)
    counters = rig.engine.stages[0].counters
    assert (counters.batches, counters.bisected, counters.batches_closed) == (1, 1, {"idle": 1})
    assert counters.batch_size.total == 2
    assert counters.run_seconds.total == 0.15
    assert (counters.queue_seconds.count, counters.queue_seconds.total) == (2, 0.0)


async def test_a_worker_whose_every_batch_fails_is_recycled_and_what_it_holds_is_no_suspect(make_rig, caplog):
    rig = await make_rig(spec(unhealthy_after=0)).start()
    for _ in range(4):
        await rig.call()
        rig.workers[0].fail()
    first, second = await rig.call(b"a"), await rig.call(b"b")
    rig.workers[0].fail()
    await rest()
    assert rig.workers[0].orders == ["kill"]
    assert (
        "worker 0 of stage 'sqrt': every batch fails, the last with RuntimeError: broken; the worker is re"
        in caplog.text
    )
    counters = rig.engine.stages[0].counters
    assert (counters.unhealthy_restarts, counters.restarts) == (1, 1)
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
    rig = await make_rig(spec(unhealthy_after=0), inline=True).start()
    for _ in range(6):
        await rig.call()
        rig.workers[0].fail()
    assert rig.workers[0].orders == []


async def test_no_worker_is_recycled_while_the_stage_stops(make_rig):
    rig = await make_rig(spec(unhealthy_after=0), obedient=False).start()
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
    assert rig.engine.stages[0].counters.batches_closed["retry"] == 1
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
    assert rig.engine.counters.worker_lost == 1


# -- what failures lead to --------------------------------------------------------------------------------------------


def root(x: float) -> float:
    """A stage with examples that nothing ever runs."""
    raise NotImplementedError


root.examples = (4.0,)


async def fail(rig, times, worker=-1):
    """Requests that fail, one after the other."""
    for _ in range(times):
        await rig.call()
        rig.workers[worker].fail("bad item")
        await rest()


async def restarted(rig, seconds=0.0):
    """Let the worker that comes next become ready, after so many seconds."""
    await rig.clock.advance(seconds)
    rig.workers[-1].become_ready()
    await rest()


async def test_a_client_cannot_end_a_worker_that_runs_its_example_well(make_rig):
    rig = await make_rig(stage(root)).start()
    for _ in range(3):
        await fail(rig, 5)
        assert rig.workers[0].examined
        good = await rig.call(b"9")
        rig.workers[0].finish_examination()
        rig.workers[0].answer([b"3"])
        await rest()
        assert good.ends == [b"3"]
        await rig.clock.advance(1.0)
    counters = rig.engine.stages[0].counters
    assert (rig.workers[0].orders, len(rig.workers)) == ([], 1)
    assert (counters.unhealthy_restarts, counters.batches, counters.run_seconds.count) == (0, 18, 18), (
        "an example is no batch"
    )


async def test_an_examination_waits_behind_what_the_worker_holds(make_rig):
    rig = await make_rig(stage(root)).start()
    await fail(rig, 4)
    first, second = await rig.call(b"a"), await rig.call(b"b")
    rig.workers[0].fail()
    await rest()
    assert rig.workers[0].batches == [[b"b"]]
    assert rig.workers[0].examined
    rig.workers[0].answer()
    rig.workers[0].finish_examination()
    await rest()
    assert (first.done, second.ends) == (True, [b"b"])


async def test_a_worker_that_fails_its_example_too_is_recycled_and_both_errors_are_told(make_rig, caplog):
    rig = await make_rig(stage(root)).start()
    await fail(rig, 5)
    held = await rig.call(b"9")
    rig.workers[0].finish_examination("device-side assert")
    await rest()
    assert rig.workers[0].orders == ["kill"]
    assert "the last with RuntimeError: bad item" in caplog.text
    assert "first example fails too, with RuntimeError: device-side assert" in caplog.text
    assert rig.engine.stages[0].counters.unhealthy_restarts == 1
    await restarted(rig)
    rig.workers[1].answer([b"3"])
    await rest()
    assert held.ends == [b"3"], "it was not suspect"


async def test_an_examination_of_a_stage_that_stops_has_no_consequence(make_rig):
    rig = await make_rig(stage(root), obedient=False).start()
    await fail(rig, 5)
    rig.engine.stages[0].stopping = True
    rig.workers[0].finish_examination("device-side assert")
    assert rig.workers[0].orders == []
    rig.engine.stages[0].stopping = False


async def test_a_worker_without_an_example_is_recycled_after_half_a_minute_of_failures(make_rig):
    rig = await make_rig().start()
    await fail(rig, 9)
    await rig.clock.advance(29.9)
    await fail(rig, 1)
    assert rig.workers[0].orders == []
    await rig.clock.advance(0.1)
    await fail(rig, 1)
    assert rig.workers[0].orders == ["kill"]


async def test_an_error_that_cannot_be_read_is_told_as_that(make_rig, caplog):
    rig = await make_rig(spec(unhealthy_after=0)).start()
    for _ in range(5):
        await rig.call()
        rig.workers[0].answer([b"garbage"], [Status.FAILED])
        await rest()
    assert "the last with not a Problem" in caplog.text


async def three_recycles(rig):
    """Let every item fail until the stage has failed."""
    for delay in (0.0, 0.0, None):
        await rig.clock.advance(40.0)
        await fail(rig, 5)
        if delay is not None:
            await restarted(rig, delay)


def recoveries(caplog):
    """How often the log says, at level info, that the stage has recovered."""
    line = ("INFO", "stage 'sqrt' has recovered: an item succeeded after the pause")
    return [(record.levelname, record.message) for record in caplog.records].count(line)


async def test_a_stage_that_fails_on_everything_leaves_the_rotation_and_is_tried_again(make_rig, caplog):
    caplog.set_level("INFO", "penstock.runtime")
    rig = await make_rig(spec(unhealthy_after=0)).start()
    await three_recycles(rig)
    waiting = rig.engine.refusal()
    assert rig.engine.state is State.FAILED
    assert rig.engine.reason == "RuntimeError: bad item"
    assert "failed: RuntimeError: bad item" in str(waiting)
    assert "next attempt in 30 s" in caplog.text
    assert rig.clock.waiting == [30.0]
    for rest_seconds in (30.0, 60.0, 120.0, 240.0, 300.0, 300.0):
        await restarted(rig, rest_seconds)
        assert rig.engine.state is State.READY
        await fail(rig, 4)
        assert rig.engine.state is State.READY
        await fail(rig, 1)
        assert rig.engine.state is State.FAILED
    await restarted(rig, 300.0)
    call = await rig.call(b"9")
    rig.workers[-1].answer([b"3"])
    await rest()
    assert call.ends == [b"3"]
    assert recoveries(caplog) == 1
    await rig.call(b"9")
    rig.workers[-1].answer([b"3"])
    await rest()
    assert recoveries(caplog) == 1, "told once"
    await three_recycles(rig)
    assert rig.clock.waiting == [30.0], "one good item has forgotten it all"
    await restarted(rig, 30.0)
    await rig.call(b"9")
    rig.workers[-1].answer([b"3"])
    await rest()
    assert recoveries(caplog) == 2


async def test_who_is_refused_while_a_stage_rests_is_told_when_it_is_tried_again(make_rig):
    rig = await make_rig(spec(unhealthy_after=0)).start()
    (stage_driver,) = rig.engine.stages
    assert stage_driver.retry_in_seconds is None
    await three_recycles(rig)
    assert (rig.engine.refusal().retry_after, stage_driver.retry_in_seconds) == (30, 30.0)
    await rig.clock.advance(0.5)
    assert (rig.engine.refusal().retry_after, stage_driver.retry_in_seconds) == (30, 29.5), "rounded up for clients"
    await rig.clock.advance(29.0)
    with pytest.raises(NotReady) as caught:
        rig.submit()
    assert caught.value.retry_after == 1
    await rig.clock.advance(10.0)
    assert rig.engine.state is State.FAILED
    assert (rig.engine.refusal().retry_after, stage_driver.retry_in_seconds) == (1, 0.0), "its worker is being started"
    for rest_seconds in (60.0, 120.0):
        rig.workers[-1].become_ready()
        await rest()
        await fail(rig, 5)
        assert rig.engine.refusal().retry_after == 60, "at most a minute, however long the rest is"
        await rig.clock.advance(rest_seconds)


async def test_what_waits_when_a_stage_fails_in_this_way_is_told_so(make_rig):
    rig = await make_rig(spec(unhealthy_after=0, workers=2)).start()
    first, second = await rig.call(), await rig.call()
    for _ in range(3):
        await rig.clock.advance(1.0)
        worker = next(w for w in rig.workers.alive if w.start.index == 0)
        while not worker.orders:
            rig.submit()
            await rest()
            worker.fail("no") if worker.frames else None
            await rest()
        await rig.clock.advance(0.0)
        for other in rig.workers.alive:
            if other.launch is None:
                other.become_ready()
        await rest()
    assert rig.engine.state is State.FAILED
    assert rig.engine.queued == 0
    assert rig.workers.alive == [], "its other worker rests too"
    assert all(call.done for call in rig.calls)
    assert first.ends == [StageFailed]
    assert second.ends == [NotReady], "the other worker had it"
    assert second.error.retry_after == 30


async def test_a_worker_that_was_being_started_when_the_rest_began_rests_too(make_rig):
    rig = await make_rig(spec(unhealthy_after=0, workers=2)).start()
    stage_health = rig.engine.stages[0].health
    rig.workers[1].die()
    await rig.clock.advance(0.0)
    late = rig.workers[-1]
    stage_health.recycled("no", rig.clock.now())
    stage_health.recycled("no", rig.clock.now())
    await fail(rig, 5, worker=0)
    assert rig.engine.state is State.FAILED
    late.become_ready()
    await rest()
    assert late.orders == ["kill"]
    assert rig.engine.state is State.FAILED
    assert rig.clock.waiting == [30.0, 30.0]


async def test_a_stage_is_tried_again_after_its_rest_by_the_workers_that_can_be_started(make_rig):
    rig = await make_rig(spec(unhealthy_after=0, workers=2)).start()
    stage_health = rig.engine.stages[0].health
    stage_health.recycled("no", rig.clock.now())
    stage_health.recycled("no", rig.clock.now())
    await fail(rig, 5, worker=0)
    assert rig.engine.state is State.FAILED
    await rig.clock.advance(30.0)
    broken, slow = rig.workers.alive
    broken.fail_setup("no such device")
    await rest()
    assert rig.engine.state is State.FAILED
    await rig.clock.advance(10.0)
    slow.become_ready()
    await rest()
    assert (slow.orders, rig.engine.state) == ([], State.READY)
    call = await rig.call(b"9")
    slow.answer([b"3"])
    await rest()
    assert call.ends == [b"3"]
    assert rig.clock.waiting == [50.0], "the other one is tried again when its rest is over"


async def test_a_worker_that_goes_on_for_nobody_is_replaced_and_what_was_behind_it_is_answered(make_rig):
    rig = await make_rig(spec(orphan_timeout=4.0)).start()
    late = await rig.call(b"a", within=1.0)
    behind = await rig.call(b"b", within=60.0)
    await rig.clock.advance(1.0)
    assert late.done
    await rig.clock.advance(4.0)
    assert rig.workers[0].orders == ["kill"]
    await restarted(rig)
    rig.workers[1].answer([b"ok"])
    await rest()
    assert behind.ends == [b"ok"]
    counters = rig.engine.stages[0].counters
    assert (counters.orphan_kills, counters.restarts, counters.retried, counters.unhealthy_restarts) == (1, 1, 0, 0)


async def test_a_worker_that_goes_on_for_a_caller_who_left_is_replaced_too(make_rig):
    rig = await make_rig(spec(orphan_timeout=4.0)).start()
    call = await rig.call(b"a")
    rig.engine.cancel(call.request)
    await rig.clock.advance(4.0)
    assert rig.workers[0].orders == ["kill"]
    assert rig.engine.stages[0].counters.orphan_kills == 1


async def test_a_thread_may_go_on_for_nobody(make_rig):
    rig = await make_rig(spec(orphan_timeout=4.0), inline=True).start()
    await rig.call(b"a", within=1.0)
    await rig.clock.advance(100.0)
    assert rig.workers[0].orders == []


# -- what a stage counts ----------------------------------------------------------------------------------------------


def count(worker, *series):
    """Have `worker` tell of so many, each a name, a number and labels."""
    worker.say(Kind.COUNTS, pack(Counts([SeriesCount(name, labels, n) for name, n, labels in series])))


async def test_what_workers_count_is_added_up_and_what_dead_ones_have_counted_stays(make_rig):
    rig = await make_rig(spec(workers=2)).start()
    driver = rig.engine.stages[0]
    count(rig.workers[0], ("user_hits", 2.0, {"lang": "en"}), ("rows_fetched", 7.0, {"table": "user"}))
    count(rig.workers[1], ("user_hits", 1.0, {"lang": "en"}))
    rig.workers[0].die()
    await rig.clock.advance(1.0)
    rig.workers[-1].become_ready()
    count(rig.workers[-1], ("user_hits", 0.5, {"lang": "en"}))
    assert dict(driver.counters.series.items()) == {
        ("user_hits", (("lang", "en"),)): 3.5,
        ("rows_fetched", (("table", "user"),)): 7.0,
    }


async def test_of_more_series_than_there_may_be_the_log_tells_once(make_rig, caplog):
    rig = await make_rig(spec()).start()
    for part in range(2):
        series = [("user_hits", 1.0, {"user": f"{part}.{i}\n"}) for i in range(700)]
        count(rig.workers[0], *series)
    assert len(list(rig.engine.stages[0].counters.series.items())) == 1000
    lines = [record.getMessage() for record in caplog.records if "series" in record.getMessage()]
    assert lines == [
        (
            r"stage 'sqrt': more than 1000 counter series: dropping penstock_user_hits_total{user='1.300\n'} and every "
            "further one; use labels with few values, and no ids (logged once)"
        )
    ]


@pytest.mark.parametrize(
    "bad", [("user_Hits", 1.0, {}), ("hits", 1.0, {}), ("user_hits", -1.0, {}), ("user_hits", 1.0, {"stage": "x"})]
)
async def test_a_worker_that_tells_of_a_count_that_cannot_be_is_ended(make_rig, caplog, bad):
    rig = await make_rig(spec()).start()
    count(rig.workers[0], bad)
    assert rig.workers[0].orders == ["kill"]
    assert list(rig.engine.stages[0].counters.series.items()) == []
    assert "invalid counter from the worker: " in caplog.text


# -- want of memory ---------------------------------------------------------------------------------------------------


async def test_a_stage_that_runs_out_of_memory_has_smaller_batches_for_a_minute(make_rig, caplog):
    rig = await make_rig(spec(batch=Batch(max_size=8))).start()
    driver = rig.engine.stages[0]
    sizes = []
    for wait in (0.0, 0.0, 59.0, 1.0):
        await rig.clock.advance(wait)
        for _ in range(8):
            rig.submit()
        await rest()
        sizes.append((driver.max_size, [len(batch) for batch in rig.workers[0].batches]))
        if not wait:
            rig.workers[0].say_short(len(rig.workers[0].batches[0]), 1)
        while rig.workers[0].frames:
            rig.workers[0].answer()
            await rest()
    assert sizes == [(8, [8]), (4, [4, 4]), (2, [2, 2]), (4, [4, 4])]
    assert driver.counters.shortages == 2
    assert driver.health.failed(0) is False
    assert "out of memory with a batch of 8 items; the stage's batches are limited to 4" in caplog.text
    await rig.clock.advance(60.0)
    await rig.call()
    assert driver.max_size == 8
    rig.workers[0].answer()


# -- a lost device ----------------------------------------------------------------------------------------------------


async def next_life(rig, number):
    """The incarnation that follows, ready."""
    await rest()
    await rig.clock.advance(0.1)
    worker = rig.workers[number]
    worker.become_ready()
    await rest()
    return worker


async def test_where_a_device_is_lost_the_batch_runs_alone_in_a_new_worker_and_the_culprit_has_its_own_error(
    make_rig, caplog
):
    rig = await make_rig(spec(batch=Batch(max_size=3))).start()
    calls = [rig.submit(b"%d" % i) for i in range(3)]
    await rest()
    rig.workers[0].lose_device(well=b"7")
    worker = await next_life(rig, 1)
    assert (worker.launch.well.payload, [call.done for call in calls]) == (b"7", [False] * 3)
    assert (worker.suspects, worker.batches[0]) == (2, [b"0"])  # the window is two
    worker.answer()
    worker.lose_device()
    worker = await next_life(rig, 2)
    worker.answer()
    assert [call.ends for call in calls] == [[b"0"], [StageFailed], [b"2"]]
    assert calls[1].error.message == "own error"
    driver = rig.engine.stages[0]
    assert (driver.counters.devices_lost, driver.counters.restarts, driver.counters.unhealthy_restarts) == (2, 2, 0)
    assert driver.workers[0].reason == ""
    assert "device lost: a batch failed" in caplog.text
    assert "ended: its device was lost (signal SIGKILL)" in caplog.text


async def test_a_suspect_that_was_not_begun_because_the_device_was_lost_before_runs_alone_in_another_worker(make_rig):
    rig = await make_rig().start()
    call = await rig.call()
    rig.workers[0].lose_device()
    worker = await next_life(rig, 1)
    worker.lose_device(begun=False)
    await rest()
    await rig.clock.advance(0.1)  # the second delay is twice the first
    worker = await next_life(rig, 2)
    assert (worker.suspects, call.done) == (1, False)
    worker.answer()
    assert call.ends == [b"1"]


async def test_what_had_ended_before_the_device_was_lost_has_ended(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=3), retry=False)).start()
    calls = [rig.submit(b"%d" % i) for i in range(3)]
    await rest()
    failed, invalid = [pack(Problem("x", (), words)) for words in ("own error", "bad input")]
    statuses = [Status.OK, Status.FAILED, Status.INVALID]
    rig.workers[0].lose_device([b"well", failed, invalid], statuses)
    assert rig.engine.stages[0].workers[0].reason.startswith("device lost: torch.Error: no device")
    await rest()
    assert [call.ends for call in calls] == [[b"well"], [StageFailed], [InvalidItem]]


async def test_the_answer_of_a_worker_that_is_being_ended_stands_though_its_device_is_lost(make_rig):
    rig = await make_rig(obedient=False).start()
    call = await rig.call()
    rig.engine.stages[0].workers[0].recycle("of the test")
    rig.workers[0].lose_device()
    assert call.ends == [StageFailed]
    rig.workers[0].die()


async def test_a_device_is_lost_under_a_batch_only(make_rig, caplog):
    rig = await make_rig().start()
    rig.workers[0]._deliver([encode_slab_note(Kind.LOST, pack(Lost(Problem("", (), ""))))])
    assert "the worker sent an unexpected LOST frame" in caplog.text
