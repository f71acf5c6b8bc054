"""Large bodies over HTTP, each with its own number and answered with its digest, beside clients that behave badly.

At the end of each test nothing is held of the shared memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from served import request, run, serving
from waiting import until_now

SOURCE = """
import hashlib
import numpy as np
import penstock as ps

class Digest(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, bodies: list[memoryview]) -> list[bytes]:
        return [hashlib.sha256(body).hexdigest().encode() for body in bodies]

class Back(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, bodies: list[memoryview]) -> list[memoryview]:
        return bodies

class Pass(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, bodies: list[memoryview]) -> list[np.ndarray]:
        return [np.frombuffer(body, np.uint8) for body in bodies]

class DigestArray(Digest):
    def predict(self, arrays: list[np.ndarray]) -> list[bytes]:
        return super().predict(arrays)

service = ps.Service(Digest, name="digest")
back = ps.Service(Back, name="back")
two = ps.Service(Pass, DigestArray, name="two")
"""
LARGE = 600_000
RAW = "application/octet-stream"


def body_of(number: int, nbytes: int = LARGE) -> bytes:
    """A body that no other number has: each 16 bytes of it name the number."""
    return b"%015d," % number * (nbytes // 16)


def digest_of(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def post(client: httpx.Client, body: bytes, path: str = "/predict") -> httpx.Response:
    return client.post(path, content=body, headers={"Content-Type": RAW})


def ask_many(server, numbers, path: str = "/predict", nbytes: int = LARGE) -> list[httpx.Response]:
    """Send a body for each number from eight threads; every answer of 200 is held to its digest."""
    clients = threading.local()

    def ask(number: int) -> httpx.Response:
        if not hasattr(clients, "own"):
            clients.own = server.client(limits=httpx.Limits(max_connections=1))
        body = body_of(number, nbytes)
        answer = post(clients.own, body, path)
        assert answer.status_code != 200 or answer.content == digest_of(body), "another body's digest"
        return answer

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(ask, numbers))


def nothing_is_held(server) -> bool:
    """Whether no memory has a piece in use, and no bytes are held."""
    return (
        server.metric("penstock_slab_bytes") > 0
        and server.metric("penstock_slab_used_bytes") == 0
        and server.metric("penstock_slab_kept_bytes") == 0
        and server.metric("penstock_held_bytes") == 0
    )


@pytest.mark.parametrize("where", [("--port", "0"), ("--uds", "s")], ids=["tcp", "unix"])
def test_each_body_gets_the_digest_of_its_own_bytes(tmp_path, where):
    place = ("--uds", str(tmp_path / "s")) if where[0] == "--uds" else where
    with serving(tmp_path, source=SOURCE, where=place, services=("service", "two")) as server:
        for path in ("/digest/predict", "/two/predict"):
            assert {a.status_code for a in ask_many(server, range(60), path)} == {200}
        assert {a.status_code for a in ask_many(server, range(60), "/two/predict", 65_536)} == {200}
        server.until(lambda: nothing_is_held(server))
        assert server.metric("penstock_slab_inline_total") == 0


def test_large_and_small_requests_may_be_pipelined_and_cut_anywhere(tmp_path):
    with serving(tmp_path, source=SOURCE) as server:
        sizes = [LARGE, 16, 100_000, 65_536, 4_096, 16, 16, 1_000_000, 32]
        bodies = [body_of(n, nbytes) for n, nbytes in enumerate(sizes)]
        wave = b"".join(request("POST", "/predict", body, Content_Type=RAW) for body in bodies)
        for cut in (len(wave), 70_000, 9_973):
            wire = server.wire()
            sender = threading.Thread(
                target=lambda wire=wire, cut=cut: [
                    wire.sock.sendall(wave[at : at + cut]) for at in range(0, len(wave), cut)
                ]
            )
            sender.start()
            for body in bodies:
                assert wire.answer().body == digest_of(body)
            sender.join()
            wire.close()
        server.until(lambda: nothing_is_held(server))


def test_an_expectation_and_a_head_hold_nothing_by_themselves(tmp_path):
    with serving(tmp_path, source=SOURCE) as server:
        body = body_of(7)
        head, _ = request("POST", "/predict", body, Content_Type=RAW, Expect="100-continue").split(b"\r\n\r\n", 1)
        wire = server.wire().send(head + b"\r\n\r\n")
        assert wire.answer(to_head=True).status == 100
        assert server.metric("penstock_slab_used_bytes") == 0
        wire.send(body)
        assert wire.answer().body == digest_of(body)
        refused = request("POST", "/predict", b"", Content_Type="text/html", Content_Length_Too="1")
        assert server.wire().send(refused).answer().status == 415
        server.until(lambda: nothing_is_held(server))


def test_bad_clients_beside_a_good_one(tmp_path):
    options = ("--slab-bytes", str(64 << 20), "--body-timeout", "3")
    with serving(tmp_path, *options, source=SOURCE) as server:
        announced = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: %b\r\nContent-Length: 16000000\r\n\r\nx"
        bad = [server.wire().send(announced % RAW.encode()) for _ in range(200)]
        assert {answer.status_code for answer in ask_many(server, range(100))} == {200}
        half = request("POST", "/predict", body_of(1), Content_Type=RAW)[:300_000]
        leavers = [server.wire().send(half) for _ in range(20)]
        for wire in leavers:
            wire.drop()
        assert {answer.status_code for answer in ask_many(server, range(100, 160))} == {200}
        assert bad[0].answer().status == 408
        for wire in bad:
            wire.drop()
        server.until(lambda: nothing_is_held(server))


def test_where_there_is_no_room_bodies_go_inline_and_are_right(tmp_path):
    with serving(tmp_path, "--slab-bytes", str(1 << 20), source=SOURCE) as server:
        assert {answer.status_code for answer in ask_many(server, range(100))} == {200}
        assert server.metric("penstock_slab_inline_total", reason="full") > 0
        server.until(lambda: nothing_is_held(server))


def test_without_shared_memory_the_answers_are_the_same(tmp_path):
    with serving(tmp_path, "--slab-bytes", "0", source=SOURCE, services=("two",)) as server:
        assert {answer.status_code for answer in ask_many(server, range(30))} == {200}
        assert server.metric("penstock_slab_bytes") == 0


def test_more_than_the_machine_has_is_refused_at_the_start(tmp_path):
    (tmp_path / "model.py").write_text(SOURCE)
    status, output = run(tmp_path, "serve", "model:service", "--port", "0", "--slab-bytes", str(1 << 50))
    assert status != 0
    assert f"slab_bytes={1 << 50}" in output


def test_workers_are_killed_again_and_again(tmp_path):
    with serving(tmp_path, source=SOURCE, services=("two",)) as server:
        for turn in range(6):
            victim = server.until(lambda turn=turn: ready_worker(server, turn % 2), "both stages have a worker")
            timer = threading.Timer(0.02 * turn, os.kill, (victim, signal.SIGKILL))
            timer.start()
            answers = ask_many(server, range(turn * 40, turn * 40 + 40))
            timer.join()
            assert {answer.status_code for answer in answers} <= {200, 503}, "each is run once more, or was refused"
        server.until(lambda: ready_worker(server, 0) and ready_worker(server, 1))
        assert {answer.status_code for answer in ask_many(server, range(500, 540))} == {200}
        server.until(lambda: nothing_is_held(server))


def ready_worker(server, stage: int) -> int | None:
    """The process of the worker of this stage, once it takes batches."""
    (service,) = server.health()["services"].values()
    (worker,) = list(service["stages"].values())[stage]["workers"]
    return worker["pid"] if worker["state"] in ("idle", "busy") else None


def test_a_killed_server_leaves_no_memory_and_a_new_one_starts(tmp_path):
    with serving(tmp_path, source=SOURCE) as server:
        ask_many(server, range(20))
        workers = server.workers()
        assert mapping_slabs(workers) == workers
        half = request("POST", "/predict", body_of(1), Content_Type=RAW)[:300_000]
        server.wire().send(half)
        server.signal(signal.SIGKILL)
        server.process.wait(20)
        until_now(lambda: not mapping_slabs(workers), "the workers have ended")
    with serving(tmp_path, source=SOURCE) as server:
        assert {answer.status_code for answer in ask_many(server, range(20))} == {200}


def mapping_slabs(pids: list[int]) -> list[int]:
    """Those of the processes `pids` that map a slab."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if "memfd:penstock" in Path(f"/proc/{pid}/maps").read_text():
                found.append(pid)
    return found


def test_an_answer_that_is_read_slowly_or_not_at_all_is_free_when_its_client_is_gone(tmp_path):
    with serving(tmp_path, source=SOURCE, services=("back",)) as server:
        large = request("POST", "/predict", body_of(5, 8_000_000), Content_Type=RAW)
        slow, gone = server.wire(small_buffer=True), server.wire(small_buffer=True)
        for wire in (slow, gone):
            wire.send(large)
        server.until(lambda: server.metric("penstock_slab_used_bytes", memory="Back") > 0)
        gone.drop()
        assert slow.answer().body == body_of(5, 8_000_000)
        server.until(lambda: nothing_is_held(server))
