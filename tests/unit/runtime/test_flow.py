"""What becomes of requests: fed, moved from stage to stage, settled once, whatever happens."""

from __future__ import annotations

import asyncio
import math

import pytest

from penstock.config import Batch
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure
from penstock.core.state import State
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidItem,
    NotReady,
    Overloaded,
    StageFailed,
    WorkerLost,
)
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest
from penstock.transport.framing import Status
from penstock.transport.messages import Problem, pack


def spec(**options):
    """A stage that nothing ever runs."""
    return stage(math.sqrt, **options)


async def look_up(xs):
    """A waiting stage that nothing ever runs."""


# -- the way of an item -----------------------------------------------------------------------------------------------


async def test_an_item_goes_to_a_worker_and_its_result_to_the_caller(make_rig):
    rig = await make_rig().start()
    call = await rig.call(b"4")
    assert rig.workers[0].batches == [[b"4"]]
    assert not call.done
    rig.workers[0].answer([b"2"])
    assert call.ends == [b"2"]
    assert rig.engine.counters.succeeded == 1


async def test_an_item_goes_through_all_stages_in_their_order(make_rig):
    rig = await make_rig(spec(name="a"), spec(name="b"), spec(name="c")).start()
    call = await rig.call(b"0")
    for i, result in enumerate((b"1", b"2", b"3")):
        assert [len(worker.frames) for worker in rig.workers.started] == [int(j == i) for j in range(3)]
        rig.workers[i].answer([result])
        await rest()
    assert call.ends == [b"3"]


async def test_a_waiting_stage_is_saturated_when_all_its_places_are_taken(make_rig):
    rig = await make_rig(stage(look_up, batch=Batch(max_size=2, max_wait=60.0), concurrency=2)).start()
    pace = rig.engine._flow._retry_times._pace
    await rig.call(b"1", b"2")
    await rig.call(b"3")
    assert len(rig.workers[0].frames) == 1
    assert rig.engine.stages[0].held, "one waits for company, and there is a place"
    assert not pace.saturated
    await rig.call(b"4")
    await rig.call(b"5")
    assert len(rig.workers[0].frames) == 2
    assert pace.saturated


async def test_outcomes_come_in_the_order_of_the_payloads_however_the_work_finishes(make_rig):
    rig = await make_rig(spec(workers=3, prefetch=0)).start()
    call = await rig.call(b"0", b"1", b"2")
    for i in (1, 2, 0):
        assert not call.done
        rig.workers[i].answer([b"r%d" % i])
    assert call.ends == [b"r0", b"r1", b"r2"]


async def test_a_request_of_no_items_is_answered_in_the_next_turn(make_rig):
    rig = await make_rig().start()
    told = []
    rig.engine.submit((), 1, 1, math.inf, told.append)
    assert told == []
    await rest()
    assert told == [[]]


async def test_a_result_in_several_pieces_is_as_large_as_they_are_together(make_rig):
    rig = await make_rig(spec(name="a"), spec(name="b")).start()
    call = await rig.call([b"12", b"345"])
    assert rig.engine.held_bytes == 5
    rig.workers[0].answer([[b"1234", b"5678"]])
    assert rig.engine.held_bytes == 8
    await rest()
    rig.workers[1].answer([b""])
    assert call.done


async def test_arrivals_of_one_turn_are_one_batch(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=8))).start()
    calls = [rig.submit(b"%d" % i) for i in range(3)]
    await rest()
    assert rig.workers[0].batches == [[b"0", b"1", b"2"]]
    rig.workers[0].answer()
    assert all(call.done for call in calls)


# -- failures ---------------------------------------------------------------------------------------------------------


async def test_a_failed_item_skips_the_other_stages_and_its_batch_mates_go_on(make_rig):
    rig = await make_rig(spec(name="a", batch=Batch()), spec(name="b", batch=Batch())).start()
    bad, invalid, expired, good = [rig.submit(word) for word in (b"bad", b"invalid", b"expired", b"good")]
    await rest()
    problem = pack(Problem("builtins.KeyError", ("builtins.KeyError", "builtins.Exception"), "'x'", "Traceback"))
    refused = pack(Problem("", (), "too long", path="$.x"))
    statuses = [Status.FAILED, Status.INVALID, Status.EXPIRED, Status.OK]
    rig.workers[0].answer([problem, refused, b"", b"good"], statuses)
    await rest()
    assert rig.workers[1].batches == [[b"good"]]
    assert isinstance(bad.error, StageFailed)
    assert (bad.error.stage, bad.error.type_name, bad.error.traceback) == ("a", "builtins.KeyError", "Traceback")
    assert bad.error.is_a(KeyError)
    assert isinstance(invalid.error, InvalidItem)
    assert (invalid.error.reason, invalid.error.path) == ("too long", "$.x")
    assert isinstance(expired.error, DeadlineExceeded)
    assert not expired.error.ran
    rig.workers[1].answer()
    assert good.ends == [b"good"]
    counters = rig.engine.counters
    assert (counters.failed, counters.invalid, counters.expired, counters.succeeded) == (1, 1, 1, 1)


async def test_a_failure_that_cannot_be_read_still_ends_its_item(make_rig):
    rig = await make_rig(spec(name="a")).start()
    call = await rig.call()
    rig.workers[0].answer([b"\xc1"], [Status.FAILED])
    assert isinstance(call.error, StageFailed)
    assert "not a Problem" in call.error.message


async def test_a_caller_who_fails_to_take_its_outcomes_harms_nobody_else(make_rig, caplog):
    rig = await make_rig(spec(batch=Batch())).start()

    def burst(outcomes):
        raise RuntimeError("the caller's own fault")

    rig.engine.submit((b"1",), 1, 1, math.inf, burst)
    other = await rig.call(b"2")
    rig.workers[0].answer()
    assert other.ends == [b"2"]
    assert "service 'service': error in a caller's callback" in caplog.text
    assert "the caller's own fault" in caplog.text


# -- cancelled --------------------------------------------------------------------------------------------------------


async def test_a_cancelled_item_leaves_the_queue(make_rig):
    rig = await make_rig(spec(prefetch=0)).start()
    running, queued, behind = [await rig.call(word) for word in (b"a", b"b", b"c")]
    rig.engine.cancel(queued.request)
    assert queued.ends == [Cancelled]
    rig.workers[0].answer()
    await rest()
    assert rig.workers[0].batches == [[b"c"]]
    rig.workers[0].answer()
    assert (running.ends, behind.ends) == ([b"a"], [b"c"])
    assert rig.engine.counters.cancelled == 1


