"""What a worker process tells of its threads when it is asked, whatever they are doing."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

from waiting import until

import penstock as ps


class Crowd(ps.Stage):
    """Has more threads than one dump tells of."""

    def setup(self) -> None:
        self.over = threading.Event()
        for _ in range(150):
            threading.Thread(target=self.over.wait, daemon=True).start()

    def predict(self, x: Any) -> Any:
        return self.hold_the_interpreter() if x == "hold" else x

    def hold_the_interpreter(self) -> int:
        return sum(range(10**12))


class Signalled(ps.Stage):
    """Has a handler of its own for the signals that are a stage's."""

    def setup(self) -> None:
        self.came = []
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, _: self.came.append(number))

    def predict(self, x: Any) -> list[int]:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.raise_signal(number)
        return self.came


async def stacks(service):
    (text,) = (await service.engine.worker_stacks()).values()
    return text


async def test_the_main_thread_is_told_first_though_it_keeps_the_interpreter_among_150_others():
    async with ps.Service(Crowd) as service:
        call = asyncio.ensure_future(service.predict("hold"))
        await until(lambda: service.engine.stages[0].in_flight)
        text = ""
        while "hold_the_interpreter" not in text:
            text = await asyncio.wait_for(stacks(service), 20)
        assert text.index("in hold_the_interpreter") < 1000
        assert len(text) <= 64 * 1024
        call.cancel()
        await service.stop(drain_timeout=0)


async def test_an_idle_worker_tells_its_stacks_again_and_again_and_works_on():
    async with ps.Service(Crowd) as service:
        for _ in range(3):
            assert "in work\n" in await stacks(service)
            assert await service.predict(1) == 1


async def test_a_stage_keeps_the_signals_of_users():
    async with ps.Service(Signalled) as service:
        assert "in work\n" in await stacks(service)
        assert await service.predict(1) == [signal.SIGUSR1, signal.SIGUSR2]


async def test_a_worker_that_has_ended_tells_nothing():
    service = ps.Service(Crowd)
    async with service:
        pass
    assert await service.engine.worker_stacks() == {}


async def test_a_thread_of_this_process_tells_nothing():
    async with ps.Service(echo, inline=True) as service:
        assert await service.engine.worker_stacks() == {}


def echo(x: Any) -> Any:
    return x
