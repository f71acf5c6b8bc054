"""Waiting stages with real workers, in process: every ending, for async stages, async batches and async hooks."""

from __future__ import annotations

import asyncio
import os
import threading

import httpx
import pytest
import waiting_stages as stages
from notes_and_gates import notes
from waiting import until

import penstock as ps

KINDS = [stages.AsyncItem, stages.AsyncBatch, stages.AsyncHooks]
every_kind = pytest.mark.parametrize("kind", KINDS)
everywhere = pytest.mark.parametrize("inline", [False, True], ids=["process", "inline"])


@pytest.fixture
def make(tmp_path):
    """Makes services of one waiting stage."""

    def service(kind, *, inline=False, options=None, **how):
        one = ps.stage(kind, setup={"folder": str(tmp_path)}, **how)
        return ps.Service(one, inline=inline, name="waits", **(options or {}))

    return service


def ran(folder, do):
    return [note for note in notes(folder / "ran") if note[0] == do]


@every_kind
@everywhere
async def test_each_caller_gets_an_answer_of_its_own_as_soon_as_it_is_there(kind, inline, make, tmp_path):
    async with make(kind, inline=inline, concurrency=8) as service:
        slow = asyncio.create_task(service.predict(("hold", "open", "slow")))
        await until(lambda: ran(tmp_path, "hold"))
        answers = await asyncio.gather(*(service.predict(("answer", i)) for i in range(200)))
        assert answers == list(range(200))
        assert not slow.done(), "a slow one holds up nobody"
        (tmp_path / "open").touch()
        assert await slow == "slow"
    assert notes(tmp_path / "torn down") == [0]


async def test_a_function_may_wait_too(make):
    async with ps.Service(ps.stage(stages.double, name="double")) as service:
        assert await asyncio.gather(*(service.predict(i) for i in range(100))) == [i * 2 for i in range(100)]
        assert service.engine.stages[0].concurrency == 64


async def test_as_many_items_are_in_progress_as_the_stage_says_and_no_more(make, tmp_path):
    async with make(stages.AsyncItem, concurrency=5) as service:
        held = [asyncio.create_task(service.predict(("hold", "open", i))) for i in range(12)]
        await until(lambda: len(ran(tmp_path, "hold")) == 5)
        assert service.engine.stages[0].queued == 7
        (tmp_path / "open").touch()
        assert await asyncio.gather(*held) == list(range(12))


@every_kind
@everywhere
async def test_what_an_item_raises_fails_that_item_alone(kind, inline, make):
    async with make(kind, inline=inline) as service:
        items = [("answer", 1), ("raise", "weights"), ("refuse",), ("answer", 2)]
        answers = await service.predict_many(items, return_exceptions=True)
        assert (answers[0], answers[3]) == (1, 2)
        assert answers[1].is_a(RuntimeError)
        assert answers[1].message == "no weights"
        assert "waiting_stages.py" in answers[1].traceback
        assert "penstock/worker" not in answers[1].traceback
        assert type(answers[2]) is ps.InvalidItem
        with pytest.raises(ps.InvalidItem, match="not today"):
            await service.predict(("return",))


@every_kind
@everywhere
async def test_what_cancels_itself_fails_and_the_worker_goes_on(kind, inline, make):
    async with make(kind, inline=inline) as service:
        with pytest.raises(ps.StageFailed) as caught:
            await service.predict(("cancel itself",))
        assert caught.value.is_a(asyncio.CancelledError)
        assert await service.predict(("answer", 3)) == 3


@every_kind
@everywhere
async def test_the_task_of_a_caller_who_leaves_is_cancelled_and_no_other(kind, inline, make, tmp_path):
    async with make(kind, inline=inline, concurrency=8) as service:
        leaver = asyncio.create_task(service.predict(("hold", "never", 1)))
        await until(lambda: len(ran(tmp_path, "hold")) == 1)
        stayer = asyncio.create_task(service.predict(("hold", "open", 2)))
        await until(lambda: len(ran(tmp_path, "hold")) == 2)
        leaver.cancel()
        await until(lambda: notes(tmp_path / "cancelled") == [["hold", "never", 1]])
        (tmp_path / "open").touch()
        assert await stayer == 2
        await until(lambda: service.engine.stages[0].in_flight == 0)
        assert service.engine.counters.cancelled == 1


