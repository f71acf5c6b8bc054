"""A minute of everything at once: workers killed, clients that leave, bad input, load; every request is answered."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter

import pytest
from processes import descriptors, resident, running
from served import request, serving

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

SOURCE = """
import random
import time
import penstock as ps

class First(ps.Stage):
    batch = ps.Batch(max_size=8, max_wait=0.002)

    def predict(self, xs: list[int]) -> list[int]:
        if any(x % 97 == 5 for x in xs):
            raise ValueError("a bad number")
        time.sleep(random.random() * 0.002)
        return xs

class Second(ps.Stage):
    def predict(self, x: int) -> int:
        return x * 2

service = ps.Service(ps.stage(First, workers=2), ps.stage(Second, workers=2), name="chaos", max_queued=256)
"""
SECONDS = 60.0
GROWTH = 24 * 1024 * 1024
LOST, BUSY = 500, 503
"""A worker may be killed under an item twice; for a moment there may be none."""


class Chaos:
    """Threads that go on until it is over; whatever is not as it should be is noted."""

    def __init__(self, server):
        self.server = server
        self.statuses = Counter()
        self.kills = 0
        self.troubles = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        turns = [self.call] * 4 + [self.call_many] * 2 + [self.leave, self.err, self.kill]
        self._threads = [threading.Thread(target=self._go, args=(turn, seed)) for seed, turn in enumerate(turns)]

    def _go(self, turn, seed):
        chance = random.Random(seed)
        while not self._over.is_set():
            try:
                turn(chance)
            except (AssertionError, OSError, ValueError) as trouble:
                self.troubles.append(repr(trouble))

    def run(self, seconds):
        for thread in self._threads:
            thread.start()
        self._over.wait(seconds)
        self._over.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "somebody waits for ever"

    def count(self, status):
        with self._lock:
            self.statuses[status] += 1

    def call(self, chance):
        numbers = [chance.randrange(10_000) for _ in range(chance.choice([1, 1, 4, 16]))]
        with contextlib.closing(self.server.wire()) as wire:
            wire.send(b"".join(request("POST", "/predict", number) for number in numbers))
            for number in numbers:
                answer = wire.answer()
                self.count(answer.status)
                if number % 97 == 5:
                    assert answer.status in (500, 503), answer
                elif answer.status == 200:
                    assert answer.json() == number * 2
                else:
                    assert answer.status in (LOST, BUSY), answer

    def call_many(self, chance):
        numbers = [chance.randrange(10_000) for _ in range(chance.randrange(1, 400))]
        with contextlib.closing(self.server.wire()) as wire:
            answer = wire.send(request("POST", "/batch", numbers)).answer()
        self.count(answer.status)
        if answer.status == BUSY:
            return
        outcomes = answer.json()["outcomes"]
        assert len(outcomes) == len(numbers)
        for number, outcome in zip(numbers, outcomes, strict=True):
            if "result" in outcome:
                assert outcome["result"] == number * 2
                assert number % 97 != 5
            else:
                assert outcome["error"]["status"] in (LOST, BUSY)

    def leave(self, chance):
        whole = request("POST", chance.choice(["/predict", "/batch"]), [1, 2, 3])
        wire = self.server.wire().send(whole[: chance.randrange(1, len(whole) + 1)])
        chance.choice([wire.drop, wire.close])()
        self._over.wait(0.005)

    def err(self, chance):
        bad = chance.choice(
            [b"\x16\x03\x01nonsense\r\n\r\n", request("POST", "/predict", b"[" * 50_000), request("POST", "/x"),
             request("POST", "/predict", b"\xff"), request("POST", "/batch", b"[1,"), request("BREW", "/predict")]
        )  # fmt: skip
        with contextlib.closing(self.server.wire()) as wire:
            assert 400 <= wire.send(bad).answer().status < 504
        self._over.wait(0.005)

    def kill(self, chance):
        self._over.wait(chance.random())
        with contextlib.closing(self.server.wire()) as wire:
            health = wire.send(request("GET", "/health")).answer().json()
        stages = health["services"]["chaos"]["stages"].values()
        alive = [worker["pid"] for stage in stages for worker in stage["workers"] if worker["pid"]]
        if alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(alive), signal.SIGKILL)
                self.kills += 1


def test_a_minute_of_chaos_leaves_every_request_answered_and_nothing_behind(tmp_path, capsys):
    with serving(tmp_path, source=SOURCE) as server:
        files, memory = descriptors(server.pid), resident(server.pid)
        chaos = Chaos(server)
        started = time.monotonic()
        chaos.run(SECONDS)
        server.until(lambda: server.metric("penstock_items_in_hand") == 0, "everything to be settled")
        server.until(lambda: server.metric("penstock_stage_workers_up") == 4, "the workers to be up again", limit=60)
        accepted = server.metric("penstock_items_accepted_total")
        restarts = server.metric("penstock_stage_worker_restarts_total")
        assert accepted == server.metric("penstock_items_ended_total")
        assert server.metric("penstock_held_bytes") == 0
        workers = server.workers()
        server.hang_up()
        server.until(lambda: descriptors(server.pid) <= files + 1, "the descriptors to be given back")
        with capsys.disabled():
            print(  # noqa: T201  # the figures are what it is run for
                f"\n{sum(chaos.statuses.values())} answers {dict(chaos.statuses)}, {accepted:.0f} items, "
                f"{chaos.kills} kills, {restarts:.0f} restarts in {time.monotonic() - started:.0f} s; "
                f"MiB of the coordinator: {memory / 2**20:.1f} -> {resident(server.pid) / 2**20:.1f}"
            )
        assert chaos.troubles == []
        assert chaos.statuses[200] > 100
        assert chaos.kills > 20
        assert restarts >= chaos.kills * 0.9
        assert resident(server.pid) < memory + GROWTH
    assert not any(map(running, workers))
