"""Here belongs what the server makes of a request, once it is read: no socket, no process, no thread but a WSGI app's.

The fixtures are services whose engine is in memory and answers when a test says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.codec.annotations import Signature, signature
from penstock.codec.formats import Codec
from penstock.codec.schema import accepts, offers
from penstock.config import Batch, ServerOptions, ServiceOptions
from penstock.core.counters import ServiceCounters, StageCounters
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure, Result
from penstock.core.state import State, WorkerState
from penstock.errors import Cancelled, InvalidItem
from penstock.hosting.loop_clock import LoopClock
from penstock.runtime.caller_formats import pack_item
from penstock.runtime.spec import External
from penstock.server.app import App
from penstock.server.application import HttpRequest
from penstock.worker.stage import waiting_methods


class Echo:
    def predict(self, x: list[float]) -> list[float]:
        return x


@dataclass
class Submission:
    payloads: list[Any]
    codec_in: Any
    codec_out: Any
    deadline: float
    done: Any
    lane: Lane
    hold_results: bool = False
    request_id: bytes = b""
    settled: bool = False

    def settle(self, *outcomes: Any) -> None:
        """Bytes stand for a result, an exception for a failure; a second settling does nothing."""
        if not self.settled:
            self.settled = True
            self.done([Failure(o) if isinstance(o, Exception) else Result(o) for o in outcomes])


class FakeEngine:
    def __init__(self, options: ServiceOptions) -> None:
        self.options = options
        self.state = State.READY
        self.reason = ""
        self.counters = ServiceCounters()
        self.queued = 0
        self.backlog_seconds = 0.0
        self.held_bytes = 0
        self.answer_bytes = 0
        self.memory_short, self.memory_available = False, None
        self.slabs: list[Any] = []
        self.inline_reasons: dict[str, int] = {}
        self.refused: Exception | None = None
        self.full: Exception | None = None
        self.submissions: list[Submission] = []
        self.cancelled: list[Submission] = []
        self.arriving: list[Any] = []
        self.allowances: dict[str, Any] = {}
        self.refused_tenants: list[str] = []
        self.tenants: list[Any] = []
        self.answer: Any = None
        worker = SimpleNamespace(index=0, state=WorkerState.IDLE, pid=4711, restarts=2, busy_seconds=1.23456, reason="")
        worker.language = ""
        worker.device_memory = None
        stage = SimpleNamespace(name="echo", counters=StageCounters(), queued=3, in_flight=2, workers=[worker])
        stage.retry_in_seconds = None
        stage.progress_age = 0.0
        stage.hold_seconds, stage.held_seconds = 0.004, 1.5
        stage.max_size = 32
        self.stages = [stage]

    @property
    def accepting(self):
        return self.state.accepting

    def refusal(self, nbytes=0, deadline=math.inf, lane=Lane.SINGLE, urgency=3, tenant=""):
        self.asked_for = nbytes
        self.asked = (deadline, lane, urgency, tenant)
        return self.refused

    def submit(
        self,
        payloads,
        codec_in,
        codec_out,
        deadline,
        done,
        request_id=b"",
        urgency=3,
        tenant="",
        *,
        lane=Lane.SINGLE,
        nbytes=None,
        hold_results=False,
    ):
        if self.full is not None:
            raise self.full
        ticket = Submission(list(payloads), codec_in, codec_out, deadline, done, lane, hold_results, request_id)
        ticket.urgency, ticket.tenant = urgency, tenant
        self.submissions.append(ticket)
        if self.answer is not None:
            ticket.settle(*(self.answer(payload) for payload in payloads))
        return ticket

    def submit_probe(self, example, deadline, done, codec_out=None):
        if self.full is not None:
            raise self.full
        payload = pack_item(example)
        if isinstance(payload, InvalidItem):
            raise payload
        ticket = Submission([payload], Codec.PICKLE, codec_out or Codec.PICKLE, deadline, done, Lane.SINGLE)
        self.submissions.append(ticket)
        if self.answer is not None:
            ticket.settle(self.answer(payload))

    def watch_batches(self, sent):
        self.on_sent = sent

    def cancel(self, ticket):
        self.cancelled.append(ticket)
        ticket.settle(*(Cancelled() for _ in ticket.payloads))

    def allowance(self, tenant):
        return self.allowances.get(tenant)

    def note_refused(self, tenant):
        self.refused_tenants.append(tenant)

    def tenant_rows(self):
        return self.tenants

    def piece_for(self, body):
        self.arriving.append(body)
        return memoryview(bytearray(body.announced))

    def arrived(self, body):
        self.arriving.remove(body)

    def hold(self, nbytes):
        self.held_bytes += nbytes

    def hold_answer(self, nbytes):
        self.held_bytes += nbytes
        self.answer_bytes += nbytes

    @property
    def answers_overfull(self):
        return self.answer_bytes > self.options.max_queued_bytes


@dataclass
class FakeStage:
    name: str
    target: Any
    batch: Batch | None = None
    examples: list[Any] = field(default_factory=list)
    workers: int = 1
    external: Any = None
    concurrency: int = 0

    def gpus_of(self, worker):
        return (2,)

    def signature(self):
        if self.external is not None:
            return Signature(self.external.item, self.external.result)
        return signature(self.target, batched=self.batch is not None)

    def accepts(self):
        return accepts(self.signature().item) if self.external is None else frozenset(self.external.accepts)

    def offers(self):
        return offers(self.signature().result) if self.external is None else self.external.accepts


class FakeService:
    def __init__(
        self, target=Echo, *, last=None, name="echo", batch=None, examples=(), started=True, version="", **options
    ):
        self.name = name
        self.version = version
        self.model_version: int | None = None
        self.options = ServiceOptions(**options)
        self.stages = [self._stage("echo", target, batch, list(examples))]
        if last is not None:
            self.stages.append(self._stage("last", last))
        self.engine = FakeEngine(self.options) if started else None
        self.calls: list[Any] = []
        self.broken: Exception | None = None
        self.elsewhere: Exception | None = None

    @staticmethod
    def _stage(name, target, *rest):
        """A stage of ours, or one whose workers are external where `target` is an `External`."""
        if isinstance(target, External):
            return FakeStage(name, None, *rest, workers=0, external=target)
        return FakeStage(name, target, *rest, concurrency=64 if waiting_methods(target) else 0)

    async def start(self):
        self.calls.append("start")
        if self.broken is not None:
            raise self.broken
        self.engine = FakeEngine(self.options)
        self.engine.answer = bytes

    def check_process(self):
        if self.elsewhere is not None:
            raise self.elsewhere

    async def stop(self, *, drain_timeout):
        self.calls.append(("stop", drain_timeout))
        if self.engine is not None:
            self.engine.state = State.STOPPED


@dataclass
class Call:
    """One request through an app, and what became of it."""

    app: App
    request: HttpRequest
    replies: list[Any] = field(default_factory=list)
    refused: bool = False

    @property
    def response(self):
        assert len(self.replies) == 1, "exactly one reply"
        return self.replies[0]

    @property
    def status(self):
        return self.response.status

    @property
    def headers(self):
        return dict(self.response.headers)

    @property
    def json(self):
        body = self.response.body
        return msgspec.json.decode(b"".join(body) if isinstance(body, list) else body)


class StillClock:
    """A clock that shows what a test sets."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return self.seconds


class Fakes:
    Service = FakeService
    StillClock = StillClock

    def app(self, *services: FakeService, clock: Any = None, others: Any = (), jobs: Any = None, **options: Any) -> App:
        return App(services or (FakeService(),), ServerOptions(**options), clock or LoopClock(), others, jobs=jobs)

    def call(self, app, method="POST", path="/predict", body=b"[1.0]", arrived=None, **headers) -> Call:
        """Send a request as a carrier would: `content_type="…"` is the header ``content-type``."""
        fields = {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in headers.items()}
        target, _, query = path.encode().partition(b"?")
        arrived = app.clock.now() if arrived is None else arrived
        call = Call(app, HttpRequest(method, target, query, fields, arrived))
        refusal = app.admit(call.request)
        if refusal is not None:
            call.refused = True
            call.replies.append(refusal)
        else:
            call.request.body = body
            app.handle(call.request, call.replies.append)
        return call


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()
