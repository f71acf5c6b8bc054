"""The life of an engine: how it starts, restarts its workers, drains, stops and is abandoned."""

from __future__ import annotations

import asyncio
import math
import os
import threading

import pytest

from penstock.config import Batch
from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.errors import ConfigError, NotReady, Overloaded, StartFailed
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest
from penstock.transport.framing import Kind


def spec(target=math.sqrt, **options):
    """A stage that nothing ever runs."""
    return stage(target, **options)


def reached(task):
    """The error that `task` ended with."""
    assert task.done()
    return task.exception()


# -- what it tells ----------------------------------------------------------------------------------------------------


async def test_it_tells_the_stacks_of_each_worker_that_has_some_under_its_name(make_rig):
    rig = make_rig(spec(name="a", workers=2), spec(name="b"))
    assert await rig.engine.worker_stacks() == {}
    await rig.start()
    first, silent, other = rig.workers.started
    first.stack, other.stack = "in predict", "in setup"
    assert silent.stack == ""
    assert await rig.engine.worker_stacks() == {
        f"worker 0 of stage 'a' (pid {first.pid})": "in predict",
        f"worker 0 of stage 'b' (pid {other.pid})": "in setup",
    }


# -- start ------------------------------------------------------------------------------------------------------------


async def test_a_start_returns_when_every_worker_of_every_stage_is_ready(make_rig):
    rig = make_rig(spec(name="a", workers=2), spec(name="b"))
    assert rig.engine.state is State.STOPPED
    starting = await rig.begin()
    assert rig.engine.state is State.STARTING
    for worker in rig.workers.started:
        assert not starting.done()
        worker.become_ready()
        await rest()
    assert starting.done()
    assert rig.engine.state is State.READY
    assert rig.engine.reason == ""


async def test_workers_are_told_who_and_where_they_are(make_rig, monkeypatch):
    monkeypatch.setenv("SEEN", "by all")
    rig = make_rig(spec(name="a", workers=2, env=[{"GPU": "0"}, {"GPU": "1"}]))
    await rig.start()
    starts = [worker.start for worker in rig.workers.started]
    assert [(s.service, s.stage, s.index, s.target) for s in starts] == [("service", "a", i, math.sqrt) for i in (0, 1)]
    assert [s.env["GPU"] for s in starts] == ["0", "1"]
    assert {s.env["SEEN"] for s in starts} == {"by all"}
    assert all(s.cores == os.sched_getaffinity(0) for s in starts)
    assert [worker.launch.index for worker in rig.workers.started] == [0, 1]
    assert rig.workers[0].launch.count == 2


async def test_a_start_returns_with_a_worker_that_has_ended_if_another_is_ready(make_rig):
    rig = make_rig(spec(workers=2))
    starting = await rig.begin()
    rig.workers[0].die("exit status 3")
    assert not starting.done()
    rig.workers[1].become_ready()
    await starting
    assert rig.engine.state is State.READY


async def test_a_setup_that_raises_ends_the_first_start_and_every_worker(make_rig):
    rig = make_rig(spec(name="a", workers=2), spec(name="b"), obedient=False)
    starting = await rig.begin()
    rig.workers[1].fail_setup("no weights")
    await rest()
    for worker in rig.workers.alive:
        assert worker.orders == ["kill"]
        worker.die()
    await rest()
    error = reached(starting)
    assert isinstance(error, StartFailed)
    assert str(error).startswith("worker 1 of stage 'a' could not be set up: OSError: no weights\n\nTraceback")
    assert rig.engine.state is State.STOPPED
    assert len(rig.workers) == 3, "nothing is started again"


async def test_a_start_fails_after_five_deaths_of_each_worker(make_rig, caplog):
    rig = make_rig(spec(name="a"))
    starting = await rig.begin()
    waits = []
    for _ in range(5):
        rig.workers[-1].die("exit status 3")
        waits += rig.clock.waiting
        await rig.clock.advance(1.0)
    assert waits == [0.0, 0.1, 0.2, 0.4, 30.0]
    assert str(reached(starting)) == "worker 0 of stage 'a' ended before it was ready: exit status 3"
    assert caplog.text.count("ended before it was ready") == 5


def find_no_memory(worker):
    worker.fail_setup("4 GiB", "builtins.MemoryError", out_of_memory=True)