async def test_what_a_cancelled_item_becomes_in_a_worker_is_masked_from_the_next_stage(make_rig):
    rig = await make_rig(spec(name="a"), spec(name="b")).start()
    call = await rig.call()
    rig.engine.cancel(call.request)
    assert call.ends == [Cancelled]
    rig.workers[0].answer()
    await rest()
    assert rig.workers[1].frames == []


async def test_to_cancel_what_is_settled_does_nothing(make_rig):
    rig = await make_rig().start()
    call = await rig.call()
    rig.workers[0].answer()
    rig.engine.cancel(call.request)
    assert call.ends == [b"1"]
    assert rig.engine.counters.cancelled == 0


async def test_a_cancelled_request_makes_room_for_one_who_waits(make_rig):
    rig = await make_rig(max_in_flight=1).start()
    first = await rig.call(b"a")
    second = await rig.call(b"b", wait=True)
    rig.engine.cancel(first.request)
    await rest()
    rig.workers[0].answer()
    await rest()
    rig.workers[0].answer()
    assert second.ends == [b"b"]


async def test_a_request_that_waits_for_room_can_be_cancelled(make_rig):
    rig = await make_rig(max_in_flight=1).start()
    await rig.call(b"a")
    second = await rig.call(b"b", wait=True)
    assert rig.engine.held_bytes == 1, "nothing is held for one who is not let in"
    rig.engine.cancel(second.request)
    assert second.ends == [Cancelled]
    rig.workers[0].answer()


async def test_an_item_settled_by_what_another_callers_outcome_leads_to_keeps_its_first_outcome(make_rig):
    rig = await make_rig(spec(batch=Batch())).start()
    calls = []

    def leave(outcomes):
        rig.engine.cancel(calls[0].request)

    now = rig.clock.now()
    rig.engine.submit((b"1",), 1, 1, now, leave)
    calls.append(rig.submit(b"2", within=0.0))
    await rest()
    assert calls[0].ends == [Cancelled]


async def test_what_a_long_request_has_already_is_kept_when_it_is_cancelled(make_rig):
    rig = await make_rig(max_in_flight=4).start()
    call = await rig.call(*[b"%d" % i for i in range(3)])
    rig.workers[0].answer()
    rig.engine.cancel(call.request)
    assert call.ends == [b"0", Cancelled, Cancelled]


# -- deadlines --------------------------------------------------------------------------------------------------------


async def test_an_item_whose_deadline_passes_in_the_queue_never_runs(make_rig):
    rig = await make_rig(spec(prefetch=0)).start()
    await rig.call(b"a")
    late = await rig.call(b"b", within=1.0)
    await rig.clock.advance(0.99)
    assert not late.done
    await rig.clock.advance(0.02)
    assert isinstance(late.error, DeadlineExceeded)
    assert not late.error.ran
    rig.workers[0].answer()
    await rest()
    assert rig.workers[0].frames == []


async def test_an_item_whose_deadline_passes_while_it_runs_is_told_so_and_its_result_is_dropped(make_rig):
    rig = await make_rig(spec(name="a"), spec(name="b")).start()
    late = await rig.call(b"a", within=1.0)
    prefetched = await rig.call(b"b", within=1.0)
    await rig.clock.advance(1.01)
    assert late.error.ran
    assert not prefetched.error.ran, "it lay behind the one that ran"
    rig.workers[0].answer()
    rig.workers[0].answer()
    await rest()
    assert rig.workers[1].frames == []


async def test_an_item_that_is_found_late_when_it_is_sent_never_runs(make_rig):
    rig = await make_rig(spec(batch=Batch())).start()
    late = rig.submit(b"late", within=0.0)
    good = rig.submit(b"good", within=5.0)
    await rest()
    assert isinstance(late.error, DeadlineExceeded)
    assert not late.error.ran
    assert rig.workers[0].batches == [[b"good"]]
    rig.workers[0].answer()
    assert good.done


async def test_what_a_caller_cancels_that_is_told_of_its_deadline_is_not_sent_with_the_rest_of_the_batch(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=4))).start()
    other, third = rig.submit(b"22"), rig.submit(b"333")
    rig.engine.submit((b"1",), 1, 1, rig.clock.now(), lambda _: rig.engine.cancel(other.request))
    await rest()
    assert other.ends == [Cancelled]
    assert rig.workers[0].batches == [[b"333"]]
    rig.workers[0].answer()
    assert third.ends == [b"333"]


class Halt(BaseException):
    """What no `done` may raise, and one raises nevertheless."""


async def test_a_request_whose_end_goes_wrong_takes_no_other_with_it(make_rig):
    rig = await make_rig(spec(prefetch=0)).start()
    await rig.call()

    def fail(_):
        raise Halt

    rig.engine.submit((b"1",), 1, 1, rig.clock.now() + 0.995, fail)
    calls = [await rig.call(within=1.0) for _ in range(3)]
    calls.append(await rig.call(within=1.0, wait=True))
    rig.engine.submit((b"1",), 1, 1, rig.clock.now() + 1.0, fail)
    for _ in range(2):
        with pytest.raises(Halt):
            await rig.clock.advance(2.0)
    await rig.clock.advance(1.0)
    assert all(call.done for call in calls)
    assert rig.engine.queued == 1


async def test_a_deadline_a_generation_away_needs_no_timer(make_rig):
    rig = await make_rig().start()
    call = await rig.call(within=2e9)
    assert rig.clock.waiting == []
    rig.workers[0].answer()
    assert call.done


async def test_a_deadline_before_the_clock_began_has_passed(make_rig):
    rig = await make_rig().start()
    call = await rig.call(within=-1e6)
    assert isinstance(call.error, DeadlineExceeded)


# -- room -------------------------------------------------------------------------------------------------------------


async def test_one_who_waits_is_let_in_when_there_is_room(make_rig):
    rig = await make_rig(max_in_flight=1).start()
    first = await rig.call(b"a")
    second = await rig.call(b"b", wait=True)
    assert rig.engine.queued == 1
    rig.workers[0].answer()
    await rest()
    assert rig.workers[0].batches == [[b"b"]]
    rig.workers[0].answer()
    assert (first.ends, second.ends) == ([b"a"], [b"b"])


async def test_nobody_overtakes_one_who_waits(make_rig):
    rig = await make_rig(max_in_flight=1).start()
    await rig.call(b"a")
    await rig.call(b"b", wait=True)
    rig.workers[0].answer()
    with pytest.raises(Overloaded):
        rig.submit(b"c")
    rig.calls.pop()
    await rest()
    rig.workers[0].answer()


async def test_bytes_given_back_let_in_who_waits(make_rig):
    rig = await make_rig(max_queued_bytes=10).start()
    rig.engine.hold(10)
    waiting = await rig.call(b"12", wait=True)
    assert rig.workers[0].frames == []
    rig.engine.hold(-8)
    await rest()
    assert rig.workers[0].batches == [[b"12"]]
    rig.workers[0].answer()
    rig.engine.hold(-2)
    assert waiting.done