@every_kind
@everywhere
async def test_the_task_of_an_item_whose_deadline_passes_is_cancelled(kind, inline, make, tmp_path):
    async with make(kind, inline=inline) as service:
        with pytest.raises(ps.DeadlineExceeded):
            await service.predict(("hold", "never", 1), timeout=1.0)
        await until(lambda: notes(tmp_path / "cancelled"))
        await until(lambda: service.engine.stages[0].in_flight == 0)


async def test_what_swallows_its_cancellation_keeps_its_place_until_it_ends(make, tmp_path):
    async with make(stages.AsyncItem, concurrency=1) as service:
        leaver = asyncio.create_task(service.predict(("swallow", "open")))
        await until(lambda: ran(tmp_path, "swallow"))
        leaver.cancel()
        behind = asyncio.create_task(service.predict(("answer", 1)))
        await until(lambda: service.engine.counters.cancelled == 1)
        assert service.engine.stages[0].in_flight == 1
        assert not ran(tmp_path, "answer")
        (tmp_path / "open").touch()
        assert await behind == 1


async def test_what_swallows_its_cancellation_for_ever_is_abandoned_and_its_mates_run_again(make, tmp_path):
    async with make(stages.AsyncItem, orphan_timeout=0.3) as service:
        leaver = asyncio.create_task(service.predict(("swallow", "never")))
        await until(lambda: ran(tmp_path, "swallow"))
        mate = asyncio.create_task(service.predict(("hold", "open", 2)))
        await until(lambda: ran(tmp_path, "hold"))
        leaver.cancel()
        await until(lambda: len(ran(tmp_path, "hold")) == 2)
        (tmp_path / "open").touch()
        assert await mate == 2
        counters = service.engine.stages[0].counters
        assert (counters.orphan_kills, counters.retried) == (1, 0)


@every_kind
@everywhere
async def test_a_batch_that_takes_too_long_fails_and_its_worker_goes_on(kind, inline, make, tmp_path):
    async with make(kind, inline=inline, timeout=1.0) as service:
        pid = await service.predict(("pid",))
        with pytest.raises(ps.StageFailed) as caught:
            await service.predict(("hold", "never", 1))
        assert caught.value.is_a(TimeoutError)
        assert notes(tmp_path / "cancelled") == [["hold", "never", 1]]
        assert await service.predict(("pid",)) == pid


@every_kind
async def test_who_dies_once_costs_each_item_in_progress_a_second_try(kind, make, tmp_path):
    async with make(kind, concurrency=8) as service:
        held = [asyncio.create_task(service.predict(("hold", "open", i))) for i in range(3)]
        await until(lambda: len(ran(tmp_path, "hold")) == 3)
        dead = asyncio.create_task(service.predict(("die once", "alive")))
        await until(lambda: (tmp_path / "died").exists())
        (tmp_path / "open").touch()
        assert await asyncio.gather(dead, *held) == ["alive", 0, 1, 2]
        assert service.engine.stages[0].counters.retried == 4


async def test_of_64_in_progress_the_one_that_kills_again_is_lost_alone_and_none_runs_three_times(make, tmp_path):
    async with make(stages.AsyncItem, concurrency=64, workers=2) as service:
        items = [asyncio.create_task(service.predict(("hold", "open", i))) for i in range(127)]
        await until(lambda: len(ran(tmp_path, "hold")) == 127)
        poison = asyncio.create_task(service.predict(("die",)))
        await until(lambda: service.engine.stages[0].counters.retried)
        (tmp_path / "open").touch()
        answers = await asyncio.gather(*items)
        assert answers == list(range(127))
        with pytest.raises(ps.WorkerLost, match="alone"):
            await poison
        times = [0] * 127
        for _, _, i in ran(tmp_path, "hold"):
            times[i] += 1
        assert max(times) <= 2
        assert len(ran(tmp_path, "die")) == 2


@everywhere
async def test_hooks_of_the_next_item_run_while_predict_computes(inline, make, tmp_path):
    async with make(stages.Overlapping, inline=inline, concurrency=2) as service:
        assert await asyncio.gather(service.predict(1), service.predict(2)) == [1, 2]


async def test_a_plain_predict_runs_in_the_main_thread_of_its_worker(make, tmp_path):
    async with make(stages.AsyncHooks) as service:
        await asyncio.gather(*(service.predict(("answer", i)) for i in range(20)))
    assert set(notes(tmp_path / "thread")) == {True}


