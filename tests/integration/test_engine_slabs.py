"""Large bodies in shared memory, with real workers: what is read is what was sent, and nothing is held at the end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import threading

import numpy as np
import pytest
from large_bodies import (
    LARGE,
    PARTS,
    STEPS,
    Around,
    Dying,
    Gated,
    Keeper,
    Picky,
    TellBatch,
    answer,
    ask,
    back,
    body,
    digest,
    held,
    part_of,
    scribble,
)
from notes_and_gates import notes
from processes import mapped_slabs, open_files
from served import PENSTOCK
from waiting import until, until_now

import penstock as ps
from penstock.codec import pickle_
from penstock.codec.encode import ItemEncoder
from penstock.codec.formats import Codec
from penstock.core.outcome import Result
from penstock.core.payload import handle_of, join_payload
from penstock.core.state import State

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")

PAGE = 4096
MEGABYTE = 1 << 20


def service(*stages, shm_bytes=16 * MEGABYTE, **options):
    return ps.Service(*stages, shm_bytes=shm_bytes, **options)


# -- what is sent is what is read -------------------------------------------------------------------------------------


async def test_many_bodies_at_once_are_each_answered_with_their_own_digest():
    bodies = [body(i, LARGE + 1000 * i) for i in range(60)]
    async with service(ps.stage(TellBatch, workers=2)) as running:
        assert await running.predict_many(bodies) == list(map(digest, bodies))
        assert await held(running) == []


async def test_a_large_result_is_right_in_each_format():
    given = {
        Codec.RAW: bytes(body(1)), Codec.NPY: body(1), Codec.JSON: "j" * LARGE, Codec.MSGPACK: ["m" * LARGE],
        Codec.PICKLE: [body(1), "p" * LARGE],
    }  # fmt: skip
    async with service(back) as running:
        for codec, value in given.items():
            outcome = await ask(running, bytes(join_payload(pickle_.dumps(value))), Codec.PICKLE, codec)
            assert isinstance(outcome, Result)
            assert handle_of(outcome.payload) is not None
            if codec is Codec.PICKLE:
                array, text = pickle_.loads(bytes(outcome.payload))
                assert (digest(array), text) == (digest(value[0]), value[1])
            else:
                assert bytes(outcome.payload) == bytes(join_payload(ItemEncoder(object).encode(codec, value)))
            assert [name for name, _, _ in await held(running)] == ["back"]
            del outcome
            assert await held(running) == []


async def test_results_are_their_callers_own():
    async with service(Around) as running:
        told, first = await running.predict(body(1))
        first[:] = 0
        assert await held(running) == []
        for i in range(2, 6):
            await running.predict(body(i))
        assert told == digest(body(1)[1:])
        assert not first.any()


def test_threads_may_call_at_once():
    wrong = []

    def call(blocking, share):
        for i in range(share, 60, 4):
            told, turned = blocking.predict(body(i, LARGE + 4096 * i))
            sent = body(i, LARGE + 4096 * i)[1:]
            if (told, digest(turned)) != (digest(sent), digest(sent ^ 255)):
                wrong.append(i)

    running = service(ps.stage(Around, workers=2))
    with running.blocking() as blocking:
        threads = [threading.Thread(target=call, args=(blocking, share)) for share in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until_now(lambda: not any(one.used_bytes for one in running.engine.slabs))
    assert wrong == []


async def test_large_items_are_bisected_from_where_they_lie():
    bodies = [body(1) + np.uint8(i) for i in range(8)]
    bodies[3][0] = 13
    async with service(Picky) as running:
        answers = await running.predict_many(bodies, return_exceptions=True)
        assert isinstance(answers[3], ps.StageFailed)
        for i in (0, 1, 2, 4, 5, 6, 7):
            assert digest(answers[i]) == digest(bodies[i] + 1)
        assert running.engine.counters.failed == 1
        assert await held(running) == []


# -- two stages -------------------------------------------------------------------------------------------------------


async def test_what_a_stage_passes_on_is_read_where_it_wrote_it():
    bodies = [body(i) for i in range(20)]
    async with service(ps.stage(back, workers=2), TellBatch) as running:
        assert await running.predict_many(bodies) == list(map(digest, bodies))
        assert [one.nbytes for one in running.engine.slabs] == [16 * MEGABYTE] * 3
        assert set(running.engine.inline_reasons.values()) == {0}
        assert await held(running) == []


async def test_a_result_stays_right_when_its_worker_dies_while_the_next_stage_reads_it(tmp_path):
    async with service(back, ps.stage(Gated, setup={"folder": str(tmp_path)})) as running:
        bodies = [body(i) for i in range(5)]
        first = asyncio.ensure_future(running.predict(bodies[0]))
        await until(lambda: notes(tmp_path / "ran"))
        worker = running.engine.stages[0].workers[0]
        os.kill(worker.pid, signal.SIGKILL)
        others = [asyncio.ensure_future(running.predict(one)) for one in bodies[1:]]
        await until(lambda: running.engine.stages[1].queued >= 3, "what the successor gave")
        (tmp_path / "open").touch()
        assert await asyncio.gather(first, *others) == list(map(digest, bodies))
        assert worker.restarts == 1
        assert await held(running) == []


# -- what a stage keeps -----------------------------------------------------------------------------------------------


async def test_what_a_stage_keeps_never_changes_and_is_free_once_it_lets_go(caplog):
    async with service(Keeper, shm_bytes=8 * MEGABYTE) as running:
        sent = [b"k" + bytes([part]) + bytes(body(part)) for part in range(len(PARTS))]
        for n, one in enumerate(sent):
            await answer(running, one, codec_out=Codec.JSON)
            ((name, used, kept),) = await held(running)
            assert (name, kept) == ("arrivals", (n + 1) * len(one))
            assert used >= kept
        expected = [digest(part_of(memoryview(one))) for one in sent]
        for i in range(100):
            told = await answer(running, b"t" + bytes(body(100 + i)), codec_out=Codec.JSON)
        assert told == ItemEncoder(list).encode(Codec.JSON, expected)
        await answer(running, b"d", codec_out=Codec.JSON)
        assert await held(running) == []
        await answer(running, sent[0], codec_out=Codec.JSON)
        assert running.engine.slabs[0].kept_bytes == len(sent[0])
    said = [record.getMessage() for record in caplog.records if "keeps views of its inputs" in record.getMessage()]
    assert [line.split(" keeps")[0] for line in said] == ["worker 0 of stage 'Keeper'"]


# -- workers that die -------------------------------------------------------------------------------------------------


async def test_a_stage_that_writes_to_its_input_dies_alone(caplog):
    async with service(ps.stage(scribble, workers=2)) as running:
        bodies = [body(i) for i in range(20)]
        stray = body(100)
        stray[0] = ord("w")
        calls = [asyncio.ensure_future(running.predict(one)) for one in (*bodies[:5], stray, *bodies[5:])]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers.pop(5), ps.WorkerLost)
        assert answers == list(map(digest, bodies))
        assert running.engine.counters.worker_lost == 1
        assert await held(running) == []
    assert len([record for record in caplog.records if "signal SIGSEGV" in record.getMessage()]) == 2


@pytest.mark.parametrize("two_stages", [False, True])
async def test_no_byte_of_one_request_is_in_another_wherever_workers_are_killed(tmp_path, two_stages):
    bodies = []
    for i in range(64):
        bodies.append(body(i, LARGE + 3000 * i))
        bodies[i][0] = i
        bodies[i][1] = STEPS.index(STEPS[i // 16]) if i % 16 == 7 else 255
    dying = ps.stage(Dying, workers=2, setup={"folder": str(tmp_path)})
    stages = (back, dying) if two_stages else (dying,)
    async with service(*stages, shm_bytes=4 * MEGABYTE) as running:
        answers = await running.predict_many(bodies, return_exceptions=True)
        lost = 0
        for i, found in enumerate(answers):
            if isinstance(found, ps.WorkerLost):  # it was with others who died, twice
                lost += 1
                continue
            told, turned = found
            assert told == digest(bodies[i]), i
            assert digest(turned) == digest(bodies[i] ^ 255), i
        assert lost <= len(STEPS)
        assert {path.name for path in tmp_path.iterdir()} == {f"{step} {16 * i + 7}" for i, step in enumerate(STEPS)}
        assert await held(running) == []


async def test_what_was_sent_to_a_worker_that_had_died_is_let_go_of_without_the_cycle_collector():
    async with service(back) as running:
        pid = running.engine.stages[0].workers[0].pid
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it is gone, and the coordinator has not noticed
        gc.disable()
        try:
            outcome = await ask(running, bytes(body(1)))
            assert digest(outcome.payload) == digest(body(1))
            del outcome
            assert await held(running) == []
        finally:
            gc.enable()
        assert running.engine.stages[0].workers[0].restarts == 1


# -- items that nobody waits for --------------------------------------------------------------------------------------


async def test_a_stop_in_the_midst_of_it_all_leaves_nothing(tmp_path):
    before, mapped = open_files(), mapped_slabs()
    running = service(back, ps.stage(Gated, setup={"folder": str(tmp_path)}))
    await running.start()
    calls = [asyncio.ensure_future(running.predict(body(i))) for i in range(8)]
    await until(lambda: notes(tmp_path / "ran"))
    await running.stop(drain=0)
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in found] == [ps.NotReady] * 8
    del calls, found
    assert running.engine.slabs == []
    assert mapped_slabs() <= mapped
    assert open_files() <= before


async def test_a_service_that_is_started_again_and_again_leaves_nothing_behind():
    running = service(back)
    before, mapped = open_files(), mapped_slabs()
    for i in range(4):
        async with running:
            result = await running.predict(body(i))
            assert digest(result) == digest(body(i))
        del result
        if not i:  # what is opened once is open
            before = open_files()
        assert open_files() <= before
        assert mapped_slabs() <= mapped


async def test_a_result_outlives_the_service():
    before, mapped = open_files(), mapped_slabs()
    running = service(back)
    await running.start()
    outcome = await ask(running, bytes(body(1)))
    assert handle_of(outcome.payload) is not None
    await running.stop()
    assert digest(outcome.payload) == digest(body(1))
    assert len(mapped_slabs() - mapped) == 1
    del outcome
    assert open_files() <= before
    assert mapped_slabs() <= mapped


# -- what does not lie in a slab --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"shm_bytes": 0}, {"shm_bytes": PAGE - 1}, {"inline": True}])
@pytest.mark.filterwarnings("ignore:service .* inline")
async def test_a_service_without_slabs_answers_the_same(options, caplog):
    before = mapped_slabs()
    async with service(back, TellBatch, **options) as running:
        assert running.engine.slabs == []
        assert running.engine.inline_reasons == {}
        assert mapped_slabs() <= before
        assert await running.predict_many([body(1), body(2)]) == [digest(body(1)), digest(body(2))]
    assert "shared memory" not in caplog.text


async def test_shm_threshold_is_the_least_that_lies_in_a_slab():
    shm_threshold = PAGE
    async with service(back, shm_threshold=shm_threshold) as running:
        for nbytes, lies in ((shm_threshold - 1, False), (shm_threshold, True)):
            data = bytes(body(1, nbytes))
            assert (running.engine.piece(nbytes) is not None) is lies
            outcome = await ask(running, data, Codec.RAW, Codec.RAW)
            assert (handle_of(outcome.payload) is not None) is lies
            assert bytes(outcome.payload) == data
            del outcome
        assert await held(running) == []
        assert set(running.engine.inline_reasons.values()) == {0}


# -- workers from outside ---------------------------------------------------------------------------------------------

MODEL = """
def turn(x: bytes) -> bytes:
    return bytes(reversed(x))