async def test_a_first_stage_with_a_limit_of_its_own_refuses_and_lets_wait(make_rig):
    rig = await make_rig(spec(max_queued=1, prefetch=0)).start()
    first = await rig.call(b"a")
    second = await rig.call(b"b")
    with pytest.raises(Overloaded):
        rig.submit(b"c")
    rig.calls.pop()
    third = await rig.call(b"c", wait=True)
    for word in (b"a", b"b", b"c"):
        assert rig.workers[0].batches == [[word]]
        rig.workers[0].answer()
        await rest()
    assert first.done
    assert second.done
    assert third.done


async def test_one_who_does_not_wait_is_refused_by_a_service_that_only_starts(make_rig):
    rig = make_rig()
    starting = await rig.begin()
    for wait in (False, True):
        with pytest.raises(NotReady, match="service 'service' is starting"):
            rig.submit(wait=wait)
        rig.calls.pop()
    assert rig.engine.counters.rejected == 2
    rig.workers[0].become_ready()
    await starting


# -- the lane behind the others --------------------------------------------------------------------------------------


async def test_items_of_back_count_in_no_bound_and_take_no_room(make_rig):
    rig = await make_rig(spec(max_queued=1, prefetch=0), max_in_flight=1, max_queued_bytes=4).start()
    jobs = [await rig.call(b"of many bytes", lane=Lane.BACK) for _ in range(5)]
    assert rig.engine.state is State.READY
    assert (rig.engine.queued, rig.engine.held_bytes, rig.engine.refusal(4)) == (0, 0, None)
    assert rig.engine.stages[0].queued == 4
    assert rig.engine.counters.accepted == 5
    await rig.call(b"1234")
    assert (rig.engine.queued, rig.engine.held_bytes, rig.engine.state) == (1, 4, State.BUSY)
    jobs.append(await rig.call(b"more", lane=Lane.BACK))
    while rig.workers[0].frames:
        rig.workers[0].answer()
        await rest()
    assert [job.ends for job in jobs] == [[b"of many bytes"]] * 5 + [[b"more"]]
    assert rig.engine.counters.succeeded == 7


async def test_whoever_comes_goes_before_the_backlog(make_rig):
    rig = await make_rig(spec(prefetch=0)).start()
    jobs = [rig.submit(b"job", lane=Lane.BACK) for _ in range(3)]
    await rest()
    first = await rig.call(b"first")
    rig.workers[0].answer()
    await rest()
    assert rig.workers[0].batches == [[b"first"]]
    while rig.workers[0].frames:
        rig.workers[0].answer()
        await rest()
    assert first.done
    assert all(job.done for job in jobs)
    assert rig.engine.stages[0].counters.batches_closed == {"full": 4}


async def test_items_of_back_have_a_deadline_and_can_be_cancelled(make_rig):
    rig = await make_rig(spec(prefetch=0)).start()
    running = await rig.call(b"a", lane=Lane.BACK)
    late = await rig.call(b"late", lane=Lane.BACK, within=1.0)
    left = await rig.call(b"left", lane=Lane.BACK)
    rig.engine.cancel(left.request)
    await rig.clock.advance(1.01)
    assert isinstance(late.error, DeadlineExceeded)
    assert isinstance(left.error, Cancelled)
    assert rig.engine.stages[0].queued == 0
    rig.workers[0].answer()
    assert running.ends == [b"a"]


async def test_a_drain_waits_for_items_of_back(make_rig):
    rig = await make_rig(spec(prefetch=0)).start()
    calls = [rig.submit(b"%d" % i, lane=Lane.BACK) for i in range(2)]
    await rest()
    stopping = await rig.stopping(drain=60)
    for _ in calls:
        assert not stopping.done()
        rig.workers[0].answer()
        await rest()
    await stopping
    assert [call.ends for call in calls] == [[b"0"], [b"1"]]


async def test_between_stages_too_the_backlog_takes_no_room_from_others(make_rig):
    first, second = spec(name="a", prefetch=0), spec(name="b", prefetch=0, max_queued=1)
    rig = await make_rig(first, second, max_queued_bytes=8).start()
    a, b = rig.workers
    jobs = [rig.submit(b"job", lane=Lane.BACK) for _ in range(3)]
    await rest()
    a.answer([b"a result of many bytes"])
    await rest()
    a.answer([b"another of many bytes"])
    await rest()
    assert a.frames == []
    assert rig.engine.held_bytes == 0
    single = await rig.call(b"1")
    assert a.batches == [[b"1"]]
    a.answer()
    await rest()
    assert a.frames == []
    b.answer()
    await rest()
    assert b.batches == [[b"1"]]
    while a.frames or b.frames:
        for worker in (a, b):
            if worker.frames:
                worker.answer()
        await rest()
    assert single.done
    assert all(job.done for job in jobs)


async def test_unread_answers_of_clients_do_not_stop_the_backlog(make_rig):
    rig = await make_rig(max_queued_bytes=8).start()
    rig.engine.hold_answer(9)
    single = await rig.call(b"1", wait=True)
    job = await rig.call(b"job", lane=Lane.BACK)
    assert rig.workers[0].batches == [[b"job"]]
    rig.workers[0].answer()
    await rest()
    assert (single.done, job.ends) == (False, [b"job"])
    rig.engine.hold_answer(-9)
    await rest()
    rig.workers[0].answer()
    assert single.done


async def test_items_of_back_on_their_way_take_no_room_of_the_next_stage(make_rig):
    rig = await make_rig(spec(name="a"), spec(name="b", max_queued=2)).start()
    for word in (b"a", b"b"):
        rig.submit(word, lane=Lane.BACK)
    await rest()
    stage_a = rig.engine.stages[0]
    assert (stage_a.in_flight, stage_a.back_in_flight) == (2, 2)
    rig.workers[0].die()
    assert (stage_a.in_flight, stage_a.back_in_flight) == (0, 0)


async def test_late_items_of_back_are_counted_out_of_their_batch(make_rig):
    rig = await make_rig(spec(batch=Batch())).start()
    late = rig.submit(b"late", lane=Lane.BACK, within=0.0)
    rig.submit(b"single")
    good = rig.submit(b"good", lane=Lane.BACK)
    await rest()
    assert isinstance(late.error, DeadlineExceeded)
    assert rig.engine.stages[0].back_in_flight == 1
    rig.workers[0].answer()
    assert good.done
    assert rig.engine.stages[0].back_in_flight == 0