@every_kind
@everywhere
async def test_each_task_is_told_its_own_requests_and_so_are_tasks_that_it_starts(kind, inline, make):
    app = ps.asgi(make(kind, inline=inline, concurrency=64))
    transport = httpx.ASGITransport(app=app)
    async with app.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        names = [f"request-{i}" for i in range(64)]
        posts = [client.post("/predict", json=["requests"], headers={"X-Request-ID": name}) for name in names]
        answers = [answer.json() for answer in await asyncio.gather(*posts)]
        if kind is stages.AsyncBatch:  # a batch's call is told all of its requests
            assert all(name in each for name, answer in zip(names, answers, strict=True) for each in answer)
        else:
            assert answers == [[[name]] * 3 for name in names]


@every_kind
@everywhere
async def test_over_asgi_items_end_as_over_http(kind, inline, make, tmp_path):
    app = ps.asgi(make(kind, inline=inline))
    transport = httpx.ASGITransport(app=app)
    async with app.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://x") as client:

        async def post(*item, **headers):
            answer = await client.post("/predict", json=item, headers=headers)
            return answer.status_code

        slow = asyncio.create_task(post("hold", "open", 1))
        await until(lambda: ran(tmp_path, "hold"))
        assert await asyncio.gather(post("answer", 1), post("raise", "x"), post("refuse")) == [200, 500, 422]
        assert await post("hold", "never", "late", **{"X-Request-Timeout": "1.0"}) == 504
        await until(lambda: notes(tmp_path / "cancelled") == [["hold", "never", "late"]])
        (tmp_path / "open").touch()
        assert await slow == 200


@every_kind
@everywhere
async def test_each_task_is_told_what_time_it_has_left(kind, inline, make):
    async with make(kind, inline=inline) as service:
        left = await asyncio.gather(*(service.predict(("remaining",), timeout=20.0 + i) for i in range(20)))
    for i, each in enumerate(left):
        assert any(19.0 + i < seconds <= 20.0 + i for seconds in each)


async def test_without_an_await_a_coroutine_is_no_result(make):
    async with ps.Service(stages.Forgetful) as service:
        with pytest.raises(ps.StageFailed, match=r"`await`"):
            await service.predict(1)


async def test_a_child_that_comes_back_from_predict_ends(make):
    async with make(stages.Forks) as service:
        assert await service.predict(1) == 256, "the exit status of a worker whose coordinator has gone"
        assert await service.predict(1) == 256


async def test_an_event_loop_within_one_is_refused_by_asyncio_and_fails_the_item():
    async with ps.Service(stages.Nests) as service:
        with pytest.raises(ps.StageFailed, match=r"asyncio.run\(\) cannot be called from a running event loop"):
            await service.predict(1)


async def test_a_drain_waits_for_what_is_in_progress_and_then_cancels_it(make, tmp_path):
    service = make(stages.AsyncItem)
    await service.start()
    fast = asyncio.create_task(service.predict(("hold", "open", 1)))
    await until(lambda: ran(tmp_path, "hold"))
    slow = asyncio.create_task(service.predict(("hold", "never", 2)))
    await until(lambda: len(ran(tmp_path, "hold")) == 2)
    stopping = asyncio.create_task(service.stop(drain_timeout=3.0))
    (tmp_path / "open").touch()
    assert await fast == 1
    with pytest.raises(ps.NotReady):
        await slow
    await stopping
    assert notes(tmp_path / "cancelled") == [["hold", "never", 2]]


@pytest.mark.parametrize("rounds", [50, pytest.param(1000, marks=pytest.mark.night)])
async def test_callers_who_leave_again_and_again_leave_no_task_thread_or_descriptor(rounds, make):
    async with make(stages.AsyncItem, concurrency=9) as service:
        stage = service.engine.stages[0]
        before = [await service.predict((what,)) for what in ("threads", "descriptors", "tasks")]
        for i in range(rounds):
            leavers = [asyncio.create_task(service.predict(("hold", "never", i))) for _ in range(8)]
            await until(lambda: stage.in_flight == 8)
            for leaver in leavers:
                leaver.cancel()
            await until(lambda: stage.in_flight == 0)
        assert [await service.predict((what,)) for what in ("threads", "descriptors", "tasks")] == before
        assert service.engine.counters.cancelled == 8 * rounds


async def test_threads_of_an_inline_service_end_with_it(make, tmp_path):
    async with make(stages.AsyncItem, inline=True) as service:
        assert await service.predict(("pid",)) == os.getpid()
    await until(lambda: not [thread for thread in threading.enumerate() if "penstock" in thread.name])
