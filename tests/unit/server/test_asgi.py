"""The same application carried by ASGI: what it is told, what it sends, and who starts the services."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest
from fastapi import FastAPI
from waiting import until

from penstock.config import ServerOptions
from penstock.core.state import State
from penstock.errors import ConfigError, Overloaded, StartFailed, WorkerLost
from penstock.server.app import App
from penstock.server.asgi import UNSTARTED, AsgiApp, asgi
from penstock.server.gateway import SEND_BYTES
from penstock.testing.virtual_clock import VirtualClock, VirtualTimer

PAGE = "https://app.example"


def client(app, **options):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, **options), base_url="http://penstock")


def ready(fakes, **options):
    service = fakes.Service(**options)
    service.engine.answer = bytes
    return service


class Wire:
    """A carrier that does one step at a time: `tell` what `receive` gives next, read `sent`."""

    def __init__(self, app, path="/predict", method="POST", headers=(), root_path="", query=b""):
        self.scope = {"type": "http", "method": method, "path": path, "root_path": root_path, "headers": list(headers)}
        self.scope["query_string"] = query
        self.told = asyncio.Queue()
        self.sent = []
        self.task = asyncio.ensure_future(app(self.scope, self.told.get, self._send))

    async def _send(self, message):
        self.sent.append(message)

    def body(self, body, more=False):
        self.told.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self):
        self.told.put_nowait({"type": "http.disconnect"})

    async def until(self, condition):
        await until(condition, patience=20, pause=0)

    async def end(self):
        await asyncio.wait_for(self.task, 20)


async def test_a_request_goes_in_and_its_answer_comes_back_with_its_id(fakes):
    async with client(asgi(ready(fakes))) as http:
        answer = await http.post("/predict", content=b"[1.5]", headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.content) == (200, b"[1.5]")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == "5"
    assert answer.headers["x-request-id"] == "mine"


async def test_head_has_the_length_and_no_body(fakes):
    async with client(asgi(ready(fakes))) as http:
        got, head = await http.get("/docs"), await http.head("/docs")
    assert head.headers["content-length"] == got.headers["content-length"]
    assert head.content == b""


async def test_options_has_neither_length_nor_type(fakes):
    async with client(asgi(ready(fakes))) as http:
        answer = await http.options("/predict")
    assert (answer.status_code, answer.headers["allow"]) == (204, "POST, OPTIONS")
    assert "content-length" not in answer.headers
    assert "content-type" not in answer.headers


async def test_the_page_of_a_named_origin_is_given_leave_and_may_read_each_answer(fakes):
    app = asgi(ready(fakes), ServerOptions(cors_allow_origin=PAGE, max_body_bytes=10))
    leave = {"origin": PAGE, "access-control-request-method": "POST"}
    async with client(app) as http:
        assert (await http.options("/predict", headers=leave)).headers["access-control-allow-headers"]
        for content, status in ((b"[1.5]", 200), (b"[1.5, 2.5, 3.5]", 413)):
            answer = await http.post("/predict", content=content, headers={"origin": PAGE})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
            assert answer.headers["vary"] == "origin"
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
        answer = await http.post("/predict", content=b"[1.5]", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


async def test_a_body_that_is_late_is_refused_so_that_the_page_may_read_it(fakes):
    clock = VirtualClock()
    app = AsgiApp(App((ready(fakes),), ServerOptions(cors_allow_origin=PAGE), clock))
    wire = Wire(app, headers=[(b"origin", PAGE.encode())])
    wire.body(b"[1", more=True)
    await wire.until(wire.told.empty)
    await clock.advance(60.0)
    await wire.end()
    assert wire.sent[0]["status"] == 408
    assert (b"access-control-allow-origin", PAGE.encode()) in wire.sent[0]["headers"]


@pytest.mark.parametrize(("root", "path"), [("", "*"), ("/ml", "*"), ("/ml", "/ml*")])
async def test_options_of_the_whole_server_is_answered(fakes, root, path):
    wire = Wire(asgi(ready(fakes)), method="OPTIONS", path=path, root_path=root)
    await wire.end()
    assert wire.sent[0]["status"] == 204


async def test_a_path_with_a_star_is_not_the_whole_server(fakes):
    wire = Wire(asgi(ready(fakes)), method="OPTIONS", path="/*")
    await wire.end()
    assert wire.sent[0]["status"] == 404


@pytest.mark.parametrize("root", ["", "/ml", "/a b"])
async def test_who_is_sent_to_the_path_without_a_slash_stays_below_the_mount_point(fakes, root):
    transport = httpx.ASGITransport(asgi(ready(fakes)), root_path=root)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.post(f"{root}/predict/?a=b", content=b"[1]", follow_redirects=True)
    assert answer.status_code == 200
    assert answer.url.path == f"{root}/predict"
    assert answer.url.query == b"a=b"
    assert (answer.request.method, answer.json()) == ("POST", [1])


async def test_a_compressed_body_is_refused_in_the_words_of_the_native_server(fakes):
    async with client(asgi(ready(fakes))) as http:
        answer = await http.post("/predict", content=b"x", headers={"content-encoding": "gzip"})
    assert answer.json()["detail"] == "compressed request bodies are not supported"


async def test_names_are_read_in_any_case_and_repeated_fields_are_joined(fakes):
    service = ready(fakes)
    wire = Wire(asgi(service), headers=[[b"X-Request-ID", b"a"], [b"x-request-id", b"b"]])  # lists are allowed, too
    wire.body(b"1")
    await wire.end()
    (given,) = [value for name, value in wire.sent[0]["headers"] if name == b"x-request-id"]
    assert given not in (b"a", b"b")  # "a, b" is no proper id
    assert wire.sent[0]["status"] == 200


async def test_a_request_arrives_at_the_time_of_the_clock(fakes):
    service, clock = ready(fakes), VirtualClock(12.5)
    wire = Wire(AsgiApp(App((service,), fakes.app().options, clock)), headers=[(b"x-request-timeout", b"7")])
    wire.body(b"1")
    await wire.end()
    assert service.engine.submissions[0].deadline == 19.5
    assert clock.waiting == []


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_at_the_limit_passes_and_one_byte_more_is_413(fakes, announced):
    service = ready(fakes)
    app = asgi(fakes.app(service, max_body_bytes=10))
    length = [(b"content-length", b"10")], [(b"content-length", b"11")]
    fits = Wire(app, headers=length[0] if announced else ())
    fits.body(b"12345", more=True)
    fits.body(b"67890")
    await fits.end()
    assert fits.sent[0]["status"] == 200
    over = Wire(app, headers=length[1] if announced else ())
    over.body(b"12345", more=True)
    over.body(b"678901", more=True)
    await over.end()
    assert over.sent[0]["status"] == 413
    assert service.engine.held_bytes == 0
    assert len(service.engine.submissions) == 1


async def test_a_body_is_held_while_it_comes(fakes):
    service = ready(fakes)
    wire = Wire(asgi(service))
    wire.body(b"12345", more=True)
    await wire.until(lambda: service.engine.held_bytes == 5)
    wire.body(b"67")
    await wire.end()
    assert service.engine.held_bytes == 0
    assert service.engine.submissions[0].payloads == [b"1234567"]


async def test_bodies_that_come_slowly_are_bounded_together(fakes):
    service = ready(fakes, max_queued_bytes=10)
    app = asgi(service)
    first, second = Wire(app), Wire(app)
    for wire in (first, second):
        wire.body(b"123456", more=True)
        await wire.until(lambda wire=wire: wire.told.empty())
        service.engine.refused = Overloaded(retry_after=3)  # what an engine says while it holds more than it may
    await second.end()
    assert second.sent[0]["status"] == 503
    assert (b"retry-after", b"3") in second.sent[0]["headers"]
    assert (service.engine.held_bytes, service.engine.counters.rejected) == (6, 1)
    first.body(b"7")
    await first.end()
    assert first.sent[0]["status"] == 200
    assert service.engine.held_bytes == 0


async def test_one_body_passes_however_little_may_be_held(fakes):
    service = ready(fakes, max_queued_bytes=10)
    wire = Wire(asgi(service))
    for _ in range(3):
        wire.body(b"123456", more=True)
        await wire.until(wire.told.empty)
        service.engine.refused = Overloaded()
    wire.body(b"7")
    await wire.end()
    assert wire.sent[0]["status"] == 200


async def test_a_request_refused_at_its_head_is_answered_before_its_body(fakes):
    wire = Wire(asgi(ready(fakes)), headers=[(b"content-type", b"text/html")])
    await wire.end()
    assert wire.sent[0]["status"] == 415


async def test_a_call_that_is_dropped_on_purpose_raises_for_the_server(fakes):
    app = asgi(fakes.Service(), ServerOptions(chaos="drop=1"))
    wire = Wire(app)
    wire.body(b"1")
    with pytest.raises(ConnectionAbortedError, match="dropped on purpose"):
        await wire.end()
    assert wire.sent == []
    assert app.app._routes[b"/predict"].traffic.statuses == {499: 1}


async def test_a_client_that_leaves_while_its_item_waits_withdraws_it(fakes):
    service = fakes.Service()
    app = asgi(service)
    wire = Wire(app)
    wire.body(b"1")
    await wire.until(lambda: service.engine.submissions)
    wire.leave()
    await wire.end()
    assert service.engine.cancelled == service.engine.submissions
    assert wire.sent == []
    assert app.app._routes[b"/predict"].traffic.statuses == {499: 1}


async def test_a_client_that_leaves_while_its_body_comes_is_counted_and_gives_back_what_it_held(fakes):
    service = fakes.Service()
    app = asgi(service)
    wire = Wire(app)
    wire.body(b"1", more=True)
    wire.leave()
    await wire.end()
    assert (service.engine.submissions, service.engine.held_bytes, wire.sent) == ([], 0, [])
    assert app.app._routes[b"/predict"].traffic.statuses == {499: 1}


async def test_a_body_that_is_not_whole_by_its_deadline_is_408_and_no_longer_held(fakes):
    clock = VirtualClock()
    service = ready(fakes, timeout=3.0)
    app = AsgiApp(App((service,), ServerOptions(), clock))
    slow, quick = Wire(app), Wire(app, headers=[(b"x-request-timeout", b"1")])
    for wire in (slow, quick):
        wire.body(b"1", more=True)
        await wire.until(wire.told.empty)
    await clock.advance(0.5)
    assert service.engine.held_bytes == 2
    await clock.advance(0.5)
    assert (service.engine.held_bytes, quick.task.done(), slow.task.done()) == (1, True, False)
    slow.body(b"1", more=True)
    await clock.advance(2.0)
    assert [(wire.task.done(), wire.sent[0]["status"]) for wire in (slow, quick)] == [(True, 408)] * 2
    assert b"incomplete after 3 s" in slow.sent[1]["body"]
    assert (service.engine.held_bytes, service.engine.answer_bytes, service.engine.submissions) == (0, 0, [])
    assert clock.waiting == []
    assert app.app._routes[b"/predict"].traffic.statuses == {408: 2}


async def test_a_cancellation_by_the_server_is_passed_on_though_the_body_is_late(fakes):
    clock, late = VirtualClock(), []
    clock.call_later = lambda delay, callback: late.append(callback) or VirtualTimer(delay, callback)
    app = AsgiApp(App((ready(fakes),), ServerOptions(), clock))
    wire = Wire(app)
    wire.body(b"1", more=True)
    await wire.until(wire.told.empty)
    wire.task.cancel()
    (interrupt,) = late
    interrupt()
    with pytest.raises(asyncio.CancelledError):
        await wire.end()
    assert app.app._routes[b"/predict"].traffic.statuses == {499: 1}


async def test_a_carrier_that_breaks_while_a_body_comes_is_a_client_that_left(fakes):
    app = asgi(ready(fakes))
    wire = Wire(app)
    wire.task.cancel()

    async def receive():
        raise RuntimeError("carrier lost")

    await app(wire.scope, receive, wire._send)
    assert app.app._routes[b"/predict"].traffic.statuses[499] == 1


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("unable to perform operation on a closed transport")])
async def test_a_client_that_leaves_before_its_answer_is_written_is_counted(fakes, error, caplog):
    app = asgi(ready(fakes))

    async def send(message):
        raise error

    wire = Wire(app)
    wire._send = send
    wire.task.cancel()
    told = asyncio.Queue()
    told.put_nowait({"type": "http.request", "body": b"1"})
    await app(wire.scope, told.get, send)
    assert app.app._routes[b"/predict"].traffic.statuses[499] == 1
    assert caplog.records == []


async def test_a_cancelled_request_withdraws_its_item(fakes):
    service = fakes.Service()
    wire = Wire(asgi(service))
    wire.body(b"1")
    await wire.until(lambda: service.engine.submissions)
    wire.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wire.end()
    assert service.engine.cancelled == service.engine.submissions


@pytest.mark.parametrize("end", ["the client leaves", "the server cancels"])
async def test_of_an_answer_that_comes_after_its_call_has_ended_nothing_is_held(fakes, end):
    service = fakes.Service()
    app = asgi(service)
    wire = Wire(app)
    wire.body(b"1")
    await wire.until(lambda: service.engine.submissions)
    service.engine.cancel = service.engine.cancelled.append  # its end comes later
    if end == "the server cancels":
        wire.task.cancel()
    else:
        wire.leave()
    with contextlib.suppress(asyncio.CancelledError):
        await wire.end()
    [submission] = service.engine.cancelled
    submission.settle(b"2")
    assert (service.engine.held_bytes, service.engine.answer_bytes, wire.sent) == (0, 0, [])
    assert not app._answering


async def test_an_answer_leaves_no_task_behind(fakes):
    service = fakes.Service()
    wire = Wire(asgi(service))
    wire.body(b"1")
    await wire.until(lambda: service.engine.submissions)
    await asyncio.sleep(0)
    service.engine.submissions[0].settle(b"2")
    await wire.end()
    assert wire.sent[1]["body"] == b"2"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("path", "root_path", "status"),
    [
        ("/ml/livez", "/ml", 200),
        ("/livez", "/ml", 200),  # the outer app took its prefix off itself
        ("/mlivez", "/ml", 404),
        ("/ml/ml/livez", "/ml", 404),
        ("/ml", "/ml", 404),
    ],
)
async def test_the_path_is_seen_from_the_mount_point(fakes, path, root_path, status):
    wire = Wire(asgi(ready(fakes)), path=path, method="GET", root_path=root_path)
    wire.body(b"")
    await wire.end()
    assert wire.sent[0]["status"] == status


@pytest.mark.parametrize("path", ["/two words/predict", "/é/predict", "/\0", "/predict?"])
async def test_a_path_that_needs_escapes_is_404_because_no_name_does(fakes, path):
    wire = Wire(asgi(ready(fakes)), path=path)
    wire.body(b"1")
    await wire.end()
    assert wire.sent[0]["status"] == 404


async def test_a_mounted_app_that_nobody_started_says_what_to_do(fakes):
    outer = FastAPI()
    outer.mount("/ml", asgi(fakes.Service(started=False)))
    async with client(outer) as http:
        for path in ("/ml/predict", "/ml/batch"):
            answer = await http.post(path, content=b"1")
            assert (answer.status_code, answer.json()["detail"]) == (503, UNSTARTED)
            assert answer.headers["retry-after"] == "1"
        ready_answer = await http.get("/ml/readyz")
        assert (ready_answer.status_code, UNSTARTED in ready_answer.json()["detail"]) == (503, True)
        assert (await http.get("/ml/livez")).status_code == 200


async def test_an_outer_app_may_enter_our_lifespan(fakes):
    service = fakes.Service(started=False)
    app = asgi(service)
    outer = FastAPI(lifespan=app.lifespan)
    outer.mount("/ml", app)
    async with outer.router.lifespan_context(outer), client(outer) as http:
        assert (await http.post("/ml/predict", content=b"[2]")).json() == [2]
    assert service.calls == ["start", ("stop", 30.0)]


async def test_a_service_that_runs_already_is_neither_started_nor_stopped(fakes):
    service = ready(fakes)
    async with asgi(service).lifespan():
        pass
    assert service.calls == []


async def test_a_stopped_service_is_started_again(fakes):
    service = ready(fakes)
    service.engine.state = State.STOPPED
    async with asgi(service).lifespan():
        assert service.calls == ["start"]


class Life:
    """The lifespan protocol, driven as a server does."""

    def __init__(self, app):
        self.told = asyncio.Queue()
        self.sent = asyncio.Queue()
        self.task = asyncio.ensure_future(app({"type": "lifespan"}, self.told.get, self.sent.put))

    async def say(self, word):
        self.told.put_nowait({"type": word})
        return await asyncio.wait_for(self.sent.get(), 20)


async def test_a_fork_of_the_process_that_started_a_service_says_so_to_its_server(fakes):
    service = ready(fakes)
    service.elsewhere = ConfigError("started in process 41")
    app = asgi(service)
    for path in ("/predict", "/livez"):
        wire = Wire(app, path)
        with pytest.raises(ConfigError, match="started in process 41"):
            await wire.end()
        assert wire.sent == []
    life = Life(app)
    assert await life.say("lifespan.startup") == {
        "type": "lifespan.startup.failed",
        "message": "started in process 41",
    }
    assert service.calls == []


async def test_what_the_log_has_counted_is_written_when_the_lifespan_ends(fakes, caplog):
    service = ready(fakes)
    app = asgi(service)
    async with app.lifespan():
        for _ in range(15):
            app.app.problems.faults.report(WorkerLost(stage="echo"), ("id",))
    assert "5 more failures of the kind WorkerLost" in caplog.messages[-1]


async def test_lifespan_starts_the_services_and_drains_them(fakes):
    one, two = fakes.Service(name="one", started=False), fakes.Service(name="two", started=False)
    life = Life(asgi(fakes.app(one, two, drain_timeout=7.0)))
    assert await life.say("lifespan.startup") == {"type": "lifespan.startup.complete"}
    assert one.calls == two.calls == ["start"]
    assert await life.say("lifespan.shutdown") == {"type": "lifespan.shutdown.complete"}
    assert one.calls == two.calls == ["start", ("stop", 7.0)]
    await life.task


async def test_a_service_that_cannot_start_fails_the_startup_and_stops_the_others(fakes, caplog):
    one, two = fakes.Service(name="one", started=False), fakes.Service(name="two", started=False)
    two.broken = StartFailed("no such model")
    life = Life(asgi((one, two)))
    assert await life.say("lifespan.startup") == {"type": "lifespan.startup.failed", "message": "no such model"}
    await life.task
    assert one.calls == ["start", ("stop", 30.0)]
    assert "no such model" in caplog.text


async def test_a_service_that_stops_badly_fails_the_shutdown(fakes, caplog):
    service = fakes.Service(started=False)

    async def fail(*, drain_timeout):
        raise OSError("stuck")

    service.stop = fail
    life = Life(asgi(service))
    await life.say("lifespan.startup")
    assert await life.say("lifespan.shutdown") == {"type": "lifespan.shutdown.failed", "message": "stuck"}
    assert "stuck" in caplog.text
    await life.task


async def test_a_websocket_is_refused_and_an_unknown_scope_is_a_mistake(fakes):
    app = asgi(ready(fakes))
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    await app({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000, "reason": "WebSocket is not supported"}]
    with pytest.raises(ValueError, match="telepathy"):
        await app({"type": "telepathy"}, receive, send)


async def test_a_carrier_that_breaks_while_it_listens_is_a_client_that_left(fakes):
    service = fakes.Service()
    wire = Wire(asgi(service))
    broken = asyncio.Event()

    async def receive():
        if not service.engine.submissions:
            return {"type": "http.request", "body": b"1"}
        await broken.wait()
        raise RuntimeError("carrier lost")

    wire.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await wire.task
    task = asyncio.ensure_future(asgi(service)(wire.scope, receive, wire._send))
    await wire.until(lambda: service.engine.submissions)
    broken.set()
    await asyncio.wait_for(task, 20)
    assert service.engine.cancelled == service.engine.submissions


# -- what is held of an answer ----------------------------------------------------------------------------------------


class SlowWire(Wire):
    """A carrier whose `send` waits until the test lets it return, once for each call."""

    def __init__(self, *how, **more):
        self.steps = asyncio.Semaphore(0)
        super().__init__(*how, **more)
        self.body(b"1")

    async def _send(self, message):
        await super()._send(message)
        await self.steps.acquire()


async def test_an_answer_is_held_until_send_returns(fakes):
    service = ready(fakes, max_queued_bytes=10)
    service.engine.answer = lambda payload: [b"12345", b"678"]
    wire = SlowWire(asgi(service))
    await wire.until(lambda: len(wire.sent) == 1)
    assert (service.engine.held_bytes, service.engine.answer_bytes) == (8, 8)
    wire.steps.release()
    await wire.until(lambda: len(wire.sent) == 2)
    assert service.engine.answer_bytes == 8
    wire.steps.release()
    await wire.until(lambda: len(wire.sent) == 3)
    assert service.engine.answer_bytes == 3, "each piece until its own `send` returns"
    wire.steps.release()
    await wire.end()
    assert (service.engine.held_bytes, service.engine.answer_bytes) == (0, 0)


async def test_an_answer_is_held_from_the_moment_it_is_ready(fakes):
    service = fakes.Service()
    wire = SlowWire(asgi(service))
    await wire.until(lambda: service.engine.submissions)
    await asyncio.sleep(0)
    service.engine.submissions[0].settle(b"12345")
    assert service.engine.answer_bytes == 5
    wire.steps = asyncio.Semaphore(9)
    await wire.end()
    assert service.engine.answer_bytes == 0


@pytest.mark.parametrize("end", ["the server cancels", "send fails", "send breaks"])
async def test_an_answer_is_given_back_however_its_call_ends(fakes, end):
    service = ready(fakes)
    wire = SlowWire(asgi(service))
    await wire.until(lambda: wire.sent)
    assert service.engine.answer_bytes == 1
    if end == "the server cancels":
        wire.task.cancel()
    else:
        error = OSError("gone") if end == "send fails" else RuntimeError("unable to perform operation on a transport")

        async def fail():
            raise error

        wire.steps.acquire = fail
        wire.steps.release()
    with contextlib.suppress(asyncio.CancelledError):
        await wire.end()
    assert (service.engine.held_bytes, service.engine.answer_bytes) == (0, 0)


async def test_a_refusal_is_held_as_well(fakes):
    service = ready(fakes)
    service.engine.refused = Overloaded()
    wire = SlowWire(asgi(service))
    await wire.until(lambda: wire.sent)
    assert service.engine.answer_bytes > 0
    wire.steps = asyncio.Semaphore(9)
    wire.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wire.end()
    assert service.engine.answer_bytes == 0


async def test_a_large_answer_is_sent_in_pieces_so_that_the_server_can_wait_between_them(fakes):
    service = ready(fakes)
    large = bytes(range(256)) * (SEND_BYTES // 256)
    service.engine.answer = lambda payload: [b"small", memoryview(large + large + b"!"), large]
    wire = Wire(asgi(service))
    wire.body(b"1")
    await wire.end()
    bodies = [message["body"] for message in wire.sent[1:]]
    assert bodies == [b"small", large, large, b"!", large]
    assert {type(body) for body in bodies} == {bytes}
    assert [message.get("more_body", False) for message in wire.sent[1:]] == [True] * 4 + [False]
    assert (b"content-length", b"%d" % (5 + 3 * SEND_BYTES + 1)) in wire.sent[0]["headers"]


async def test_an_answer_nobody_takes_is_given_up_while_more_is_held_than_may_be(fakes):
    clock = VirtualClock()
    service = ready(fakes, max_queued_bytes=10)
    app = AsgiApp(App((service,), ServerOptions(write_timeout=5.0), clock))
    sizes = iter((4, 3, 6))
    service.engine.answer = lambda payload: bytes(next(sizes))
    wires = [SlowWire(app) for _ in range(3)]
    for wire in wires:
        await wire.until(lambda wire=wire: wire.sent)
    assert service.engine.answer_bytes == 13
    await clock.advance(4.0)
    assert not any(wire.task.done() for wire in wires)
    await clock.advance(1.0)
    assert [wire.task.done() for wire in wires] == [False, False, True], "the largest, and that is enough"
    wires[2].task.result()
    assert service.engine.answer_bytes == 7
    await clock.advance(100.0)
    assert not any(wire.task.done() for wire in wires[:2]), "no more is held than may be"
    assert clock.waiting == []
    for wire in wires[:2]:
        wire.steps = asyncio.Semaphore(9)
        wire.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await wire.end()
    assert app.app._routes[b"/predict"].traffic.statuses == {499: 3}


async def test_a_cancellation_by_the_server_is_passed_on_though_the_answer_is_given_up(fakes):
    clock = VirtualClock()
    service = ready(fakes, max_queued_bytes=1)
    service.engine.answer = lambda payload: b"12"
    app = AsgiApp(App((service,), ServerOptions(write_timeout=1.0), clock))
    wire = SlowWire(app)
    await wire.until(lambda: wire.sent)
    (call,) = app._answering
    wire.task.cancel()
    call.abort()
    with pytest.raises(asyncio.CancelledError):
        await wire.end()
    assert (clock.waiting, service.engine.answer_bytes) == ([], 0)