async def test_results_of_back_are_held_by_their_caller(make_rig):
    rig = await make_rig(spec(batch=Batch()), max_queued_bytes=8).start()
    call = await rig.call(b"a", b"b", lane=Lane.BACK, hold_results=True, nbytes=100)
    assert rig.workers[0].batches == [[b"a", b"b"]]
    rig.workers[0].answer()
    assert call.ends == [b"a", b"b"]


# -- alone, and begun -------------------------------------------------------------------------------------------------


async def test_a_request_that_is_to_be_alone_is_so_in_every_stage(make_rig):
    rig = await make_rig(*[spec(name=name, batch=Batch(), prefetch=0) for name in "ab"]).start()
    calls = [rig.submit(b"%d" % i, alone=i == 1) for i in range(4)]
    await rest()
    for worker in rig.workers.started:
        for batch in ([b"0"], [b"1"], [b"2", b"3"]):
            assert worker.batches[0] == batch
            worker.answer()
            await rest()
    assert all(call.done for call in calls)
    assert [running.counters.batches_closed["isolated"] for running in rig.engine.stages] == [2, 1]


async def test_an_item_has_begun_once_its_worker_runs_it(make_rig):
    rig = await make_rig(spec(name="a"), spec(name="b", prefetch=0)).start()
    running, ahead, queued = [await rig.call(word) for word in (b"a", b"b", b"c")]

    def begun():
        return [rig.engine.begun(call.request) for call in (running, ahead, queued)]

    assert begun() == [True, False, False]
    rig.workers[0].answer()
    await rest()
    assert begun() == [True, True, False]
    rig.workers[0].answer()
    await rest()
    assert begun() == [True, True, True]
    assert rig.engine.stages[1].queued == 1
    for worker in (0, 1, 1, 1):
        rig.workers[worker].answer()
        await rest()
    assert begun() == [True, True, True]


async def test_what_is_taken_back_is_cancelled_at_once_in_a_queue_and_by_its_worker_where_it_was_sent_ahead(make_rig):
    rig = await make_rig(spec()).start()
    running, ahead, queued = calls = [await rig.call(word) for word in (b"a", b"b", b"c")]
    for call in calls * 2:
        rig.engine.recall(call.request)
    assert [call.done for call in calls] == [False, False, True]
    await rest()
    for _ in range(2):
        rig.workers[0].answer()
    assert [call.ends for call in calls] == [[b"a"], [Cancelled], [Cancelled]]
    assert [ahead.error.started, queued.error.started] == [False, False]
    assert rig.engine.stages[0].counters.batches == 2
    assert running.ends == [b"a"]


async def test_what_was_begun_before_the_worker_heard_that_it_is_taken_back_has_its_result(make_rig):
    rig = await make_rig(spec()).start()
    calls = [await rig.call(word) for word in (b"a", b"b")]
    rig.engine.recall(calls[1].request)
    rig.workers[0].frames[1].recalled = frozenset()
    rig.workers[0].answer()
    rig.workers[0].answer()
    assert [call.ends for call in calls] == [[b"a"], [b"b"]]


async def test_what_is_taken_back_leaves_its_mates_in_the_batch(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=2))).start()
    calls = [rig.submit(b"%d" % i) for i in range(4)]
    await rest()
    rig.engine.recall(calls[2].request)
    rig.workers[0].answer()
    rig.workers[0].answer()
    assert [call.ends for call in calls] == [[b"0"], [b"1"], [Cancelled], [b"3"]]


async def test_what_is_taken_back_is_not_run_elsewhere_where_its_worker_dies_before_it_has_begun(make_rig):
    rig = await make_rig(spec(workers=2)).start()
    first, _, ahead, _ = [await rig.call(word) for word in (b"a", b"b", b"c", b"d")]
    rig.engine.recall(ahead.request)
    rig.workers[0].die()
    await rest()
    assert (first.done, ahead.ends) == (False, [Cancelled])


async def test_what_has_begun_or_is_not_wholly_fed_is_not_taken_back(make_rig):
    rig = await make_rig(spec(name="a"), spec(name="b", prefetch=0), max_in_flight=3).start()
    calls = [await rig.call(b"a"), await rig.call(b"b")]
    rig.workers[0].answer()
    rig.workers[0].answer()
    await rest()
    unfed = await rig.call(b"1", b"2", b"3")
    for call in [*calls, unfed]:
        rig.engine.recall(call.request)
    assert not any(call.done for call in [*calls, unfed])
    assert rig.engine.stages[1].queued == 1


async def test_a_batch_sent_ahead_that_nobody_waits_for_any_more_is_not_begun(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=2))).start()
    calls = [rig.submit(b"%d" % i) for i in range(4)]
    await rest()
    for call in calls[2:]:
        assert not rig.workers[0].frames[1].recalled
        rig.engine.cancel(call.request)
    assert rig.workers[0].frames[1].recalled == {0, 1}
    rig.workers[0].answer()
    rig.workers[0].answer()
    assert [call.ends for call in calls] == [[b"0"], [b"1"], [Cancelled], [Cancelled]]


# -- what an error says of whether its item has run -------------------------------------------------------------------


async def test_an_item_that_expires_before_the_second_stage_has_begun_in_the_first(make_rig):
    rig = await make_rig(spec(name="a"), spec(name="b", prefetch=0)).start()
    await rig.call()
    call = await rig.call(within=1.0)
    rig.workers[0].answer()
    rig.workers[0].answer()
    await rest()
    await rig.clock.advance(1.1)
    assert (call.error.ran, call.error.started) == (False, True)


async def test_an_item_that_its_worker_skipped_has_not_begun(make_rig):
    rig = await make_rig(spec()).start()
    call = await rig.call()
    rig.workers[0].answer([b""], [Status.EXPIRED])
    assert (call.error.ran, call.error.started) == (False, False)


async def test_an_item_that_its_worker_refused_has_begun(make_rig):
    rig = await make_rig(spec()).start()
    call = await rig.call()
    rig.workers[0].answer([pack(Problem("", (), "too long"))], [Status.INVALID])
    assert call.error.started


async def test_a_suspect_has_begun_and_so_has_what_was_returned_from_a_worker_that_ran_it(make_rig):
    rig = await make_rig(spec()).start()
    suspect, ahead = await rig.call(within=1.0), await rig.call(within=1.0)
    rig.workers[0].die()
    await rest()
    await rig.clock.advance(1.1)
    assert (suspect.error.started, ahead.error.started) == (True, False)


async def test_what_is_settled_at_a_stop_says_of_each_item_whether_it_had_begun(make_rig):
    rig = await make_rig(spec(prefetch=0)).start()
    running, waiting = await rig.call(), await rig.call()
    await rig.stop()
    assert [type(call.error) for call in (running, waiting)] == [NotReady, NotReady]
    assert (running.error.started, waiting.error.started) == (True, False)


# -- what a death leaves ----------------------------------------------------------------------------------------------