async def test_a_start_that_finds_no_memory_is_tried_again_for_half_a_minute_and_then_fails(make_rig, caplog):
    rig = make_rig(spec(name="a"))
    starting = await rig.begin()
    began, waits = rig.clock.now(), []
    find_no_memory(rig.workers[-1])
    while rig.clock.waiting:
        assert len(rig.clock.waiting) == 1
        waits += rig.clock.waiting
        await rig.clock.advance(waits[-1])
        find_no_memory(rig.workers[-1])
        await rest()
    assert [round(wait, 3) for wait in waits] == [0.1, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 4.4]
    assert rig.clock.now() == pytest.approx(began + 30.0)
    words = "worker 0 of stage 'a' could not be set up: MemoryError: 4 GiB"
    assert str(reached(starting)).startswith(f"{words}\n\nTraceback")
    assert caplog.text.count("may still hold memory; next attempt in ") == len(waits)
    assert f"{words}: a process that ended recently" in caplog.text


async def test_a_worker_that_finds_no_memory_behind_the_last_one_is_no_failure_of_its_stage(make_rig):
    rig = await make_rig().start()
    await rig.clock.advance(1000.0)
    rig.workers[-1].die("signal SIGKILL")
    call = await rig.call()
    await rig.clock.advance(0.0)
    for _ in range(7):
        find_no_memory(rig.workers[-1])
        await rig.clock.advance(rig.clock.waiting[0])
        assert rig.engine.state is State.READY
    rig.workers[-1].become_ready()
    await rest()
    rig.workers[-1].answer()
    assert call.done


async def test_a_wait_for_memory_does_not_delay_the_start_after_the_next_death(make_rig):
    rig = await make_rig().start()
    rig.workers[-1].die("signal SIGKILL")
    await rig.clock.advance(0.0)
    for _ in range(7):
        find_no_memory(rig.workers[-1])
        await rig.clock.advance(rig.clock.waiting[0])
    rig.workers[-1].become_ready()
    await rest()
    rig.workers[-1].die("signal SIGKILL")
    assert rig.clock.waiting == [0.1]
    await rig.clock.advance(0.1)
    find_no_memory(rig.workers[-1])
    assert rig.clock.waiting == [0.1]


async def test_a_worker_that_finds_no_memory_half_a_minute_later_counts_as_any_that_cannot_be_started(make_rig):
    rig = await make_rig().start()
    rig.workers[-1].die("signal SIGKILL")
    await rig.clock.advance(0.0)
    await rig.clock.advance(30.0)
    for _ in range(5):
        find_no_memory(rig.workers[-1])
        await rig.clock.advance(rig.clock.waiting[0])
    assert rig.engine.state is State.FAILED


async def test_a_start_that_is_cancelled_leaves_nothing(make_rig):
    rig = make_rig()
    starting = await rig.begin()
    starting.cancel()
    await rest()
    assert starting.cancelled()
    assert rig.workers.alive == []
    assert rig.engine.state is State.STOPPED


async def test_a_stop_during_the_start_ends_it_with_an_error(make_rig):
    rig = make_rig()
    starting = await rig.begin()
    await rig.engine.stop(drain=0)
    await rest()
    assert str(reached(starting)) == "service 'service' was stopped while it was starting"


async def test_an_engine_is_started_once(make_rig):
    rig = await make_rig().start()
    with pytest.raises(ConfigError, match="service 'service' is already ready"):
        await rig.engine.start()
    await rig.stop()
    with pytest.raises(ConfigError, match="service 'service' is already stopped"):
        await rig.engine.start()


async def test_a_stage_that_no_worker_can_import_is_refused_before_anything_starts(make_rig):
    def local(x):
        return x

    rig = make_rig(spec(target=local, name="local"))
    with pytest.raises(ConfigError, match="defined inside a function"):
        await rig.engine.start()
    assert rig.engine.state is State.STOPPED
    assert len(rig.workers) == 0


async def test_a_core_that_is_not_allowed_is_refused_before_anything_starts(make_rig):
    rig = make_rig(cpus=[9999])
    with pytest.raises(ConfigError, match=r"service 'service': cpus \[9999\] are not among the allowed cores"):
        await rig.engine.start()
    assert len(rig.workers) == 0


async def test_the_coordinator_is_pinned_while_the_service_runs_and_its_workers_are_not(make_rig):
    before = os.sched_getaffinity(0)
    core = min(before)
    rig = make_rig(cpus=[core])
    await rig.start()
    assert os.sched_getaffinity(0) == {core}
    assert rig.workers[0].start.cores == before
    await rig.stop()
    assert os.sched_getaffinity(0) == before