"""


@pytest.fixture
def outside(tmp_path):
    """Starts the worker from outside of stage `turn`."""
    (tmp_path / "model.py").write_text(MODEL)
    started = []

    def start():
        command = [*PENSTOCK, "worker", "model:turn", "--connect", str(tmp_path / "workers"), "--stage", "turn"]
        with (tmp_path / "log").open("ab") as log:
            started.append(subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log))

    start.socket = str(tmp_path / "workers")
    yield start
    for process in started:
        process.kill()
        process.wait(20)


@pytest.mark.parametrize("order", ["oeo", "e"])
async def test_workers_from_outside_get_and_give_everything_inline(outside, order):
    turn = ps.remote("turn", accepts=("raw",), item=bytes, result=bytes)
    made = [turn if kind == "e" else ps.stage(back, name=f"ours-{i}") for i, kind in enumerate(order)]
    running = ps.Service(*made, remote_worker_socket=outside.socket, shm_bytes=16 * MEGABYTE)
    await running.start()
    outside()
    await until(lambda: running.state is State.READY)
    data = bytes(body(1))
    assert await running.predict_many([data] * 3) == [data[::-1]] * 3
    names = [one.name for one in running.engine.slabs]
    assert names == (["arrivals"] if order[0] == "o" else []) + [f"ours-{i}" for i, k in enumerate(order) if k == "o"]
    assert names == [] or await held(running) == []
    await running.stop()


# -- forks ------------------------------------------------------------------------------------------------------------


async def test_a_fork_writes_over_nothing_of_its_parent(tmp_path):
    """It has a copy of the service, and of the map; its calls are refused."""
    async with service(ps.stage(Gated, setup={"folder": str(tmp_path)})) as running:
        calls = [asyncio.ensure_future(running.predict(body(i))) for i in range(3)]
        await until(lambda: notes(tmp_path / "ran"))
        pid = os.fork()
        if pid == 0:
            try:
                packed = [running._calls.pack(np.zeros(LARGE, np.uint8)) for _ in range(20)]
                os._exit(0 if all(handle_of(one) is None for one in packed) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        (tmp_path / "open").touch()
        assert await asyncio.gather(*calls) == [digest(body(i)) for i in range(3)]
        gc.collect()
        assert await held(running) == []