async def test_the_item_a_worker_died_with_is_tried_once_more_and_then_lost(make_rig):
    rig = await make_rig().start()
    call = await rig.call(b"deadly")
    for life in (0, 1):
        assert not call.done
        assert rig.workers[life].batches == [[b"deadly"]]
        rig.workers[life].die()
        await rig.clock.advance(0.1)
        rig.workers[life + 1].become_ready()
        await rest()
    assert isinstance(call.error, WorkerLost)
    assert (call.error.stage, call.error.hung, call.error.alone) == ("sqrt", False, True)
    assert str(call.error) == (
        "The worker process died while it ran this item alone; a worker had been lost while it ran this item before."
    )
    assert rig.engine.counters.worker_lost == 1
    assert rig.engine.stages[0].counters.retried == 1


@pytest.mark.parametrize("hung", [False, True])
@pytest.mark.parametrize("mates", [0, 1])
async def test_a_lost_item_is_told_how_its_worker_ended_and_whether_it_was_alone(make_rig, hung, mates):
    rig = await make_rig(spec(batch=Batch(), timeout=5.0, retry=False)).start()
    calls = [rig.submit() for _ in range(1 + mates)]
    await rest()
    if hung:
        await rig.clock.advance(5.0)
    else:
        rig.workers[0].die()
    what = "a batch with this item" if mates else "this item alone"
    how = f"was killed, because it ran {what} longer than the stage's timeout" if hung else f"died while it ran {what}"
    for call in calls:
        assert isinstance(call.error, WorkerLost)
        assert (call.error.hung, call.error.alone) == (hung, not mates)
        assert str(call.error) == f"The worker process {how}."


async def test_an_item_whose_batch_mate_left_was_not_alone(make_rig):
    rig = await make_rig(spec(batch=Batch(), retry=False)).start()
    call, left = rig.submit(), rig.submit()
    await rest()
    rig.engine.cancel(left.request)
    rig.workers[0].die()
    assert not call.error.alone


async def test_the_second_end_of_a_worker_decides_how_an_item_was_lost(make_rig):
    rig = await make_rig(spec(timeout=5.0)).start()
    call = await rig.call()
    rig.workers[0].die()
    await rig.clock.advance(0)
    rig.workers[1].become_ready()
    await rig.clock.advance(5.0)
    assert (call.error.hung, call.error.alone) == (True, True)
    assert str(call.error) == (
        "The worker process was killed, because it ran this item alone longer than the stage's timeout; a worker had "
        "been lost while it ran this item before."
    )


async def test_an_item_that_survives_its_retry_is_no_suspect_in_the_next_stage(make_rig):
    rig = await make_rig(spec(name="a"), spec(name="b")).start()
    call = await rig.call()
    rig.workers[0].die()
    await rig.clock.advance(0)
    rig.workers[2].become_ready()
    await rest()
    rig.workers[2].answer()
    await rest()
    rig.workers[1].die()
    await rig.clock.advance(0)
    rig.workers[3].become_ready()
    await rest()
    rig.workers[3].answer([b"ok"])
    assert call.ends == [b"ok"]


async def test_a_cancelled_item_of_a_dead_worker_is_not_tried_again(make_rig):
    rig = await make_rig().start()
    call = await rig.call()
    rig.engine.cancel(call.request)
    rig.workers[0].die()
    await rig.clock.advance(0)
    rig.workers[1].become_ready()
    await rest()
    assert rig.workers[1].frames == []
    assert rig.engine.stages[0].counters.retried == 0


# -- long requests ----------------------------------------------------------------------------------------------------


async def test_a_long_request_is_fed_as_room_appears(make_rig):
    rig = await make_rig(spec(prefetch=0), max_in_flight=4).start()
    payloads = [b"%d" % i for i in range(9)]
    call = await rig.call(*payloads)
    for payload in payloads:
        assert rig.engine.queued <= 4
        assert rig.workers[0].batches == [[payload]]
        rig.workers[0].answer()
        await rest()
    assert call.ends == payloads


async def test_a_long_request_that_is_cancelled_ends_what_was_never_fed_too(make_rig):
    rig = await make_rig(max_in_flight=4).start()
    call = await rig.call(*[b"%d" % i for i in range(9)])
    rig.engine.cancel(call.request)
    assert call.ends == [Cancelled] * 9
    assert rig.engine.counters.cancelled == 9
    rig.workers[0].answer()


async def test_a_long_request_forgets_its_settled_items(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=64)), max_in_flight=2).start()
    n = 3000  # more than the items that a request remembers
    call = await rig.call(*[b"x"] * n)
    most = 0
    while not call.done:
        most = max(most, len(call.request.items))
        rig.workers[0].answer()
        await rest()
    assert len(call.ends) == n
    assert most < 1100
    assert call.request.items == [], "items and request refer to each other: only the cycle collector could free them"


async def test_bytes_between_the_items_are_held_until_the_last_one_is_fed(make_rig):
    rig = await make_rig(max_in_flight=2).start()
    call = await rig.call(b"1", b"2", b"3", nbytes=10)
    assert rig.engine.held_bytes == 10
    rig.workers[0].answer()
    await rest()
    rig.workers[0].answer()
    await rest()
    rig.workers[0].answer()
    assert call.done
    assert rig.engine.held_bytes == 0


async def test_results_are_held_until_the_last_one_is_there(make_rig):
    rig = await make_rig(spec(workers=2, prefetch=0)).start()
    call = await rig.call(b"1", b"2", hold_results=True)
    rig.workers[0].answer([b"x" * 100])
    assert rig.engine.held_bytes == 101
    rig.workers[1].answer([b"y"])
    assert call.done
    assert rig.engine.held_bytes == 0


async def test_what_waits_when_the_service_stops_is_settled_all_at_once(make_rig):
    rig = await make_rig(max_in_flight=2).start()
    long = await rig.call(*[b"x"] * 5)
    waiting = await rig.call(b"y", wait=True)
    await rig.stop()
    assert long.ends == [NotReady] * 5
    assert waiting.ends == [NotReady]
    assert all(isinstance(outcome, Failure) for outcome in long.told[0])
    assert rig.engine.counters.aborted == 6


# -- when to come again -----------------------------------------------------------------------------------------------


async def test_the_time_to_come_back_follows_the_rate_under_load(make_rig):
    rig = await make_rig(max_in_flight=20).start()
    for _ in range(20):
        rig.submit()
    for _ in range(4):
        await rig.clock.advance(1.0)
        rig.workers[0].answer(seconds=0.5)
        await rest()
        rig.submit()
    told = [rig.engine.refusal() for _ in range(3)]
    assert [error.retry_after for error in told] == [10, 11, 12], "half of twenty at one a second, and then one by one"
    for _ in range(20):
        rig.workers[0].answer()
        await rest()