async def test_a_service_in_one_process_is_not_pinned(make_rig):
    before = os.sched_getaffinity(0)
    rig = make_rig(cpus=[min(before)], inline=True)
    await rig.start()
    assert os.sched_getaffinity(0) == before


async def test_a_thread_that_abandons_keeps_its_own_cores(make_rig, monkeypatch):
    pinned = []
    monkeypatch.setattr("penstock.runtime.engine.pin", pinned.append)
    rig = make_rig(cpus=[min(os.sched_getaffinity(0))])
    await rig.start()
    thread = threading.Thread(target=rig.engine.abandon)
    thread.start()
    await asyncio.get_running_loop().run_in_executor(None, thread.join)
    assert len(pinned) == 1, "only the start has pinned"


# -- restarts ---------------------------------------------------------------------------------------------------------


async def test_a_dead_worker_is_started_again_at_once_and_then_later_and_later(make_rig, caplog):
    rig = await make_rig().start()
    waits = []
    for _ in range(4):
        rig.workers[-1].die("signal SIGSEGV")
        waits += rig.clock.waiting
        await rig.clock.advance(waits[-1])
        rig.workers[-1].become_ready()
    assert waits == [0.0, 0.1, 0.2, 0.4]
    assert "worker 0 of stage 'sqrt' ended: signal SIGSEGV" in caplog.text
    call = await rig.call()
    rig.workers[-1].answer()
    assert call.done, "a finished batch starts the delays over"
    rig.workers[-1].die()
    assert rig.clock.waiting == [0.0]
    assert rig.engine.stages[0].counters.restarts == 5


def told_of_stage(caplog):
    """What the log says of the stage, and not of one worker."""
    return [(record.levelname, record.message) for record in caplog.records if record.message.startswith("stage ")]


async def test_a_stage_without_workers_fails_tells_everybody_and_recovers(make_rig, caplog):
    caplog.set_level("INFO", "penstock.runtime")
    rig = await make_rig().start()
    rig.workers[-1].die()
    call = await rig.call()
    for _ in range(4):
        await rig.clock.advance(1.0)
        rig.workers[-1].die("exit status 3")
        assert rig.engine.state is State.READY
    await rig.clock.advance(1.0)
    rig.workers[-1].die("exit status 3")
    reason = "worker 0 of stage 'sqrt' ended before it was ready: exit status 3"
    assert (rig.engine.state, rig.engine.reason) == (State.FAILED, reason)
    assert (str(call.error), call.error.state) == (f"stage 'sqrt' has failed: {reason}", State.FAILED)
    with pytest.raises(NotReady, match=f"service 'service' is failed: {reason}") as caught:
        rig.submit()
    assert (caught.value.retry_after, call.error.retry_after) == (1, 1), "no stage rests"
    failed = ("ERROR", "stage 'sqrt' has failed: no worker can be started")
    assert rig.clock.waiting == [30.0]
    await rig.clock.advance(30.0)
    rig.workers[-1].die("exit status 3")
    assert told_of_stage(caplog) == [failed], "told once"
    await rig.clock.advance(30.0)
    rig.workers[-1].become_ready()
    assert (rig.engine.state, rig.engine.reason) == (State.READY, "")
    assert told_of_stage(caplog) == [failed, ("INFO", "stage 'sqrt' has recovered: a worker was started")]


async def test_of_a_worker_that_was_set_up_the_examples_are_said_to_fail(make_rig, caplog):
    rig = await make_rig().start()
    rig.workers[-1].die()
    await rig.clock.advance(0.0)
    rig.workers[-1].fail_setup("too long", on_examples=True)
    assert "worker 0 of stage 'sqrt' failed on its examples: builtins.OSError\n\nTraceback" in caplog.text
    await rig.clock.advance(0.1)
    rig.workers[-1].fail_setup("too long", on_examples=True)
    assert caplog.messages[-1] == "worker 0 of stage 'sqrt' failed on its examples: OSError: too long"


async def test_what_an_example_gave_is_told_without_the_class_of_our_error(make_rig):
    rig = make_rig(obedient=False)
    starting = await rig.begin()
    rig.workers[0].fail_setup("predict returned 2 results", "penstock.worker.problems.WrongLength", on_examples=True)
    await rest()
    words = "worker 0 of stage 'sqrt' failed on its examples: predict returned 2 results\n"
    assert str(reached(starting)).startswith(words)


