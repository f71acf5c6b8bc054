"""A flood of one tenant beside quiet ones, and two floods of different weights, in virtual time."""

from __future__ import annotations

import math
from random import Random

import pytest

from night import histories
from penstock.config import Batch
from penstock.core.outcome import Result
from penstock.errors import Overloaded
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest

RUN, SIZE, STEP = 0.050, 8, 0.005
CAPACITY = SIZE / RUN
"""Items a second."""
SECONDS = histories(20)


class Load:
    """Arrivals of several tenants at one worker that takes `RUN` seconds for a batch of any size."""

    def __init__(self, rig, rates, seed):
        self.rig = rig
        self.rates = rates
        self.random = Random(seed)
        self.came = {}
        self.waits = {name: [] for name in rates}
        self.served = dict.fromkeys(rates, 0)
        self.refused = dict.fromkeys(rates, 0)
        self.displaced = dict.fromkeys(rates, 0)
        self.busy = 0
        self._due = {name: rig.clock.now() + self.random.expovariate(rate) for name, rate in rates.items()}
        self._frame = None
        self._left = 0

    async def play(self, seconds):
        steps = round(seconds / STEP)
        for _ in range(steps):
            self._arrive()
            await rest()
            await self._work()
            await self.rig.clock.advance(STEP)
        self.busy /= steps

    def _arrive(self):
        now = self.rig.clock.now()
        for name, rate in self.rates.items():
            while self._due[name] <= now:
                self._due[name] += self.random.expovariate(rate)
                label = b"%d" % len(self.came)
                self.came[label] = name, now
                try:
                    self.rig.engine.submit((label,), 1, 1, math.inf, self._told(name), tenant=name)
                except Overloaded:
                    self.refused[name] += 1

    def _told(self, name):
        def done(outcomes):
            if isinstance(outcomes[0], Result):
                self.served[name] += 1
            elif getattr(outcomes[0].error, "reason", "") == "preempted":
                self.displaced[name] += 1

        return done

    async def _work(self):
        worker = self.rig.workers[0]
        if self._frame is not None:
            self._left -= 1
            if self._left == 0:
                worker.answer()
                self._frame = None
                await rest()
        if self._frame is None and worker.frames:
            self._frame, self._left = worker.frames[0], round(RUN / STEP)
            for label in worker.batches[0]:
                name, came = self.came[label]
                self.waits[name].append(self.rig.clock.now() - came)
        self.busy += self._frame is not None


async def finish(rig):
    while rig.workers[0].frames:
        rig.workers[0].answer()
        await rest()


@pytest.mark.timeout(240)  # at night each takes 4 s of CPU, and three times as many where branches are counted
async def test_a_flood_neither_refuses_nor_delays_those_who_stay_below_half_their_share(make_rig):
    rig = await make_rig(stage(math.sqrt, batch=Batch(max_size=SIZE)), max_in_flight=100).start()
    quiet = [f"quiet{n}" for n in range(4)]
    load = Load(rig, {"flood": 3 * CAPACITY, **dict.fromkeys(quiet, 0.45 * CAPACITY / 5)}, seed=3)
    await load.play(SECONDS)
    for name in quiet:
        assert load.refused[name] == 0
        assert load.displaced[name] == 0
        assert max(load.waits[name]) <= 3 * RUN + STEP, "three batches, and the step of this test"
        assert len(load.waits[name]) > 10 * SECONDS
    assert load.busy >= 0.98
    assert load.refused["flood"] > 0
    assert sum(load.served.values()) >= 0.98 * CAPACITY * SECONDS
    await finish(rig)