async def test_a_time_without_a_worker_makes_no_service_slow(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=4)), max_in_flight=16).start()

    async def work(batches):
        for _ in range(batches):
            for _ in range(16 - rig.engine.queued):
                rig.submit()
            await rest()
            await rig.clock.advance(0.1)
            rig.workers[-1].answer(seconds=0.1)
            await rest()

    await work(60)
    rig.workers[0].die()
    for _ in range(300):
        await rig.clock.advance(1.0)
        if rig.engine.queued < 16:
            rig.submit(within=20.0)
    assert rig.engine.backlog_seconds == pytest.approx(16 / 40, rel=0.05)
    rig.workers[-1].become_ready()
    await rest()
    await work(1)
    while rig.engine.queued < 16:
        rig.submit()
    assert rig.engine.refusal().retry_after_ms == pytest.approx(1000 * 8 / 40, rel=0.05)


async def test_work_that_waits_for_the_bound_on_batches_tells_how_fast_the_service_is(make_rig):
    rig = await make_rig(
        spec(workers=2, max_in_flight_batches=1, batch=Batch(max_size=4, max_wait=0)), max_in_flight=16
    ).start()
    for _ in range(60):
        for _ in range(16 - rig.engine.queued):
            rig.submit()
        await rest()
        await rig.clock.advance(0.1)
        rig.workers[0].answer(seconds=0.01)  # so the runs alone would say 400 a second
        await rest()
    while rig.engine.queued < 16:
        rig.submit()
    assert rig.engine.refusal().retry_after_ms == pytest.approx(1000 * 8 / 40, rel=0.05)
    assert not rig.workers[1].frames, "it was idle all the time, and could be given nothing"


async def test_a_batch_that_waits_for_company_makes_no_service_slow(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=4, max_wait=10.0)), max_in_flight=2).start()
    for _ in range(3):
        rig.submit()
        await rig.clock.advance(10.0)
        rig.workers[0].answer(seconds=0.01)
    rig.submit()
    await rig.call()
    assert rig.engine.refusal().retry_after_ms == 50, "four in ten milliseconds"
    await rig.clock.advance(10.0)
    rig.workers[0].answer()


def next_slot(rig):
    """What a newcomer is told that finds no room, in milliseconds; it takes that slot."""
    rig.engine.hold(1000)
    refusal = rig.engine.refusal(1)
    rig.engine.hold(-1000)
    return refusal.retry_after_ms


async def one_a_second(rig):
    """Let the one worker run what says so of it."""
    await rig.call()
    for worker in rig.workers.alive:
        if worker.frames:
            worker.answer(seconds=4.0)
        await rest()


@pytest.mark.parametrize("found_by", ["timer", "pump", "worker"])
async def test_a_client_batch_that_runs_out_of_time_takes_one_slot(make_rig, found_by):
    rig = await make_rig(spec(batch=Batch(max_size=4), prefetch=0), max_in_flight=10, max_queued_bytes=100).start()
    await one_a_second(rig)
    for _ in range(4):
        rig.submit()
    await rest()
    batch = await rig.call(*[b""] * 40, within=0.501, lane=Lane.BULK)  # the timer rings at 0.51
    assert rig.engine.queued == 4 + 5, "bulk calls get half"
    if found_by == "worker":
        rig.workers[0].answer(seconds=4.0)
        await rest()
    await rig.clock.advance(0.52 if found_by == "timer" else 0.505)
    if found_by == "worker":
        rig.workers[0].answer([b""] * 4, [Status.EXPIRED] * 4, seconds=4.0)
    elif found_by == "pump":
        rig.workers[0].answer(seconds=4.0)
    await rest()
    told = {(outcome.error.ran, outcome.error.retry_after_ms) for outcome in batch.told[0]}
    assert told == {(False, 2000 if found_by == "timer" else 1000)}, "half of what others have in hand, or of nothing"
    assert next_slot(rig) == pytest.approx(3000 if found_by == "timer" else 2000, abs=20)
    if found_by == "timer":
        rig.workers[0].answer(seconds=4.0)


async def test_an_item_that_its_worker_skipped_takes_a_slot(make_rig):
    rig = await make_rig(max_queued_bytes=100).start()
    await one_a_second(rig)
    calls = [await rig.call() for _ in range(2)]
    rig.workers[0].answer([b""], [Status.EXPIRED], seconds=4.0)
    await rest()
    rig.workers[0].answer([b""], [Status.EXPIRED], seconds=4.0)
    assert [call.error.retry_after_ms for call in calls] == [4000, 8000]
    assert [call.error.retry_after for call in calls] == [4, 8]


async def test_a_client_batch_of_too_many_results_takes_one_slot(make_rig):
    rig = await make_rig(
        spec(name="a", prefetch=0, workers=4), spec(name="b", prefetch=0), max_queued_bytes=100
    ).start()
    await one_a_second(rig)
    last = rig.workers[4]
    call = await rig.call(*[b""] * 6, lane=Lane.BULK, hold_results=True)
    rig.workers[0].answer([b"1"])
    await rest()
    last.answer([b"x" * 101], seconds=4.0)
    await rest()
    for worker in rig.workers.started[:4]:
        if worker.frames:
            worker.answer([b"2"])
    assert call.ends == [b"x" * 101, *[Overloaded] * 5]
    first = call.told[0][-1].error.retry_after_ms
    assert next_slot(rig) == first + 4000


# -- who would end too late -------------------------------------------------------------------------------------------


