"""The event loop of a waiting stage from outside: who runs what, and what is left at the end."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from penstock.worker import attached_loop
from penstock.worker.attached_loop import AttachedLoop


@pytest.fixture
def after():
    """The threads in which it was asked whether the process is a fork."""
    return []


@pytest.fixture
def loop(after):
    opened = AttachedLoop("stage", lambda: after.append(threading.current_thread().name))
    yield opened
    opened.close()


async def here():
    return threading.current_thread().name, asyncio.get_running_loop(), asyncio.current_task()


def test_steps_run_one_after_the_other_in_one_task_of_another_thread(loop):
    first, second = loop.run(here()), loop.run(here())
    assert first == second
    assert first[0] == "penstock-loop"


def test_plain_calls_are_made_in_the_thread_that_waits_and_each_is_looked_at(loop, after):
    async def ask():
        return await loop.plain.make(threading.get_ident)

    assert loop.run(ask()) == (threading.get_ident(), None)
    assert after == [threading.current_thread().name, "penstock-loop"]


@pytest.mark.parametrize("error", [ValueError(), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_steps_raise_is_raised_where_they_are_waited_for(loop, error):
    async def fail():
        raise error

    with pytest.raises(type(error)) as raised:
        loop.run(fail())
    assert raised.value is error
    assert loop.run(here())[0] == "penstock-loop"


def test_a_task_of_the_stage_that_wants_to_end_the_process_ends_alone(loop, caplog):
    async def leave():
        raise SystemExit(3)

    async def begin():
        task = asyncio.create_task(leave())
        await asyncio.wait({task})
        assert isinstance(task.exception(), SystemExit)

    loop.run(begin())
    assert "raised SystemExit; the worker keeps running" in caplog.text
    assert loop.run(here())[0] == "penstock-loop"


def test_a_stage_that_cancels_every_task_ends_nothing_of_ours(loop):
    async def cancel_all():
        for task in asyncio.all_tasks():
            task.cancel()

    loop.run(cancel_all())
    assert loop.run(here())[0] == "penstock-loop"


def test_at_the_end_the_tasks_of_the_stage_are_cancelled(after):
    seen = []

    async def stay():
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    async def numbers():
        try:
            yield 1
        finally:
            seen.append("closed")

    async def begin():
        tasks.append(asyncio.create_task(stay()))
        tasks.append(numbers())
        await anext(tasks[1])

    tasks = []
    opened = AttachedLoop("stage", lambda: None)
    opened.run(begin())
    opened.close()
    assert sorted(seen) == ["cancelled", "closed"]
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-loop"]


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "swallows the cancel"])
def test_a_task_that_does_not_end_keeps_nobody(monkeypatch, blocks):
    monkeypatch.setattr(attached_loop, "LAST_TASKS_SECONDS", 0.05)
    over, begun = threading.Event(), threading.Event()

    async def stay():
        begun.set()
        if blocks:
            over.wait(20)
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def begin():
        tasks.append(asyncio.create_task(stay()))

    tasks = []
    opened = AttachedLoop("stage", lambda: None)
    opened.run(begin())
    assert begun.wait(20)
    opened.close()
    assert not tasks[0].done()
    tasks[0]._log_destroy_pending = False
    over.set()
    opened._thread.join(20)
