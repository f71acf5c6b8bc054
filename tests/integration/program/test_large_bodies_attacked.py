"""Large bodies beside clients that behave badly, and through deaths of workers and of the server itself.

At the end of each test nothing is held of the shared memory.
"""

from __future__ import annotations

import os
import random
import signal

import pytest
from large_clients import HELD, LARGE, SERVICES, ask, checked, load, nothing_is_held, post, samples, with_slabs
from served import request, serving
from waiting import until_now

ANNOUNCED = request("POST", "/predict", Content_Type="application/octet-stream").replace(
    b"Content-Length: 0", b"Content-Length: 16777216"
)
"""The head of a request with 16 MiB: two of them are half of 64 MiB."""
KILLS = 6


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory):
    """It waits two seconds for what is missing of a body."""
    options = ("--shm-bytes", str(64 << 20), "--body-timeout", "2")
    with serving(tmp_path_factory.mktemp("strict"), *options, source=SERVICES) as server:
        yield server


@pytest.fixture
def strict(strict_server):
    """The same server, of which nothing may be held at the end."""
    yield strict_server
    strict_server.until(lambda: nothing_is_held(strict_server.wire), "nothing to be held")


@pytest.fixture(scope="module")
def chain_server(tmp_path_factory):
    """It has two stages, the first of which passes arrays on."""
    with serving(tmp_path_factory.mktemp("chain"), source=SERVICES, services=("two",)) as server:
        yield server


@pytest.fixture
def chain(chain_server):
    """The same server, of which nothing may be held at the end."""
    yield chain_server
    chain_server.until(lambda: nothing_is_held(chain_server.wire), "nothing to be held")


def worker(server, stage: int) -> int:
    """The process of the worker of a stage, once it takes batches."""

    def ready():
        (service,) = server.health()["services"].values()
        (found,) = list(service["stages"].values())[stage]["workers"]
        return found["pid"] if found["state"] in ("idle", "busy") else None

    return server.until(ready, "a worker to be ready")


def test_who_announces_much_and_sends_little_takes_no_room_from_a_good_client(strict):
    with load(strict.wire, 1) as good:
        announcing = [strict.wire().send(ANNOUNCED + b"x") for _ in range(300)]
        strict.until(lambda: samples(strict.wire)["inline moved"] > 0, "one to make way")
        seen = good.statuses[200]
        strict.until(lambda: good.statuses[200] > seen + 20, "the good client to be served")
    assert set(good.statuses) == {200}
    for wire in announcing[:100]:
        wire.drop()
    assert {wire.answer().status for wire in announcing[100:]} == {408}
    assert samples(strict.wire)["inline full"] >= 200, "no more than two of them fit into half of the memory"


def test_a_slow_body_that_makes_way_is_whole_all_the_same(tmp_path):
    options = ("--shm-bytes", str(16 << 20), "--body-timeout", "20")
    slow_bytes = 8 << 20  # all that may be announced at a time
    with serving(tmp_path, *options, source=SERVICES) as server:
        for first in (1, 100_000, 3_000_000):
            moved = samples(server.wire)["inline moved"]
            data = post(first, slow_bytes)
            slow = server.wire().send(data[: len(data) - slow_bytes + first])
            server.until(lambda: samples(server.wire)["used arrivals"] >= slow_bytes, "it to lie in shared memory")
            with load(server.wire, 2) as others:
                server.until(lambda moved=moved: samples(server.wire)["inline moved"] > moved, "it to make way")
                slow.send(data[len(data) - slow_bytes + first :])
                assert checked(slow.answer(), first, slow_bytes) == 200
            assert set(others.statuses) == {200}
        server.until(lambda: nothing_is_held(server.wire), "nothing to be held")


def test_who_leaves_half_way_or_stalls_leaves_nothing_behind(strict):
    rng = random.Random(14)
    whole = post(1)
    with load(strict.wire, 1) as good:
        for turn in range(60):
            wire = strict.wire().send(whole[: rng.randrange(1, len(whole))])
            if turn % 3 == 0:
                wire.drop()
            elif turn % 3 == 1:
                wire.close()  # the server reads its end
        stalled = [strict.wire().send(whole[: -rng.randrange(1, 500_000)]) for _ in range(20)]
        late = [strict.wire().send(whole).send(whole[:-1]) for _ in range(5)]
        strict.until(lambda: good.statuses[200] > 20, "the good client to be served")
    assert set(good.statuses) == {200}
    assert {wire.answer().status for wire in stalled} == {408}
    for wire in late:
        assert checked(wire.answer(), 1) == 200
        assert wire.answer().status == 408


def test_workers_are_killed_again_and_again_under_load(chain):
    with load(chain.wire, 16) as clients:
        for turn in range(KILLS):
            seen = clients.statuses[200]
            chain.until(lambda seen=seen, turn=turn: clients.statuses[200] > seen + 7 * turn, "answers between deaths")
            os.kill(worker(chain, turn % 2), signal.SIGKILL)
        assert [worker(chain, stage) > 0 for stage in (0, 1)] == [True, True]
        seen = clients.statuses[200]
        chain.until(lambda: clients.statuses[200] > seen + 100, "answers after the last death")
        clients.end()
    # An item is run once more after a death, unless that is its second; what waits meanwhile is not refused.
    assert set(clients.statuses) <= {200, 500}, clients.statuses
    assert clients.statuses[500] <= 16 * KILLS // 2


def test_a_result_is_whole_for_its_reader_though_its_worker_was_killed_and_another_writes(chain):
    (chain.folder / "pass").touch()
    held = chain.wire().send(post(HELD))
    chain.until((chain.folder / "reads").exists, "the second stage to read")
    os.kill(worker(chain, 0), signal.SIGKILL)
    after = [chain.wire().send(post(number)) for number in range(20)]
    chain.until(lambda: samples(chain.wire)["used Pass"] >= 9 * LARGE, "its successor to have written eight")
    chain.open_gate()
    assert [checked(wire.answer(), number) for number, wire in enumerate(after)] == [200] * 20
    assert checked(held.answer(), HELD) == 200


def test_a_server_that_is_killed_under_load_leaves_no_memory_and_a_new_one_starts(tmp_path):
    with serving(tmp_path, source=SERVICES, services=("two",)) as server:
        pids = [server.pid, *server.workers()]
        with load(server.wire, 16) as clients:
            server.until(lambda: clients.statuses[200] > 50, "load")
            assert with_slabs(pids) == pids
            server.signal(signal.SIGKILL)
        assert set(clients.statuses) == {200, 0}
        server.process.wait()
        until_now(lambda: not with_slabs(server.survivors()), "its memory to be gone")
    with serving(tmp_path, source=SERVICES, services=("two",)) as server:
        assert ask(server.wire, range(16)) == {200: 16}
        server.until(lambda: nothing_is_held(server.wire), "nothing to be held")