async def ran(rig, seconds=1.0):
    """Let each stage run one batch of so many seconds."""
    await rig.call()
    for worker in rig.workers.alive[:: len(rig.workers) // len(rig.engine.stages)]:
        worker.answer(seconds=seconds)
        await rest()


async def test_who_would_end_after_its_deadline_is_refused_and_told_when_it_would_not(make_rig):
    rig = await make_rig(spec(prefetch=0), admission="deadline").start()
    await ran(rig)
    for _ in range(3):
        await rig.call()  # one runs, two wait
    await rig.clock.advance(0.5)
    assert rig.engine.refusal(0, rig.clock.now() + 3.6) is None
    refusal = rig.engine.refusal(0, rig.clock.now() + 1.5)
    assert isinstance(refusal, Overloaded)
    assert (refusal.reason, refusal.retry_after_ms) == ("deadline", 2000), "0.5 to go, two, and its own: 3.5 in all"
    assert "is predicted to end 2 s after its deadline; try again in 2 s" in str(refusal)
    with pytest.raises(Overloaded) as caught:
        rig.submit(within=1.5)
    assert caught.value.reason == "deadline"
    assert (rig.engine.counters.rejected, rig.engine.counters.rejected_deadline) == (1, 1)
    await rig.call(within=3.6)


async def test_nobody_is_refused_for_its_deadline_while_a_worker_is_idle_and_nothing_waits(make_rig):
    rig = await make_rig(spec(workers=2), admission="deadline").start()
    await ran(rig, 60.0)
    await rig.call()
    call = await rig.call(within=0.1)
    assert rig.workers[1].frames, "a slow run locks the door for nobody"
    assert isinstance(rig.engine.refusal(0, rig.clock.now() + 0.1), Overloaded), "now both are at work"
    rig.workers[1].answer(seconds=0.0)
    assert call.done


async def test_an_idle_worker_that_may_be_given_nothing_makes_nobody_in_time(make_rig):
    rig = await make_rig(spec(workers=3, max_in_flight_batches=1), admission="deadline").start()
    await ran(rig)
    assert rig.engine.refusal(0, rig.clock.now() + 0.1) is None, "nobody is at work"
    await rig.call()
    assert rig.engine.refusal(0, rig.clock.now() + 1.9).reason == "deadline"
    assert rig.engine.refusal(0, rig.clock.now() + 2.1) is None
    await rig.call()
    assert rig.engine.backlog_seconds == 2.0
    assert rig.engine.refusal(0, rig.clock.now() + 2.9).reason == "deadline"
    assert rig.engine.refusal(0, rig.clock.now() + 3.1) is None


async def test_jobs_those_who_wait_for_room_and_those_without_a_deadline_are_not_predicted(make_rig):
    rig = await make_rig(spec(), admission="deadline").start()
    await ran(rig)
    for _ in range(4):
        await rig.call()
    assert rig.engine.refusal(0, math.inf) is None
    assert rig.engine.refusal(0, rig.clock.now() + 0.1, Lane.BACK) is None
    await rig.call(within=0.1, lane=Lane.BACK)
    await rig.call(within=0.1, wait=True)
    with pytest.raises(Overloaded):
        rig.submit(within=0.1)


async def test_the_better_urgency_is_counted_by_what_goes_before_it(make_rig):
    rig = await make_rig(spec(prefetch=0), admission="deadline").start()
    await ran(rig)
    for _ in range(5):
        await rig.call()
    soon = rig.clock.now() + 2.5
    assert rig.engine.refusal(0, soon).reason == "deadline"
    assert rig.engine.refusal(0, soon, Lane.SINGLE, 1) is None


async def test_jobs_that_wait_take_their_share_of_the_batches_before_a_newcomer(make_rig):
    rig = await make_rig(spec(prefetch=0, batch=Batch(max_size=4)), admission="deadline", background_share=0.5).start()
    await ran(rig)
    for _ in range(12):
        await rig.call()
    in_time = rig.clock.now() + 4.0
    assert rig.engine.refusal(0, in_time) is None
    await rig.call(lane=Lane.BACK)
    assert rig.engine.refusal(0, in_time).reason == "deadline"


async def test_long_jobs_keep_nobody_out_who_is_quick(make_rig):
    rig = await make_rig(spec(workers=2, prefetch=0), admission="deadline").start()
    await ran(rig, seconds=0.1)
    for _ in range(4):
        await rig.call(lane=Lane.BACK)
    await rig.clock.advance(4.0)
    rig.workers[0].answer(seconds=4.0)
    await rig.clock.advance(2.0)
    rig.workers[1].answer(seconds=6.0)
    await rest()
    assert rig.engine.stages[0].queue.expected_run(1) == 0.1
    await rig.clock.advance(1.0)  # one job has run for 3 s and the other for 1 s, and jobs take 5.2 s
    assert rig.engine.refusal(0, rig.clock.now() + 2.4) is None
    assert rig.engine.refusal(0, rig.clock.now() + 2.2).reason == "deadline", "what runs has 2.2 s to go"


async def test_where_no_worker_is_ready_nobody_knows_and_nobody_is_refused(make_rig):
    rig = await make_rig(spec(name="a"), spec(name="b"), admission="deadline").start()
    await ran(rig)
    for _ in range(4):
        await rig.call()
    assert rig.engine.refusal(0, rig.clock.now() + 0.1).reason == "deadline"
    rig.workers[1].die()
    await rest()
    assert rig.engine.refusal(0, rig.clock.now() + 0.1) is None


async def test_the_backlog_is_how_long_what_is_in_hand_will_take(make_rig):
    rig = await make_rig(spec(prefetch=0)).start()
    assert rig.engine.backlog_seconds == 0.0
    await rig.call()
    assert rig.engine.backlog_seconds == 0.01, "nothing has run: as the pace is guessed"
    rig.workers[0].answer(seconds=1.0)
    await rest()
    assert rig.engine.backlog_seconds == 0.0
    for _ in range(3):
        await rig.call()
    await rig.clock.advance(0.25)
    assert rig.engine.backlog_seconds == pytest.approx(2.75)


# -- finished answers -------------------------------------------------------------------------------------------------


async def test_nothing_is_sent_while_answers_take_more_than_they_may(make_rig):
    rig = await make_rig(max_queued_bytes=100).start()
    rig.engine.hold_answer(101)
    call = await rig.call(b"1")
    assert rig.workers[0].frames == []
    rig.engine.hold_answer(-1)
    await rest()
    assert rig.workers[0].batches == [[b"1"]], "what gives bytes back wakes the pump, also where nobody waits for room"
    rig.workers[0].answer()
    assert call.done
    rig.engine.hold_answer(-100)


async def test_what_the_workers_hold_is_all_that_may_come_on_top(make_rig):
    rig = await make_rig(max_queued_bytes=100).start()
    calls = [await rig.call(b"%d" % i) for i in range(5)]
    for _ in range(2):  # one runs, one was sent ahead
        rig.workers[0].answer([b"x" * 200])
        rig.engine.hold_answer(200)
        await rest()
    assert rig.workers[0].frames == []
    assert [call.done for call in calls] == [True, True, False, False, False]
    assert (rig.engine.answer_bytes, rig.engine.answers_overfull) == (400, True)
    rig.engine.hold_answer(-400)
    for _ in range(3):
        await rest()
        rig.workers[0].answer()
    assert all(call.done for call in calls)


async def test_answers_that_nobody_reads_hold_back_each_stage_by_the_queue_behind_it(make_rig):
    rig = await make_rig(spec(name="a", prefetch=0), spec(name="b", prefetch=0), max_queued_bytes=200).start()
    rig.engine.hold_answer(201)
    calls = [await rig.call(b"%d" % i) for i in range(4)]
    rig.workers[0].answer([b"y" * 101])
    await rest()
    assert [worker.batches for worker in rig.workers.started] == [[], []]
    assert [each.queued for each in rig.engine.stages] == [3, 1]
    rig.engine.hold_answer(-201)
    while not all(call.done for call in calls):
        await rest()
        for worker in rig.workers.started:
            if worker.frames:
                worker.answer([b"z"])


async def test_answers_that_nobody_reads_refuse_no_newcomer(make_rig):
    rig = await make_rig(max_queued_bytes=10).start()
    rig.engine.hold_answer(1000)
    assert rig.engine.refusal(10**6) is None, "nothing else is held"
    call = await rig.call(b"12345")
    waiting = await rig.call(b"123456", wait=True)
    assert isinstance(rig.engine.refusal(1), Overloaded), "one waits for room already"
    rig.engine.hold_answer(-1000)
    await rest()
    rig.workers[0].answer()
    await rest()
    rig.workers[0].answer()
    assert call.done
    assert waiting.done


async def test_bytes_given_back_where_nothing_is_in_hand_wake_nobody(make_rig):
    rig = await make_rig().start()
    pumps = []
    rig.engine._flow.on_pumped = lambda: pumps.append(1)
    for hold in (rig.engine.hold, rig.engine.hold_answer):
        hold(5)
        hold(-5)
    await rest()
    assert pumps == []
    rig.engine._flow.on_pumped = None


async def test_bytes_are_held_and_given_back_whether_or_not_the_engine_runs(make_rig):
    rig = make_rig()
    rig.engine.hold_answer(5)
    rig.engine.hold_answer(-5)
    await rig.start()
    await rig.stop()
    rig.engine.hold_answer(5)
    rig.engine.hold_answer(-5)
    assert rig.engine.held_bytes == 0


# -- results that are held for a client batch -------------------------------------------------------------------------


async def test_a_batch_whose_results_take_more_than_they_may_ends_what_no_worker_has(make_rig):
    rig = await make_rig(spec(prefetch=0, workers=2), max_in_flight=8, max_queued_bytes=100).start()
    call = await rig.call(*[b"%d" % i for i in range(10)], lane=Lane.BULK, hold_results=True)
    assert rig.engine.queued == 4, "two run, two are queued, six are not items yet"
    rig.workers[0].answer([b"x" * 100])
    await rest()
    assert rig.engine.queued == 4, "as much as it may"
    rig.workers[0].answer([b"y"])
    assert (rig.engine.queued, call.done) == (1, False)
    await rest()
    assert rig.workers[0].frames == []
    rig.workers[1].answer([b"z"])
    assert call.ends == [b"x" * 100, b"z", b"y"] + [Overloaded] * 7
    assert rig.engine.counters.aborted == 7
    assert all(outcome.error.retry_after >= 1 for outcome in call.told[0][3:])


async def test_batches_gather_together_and_the_one_with_the_most_is_ended(make_rig):
    rig = await make_rig(spec(prefetch=0, workers=2), max_queued_bytes=100).start()
    large = await rig.call(*[b"1"] * 9, lane=Lane.BULK, hold_results=True)
    small = await rig.call(*[b"2"] * 3, lane=Lane.BULK, hold_results=True)
    sizes = {b"1": 30, b"2": 25}
    for _ in range(12):
        for worker in rig.workers:
            for batch in worker.batches[:1]:
                worker.answer([b"x" * sizes[batch[0]]])
        await rest()
    assert small.ends == [b"x" * 25] * 3
    assert large.ends[:2] == [b"x" * 30] * 2
    assert large.ends[-1] is Overloaded
    assert rig.engine.counters.aborted == large.ends.count(Overloaded)
    assert rig.engine.held_bytes == 0


async def test_a_batch_that_is_ended_for_anothers_result_and_has_nothing_at_a_worker_completes(make_rig):
    rig = await make_rig(
        spec(prefetch=0), max_in_flight=2, max_queued_bytes=100
    ).start()  # they take turns, item by item
    large = await rig.call(b"1", b"1", lane=Lane.BULK, hold_results=True)
    small = await rig.call(b"2", b"2", lane=Lane.BULK, hold_results=True)
    for size in (60, 41):
        rig.workers[0].answer([b"x" * size])
        await rest()
    assert large.ends == [b"x" * 60, Overloaded]
    rig.workers[0].answer([b"x" * 200])
    assert small.ends == [b"x" * 41, b"x" * 200]
    assert rig.engine.held_bytes == 0


async def test_what_comes_from_an_earlier_stage_when_its_batch_was_ended_is_not_run_on(make_rig):
    rig = await make_rig(
        spec(name="a", prefetch=0, workers=2), spec(name="b", prefetch=0), max_queued_bytes=100
    ).start()
    first, second, last = rig.workers.started
    call = await rig.call(b"1", b"2", b"3", lane=Lane.BULK, hold_results=True)
    first.answer([b"1"])
    await rest()
    last.answer([b"x" * 101])
    await rest()
    second.answer([b"2"])
    first.answer([b"3"])
    assert call.ends == [b"x" * 101, Overloaded, Overloaded]
    assert last.frames == []


async def test_a_batch_whose_failures_say_too_much_ends_what_no_worker_has(make_rig):
    rig = await make_rig(spec(prefetch=0), max_queued_bytes=100).start()
    call = await rig.call(b"1", b"2", b"3", lane=Lane.BULK, hold_results=True)
    rig.workers[0].fail("x" * 101)
    assert call.ends == [StageFailed, Overloaded, Overloaded]
    assert rig.engine.held_bytes == 0


# -- turns of the loop ------------------------------------------------------------------------------------------------


async def test_all_that_happens_in_one_turn_is_one_pump(make_rig):
    rig = await make_rig().start()
    pumps = []
    rig.engine._flow.on_pumped = lambda: pumps.append(1)
    for _ in range(5):
        rig.submit()
    await rest()
    assert len(pumps) == 1
    rig.workers[0].answer()
    await rest()
    assert len(pumps) == 2
    rig.engine._flow.on_pumped = None


async def test_who_waits_is_let_in_and_sent_in_the_turn_in_which_there_is_room(make_rig):
    rig = await make_rig(max_in_flight=1).start()
    await rig.call(b"a")
    await rig.call(b"b", wait=True)
    rig.workers[0].answer()
    await asyncio.sleep(0)
    assert rig.workers[0].batches == [[b"b"]]
    rig.workers[0].answer()


async def test_what_is_let_in_once_the_queue_was_sent_is_sent_too(make_rig):
    """The queue of the first stage takes one item: sending that makes room for the next one."""
    rig = await make_rig(spec(workers=3, prefetch=0, max_queued=1)).start()
    for payload in (b"a", b"b", b"c"):
        rig.submit(payload, wait=True)
    await rest()
    assert [worker.batches for worker in rig.workers.started] == [[[b"a"]], [[b"b"]], [[b"c"]]]
    for worker in rig.workers.started:
        worker.answer()