# -- what hosts read --------------------------------------------------------------------------------------------------


async def test_a_full_service_is_busy_and_refuses_with_a_time_to_come_back(make_rig):
    rig = await make_rig(max_in_flight=2).start()
    await rig.call()
    assert (rig.engine.state, rig.engine.queued) == (State.READY, 1)
    await rig.call()
    assert (rig.engine.state, rig.engine.queued) == (State.BUSY, 2)
    with pytest.raises(Overloaded, match="service 'service' is full; try again in 1 s") as caught:
        rig.submit()
    refusal = caught.value
    assert (refusal.retry_after, refusal.retry_after_ms, refusal.reason) == (1, 50, "queue_full")
    assert (rig.engine.counters.rejected, rig.engine.counters.rejected_queue_full) == (1, 1)
    rig.workers[0].answer()
    assert rig.engine.refusal() is None


async def test_room_is_asked_for_by_bytes_too(make_rig):
    rig = await make_rig(max_queued_bytes=10).start()
    await rig.call(b"12345678")
    assert rig.engine.refusal(2) is None
    assert isinstance(rig.engine.refusal(3), Overloaded)
    rig.engine.hold(2)
    assert rig.engine.held_bytes == 10
    assert isinstance(rig.engine.refusal(1), Overloaded)
    rig.engine.hold(-2)
    rig.workers[0].answer()


@pytest.mark.parametrize("started", [False, True])
async def test_an_engine_that_does_not_run_refuses(make_rig, started):
    rig = make_rig()
    if started:
        await rig.start()
        await rig.stop()
    with pytest.raises(NotReady, match="service 'service' is stopped") as caught:
        rig.submit()
    assert caught.value.state is State.STOPPED


# -- stop -------------------------------------------------------------------------------------------------------------


async def test_who_leaves_soon_is_draining_for_those_who_ask_and_accepts_all_the_same(make_rig):
    rig = await make_rig(max_in_flight=1).start()
    assert rig.engine.accepting
    rig.engine.leave_soon()
    assert (rig.engine.state, rig.engine.reason) == (State.DRAINING, "")
    assert rig.engine.accepting
    assert rig.engine.refusal() is None
    call = await rig.call()
    assert rig.engine.state is State.DRAINING  # not busy
    with pytest.raises(Overloaded):
        rig.submit()
    rig.workers[0].answer([b"ok"])
    await rest()
    assert call.ends == [b"ok"]
    stopping = await rig.stopping(30.0)
    assert not rig.engine.accepting
    assert stopping.done()
    assert rig.engine.state is State.STOPPED


async def test_a_service_that_fails_while_it_is_about_to_leave_says_so(make_rig):
    rig = await make_rig().start()
    rig.engine.leave_soon()
    rig.workers[-1].die()
    for _ in range(5):
        assert rig.engine.state is State.DRAINING
        await rig.clock.advance(1.0)
        rig.workers[-1].die()
    assert rig.engine.state is State.FAILED
    assert not rig.engine.accepting
    with pytest.raises(NotReady, match="is failed"):
        rig.submit()


async def test_a_drain_finishes_what_was_accepted_and_closes_the_workers(make_rig):
    rig = await make_rig(spec(workers=2), obedient=False).start()
    call = await rig.call()
    stopping = await rig.stopping(30.0)
    assert rig.engine.state is State.DRAINING
    with pytest.raises(NotReady, match=r"^service 'service' is draining$"):
        rig.submit()
    assert [worker.orders for worker in rig.workers.started] == [[], []]
    rig.workers[0].answer([b"ok"])
    await rest()
    assert call.ends == [b"ok"]
    assert [worker.orders for worker in rig.workers.started] == [["close"], ["close"]]
    rig.workers[0].die("exit status 0")
    await rest()
    assert not stopping.done()
    rig.workers[1].die("exit status 0")
    await rest()
    assert stopping.done()
    assert rig.engine.state is State.STOPPED
    assert len(rig.workers) == 2


async def test_a_drain_holds_no_batch_for_company(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=8, max_wait=60.0))).start()
    call = await rig.call()
    assert rig.workers[0].frames == []
    stopping = await rig.stopping(30.0)
    rig.workers[0].answer()
    await rest()
    assert call.done
    assert stopping.done()
    assert rig.engine.stages[0].counters.batches_closed == {"drain": 1}


