"""Waiting stages for tests with real workers: async stages, async batches, and async hooks around a plain `predict`.

Worker processes import this module, so it needs nothing of the tests.  An item says what becomes of it, as a list or a
tuple of words: what to do, and with what.  Each stage has a folder, for its notes and gates.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from notes_and_gates import note

import penstock as ps

log = logging.getLogger("waiting")


class Waits(ps.Stage):
    """What these stages share."""

    async def setup(self, folder: str) -> None:
        self.folder = Path(folder)
        self.loop = asyncio.get_running_loop()
        self.tasks = 0

    async def teardown(self) -> None:
        assert self.loop is asyncio.get_running_loop()
        note(self.folder / "torn down", self.worker.index)

    async def open(self, gate: str) -> None:
        """Wait for a gate."""
        while not (self.folder / gate).exists():
            await asyncio.sleep(0.002)

    async def obey(self, item: Any) -> Any:
        """Do what an item says."""
        assert self.loop is asyncio.get_running_loop()
        do, *more = item
        note(self.folder / "ran", [do, *more])
        self.tasks += 1
        try:
            return await self._do(do, more)
        except asyncio.CancelledError:
            note(self.folder / "cancelled", [do, *more])
            raise
        finally:
            self.tasks -= 1

    async def _do(self, do: str, more: list[Any]) -> Any:
        match do:
            case "answer":
                return more[0]
            case "tasks":
                return self.tasks
            case "pid":
                return os.getpid()
            case "threads":
                return sorted(thread.name for thread in threading.enumerate())
            case "descriptors":
                return len(list(Path("/proc/self/fd").iterdir()))
            case "hold":
                await self.open(more[0])
                return more[-1]
            case "raise":
                raise RuntimeError(f"no {more[0]}")
            case "refuse":
                raise ps.InvalidItem("not today")
            case "return":
                return ps.InvalidItem("not today")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "die once":
                if not (self.folder / "died").exists():
                    (self.folder / "died").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return more[0]
            case "swallow":
                while not (self.folder / more[0]).exists():
                    with contextlib.suppress(asyncio.CancelledError):
                        await self.open(more[0])
                return "too late"
            case "cancel itself":
                raise asyncio.CancelledError
            case "requests":
                inside = asyncio.create_task(self._requests())
                before = ps.current_requests()
                await asyncio.sleep(0)
                return [list(before), list(ps.current_requests()), await inside]
            case "say":
                await asyncio.sleep(0.001)
                print(more[0])  # noqa: T201  # what a stage prints is marked too
                log.warning("%s", more[0])
                return await self._do("requests", [])
            case "remaining":
                return self.worker.remaining()
        raise AssertionError(do)

    async def _requests(self) -> list[str]:
        await asyncio.sleep(0.001)
        return list(ps.current_requests())


class AsyncItem(Waits):
    """One item a frame."""

    async def predict(self, x: Any) -> Any:
        return await self.obey(x)


class AsyncBatch(Waits):
    """What one item raises, the batch raises."""

    batch = ps.Batch(max_size=4, max_wait=0.0)

    async def predict(self, xs: list[Any]) -> list[Any]:
        note(self.folder / "batches", len(xs))
        return list(await asyncio.gather(*(self.obey(x) for x in xs)))


class AsyncHooks(Waits):
    """Obeys in `preprocess`, beside a plain `predict`."""

    batch = ps.Batch(max_size=4, max_wait=0.0)

    async def preprocess(self, x: Any) -> Any:
        return await self.obey(x)

    def predict(self, xs: list[Any]) -> list[Any]:
        note(self.folder / "thread", threading.current_thread() is threading.main_thread())
        return xs

    async def postprocess(self, y: Any) -> Any:
        await asyncio.sleep(0)
        return y


class Overlapping(Waits):
    """`predict` of the first batch waits until hooks of the second have run: they overlap, or it never ends."""

    async def preprocess(self, x: int) -> int:
        if x == 2:
            (self.folder / "second").touch()
        return x

    def predict(self, x: int) -> int:
        while not (self.folder / "second").exists():
            time.sleep(0.002)
        return x


async def double(x: int) -> int:
    """A function that waits."""
    await asyncio.sleep(0)
    return x * 2


class Forgetful(ps.Stage):
    """Its `predict` is no `async def`, and gives a coroutine all the same."""

    async def setup(self) -> None:
        pass

    def predict(self, x: int) -> Any:
        return double(x)


class Nests(ps.Stage):
    """Starts an event loop within one."""

    async def predict(self, x: int) -> int:
        other = double(x)
        try:
            return asyncio.run(other)
        finally:
            other.close()


class Forks(ps.Stage):
    """Its plain `predict` comes back twice: in its worker, and in a child, which notes that it is there."""

    async def setup(self, folder: str) -> None:
        self.folder = Path(folder)

    def predict(self, x: int) -> int:
        child = os.fork()
        if child:
            note(self.folder / "children", child)
            return os.waitpid(child, 0)[1]
        return x
