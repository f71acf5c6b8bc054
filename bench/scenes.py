"""The pieces of Penstock that a request passes, each set up alone and timed with the others held still.

A scene takes a `Watch`, prepares its objects, and laps what it is about.  Code of Penstock is the real one; what
stands around it does nothing: a transport that takes every byte, an application that only remembers, a worker that
is a list of frames.  `CROWD` connections with one request each are the bench's load.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from echo import Echo, service
from floor import FloorProtocol
from payload import BODY, NUMBER, request
from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import ItemEncoder
from penstock.codec.formats import Codec
from penstock.config import ServerOptions, StageOptions
from penstock.core.outcome import Outcome, Result
from penstock.hosting.loop_clock import LoopClock
from penstock.runtime.engine import Engine
from penstock.runtime.incarnation import IncarnationOwner, WorkerStart
from penstock.server.app import App
from penstock.server.application import HttpRequest, Reply, Response
from penstock.server.http1.connection import Connection
from penstock.server.http1.connections import Connections
from penstock.testing.fake_workers import FakeIncarnation
from penstock.transport.framing import Frame, FrameDecoder
from penstock.worker.runner import Runner
from watch import Watch

CROWD = 256
BATCH = 32
REPEATED = request("/predict", 8000)
NUMBERED = request("/predict", 8000, numbered=True)
JSON = b"application/json"


class Sink(asyncio.Transport):
    """A transport that takes every answer and sends it nowhere."""

    def write(self, data: Any) -> None:
        """Forget `data`."""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class Remembering:
    """An application that keeps the requests it is given."""

    def __init__(self) -> None:
        self.handled: list[tuple[HttpRequest, Reply]] = []

    def admit(self, request: HttpRequest) -> Response | None:
        request.id = b"0123456789ab-1"
        return None

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        self.handled.append((request, reply))

    def cancel(self, request: HttpRequest) -> None:
        """Nothing was begun."""

    def refuse(self, status: int, detail: str, request: HttpRequest | None = None) -> Response:  # noqa: ARG002
        raise AssertionError(f"the bench's request was refused: {status} {detail}")

    def hold(self, request: HttpRequest | None, nbytes: int) -> None:
        """Nothing is counted."""

    def hold_answer(self, request: HttpRequest | None, nbytes: int) -> None:
        """Nothing is counted."""

    def answers_overfull(self, request: HttpRequest | None) -> bool:  # noqa: ARG002
        return False

    def any_answers_overfull(self) -> bool:
        return False

    def answered(self, request: HttpRequest, status: int, nbytes: int) -> None:
        """Nothing is counted."""


def read(decoder: FrameDecoder, buffers: list[Any]) -> list[Frame]:
    """The frames in `buffers`, put where a socket would put them."""
    data = b"".join(buffers)
    decoder.get_buffer()[: len(data)] = data
    return decoder.advance(len(data))


class ListedWorker(FakeIncarnation):
    """A fake worker that keeps each batch in `sent` as it came, unread: reading it is a hop of its own."""

    def __init__(self, owner: IncarnationOwner, start: WorkerStart) -> None:
        super().__init__(owner, start)
        self.owner = owner
        self.sent: list[list[Any]] = []

    @classmethod
    async def start_ready(cls, owner: IncarnationOwner, start: WorkerStart) -> ListedWorker:
        """Start one that says it is ready as soon as its start has returned."""
        made = cls(owner, start)
        asyncio.get_running_loop().call_soon(made.become_ready)
        return made

    def send(self, buffers: list[Any]) -> None:
        if self.launch is None:
            super().send(buffers)
        else:
            self.sent.append(buffers)


@asynccontextmanager
async def running_engine() -> AsyncIterator[tuple[Engine, ListedWorker]]:
    """The echo's engine, started, with a worker that is a list."""
    workers: list[ListedWorker] = []

    async def start_incarnation(owner: IncarnationOwner, start: WorkerStart) -> ListedWorker:
        workers.append(await ListedWorker.start_ready(owner, start))
        return workers[0]

    engine = Engine(
        service.name, service.stages, service.options, clock=LoopClock(), start_incarnation=start_incarnation
    )
    await engine.start()
    try:
        yield engine, workers[0]
    finally:
        await engine.stop(drain=0)


def echo_runner() -> Runner:
    """What the echo's worker runs batches with."""
    return Runner(
        Echo(),
        name="echo",
        batched=True,
        options=StageOptions(),
        decoder=ItemDecoder(list[float]),
        encoder=ItemEncoder(list[float]),
        now=lambda: 0.0,
    )


# -- scenes ---------------------------------------------------------------------------------------------------------


async def floor(watch: Watch) -> None:
    """The floor's own work: llhttp and one write."""
    protocols = []
    for _ in range(CROWD):
        protocol = FloorProtocol()
        protocol.connection_made(Sink())
        protocol.data_received(REPEATED)
        protocols.append(protocol)
    with watch.lap("floor", CROWD):
        for protocol in protocols:
            protocol.data_received(REPEATED)