async def test_what_the_drain_leaves_is_told_that_the_service_has_stopped(make_rig):
    rig = await make_rig(obedient=False).start()
    call = await rig.call()
    await rig.stopping(30.0)
    await rig.clock.advance(29.9)
    assert not call.done
    await rig.clock.advance(0.1)
    assert (str(call.error), call.error.state) == ("service 'service' has stopped", State.STOPPED)
    assert rig.workers[0].orders == ["kill"], "a worker that did not finish is not waited for"


async def test_a_worker_of_ours_never_leaves(make_rig, caplog):
    rig = await make_rig(spec()).start()
    rig.workers[0].say(Kind.DETACH)
    assert rig.workers[0].orders == ["kill"]
    assert "is not external, and sent a DETACH frame; the worker is killed" in caplog.text


async def test_a_worker_that_does_not_close_is_killed_after_its_grace(make_rig):
    rig = await make_rig(obedient=False).start()
    stopping = await rig.stopping(30.0)
    assert rig.workers[0].orders == ["close"]
    await rig.clock.advance(4.9)
    assert rig.workers[0].orders == ["close"]
    await rig.clock.advance(0.1)
    assert rig.workers[0].orders == ["close", "kill"]
    assert not stopping.done()
    rig.workers[0].die()
    await rest()
    assert stopping.done()


async def test_without_a_drain_everything_ends_at_once(make_rig):
    rig = await make_rig(obedient=False).start()
    call = await rig.call()
    await rig.stopping(0)
    await rig.clock.advance(0)
    assert isinstance(call.error, NotReady)
    assert rig.workers[0].orders == ["kill"]


async def test_a_drain_may_take_for_ever(make_rig):
    rig = await make_rig(obedient=False).start()
    await rig.call()
    await rig.stopping(math.inf)
    assert rig.clock.waiting == []
    await rig.clock.advance(1e8)
    assert rig.engine.state is State.DRAINING


@pytest.mark.parametrize(("second", "hurried_after"), [(0, 0.0), (5.0, 5.0), (1000.0, 30.0), (math.inf, 30.0)])
async def test_of_two_stops_the_sooner_end_counts(make_rig, second, hurried_after):
    rig = await make_rig(obedient=False).start()
    await rig.call()
    first = await rig.stopping(30.0)
    again = await rig.stopping(second)
    if hurried_after:
        await rig.clock.advance(hurried_after - 0.1)
        assert rig.workers[0].orders == []
        await rig.clock.advance(0.1)
    else:
        await rig.clock.advance(0)
    assert rig.workers[0].orders == ["kill"]
    rig.workers[0].die()
    await rest()
    assert first.done()
    assert again.done()


async def test_a_second_stop_hurries_the_closing_of_workers_too(make_rig):
    rig = await make_rig(obedient=False).start()
    await rig.stopping(30.0)
    assert rig.workers[0].orders == ["close"]
    await rig.stopping(0)
    await rig.clock.advance(0)
    assert rig.workers[0].orders == ["close", "kill"]


async def test_a_second_stop_that_is_cancelled_hurries_nobody(make_rig):
    rig = await make_rig(obedient=False).start()
    await rig.call()
    await rig.stopping(30.0)
    again = await rig.stopping(5.0)
    again.cancel()
    await rig.clock.advance(10.0)
    assert rig.workers[0].orders == []


async def test_a_stop_outlives_the_caller_who_asked_for_it(make_rig):
    rig = await make_rig().start()
    call = await rig.call()
    stopping = await rig.stopping(30.0)
    stopping.cancel()
    await rest()
    assert rig.engine.state is State.DRAINING
    rig.workers[0].answer()
    await rest()
    assert call.done
    assert rig.engine.state is State.STOPPED


async def test_a_worker_that_dies_during_the_drain_is_started_again_for_what_it_held(make_rig):
    rig = await make_rig().start()
    call = await rig.call()
    await rig.stopping(30.0)
    rig.workers[0].die()
    await rig.clock.advance(0)
    rig.workers[1].become_ready()
    await rest()
    rig.workers[1].answer([b"again"])
    assert call.ends == [b"again"]


