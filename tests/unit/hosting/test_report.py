"""What a host writes to the log when it is asked what it does."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace

import pytest

from penstock.core.state import State
from penstock.hosting import report as reporting
from penstock.hosting.report import report
from penstock.hosting.thread_stacks import FRAMES_PER_THREAD, STACKS_BYTES, stacks_of_threads


@pytest.fixture(autouse=True)
def log_seen(caplog):
    caplog.set_level("INFO", logger="penstock.server")


def service(stacks, name="orders"):
    engine = SimpleNamespace(state=State.READY, reason="", queued=3, held_bytes=0, stages=[], worker_stacks=stacks)
    return SimpleNamespace(name=name, version="", model_version=None, engine=engine, stages=[])


async def test_it_has_the_health_and_every_stack_of_coordinator_and_workers(caplog):
    async def stacks():
        return {"worker 0 of stage 'a' (pid 7)": "  File x, line 1 in predict"}

    later = SimpleNamespace(name="later", version="", model_version=None, engine=None)
    await report([service(stacks), later], 1.5, "SIGUSR1")
    health, own, worker = caplog.messages
    found = json.loads(health.removeprefix("SIGUSR1: health: "))
    assert (found["uptime"], found["services"]["orders"]["queued"]) == (1.5, 3)
    assert found["services"]["later"]["state"] == "starting"
    assert "\n" not in health
    assert own.startswith("SIGUSR1: the coordinator's threads:\nThread MainThread (most recent call first):\n  File")
    assert worker == "SIGUSR1: worker 0 of stage 'a' (pid 7) of service 'orders':\n  File x, line 1 in predict"


async def test_workers_that_do_not_tell_are_not_waited_for(caplog, monkeypatch):
    monkeypatch.setattr(reporting, "WORKERS_SECONDS", 0.0)
    await report([service(asyncio.Event().wait)], 0.0, "SIGUSR1")
    assert caplog.messages[-1] == "SIGUSR1: no stack traces from the workers of orders within 0 s"


def test_the_stack_of_each_thread_is_told_by_its_name():
    gate, there = threading.Event(), threading.Event()

    def wait_here():
        there.set()
        gate.wait()

    thread = threading.Thread(target=wait_here, name="the one that waits")
    thread.start()
    there.wait()
    try:
        text = stacks_of_threads()
    finally:
        gate.set()
        thread.join()
    part = text[text.index("Thread the one that waits (most recent call first):") :]
    assert part.splitlines()[1].startswith('  File "')
    assert ".wait_here" in part
    assert "test_the_stack_of_each_thread" in text


def test_of_a_deep_stack_the_innermost_frames_are_told():
    def deep(n):
        return deep(n - 1) if n else stacks_of_threads()

    text = deep(3 * FRAMES_PER_THREAD)
    assert text.count(".deep") == FRAMES_PER_THREAD - 1  # the frame that asks is the innermost
    assert "  ..." in text


async def test_of_long_stacks_the_middle_is_left_out(caplog):
    async def stacks():
        return {"worker 0": "first\n" + "é" * STACKS_BYTES + "\nlast\n"}

    await report([service(stacks)], 0.0, "SIGUSR1")
    _, text = caplog.messages[-1].split(":\n", 1)
    assert text.startswith("first\n")
    assert text.endswith("\nlast")
    assert STACKS_BYTES - 10 < len(text.encode()) <= STACKS_BYTES
