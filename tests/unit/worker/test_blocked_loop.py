"""What blocks the event loop of a waiting stage is named in the log."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

from penstock.worker import blocked_loop
from penstock.worker.stage import Stage
from waiting_coordinator import PATIENCE_SECONDS, Coordinator


class Told:
    """The lines of the log, which tests wait for."""

    def __init__(self):
        self.lines = []
        self.came = threading.Event()

    def warning(self, words, *arguments):
        self.lines.append(words % arguments)
        self.came.set()


@pytest.fixture
def told(monkeypatch):
    found = Told()
    monkeypatch.setattr(blocked_loop, "log", found)
    monkeypatch.setattr(blocked_loop, "BLOCKED_SECONDS", 0.05)
    monkeypatch.setattr(blocked_loop, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(blocked_loop, "MOST_SECONDS", 0.05)
    return found


class Blocks(Stage):
    """Waits in the loop until the log has told of it."""

    told: Told

    async def predict(self, x):
        await asyncio.sleep(0)
        return self.help(x)

    def help(self, x):
        assert self.told.came.wait(PATIENCE_SECONDS)
        return x


def test_what_blocks_is_named_once_with_its_line(told):
    Blocks.told = told
    worker = Coordinator(Blocks).started()
    for frame_id in (1, 2):
        worker.batch(frame_id, "a")
        assert worker.answers() == {frame_id: ["a"]}
    worker.close()
    (line,) = told.lines
    at = inspect.getsourcelines(Blocks.help)[1] + 1
    assert line.startswith("stage 'wait': the event loop was blocked for over ")
    assert f" s by `Blocks.predict`, at {__file__}:{at}, which stops all other items of this worker: " in line


def test_a_loop_that_waits_is_not_blocked_however_long(told):
    class Waits(Stage):
        async def setup(self):
            self.goes_on = asyncio.Event()

        async def predict(self, x):
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, lambda: self.looked(loop))
            await self.goes_on.wait()
            return x

        def looked(self, loop):
            told.came.wait(0.2)  # the watch looks twenty times meanwhile
            loop.call_soon_threadsafe(self.goes_on.set)

    worker = Coordinator(Waits).started()
    worker.batch(1, "a")
    assert worker.answers() == {1: ["a"]}
    worker.close()
    assert told.lines == []


def test_a_watch_of_a_worker_with_nothing_to_do_sleeps(told):
    watch = blocked_loop.LoopWatch(Blocks(), "s")
    in_progress = {1: None}
    watch.begin(in_progress)
    watch.at_work.set()
    in_progress.clear()
    for _ in range(2000):
        if not watch.at_work.is_set():
            break
        threading.Event().wait(0.01)
    assert not watch.at_work.is_set()
    watch.end()