def crowd(app: Any) -> list[Connection]:
    """Open connections to `app`."""
    shared = Connections(app, ServerOptions(), LoopClock())
    opened = [Connection(shared) for _ in range(CROWD)]
    for each in opened:
        each.connection_made(Sink())
    return opened


async def connection(watch: Watch) -> None:
    """Bytes to a request, and a response to bytes."""
    for name, numbered in (("repeated", False), ("new", True)):
        app = Remembering()
        wires = [NUMBERED.replace(NUMBER, b"%010d" % i) if numbered else REPEATED for i in range(CROWD)]
        connections = crowd(app)
        with watch.lap(f"read, {name} head", CROWD):
            for each, wire in zip(connections, wires, strict=True):
                each.data_received(wire)
        with watch.lap("write", CROWD):
            for _, reply in app.handled:
                reply(Response(200, JSON, memoryview(BODY)))


class HostedEcho:
    """The echo as `App` sees it, before an engine of the scene's own."""

    def __init__(self, engine: Any) -> None:
        self.name, self.options, self.stages = service.name, service.options, service.stages
        self.version = ""
        self.engine = engine

    async def start(self) -> None:
        """It is started already."""

    async def stop(self, *, drain_timeout: float) -> None:
        """The scene stops its engine."""


class WaitingEngine:
    """An engine that only remembers whom to tell."""

    def __init__(self) -> None:
        self.done: list[Callable[[list[Outcome]], None]] = []

    def refusal(self, *_: Any) -> None:
        return None

    def submit(self, *request: Any, **_more: Any) -> None:
        self.done.append(request[4])


async def app(watch: Watch) -> None:
    """What the application does with a request before the engine has it, and with its outcome."""
    engine = WaitingEngine()
    judge = App([HostedEcho(engine)], ServerOptions(), LoopClock())
    reader = Remembering()
    for each in crowd(reader):
        each.data_received(REPEATED)
    requests = [request for request, _ in reader.handled]
    outcomes: list[Outcome] = [Result(memoryview(BODY))]
    with watch.lap("admit", CROWD):
        for each in requests:
            judge.admit(each)
    with watch.lap("handle", CROWD):
        for each in requests:
            judge.handle(each, _forget)
    with watch.lap("answer", CROWD):
        for done in engine.done:
            done(outcomes)
    with watch.lap("count", CROWD):
        for each in requests:
            judge.answered(each, 200, len(BODY))


def _forget(_: Any) -> None:
    """Nobody waits."""


async def engine_and_worker(watch: Watch) -> None:
    """From `submit` to `done`, by way of a worker that is run in between."""
    async with running_engine() as (engine, worker):
        runner, at_worker, at_engine = echo_runner(), FrameDecoder(), FrameDecoder()
        clock = LoopClock()
        n = 2 * BATCH  # what a worker may hold: one running, one prefetched
        for _ in range(CROWD // n):
            deadline = clock.now() + 60
            with watch.lap("submit", n):
                for _ in range(n):
                    engine.submit((BODY,), Codec.JSON, Codec.JSON, deadline, _forget)
            with watch.lap("cut and send", n):
                await asyncio.sleep(0)
            for buffers in worker.sent:
                with watch.lap("worker reads", BATCH):
                    (frame,) = read(at_worker, buffers)
                with watch.lap("worker in all", BATCH):
                    answers = runner.run(frame)
                with watch.lap("coordinator reads", BATCH):
                    (answered,) = read(at_engine, answers)
                with watch.lap("settle", BATCH):
                    worker.owner.frame_received(answered)
            worker.sent.clear()


async def worker_parts(watch: Watch) -> None:
    """The parts of a worker's work that are not the runner's own."""
    decoder, encoder, stage = ItemDecoder(list[float]), ItemEncoder(list[float]), Echo()
    payloads = [memoryview(BODY) for _ in range(BATCH)]
    with watch.lap("decode", BATCH):
        values = [decoder.decode(Codec.JSON, payload) for payload in payloads]
    with watch.lap("predict", BATCH):
        results = stage.predict(values)
    with watch.lap("encode", BATCH):
        for result in results:
            encoder.encode(Codec.JSON, result)


async def whole_way(watch: Watch) -> None:
    """All of it in one piece, without a socket: what the coordinator does for a request."""
    async with running_engine() as (engine, worker):
        connections = crowd(App([HostedEcho(engine)], ServerOptions(), LoopClock()))
        runner, at_worker, at_engine = echo_runner(), FrameDecoder(), FrameDecoder()
        for begin in range(0, CROWD, 2 * BATCH):
            some = connections[begin : begin + 2 * BATCH]
            with watch.lap("way in", len(some)):
                for each in some:
                    each.data_received(REPEATED)
                await asyncio.sleep(0)
            answers = [runner.run(*read(at_worker, buffers)) for buffers in worker.sent]
            worker.sent.clear()
            with watch.lap("way out", len(some)):
                for buffers in answers:
                    for frame in read(at_engine, buffers):
                        worker.owner.frame_received(frame)


SCENES = (floor, connection, app, engine_and_worker, worker_parts, whole_way)
