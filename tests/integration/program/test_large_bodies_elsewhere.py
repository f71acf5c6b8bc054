"""Large bodies that come to the service otherwise than by `penstock serve`: under uvicorn, under gunicorn, and as jobs.

Every answer is right, and nothing is held of the shared memory at the end.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys

import pytest
from large_clients import (
    HELD,
    RAW,
    SERVICES,
    ask,
    body_of,
    checked,
    digest_of,
    load,
    nothing_is_held,
    post,
    samples,
    see_held_body,
)
from served import PATIENCE_SECONDS, PENSTOCK, Program, Wire, request, write_module
from waiting import until_now

from penstock import jobs

APPS = """
asgi = ps.asgi([service, two])
wsgi = ps.wsgi([service, two])
"""
JOBS = 30
UVICORN = ("uvicorn", "model:asgi", "--port", "0", "--no-access-log")
GUNICORN = ("gunicorn", "model:wsgi", "-b", "127.0.0.1:0", "-k", "gthread", "--threads", "12")


def connecting_to(port):
    """Opens connections on which what is sent leaves at once."""

    def connect():
        sock = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Wire(sock)

    return connect


@pytest.fixture
def connect(tmp_path, command):
    """Opens connections to a server that somebody else has written; nothing is held at the end."""
    write_module(tmp_path, SERVICES + APPS)
    program = Program(tmp_path, sys.executable, "-m", *command)
    try:
        port = int(program.wait_for(r"(?:running on|Listening at:) http://127\.0\.0\.1:(\d+)")[1])

        connect = connecting_to(port)
        yield connect
        until_now(lambda: nothing_is_held(connect), "nothing to be held", context=lambda: program.output)
        program.process.terminate()
        assert program.wait() in (0, -signal.SIGTERM), program.output
        assert "Traceback" not in program.output, program.output
    finally:
        program.destroy()


@pytest.mark.parametrize("command", [UVICORN, GUNICORN], ids=["uvicorn", "gunicorn"])
def test_bodies_in_odd_parts_are_whole_beside_clients_that_leave(connect, tmp_path):
    rng = random.Random(14)
    assert ask(connect, range(20), "/digest/predict", connections=1) == {200: 20}
    with load(connect, 4, "/two/predict") as good:
        for number in range(40):
            data = post(number, path="/digest/predict")
            stop = len(data) if number % 2 else rng.randrange(300, len(data))
            wire = connect()
            at = 0
            while at < stop:
                part = min(rng.choice((1, 7, 4_095, 65_535, 65_536, 200_000)), stop - at)
                wire.send(data[at : at + part])
                at += part
            if number % 2:
                assert checked(wire.answer(), number) == 200
                wire.close()
            else:
                wire.drop()
        good.end()
    assert set(good.statuses) == {200}
    with contextlib.closing(connect()) as wire:
        wire.send(post(HELD, path="/two/predict"))
        see_held_body(connect, tmp_path)
        assert checked(wire.answer(), HELD) == 200
    shown = samples(connect)
    assert (shown["inline full"], shown["inline moved"], shown["inline chunked"]) == (0, 0, 0)


def test_large_inputs_and_results_of_jobs_lie_in_shared_memory_and_leave_nothing_there(tmp_path):
    write_module(tmp_path, SERVICES)
    url = f"sqlite:///{tmp_path}/q.db"
    flags = (
        "--queue-url",
        url,
        "--max-inline-bytes",
        "1000000",
        "--allow-input",
        f"file://{tmp_path}",
        "--retry-backoff",
        "0.01",
    )
    program = Program(tmp_path, *PENSTOCK, "consume", "model:back", "model:two", *flags, "--health-bind", "127.0.0.1:0")
    try:
        connect = connecting_to(int(program.wait_for(r"ready on http://\S+:(\d+)")[1]))
        with jobs.connect(url, max_inline_bytes=1_000_000) as queue:
            held = submit(queue, tmp_path, HELD, "two")
            see_held_body(connect, tmp_path)
            assert queue.result(held, timeout=PATIENCE_SECONDS) == digest_of(body_of(HELD))
            submitted = [submit(queue, tmp_path, number, "back") for number in range(JOBS)]
            assert queue.result(submitted[0], timeout=PATIENCE_SECONDS) == body_of(0)
            os.kill(worker_of(connect), signal.SIGKILL)
            for number, job in enumerate(submitted):
                assert queue.result(job, timeout=PATIENCE_SECONDS) == body_of(number)
        until_now(lambda: nothing_is_held(connect), "nothing to be held", context=lambda: program.output)
        assert samples(connect)["inline full"] == 0
        program.signal(signal.SIGTERM)
        assert program.wait() == 0, program.output
    finally:
        program.destroy()


def submit(queue, folder, number, service):
    """Submit the body of this number; each third one lies in a file."""
    raw = {"content_type": RAW, "accept": RAW, "service": service}
    if number % 3:
        return queue.submit(body_of(number), **raw)
    (folder / f"{number}.bin").write_bytes(body_of(number))
    return queue.submit(input_url=f"file://{folder}/{number}.bin", **raw)


def worker_of(connect) -> int:
    """The process of the worker of service `back`."""
    with contextlib.closing(connect()) as wire:
        services = wire.send(request("GET", "/health")).answer().json()["services"]
    return services["back"]["stages"]["Back"]["workers"][0]["pid"]