async def test_a_stage_that_fails_during_the_drain_lets_nobody_wait(make_rig):
    rig = await make_rig().start()
    call = await rig.call()
    await rig.stopping(30.0)
    for _ in range(6):
        rig.workers[-1].die()
        await rig.clock.advance(1.0)
    assert "has failed" in str(call.error)


async def test_a_stop_that_is_cut_off_abandons_the_workers(make_rig):
    rig = await make_rig(obedient=False).start()
    call = await rig.call()
    await rig.stopping(30.0)
    rig.engine._stop_task.cancel()
    await rest()
    assert rig.workers[0].orders == ["abandon"]
    assert rig.engine.state is State.STOPPED
    assert isinstance(call.error, NotReady)


async def test_a_stop_before_the_start_and_after_the_end_does_nothing(make_rig):
    rig = make_rig()
    await rig.engine.stop()
    await rig.start()
    await rig.stop()
    await rig.engine.stop()
    assert rig.engine.state is State.STOPPED


# -- abandon ----------------------------------------------------------------------------------------------------------


async def test_an_abandoned_engine_is_stopped_at_once_and_tells_everybody_in_the_next_turn(make_rig):
    rig = await make_rig(obedient=False).start()
    call = await rig.call()
    rig.engine.abandon()
    assert rig.workers[0].orders == ["abandon"]
    assert rig.engine.state is State.STOPPED
    assert not call.done
    await rest()
    assert isinstance(call.error, NotReady)


async def test_a_drain_ends_when_the_engine_is_abandoned(make_rig):
    rig = await make_rig(obedient=False).start()
    await rig.call()
    stopping = await rig.stopping(30.0)
    rig.engine.abandon()
    await rest()
    assert stopping.done()


async def test_a_start_ends_when_the_engine_is_abandoned(make_rig):
    rig = make_rig()
    starting = await rig.begin()
    rig.engine.abandon()
    await rest()
    assert isinstance(reached(starting), StartFailed)


async def test_an_engine_whose_loop_is_closed_can_be_abandoned(make_rig):
    rig = make_rig()
    rig.engine._loop = asyncio.new_event_loop()
    rig.engine._loop.close()
    rig.engine.abandon()
    assert rig.engine.state is State.STOPPED


async def test_an_engine_that_was_never_started_can_be_abandoned(make_rig):
    rig = make_rig()
    rig.engine.abandon()
    assert rig.engine.state is State.STOPPED


# -- what it says while it starts -------------------------------------------------------------------------------------


async def test_it_says_which_stages_load_and_since_when(make_rig):
    rig = make_rig(spec(name="a", workers=2), spec(name="b"))
    assert (rig.engine.loading, rig.engine.reason) == ([], "")
    starting = await rig.begin()
    await rig.clock.advance(12.5)
    assert rig.engine.reason == "a is loading (2 of 2 workers), 12 s; b is loading, 12 s"
    rig.workers[0].become_ready()
    rig.workers[2].become_ready()
    await rest()
    # It serves by now, and its start waits for the second worker.
    assert (rig.engine.state, rig.engine.reason) == (State.READY, "")
    assert [str(loading) for loading in rig.engine.loading] == ["a is loading (1 of 2 workers), 12 s"]
    rig.workers[1].become_ready()
    await starting
    assert (rig.engine.loading, rig.engine.reason) == ([], "")


async def test_a_start_that_is_tried_again_says_why_and_counts_from_the_first(make_rig):
    rig = make_rig(spec(name="M"))
    await rig.begin()
    await rig.clock.advance(5.0)
    rig.workers[0].die("signal SIGKILL")
    await rig.clock.advance(1.0)
    assert rig.engine.reason == (
        "M is loading, 6 s; the last attempt failed: worker 0 of stage 'M' ended before it was ready: signal SIGKILL"
    )


# -- who wants to know of batches --------------------------------------------------------------------------------------


async def test_each_batch_is_told_with_its_worker_and_the_ids_of_its_requests(make_rig):
    rig = await make_rig(spec(batch=Batch(max_size=4)), spec(name="second")).start()
    told = []
    rig.engine.watch_batches(lambda kill, ids: told.append((kill.__self__, ids)))
    rig.submit(request_id=b"a")
    rig.submit(request_id=b"b")
    await rig.call(request_id=b"job", lane=Lane.BACK)
    assert told == [(rig.engine.stages[0].workers[0], [b"a", b"b"])]
    rig.workers[0].answer()
    await rest()
    assert told[1] == (rig.engine.stages[1].workers[0], [b"a"])
