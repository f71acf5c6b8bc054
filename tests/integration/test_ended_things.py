"""Things that have ended leave no memory behind that only the cycle collector would free: servers have made it rare.

Each test lets many of a kind live and end without the collector.  By day it counts what the collector frees then, by
night how much the process has grown after 1 000 lives.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import stages
import uvloop
from attaching import Peer
from waiting import until

import penstock as ps
from night import NIGHT
from penstock import jobs
from penstock.client import AsyncClient, Client
from penstock.config import ServerOptions
from penstock.core.state import State
from penstock.hosting.freed_memory import resident_bytes
from penstock.hosting.loop_clock import LoopClock
from penstock.server.app import App
from penstock.server.http1.listener import Listener
from penstock.transport.framing import Kind, encode_answers
from redis_server import private_redis

MOST_LEFT_BYTES = 8192
"""That each life may leave behind."""


def forget_late_callbacks(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Let go of what asyncio reports of anyio's `Future.set_result(None)`, which may come after the call was cancelled.

    The report refers to the error, and the error's frame to the report: 200 KB that only the collector frees.
    """
    if "Future.set_result(None)" in context["message"]:
        context.clear()
    else:
        loop.default_exception_handler(context)


async def left_behind(life, lives: int) -> float:
    """How many bytes each of `lives` leaves behind while the cycle collector does not run.

    By day it is what the collector frees then; what grows once, as caches do, is so not counted.  The collector also
    frees the interpreter's lists of free objects, which may be some 25 KB: of few lives that would be much for each.
    """
    asyncio.get_running_loop().set_exception_handler(forget_late_callbacks)
    warming, lives = (100, 1000) if NIGHT else (1, lives)
    for _ in range(warming):
        await life()
    gc.collect()
    gc.disable()
    try:
        if not NIGHT:
            tracemalloc.start()
        before = resident_bytes()
        for _ in range(lives):
            await life()
        left = resident_bytes() - before
        if not NIGHT:
            before = tracemalloc.get_traced_memory()[0]
            gc.collect()
            left = before - tracemalloc.get_traced_memory()[0]
        return left / lives
    finally:
        tracemalloc.stop()
        gc.enable()


