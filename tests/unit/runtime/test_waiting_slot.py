"""Workers that run several batches at once: who has begun, who is cancelled, and what the end of one means for each."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.config import Batch
from penstock.core.lanes import Lane
from penstock.errors import Cancelled, DeadlineExceeded, NotReady, Overloaded, StageFailed, WorkerLost
from penstock.runtime.spec import stage
from penstock.runtime.waiting_slot import UNWIND_SECONDS
from penstock.testing.virtual_clock import rest
from penstock.transport.framing import Status


async def sqrt(x):
    return math.sqrt(x)


def waiting(concurrency=3, prefetch=0, target=sqrt, **options):
    """A waiting stage that nothing ever runs."""
    spec = stage(target, **options)
    return replace(spec, concurrency=concurrency, options=replace(spec.options, prefetch=prefetch))


def batches(rig):
    """The first payload of each batch that each worker holds."""
    return [[batch[0] for batch in worker.batches] for worker in rig.workers.alive]


async def submit(rig, n, **how):
    return [await rig.call(b"%d" % i, **how) for i in range(n)]


async def restarted(rig, index):
    """Let worker `index`, which has ended, be started again."""
    await rig.clock.advance(0.2)
    for worker in rig.workers.alive:
        if worker.start.index == index and worker.launch is None:
            worker.become_ready()
    await rest()


async def finish(rig):
    while any(worker.frames for worker in rig.workers.alive):
        for worker in rig.workers.alive:
            if worker.frames:
                worker.answer()
        await rest()


async def test_a_worker_answers_what_it_runs_in_any_order(make_rig):
    rig = await make_rig(waiting()).start()
    calls = await submit(rig, 5)
    assert batches(rig) == [[b"0", b"1", b"2"]]
    rig.workers[0].answer(place=2)
    await rest()
    assert [call.done for call in calls] == [False, False, True, False, False]
    assert batches(rig) == [[b"0", b"1", b"3"]]
    rig.workers[0].answer(place=1)
    await rest()
    await finish(rig)
    assert [call.ends for call in calls] == [[b"%d" % i] for i in range(5)]
    assert rig.engine.stages[0].in_flight == 0


async def test_an_answer_to_what_a_worker_does_not_hold_ends_it(make_rig, caplog):
    rig = await make_rig(waiting(), obedient=False).start()
    calls = await submit(rig, 2)
    frame = rig.workers[0].frames[1]
    frame.frame_id += 7
    rig.workers[0].answer(place=1)
    assert "the worker sent results of a batch that it does not have" in caplog.text
    assert not any(call.done for call in calls)


async def test_idle_workers_go_first_and_each_gets_its_concurrency_and_what_it_prefetches(make_rig):
    rig = await make_rig(waiting(2, prefetch=1, workers=2)).start()
    await submit(rig, 8)
    assert batches(rig) == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]
    assert rig.engine.stages[0].queued == 2
    assert rig.engine.stages[0].most_at_once == rig.engine.stages[0].queue.workers == 4
    await finish(rig)


async def test_a_place_that_is_free_waits_for_company_as_an_idle_worker_does(make_rig):
    rig = await make_rig(waiting(2, batch=Batch(max_size=2, max_wait=1.0))).start()
    await submit(rig, 3)
    assert batches(rig) == [[b"0"]]
    assert rig.engine.stages[0].held
    await rig.clock.advance(1.0)
    assert batches(rig) == [[b"0", b"2"]]
    await finish(rig)


async def test_a_batch_is_cancelled_when_its_last_caller_has_left_and_no_other_is(make_rig):
    rig = await make_rig(waiting(batch=Batch(max_size=2))).start()
    calls = [rig.submit(b"%d" % i) for i in range(6)]
    await rest()
    ids = [frame.frame_id for frame in rig.workers[0].frames]
    rig.engine.cancel(calls[2].request)
    await rest()
    assert rig.workers[0].cancelled == []
    rig.engine.cancel(calls[3].request)
    await rest()
    assert rig.workers[0].cancelled == [ids[1]]
    rig.workers[0].answer(statuses=[Status.EXPIRED] * 2, place=1)
    await finish(rig)
    assert [call.ends for call in calls] == [[b"0"], [b"1"], [Cancelled], [Cancelled], [b"4"], [b"5"]]


async def test_a_batch_is_cancelled_at_the_deadline_of_its_last_item(make_rig):
    rig = await make_rig(waiting()).start()
    late, other = await rig.call(b"a", within=1.0), await rig.call(b"b")
    frame_id = rig.workers[0].frames[0].frame_id
    await rig.clock.advance(1.0)
    assert rig.workers[0].cancelled == [frame_id]
    assert isinstance(late.error, DeadlineExceeded)
    assert not other.done
    assert rig.engine.stages[0].in_flight == 2, "what does not end yet keeps its place"
    await finish(rig)


async def test_a_batch_behind_the_others_is_taken_back_and_not_cancelled(make_rig):
    rig = await make_rig(waiting(2, prefetch=1)).start()
    calls = await submit(rig, 3)
    rig.engine.cancel(calls[2].request)
    await rest()
    assert rig.workers[0].cancelled == []
    assert rig.workers[0].frames[2].recalled == {0}
    await finish(rig)


async def test_what_goes_on_after_a_cancel_is_abandoned_so_many_seconds_after_it(make_rig, caplog):
    rig = await make_rig(waiting(orphan_timeout=20.0)).start()
    calls = await submit(rig, 2)
    await rig.clock.advance(5.0)
    rig.engine.cancel(calls[0].request)
    await rig.clock.advance(10.0)
    assert "for 10.0 s it has been running an abandoned batch; it keeps running for now" in caplog.text
    await rig.clock.advance(9.9)
    assert rig.workers[0].orders == []
    await rig.clock.advance(0.1)
    assert rig.workers[0].orders == ["kill"]
    assert rig.engine.stages[0].counters.orphan_kills == 1
    await restarted(rig, 0)
    assert batches(rig) == [[b"1"]], "its mate is no suspect, and runs again"
    assert rig.engine.stages[0].counters.retried == 0
    await finish(rig)


async def test_the_log_tells_once_of_many_that_go_on_after_their_cancel(make_rig, caplog):
    rig = await make_rig(waiting(64, orphan_timeout=30.0), obedient=False).start()
    calls = await submit(rig, 64)
    for call in calls:
        rig.engine.cancel(call.request)
    await rig.clock.advance(12.0)
    assert caplog.text.count("an abandoned batch; it keeps running for now") == 1
    await rig.clock.advance(18.1)
    assert caplog.text.count("an abandoned batch; the worker is killed") == 1
    assert rig.workers[0].orders == ["kill"]


async def test_the_log_tells_once_of_many_that_are_late(make_rig, caplog):
    rig = await make_rig(waiting(timeout=10.0, retry=False)).start()
    calls = await submit(rig, 3)
    await rig.clock.advance(10.1 + UNWIND_SECONDS)
    assert caplog.text.count("ran longer than 10 s") == 1
    assert [call.error.hung for call in calls] == [True, False, False]


async def test_a_batch_that_ended_after_its_cancel_teaches_nothing_of_how_long_one_runs(make_rig):
    rig = await make_rig(waiting()).start()
    calls = await submit(rig, 2)
    rig.engine.cancel(calls[0].request)
    await rest()
    rig.workers[0].answer(seconds=50.0)
    assert rig.clock.waiting == [], "nothing more is done about it"
    assert rig.engine.stages[0].queue.expected_run(1) == 0.0
    rig.workers[0].answer(seconds=2.0)
    await rest()
    assert rig.engine.stages[0].queue.expected_run(1) == 2.0


async def test_a_batch_that_its_worker_does_not_end_after_its_time_ends_the_worker_and_alone_has_hung(make_rig, caplog):
    rig = await make_rig(waiting(timeout=10.0, retry=False)).start()
    first = await rig.call(b"a")
    await rig.clock.advance(4.0)
    second = await rig.call(b"b")
    await rig.clock.advance(6.0 + UNWIND_SECONDS - 0.1)
    assert not first.done
    await rig.clock.advance(0.1)
    assert "a batch ran longer than 10 s, and kept running for 5 s after it was cancelled" in caplog.text
    assert [type(call.error) for call in (first, second)] == [WorkerLost, WorkerLost]
    assert [call.error.hung for call in (first, second)] == [True, False]
    assert "alone" not in str(second.error)


async def test_each_batch_has_its_own_time(make_rig):
    rig = await make_rig(waiting(timeout=10.0)).start()
    await rig.call(b"a")
    await rig.clock.advance(10.0)
    await rig.call(b"b")
    await rig.clock.advance(4.0)
    rig.workers[0].answer()
    await rig.clock.advance(10.0)
    assert rig.workers[0].orders == []
    await rig.clock.advance(1.0)
    assert rig.workers[0].orders == ["kill"]
    await restarted(rig, 0)
    await finish(rig)


async def test_where_predict_is_plain_the_time_of_a_batch_begins_with_its_turn(make_rig):
    rig = await make_rig(waiting(target=math.sqrt, timeout=10.0)).start()
    calls = await submit(rig, 3)
    await rig.clock.advance(9.0)
    rig.workers[0].answer(place=0)
    await rig.clock.advance(9.0)  # the second began with the first one's answer, if not before
    assert rig.workers[0].orders == []
    rig.workers[0].answer(place=0)
    await rig.clock.advance(9.9 + UNWIND_SECONDS)
    assert rig.workers[0].orders == []
    await rig.clock.advance(0.2)
    assert rig.workers[0].orders == ["kill"]
    await restarted(rig, 0)
    await finish(rig)
    assert [call.ends for call in calls] == [[b"0"], [b"1"], [b"2"]]


async def test_answers_put_the_time_of_a_batch_off_no_longer_than_its_mates_may_take(make_rig):
    rig = await make_rig(waiting(2, target=math.sqrt, timeout=10.0)).start()
    await submit(rig, 30)
    for _ in range(24):  # what fails in its hooks is answered soon, and the first batch goes on
        await rig.clock.advance(1.0)
        rig.workers[0].answer(place=1)
        await rest()
    assert rig.workers[0].orders == []
    await rig.clock.advance(1.1)
    assert rig.workers[0].orders == ["kill"]
    await restarted(rig, 0)
    await finish(rig)


async def test_time_that_this_process_stood_still_does_not_count(make_rig):
    rig = await make_rig(waiting(timeout=10.0)).start()
    call = await rig.call(b"a")
    rig.clock._now += 60.0
    await rig.clock.advance(0.0)
    assert rig.workers[0].orders == []
    rig.workers[0].answer()
    await rest()
    assert call.done


async def test_after_a_death_each_item_that_may_have_run_runs_alone_before_new_ones(make_rig):
    rig = await make_rig(waiting(2, prefetch=1, workers=2)).start()
    calls = await submit(rig, 8)
    assert batches(rig) == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]
    rig.workers[0].die()
    await rest()
    assert rig.engine.stages[0].counters.retried == 2, "what lay behind the two is no suspect"
    await restarted(rig, 0)
    assert batches(rig) == [[b"1", b"3", b"5"], [b"0"]], "a suspect is alone"
    for _ in range(2):
        rig.workers[1].answer()
        await rest()
    assert batches(rig) == [[b"5"], [b"0"]], "nothing new is sent beside what keeps a suspect waiting"
    rig.workers[1].answer()
    await rest()
    assert batches(rig) == [[b"2"], [b"0"]]
    rig.workers[1].answer()
    await rest()
    assert batches(rig)[0] == [b"4", b"6", b"7"], "what was returned goes before what is new"
    await finish(rig)
    assert [call.ends for call in calls] == [[b"%d" % i] for i in range(8)]


async def test_of_the_items_of_a_dead_worker_the_one_that_kills_again_is_lost_and_none_runs_three_times(make_rig):
    rig = await make_rig(waiting(8)).start()
    calls = await submit(rig, 8)
    rig.workers[0].die()
    runs = [1] * 8
    while not all(call.done for call in calls):
        await restarted(rig, 0)
        worker = rig.workers.alive[0]
        (batch,) = worker.batches
        runs[int(batch[0])] += 1
        if batch[0] == b"5":
            worker.die()
        else:
            worker.answer()
        await rest()
    assert runs == [2] * 8
    assert [call.ends for call in calls] == [[WorkerLost] if i == 5 else [b"%d" % i] for i in range(8)]
    assert "a worker had been lost while it ran this item before" in str(calls[5].error)


async def test_suspects_of_jobs_without_room_behind_the_stage_hold_up_nobody_in_front(make_rig):
    rig = await make_rig(waiting(2), stage(math.sqrt, name="next", max_queued=1)).start()
    first = await rig.call(b"a", lane=Lane.BACK)
    second = await rig.call(b"b")
    rig.workers[0].die()
    await restarted(rig, 0)
    await finish(rig)
    assert first.done
    assert second.done


async def test_failures_in_a_row_neither_examine_nor_restart_a_worker(make_rig):
    spec = replace(waiting(unhealthy_after=0.0), examples=(4.0,))
    rig = await make_rig(spec).start()
    for _ in range(12):
        call = await rig.call(b"a")
        rig.workers[0].fail()
        await rest()
        assert isinstance(call.error, StageFailed)
    assert rig.workers[0].orders == []
    assert not rig.workers[0].examined
    assert rig.engine.stages[0].counters.unhealthy_restarts == 0


async def test_a_worker_that_is_asked_how_it_is_takes_batches_beside_that(make_rig):
    rig = await make_rig(waiting(2, timeout=1.0)).start()
    driver = rig.engine.stages[0]
    driver.workers[0].check(1000, rig.clock.now())
    call = await rig.call(b"a")
    assert batches(rig) == [[b"a"]]
    assert driver.queue.workers == 2
    rig.workers[0].answer(place=1)
    await rest()
    assert call.done
    assert rig.clock.waiting == [], "the time of a batch is none of its own"
    rig.workers[0].frames.clear()
    driver.workers[0].frames.clear()


async def test_a_request_that_would_end_too_late_is_refused_by_what_all_places_do(make_rig):
    rig = await make_rig(waiting(2), admission="deadline").start()
    await rig.call(b"a")
    rig.workers[0].answer(seconds=1.0)
    await submit(rig, 4)
    with pytest.raises(Overloaded, match=r"predicted to end 1\.5 s after its deadline"):  # two run, and two wait
        await rig.call(b"x", within=1.5)
    await rig.call(b"y", within=3.5)
    assert rig.engine.stages[0].known_rate == 2.0
    await finish(rig)


async def test_who_may_begin_at_once_is_not_refused_however_long_it_runs(make_rig):
    rig = await make_rig(waiting(2), admission="deadline").start()
    await rig.call(b"a")
    rig.workers[0].answer(seconds=9.0)
    await submit(rig, 1)
    await rig.call(b"b", within=1.0)
    with pytest.raises(Overloaded):
        await rig.call(b"c", within=1.0)


async def test_what_is_sent_ahead_takes_the_place_that_is_free_first(make_rig):
    rig = await make_rig(waiting(2, prefetch=2), admission="deadline").start()
    await rig.call(b"a")
    rig.workers[0].answer(seconds=1.0)
    await submit(rig, 4)
    with pytest.raises(Overloaded, match=r"predicted to end 1 s after its deadline"):
        await rig.call(b"x", within=2.0)
    await rig.call(b"y", within=3.0)


async def test_a_batch_that_was_sent_ahead_has_its_time_from_when_it_may_begin(make_rig):
    rig = await make_rig(waiting(2, prefetch=1, timeout=10.0)).start()
    await submit(rig, 3)
    await rig.clock.advance(10.0)
    rig.workers[0].answer(place=1)
    await rest()
    rig.workers[0].answer()
    await rest()
    assert rig.clock.waiting == [10.0 + UNWIND_SECONDS]
    assert rig.engine.stages[0].workers[0].busy_seconds == 0.0


async def test_items_of_jobs_fill_all_places(make_rig):
    rig = await make_rig(waiting(4)).start()
    await submit(rig, 5, lane=Lane.BACK)
    assert batches(rig) == [[b"0", b"1", b"2", b"3"]]
    await finish(rig)


async def test_the_queue_knows_which_places_are_free_in_whatever_order_they_come_free(make_rig):
    rig = await make_rig(waiting(3, workers=2, batch=Batch(max_size=2))).start()
    for i in range(12):
        rig.submit(b"%d" % i)
    await rest()
    known = rig.engine.stages[0].queue._batches
    assert known.free == 0
    rig.workers[0].answer(place=2)
    rig.workers[1].answer(place=1)
    rig.workers[0].answer(place=0)
    assert known.free == 3
    rig.workers[1].die()
    await rest()
    assert known.free == 2, "of three places of the worker that is left"
    await restarted(rig, 1)
    await finish(rig)
    assert known.free == 6


async def test_no_more_batches_are_with_the_workers_together_than_the_stage_says(make_rig):
    rig = await make_rig(waiting(3, workers=2, max_in_flight_batches=4)).start()
    await submit(rig, 8)
    assert batches(rig) == [[b"0", b"2"], [b"1", b"3"]]
    assert rig.engine.stages[0].most_at_once == 4
    await finish(rig)


async def test_a_stage_that_answers_anything_has_not_stalled(make_rig):
    rig = await make_rig(waiting(2), progress_deadline=10.0).start()
    await rig.call(b"never")
    for _ in range(5):
        await rig.call(b"a")
        await rig.clock.advance(8.0)
        rig.workers[0].answer(place=1)
        await rest()
        assert not rig.engine.stages[0].stalled
    await rig.clock.advance(10.0)
    assert rig.engine.stages[0].stalled
    await finish(rig)


async def test_a_busy_worker_tells_since_when(make_rig):
    rig = await make_rig(waiting()).start()
    slot = rig.engine.stages[0].workers[0]
    await rig.call(b"a")
    await rig.clock.advance(1.0)
    await rig.call(b"b")
    await rig.clock.advance(1.0)
    assert slot.busy_seconds == 2.0
    rig.workers[0].answer()
    assert slot.busy_seconds == 1.0
    rig.workers[0].answer()
    assert slot.busy_seconds is None
    assert slot.idle_since == rig.clock.now()


async def test_a_stop_cancels_what_runs_and_kills_the_worker_a_second_later(make_rig):
    rig = await make_rig(waiting()).start()
    calls = await submit(rig, 2)
    worker = rig.workers[0]
    stopping = await rig.stopping(3.0)
    await rig.clock.advance(2.9)
    assert worker.cancelled == []
    await rig.clock.advance(0.1)
    assert all(isinstance(call.error, NotReady) for call in calls)
    assert worker.cancelled == [frame.frame_id for frame in worker.frames]
    await rig.clock.advance(0.9)
    assert worker.orders == []
    await rig.clock.advance(0.1)
    assert worker.orders == ["kill"]
    await stopping


async def test_a_stop_ends_as_soon_as_all_that_was_cancelled_has_ended(make_rig):
    rig = await make_rig(waiting()).start()
    await submit(rig, 2)
    worker = rig.workers[0]
    stopping = await rig.stopping(0.0)
    for _ in range(2):
        assert worker.orders == []
        worker.answer(statuses=[Status.EXPIRED])
        await rest()
    assert worker.orders == ["kill"]
    await stopping


# -- random histories -------------------------------------------------------------------------------------------------


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 3)),
        st.tuples(st.just("answer"), st.integers(0, 7)),
        st.tuples(st.just("fail"), st.integers(0, 7)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("pass"), st.integers(1, 3)),
        st.tuples(st.just("die"), st.integers(0, 1)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_in_every_history_each_item_ends_once_and_runs_twice_at_most(rig_type, prefetch):
    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(STEPS)
    def check(steps):
        asyncio.run(history(rig_type, steps, prefetch))

    check()


async def history(rig_type, steps, prefetch):
    """Every batch that a worker sees is compared with what may be there."""
    rig = await rig_type(waiting(2, prefetch=prefetch, workers=2)).start()
    calls, begun, suspects = [], {}, set()

    def look():
        for worker in rig.workers.alive:
            names = [bytes(batch[0]) for batch in worker.batches]
            if suspects & set(names):
                assert len(names) == 1, "a suspect is alone"
            for name in names[:2]:
                begun.setdefault(name, set()).add(id(worker))
            assert len(names) <= 2 + prefetch
            held = [frame.frame_id for frame in worker.frames]
            for frame_id in worker.cancelled:
                cancelled = [frame for frame in worker.frames if frame.frame_id == frame_id]
                for frame in cancelled:
                    assert calls[int(bytes(frame.payloads[0]))].done, "whom somebody waits for is not cancelled"
            for frame in worker.frames[:2]:
                if frame.frame_id not in worker.cancelled:
                    assert not calls[int(bytes(frame.payloads[0]))].done, "what nobody waits for is cancelled"
            assert len(held) == len(set(held))

    for what, n in steps:
        alive = rig.workers.alive
        if what == "submit":
            for _ in range(n + 1):
                calls.append(rig.submit(b"%d" % len(calls), within=5.0 if n == 3 else math.inf))
        elif what in ("answer", "fail"):
            held = [(worker, place) for worker in alive for place in range(min(2, len(worker.frames)))]
            if held:
                worker, place = held[n % len(held)]
                getattr(worker, what)(place=place)
        elif what == "cancel" and calls:
            rig.engine.cancel(calls[n % len(calls)].request)
        elif what == "pass":
            await rig.clock.advance(float(n))
        elif what == "die" and alive:
            worker = alive[n % len(alive)]
            if worker.launch is not None:
                names = [bytes(batch[0]) for batch in worker.batches]
                suspects.update(names[:2])
                worker.die()
                await rig.clock.advance(40.0)
        await rest()
        for worker in rig.workers.alive:
            if worker.launch is None:
                worker.become_ready()
        await rest()
        suspects = {name for name in suspects if not calls[int(name)].done}
        look()
    for _ in range(200):
        if all(call.done for call in calls):
            break
        for worker in rig.workers.alive:
            if worker.frames:
                worker.answer(place=len(worker.frames) - 1 if len(worker.frames) <= 2 else 0)
        await rest()
        look()
    assert all(call.done for call in calls)
    assert all(len(workers) <= 2 for workers in begun.values()), "none runs three times"
    await rig.end()
