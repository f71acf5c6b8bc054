"""Work that is asked for again and again."""

from __future__ import annotations

import asyncio

from penstock.hosting.chore import Chore
from penstock.testing.virtual_clock import rest


class Work:
    """Each run lasts until the test lets it end."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.gate = asyncio.Event()

    async def run(self) -> None:
        assert self.begun == self.ended, "two runs at a time"
        self.begun += 1
        await self.gate.wait()
        self.gate.clear()
        self.ended += 1


async def test_it_runs_each_time_it_is_asked():
    work = Work()
    chore = Chore(work.run)
    for n in (1, 2):
        chore.ask()
        await rest()
        assert (work.begun, work.ended) == (n, n - 1)
        work.gate.set()
        await rest()
        assert work.ended == n


async def test_asked_while_it_runs_it_runs_once_more_however_often_it_was_asked():
    work = Work()
    chore = Chore(work.run)
    for _ in range(5):
        chore.ask()
        await rest()
    for _ in range(3):
        work.gate.set()
        await rest()
    assert (work.begun, work.ended) == (2, 2)


async def test_a_cancelled_chore_is_left_undone_and_may_be_asked_again():
    work = Work()
    chore = Chore(work.run)
    chore.cancel()
    chore.ask()
    await rest()
    chore.ask()
    chore.cancel()
    await rest()
    assert (work.begun, work.ended) == (1, 0)


async def test_a_run_that_raises_is_logged_and_the_next_one_runs(caplog):
    runs = []

    async def work():
        runs.append(len(runs))
        if len(runs) == 1:
            raise RuntimeError("broken")

    chore = Chore(work)
    chore.ask()
    await rest()
    assert "RuntimeError: broken" in caplog.text
    chore.ask()
    await rest()
    assert runs == [0, 1]