@contextmanager
def failing(kind: type[Exception]) -> Iterator[None]:
    """As `pytest.raises`, whose context refers to itself."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"there was no {kind.__name__}")


# -- workers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", [False, True], ids=["process", "thread"])
@pytest.mark.timeout(1800)
async def test_a_worker_of_ours_leaves_nothing_behind(inline):
    service = ps.Service(ps.stage(stages.Echo), inline=inline)
    async with service:
        (worker,) = service.engine.stages[0].workers

        async def life():
            restarts = worker.restarts
            worker.recycle("its time is up")
            await until(lambda: worker.restarts > restarts and worker.ready, "the next worker")
            assert await service.predict(3) == 3

        assert await left_behind(life, 8) <= MOST_LEFT_BYTES


def attach(path, end: str) -> None:
    """Be a worker from outside that comes to this `end`."""
    peer = Peer(socket.socket(socket.AF_UNIX))
    peer.sock.connect(path)
    if end == "speaks the old protocol":
        peer.sock.sendall(bytes(4))
        assert peer.sock.recv(4)
    else:
        peer.control(Kind.HELLO, {"codecs": ["json", "msgpack"]})
        peer.message(Kind.LAUNCH)
        if end == "cannot be set up":
            peer.control(Kind.FAILED, {"type": "E", "message": "no model"})
            peer.ended()
        else:
            peer.control(Kind.READY)
            batch = peer.expect(Kind.BATCH)
            if end == "sends junk":
                peer.sock.sendall(b"junk" * 16)
                peer.expect(Kind.FAILED)
            elif end != "dies at work":
                peer.send(encode_answers(batch.frame_id, 0.0, 1, batch.ids, [b"\x05"], [0]))
                if end == "leaves":
                    peer.control(Kind.DETACH)
                    peer.ended()
    peer.close()


@pytest.mark.parametrize("loop", [asyncio, uvloop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    "end", ["leaves", "closes", "dies at work", "cannot be set up", "sends junk", "speaks the old protocol"]
)
def test_a_worker_from_outside_leaves_nothing_behind(tmp_path, end, loop):
    service = ps.Service(ps.remote("e", item=int, result=int), remote_worker_socket=str(tmp_path / "w"))
    dies = end in ("dies at work", "sends junk", "speaks the old protocol")

    async def life():
        workers = service.engine.stages[0].workers
        attached = asyncio.create_task(asyncio.to_thread(attach, str(tmp_path / "w"), end))
        if end != "cannot be set up":
            await until(lambda: service.state is State.READY, "the worker")
            call = asyncio.create_task(service.predict(3))
            if dies:
                await attached
                call.cancel()
            else:
                assert await call == 5
        await attached
        await until(lambda: not workers, "its end")

    async def run():
        async with service:
            return await left_behind(life, 16)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop is uvloop else None) as runner:
        assert runner.run(run()) <= MOST_LEFT_BYTES


# -- connections and clients ----------------------------------------------------------------------------------------


async def raw(url: str) -> None:
    reader, writer = await asyncio.open_unix_connection(url.removeprefix("http+unix://"))
    writer.write(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\nconnection: close\r\n\r\n3")
    assert (await reader.read()).endswith(b"3")
    writer.close()


async def asynchronous(url: str) -> None:
    async with AsyncClient(url) as client:
        assert await client.predict(3) == 3


async def asynchronous_that_fails(url: str) -> None:
    async with AsyncClient(url) as client:
        with failing(ps.InvalidItem):
            await client.predict("x")
        with failing(ps.InvalidItem):
            await client.predict_many([3, "x", "y"], batch_size=1)


async def asynchronous_that_finds_nobody(url: str) -> None:
    async with AsyncClient(f"{url}-not", max_retries=0) as client:
        with failing(ps.PenstockError):
            await client.predict_many([3, "x", 4], batch_size=1)


async def asynchronous_that_is_closed(url: str) -> None:
    async with AsyncClient(url) as client:
        call = asyncio.create_task(client.predict(3))
        await asyncio.sleep(0)
    await asyncio.wait([call])
    assert isinstance(call.exception(), ps.Cancelled)


async def synchronous(url: str) -> None:
    def live():
        with Client(url) as client:
            assert client.predict(3) == 3
            with failing(ps.InvalidItem):
                client.predict("x")

    await asyncio.to_thread(live)


@pytest.mark.parametrize(
    "client",
    [
        raw,
        asynchronous,
        asynchronous_that_fails,
        asynchronous_that_finds_nobody,
        asynchronous_that_is_closed,
        synchronous,
    ],
)
async def test_a_client_and_its_connection_to_the_server_leave_nothing_behind(tmp_path, client):
    service = ps.Service(ps.stage(stages.Typed), inline=True)
    options = ServerOptions(uds=str(tmp_path / "s"))
    app = App([service], options, LoopClock())
    listener = Listener(app, options, app.clock)
    async with service:
        await listener.start()
        try:
            assert await left_behind(lambda: client(f"http+unix://{tmp_path / 's'}"), 64) <= MOST_LEFT_BYTES
        finally:
            await listener.close(0)


# -- queues ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "redis"])
def url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'q.db'}"
    else:
        with private_redis() as server:
            yield server.url


async def test_a_connection_to_a_queue_leaves_nothing_behind(url):
    async def life():
        with jobs.connect(url) as queue:
            queue.cancel(queue.submit(3))
            with failing(jobs.JobNotFound):
                queue.retry("none")

    assert await left_behind(life, 16) <= MOST_LEFT_BYTES


async def test_a_connection_to_a_queue_for_event_loops_leaves_nothing_behind(url):
    threads = threading.active_count()

    async def life():
        async with jobs.connect_async(url) as queue:
            with failing(jobs.JobNotFound):
                await queue.cancel("none")
        await until(lambda: threading.active_count() == threads, "the end of its threads")

    assert await left_behind(life, 16) <= MOST_LEFT_BYTES
