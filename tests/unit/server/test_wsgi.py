"""The same application as a WSGI app: what it is told, what it gives back, and when the services start.

Its services run on a loop thread, so these tests have one; they wait for conditions, never for a time.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import threading
import time
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import httpx
import msgspec
import pytest

from penstock.config import ServerOptions
from penstock.core.state import State
from penstock.errors import ConfigError, NotReady, Overloaded, StartFailed
from penstock.hosting.loop_clock import LoopClock
from penstock.server.asgi import asgi
from penstock.server.wsgi import WsgiApp, wsgi
from penstock.server.wsgi_call import READ_BYTES, SMALL_BODY_BYTES

PATIENCE = 20


class Input(io.BytesIO):
    """A body, and how much of it was read.  `before_read` is called with how much was read before."""

    def __init__(self, body=b"", before_read=lambda got: None):
        super().__init__(body)
        self.before_read = before_read

    def read(self, size):
        assert size > 0, "read in bounded pieces"
        self.before_read(self.tell())
        return super().read(size)


class Answer:
    def __init__(self, app, path="/predict", method="POST", body=b"", *, chunks=False, close=True, **environ):
        self.input = body if isinstance(body, Input) else Input(body)
        self.environ = {"REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": ""}
        self.environ["wsgi.input"] = self.input
        if chunks:
            self.environ |= {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
        elif "CONTENT_LENGTH" not in environ:
            self.environ["CONTENT_LENGTH"] = str(len(self.input.getvalue())) if method == "POST" else ""
        self.environ |= environ
        setup_testing_defaults(self.environ)
        self.result = app(self.environ, self._start)
        if close:
            try:
                self.body = b"".join(self.result)
            finally:
                self.result.close()

    def _start(self, status, fields):
        self.line = status
        self.status = int(status.split(" ")[0])
        self.fields = fields
        self.headers = dict(fields)

    @property
    def json(self):
        return msgspec.json.decode(self.body)


def in_thread(work):
    """What `work` returns or raises in a thread, as a function that waits for it."""
    found = []

    def run():
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result():
        thread.join(PATIENCE)
        assert found, "it still waits"
        value, error = found[0]
        if error is not None:
            raise error
        return value

    return result


class Slow:
    """Holds what a method of a service does, `start` for one, until it may `go`."""

    def __init__(self, service, name="start"):
        self.begun = threading.Event()
        self._may_go = asyncio.Event()
        act = getattr(service, name)

        async def held(**how):
            self._loop = asyncio.get_running_loop()
            self.begun.set()
            await self._may_go.wait()
            await act(**how)

        setattr(service, name, held)

    def go(self):
        """Let it go, once it has begun."""
        assert self.begun.wait(PATIENCE)
        self._loop.call_soon_threadsafe(self._may_go.set)


class Told(threading.Event):
    """Set once `what`, an attribute of `owner`, was called, has done its work, and `when()` is true."""

    def __init__(self, owner, what, when=lambda: True):
        super().__init__()
        act = getattr(owner, what)

        def told(*args, **how):
            done = act(*args, **how)
            if when():
                self.set()
            return done

        setattr(owner, what, told)


@pytest.fixture
def hosting(fakes):
    """Makes apps over services in memory, and stops them; `app.service` is the first service."""
    made = []

    def host(*services, clock=None, started=True, options=None, **fields):
        services = services or (fakes.Service(started=False, **fields),)
        app = WsgiApp(services, options or ServerOptions(), clock or LoopClock())
        app.service = services[0]
        made.append(app)
        if started:
            app.start()
        return app

    yield host
    for app in made:
        app.stop()


def traffic(app, path=b"/predict"):
    return app._hosted.app._routes[path].traffic.statuses


def on_loop(app, work=lambda: None):
    """Do `work` in the thread of the loop, after what it was told before."""
    return app._hosted.thread.ask(lambda answer: answer.set_result(work())).result(PATIENCE)


def hold_answers(app):
    """Have no item answered until the test does it; returns what is submitted."""
    app.service.engine.answer = None
    return app.service.engine.submissions


# -- requests and answers ---------------------------------------------------------------------------------------------


def test_a_request_goes_in_and_its_answer_comes_back_with_its_id(hosting):
    app = hosting()
    answer = Answer(app, body=b"[1.5]", HTTP_X_REQUEST_ID="mine")
    assert (answer.line, answer.body) == ("200 OK", b"[1.5]")
    assert answer.headers == {"x-request-id": "mine", "content-type": "application/json", "content-length": "5"}
    on_loop(app)
    assert traffic(app) == {200: 1}


@pytest.mark.parametrize("chunks", [False, True])
def test_a_call_that_is_dropped_on_purpose_ends_as_one_whose_client_has_left(hosting, chunks):
    app = hosting(options=ServerOptions(chaos="drop=1"))
    with pytest.raises(BrokenPipeError, match="dropped on purpose"):
        Answer(app, body=b"[1.5]", chunks=chunks)
    on_loop(app)
    assert traffic(app) == {499: 1}
    assert app.service.engine.submissions == []


def test_a_deep_check_is_answered_when_it_has_ended(hosting):
    app = hosting(examples=[[1.0]])
    answer = Answer(app, "/health", "GET", QUERY_STRING="deep=1")
    assert (answer.line, msgspec.json.decode(answer.body)["deep"]["ok"]) == ("200 OK", True)


@pytest.mark.parametrize("chunks", [False, True])
def test_the_validator_of_the_standard_library_finds_nothing(hosting, chunks):
    app = validator(hosting())
    for method, path in itertools.product(["GET", "HEAD", "POST", "OPTIONS"], ["/livez", "/predict", "/none", "/docs"]):
        answer = Answer(app, path, method, body=b"[1]" if method == "POST" else b"", chunks=chunks and method == "POST")
        assert answer.status in (200, 204, 404, 405)


REQUESTS = [
    ("POST", "/predict", b"[1.5]", {}),
    ("POST", "/predict", b"[1.5]", {"x-request-id": "not proper"}),
    ("POST", "/predict", b"[", {}),
    ("POST", "/predict", b"[1]", {"content-type": "text/html"}),
    ("POST", "/predict", b"[1]", {"accept": "text/html"}),
    ("POST", "/predict", b"\x91\x01", {"content-type": "application/msgpack"}),
    ("POST", "/predict", b"[1]", {"content-encoding": "gzip"}),
    ("POST", "/predict", b"[1]", {"x-request-timeout": "soon"}),
    ("POST", "/predict", b"1" * 101, {}),
    ("POST", "/predict/", b"[1]", {}),
    ("POST", "/predict/?a=b", b"[1]", {}),
    ("POST", "/batch", b"[[1],[2]]", {}),
    ("GET", "/predict", b"", {}),
    ("OPTIONS", "/predict", b"", {}),
    ("GET", "/nowhere", b"", {}),
    ("GET", "/two%20words%2Fx", b"", {}),
    ("GET", "/livez", b"", {}),
    ("HEAD", "/livez", b"", {}),
    ("GET", "/readyz", b"", {}),
    ("GET", "/openapi.json", b"", {}),
    ("HEAD", "/docs", b"", {}),
]


@pytest.mark.parametrize("chunks", [False, True], ids=["length", "chunks"])
@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: f"{r[0]} {r[1]} {list(r[3].items())}")
async def test_an_answer_is_that_of_the_asgi_app(fakes, hosting, request_, chunks):
    method, path, body, headers = request_
    headers = {"x-request-id": "same", "content-type": "application/json", **headers}
    options = ServerOptions(max_body_bytes=100)
    other = fakes.Service()
    other.engine.answer = bytes
    async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi(other, options)), base_url="http://x") as http:
        wanted = await http.request(method, path, content=body, headers=headers)
    app = hosting(options=options)

    def ask():
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://x") as http:
            sent = iter([body]) if chunks and body else body
            return http.request(method, path, content=sent, headers=headers)

    if chunks and body:
        app = terminated(app)
    got = await asyncio.to_thread(ask)
    assert got.status_code == wanted.status_code
    assert masked(got, headers) == masked(wanted, headers)
    assert got.reason_phrase == wanted.reason_phrase


async def test_a_path_with_a_colon_is_found_by_both(fakes, hosting):
    path = "/v1/models/m:predict"
    asked = {"url": path, "content": b"[1]", "headers": {"content-type": "text/html"}}  # refused by the route at once
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(asgi(fakes.Service(predict_path=path))), base_url="http://x"
    ) as http:
        assert (await http.post(**asked)).status_code == 415

    def ask():
        with httpx.Client(transport=httpx.WSGITransport(hosting(predict_path=path)), base_url="http://x") as http:
            return http.post(**asked)

    assert (await asyncio.to_thread(ask)).status_code == 415


def terminated(app):
    def wrapped(environ, start_response):
        environ["wsgi.input_terminated"] = True  # httpx hands on the whole body, and does not say so
        return app(environ, start_response)

    return wrapped


def masked(answer, headers):
    """What must be the same: not the ids that are made anew."""
    given = answer.headers["x-request-id"]
    fields = {name: "" if value == given else value for name, value in answer.headers.items()}
    return answer.content.replace(given.encode(), b""), fields


@pytest.mark.parametrize(("script", "path"), [("", "/livez"), ("/ml", "/livez"), ("/two words", "/livez")])
def test_the_path_is_what_lies_below_the_mount_point(hosting, script, path):
    assert Answer(hosting(), path, "GET", SCRIPT_NAME=script).status == 200


def test_a_mount_point_itself_is_404(hosting):
    assert Answer(hosting(), "", "GET", SCRIPT_NAME="/ml").status == 404


@pytest.mark.parametrize("path", ["/b\xc3\xa9/predict", "/\xff", "/\0", "/predict?"])
def test_a_path_that_needs_escapes_is_404_because_no_name_does(hosting, path):
    assert Answer(hosting(), path, "GET").status == 404


def test_options_of_the_whole_server_is_answered(hosting):
    answer = Answer(hosting(), "*", "OPTIONS")
    assert (answer.status, answer.headers["allow"]) == (204, "GET, HEAD, POST, OPTIONS")
    assert answer.fields == [("x-request-id", answer.headers["x-request-id"]), ("allow", "GET, HEAD, POST, OPTIONS")]


def test_an_answer_in_pieces_is_given_in_pieces_of_bytes(hosting):
    app = hosting()
    app.service.engine.answer = lambda payload: [b"[1", memoryview(b",2]")]
    answer = Answer(app, body=b"[]", close=False)
    assert list(answer.result) == [b"[1", b",2]"]
    answer.result.close()


@pytest.mark.parametrize("announced", ["9" * 5000, "-1", "x", "1, 1"])
def test_a_length_that_is_no_number_is_400_and_its_body_stays_unread(hosting, announced):
    answer = Answer(hosting(), body=b"[1]", CONTENT_LENGTH=announced)
    assert (answer.status, answer.input.tell()) == (400, 0)


# -- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [10, SMALL_BODY_BYTES + 10])
@pytest.mark.parametrize("chunks", [False, True], ids=["length", "chunks"])
def test_a_body_at_the_limit_passes_and_one_byte_more_is_413_and_not_read(hosting, limit, chunks):
    app = hosting(options=ServerOptions(max_body_bytes=limit))
    assert Answer(app, body=b" " * (limit - 1) + b"1", chunks=chunks).status == 200
    over = Answer(app, body=b" " * (limit + 1000), chunks=chunks)
    assert over.status == 413
    assert over.input.tell() == (limit + 1 if chunks else 0)
    on_loop(app)
    assert app.service.engine.held_bytes == 0
    assert len(app.service.engine.submissions) == 1


def test_a_large_body_that_its_head_refuses_is_not_read(hosting):
    answer = Answer(hosting(), body=b" " * (SMALL_BODY_BYTES + 1), CONTENT_TYPE="text/html")
    assert (answer.status, answer.input.tell()) == (415, 0)


def test_a_body_in_chunks_whose_end_nobody_tells_is_411(hosting):
    answer = Answer(hosting(), body=b"[1]", chunks=True, **{"wsgi.input_terminated": False})
    assert (answer.status, answer.input.tell()) == (411, 0)


@pytest.mark.parametrize("length", [3, SMALL_BODY_BYTES + 1])
def test_a_body_that_is_cut_off_is_400(hosting, length):
    app = hosting()
    answer = Answer(app, body=b"12", CONTENT_LENGTH=str(length))
    assert (answer.status, answer.json["detail"]) == (400, "the request body ended before Content-Length")
    on_loop(app)
    assert (app.service.engine.held_bytes, app.service.engine.submissions) == (0, [])
    assert traffic(app) == {400: 1}


@pytest.mark.parametrize("length", [3, SMALL_BODY_BYTES + 1])
def test_the_head_of_a_body_that_is_cut_off_is_judged_all_the_same(hosting, length):
    app = hosting()
    cut = {"body": b"12", "CONTENT_LENGTH": str(length), "HTTP_X_REQUEST_ID": "mine"}
    assert Answer(app, **cut).headers["x-request-id"] == "mine"
    assert Answer(app, "/none", **cut).status == 404


@pytest.mark.parametrize(
    ("protocol", "terminated", "taken"), [("HTTP/2", True, b"[1]"), ("HTTP/2", False, b""), ("HTTP/1.1", True, b"")]
)
def test_a_body_that_neither_announces_its_length_nor_comes_in_chunks_is_that_of_http_2(
    hosting, protocol, terminated, taken
):
    body = {"CONTENT_LENGTH": "", "SERVER_PROTOCOL": protocol, "wsgi.input_terminated": terminated}
    app = hosting()
    answer = Answer(app, body=b"[1]", **body)
    assert [submission.payloads for submission in app.service.engine.submissions] == [[taken]]
    assert answer.input.tell() == len(taken)


def test_a_small_body_that_comes_in_parts_is_read_to_its_end(hosting):
    class Parts(Input):
        def read(self, size):
            return super().read(1)

    assert Answer(hosting(), body=Parts(b"[1.5]")).body == b"[1.5]"


def test_the_pieces_of_a_large_body_count_as_held_while_it_comes(hosting):
    app = hosting()
    held = []
    body = b" " * (2 * READ_BYTES) + b"[1]"
    answer = Answer(
        app, body=Input(body, lambda got: held.append((got, on_loop(app, lambda: app.service.engine.held_bytes))))
    )
    assert answer.status == 200
    assert held == [(0, 0), (READ_BYTES, READ_BYTES), (2 * READ_BYTES, 2 * READ_BYTES)]
    on_loop(app)
    assert app.service.engine.held_bytes == 0
    assert app.service.engine.submissions[0].payloads == [body]


def test_bodies_that_come_slowly_are_bounded_together(hosting):
    app = hosting(max_queued_bytes=READ_BYTES + 1)
    engine = app.service.engine

    def others_come(got):
        if got:
            on_loop(app, lambda: engine.hold(READ_BYTES))
            engine.refused = Overloaded(retry_after=3)

    answer = Answer(app, body=Input(b" " * (9 * READ_BYTES), others_come))
    assert (answer.status, answer.headers["retry-after"]) == (503, "3")
    assert answer.input.tell() <= 3 * READ_BYTES
    on_loop(app)
    assert engine.held_bytes == (answer.input.tell() // READ_BYTES - 1) * READ_BYTES


class Moved(LoopClock):
    def __init__(self):
        self.later = 0.0
        self.now = lambda: time.monotonic() + self.later


def test_a_body_that_is_late_is_408_when_its_next_piece_has_come(hosting):
    clock = Moved()
    app = hosting(clock=clock, timeout=30.0)

    def slowly(got):
        clock.later += 20.0

    answer = Answer(app, body=Input(b" " * (9 * READ_BYTES), slowly))
    assert (answer.status, answer.input.tell()) == (408, 2 * READ_BYTES)
    assert "incomplete after 30 s" in answer.json["detail"]


@pytest.mark.parametrize(("seconds", "status"), [(29.0, 200), (31.0, 408)])
def test_a_small_body_that_is_late_is_408_when_it_is_whole(hosting, seconds, status):
    clock = Moved()
    app = hosting(clock=clock, timeout=30.0)

    def slowly(got):
        clock.later += seconds

    answer = Answer(app, body=Input(b"[1]", slowly))
    assert answer.status == status
    assert status == 200 or "incomplete after 30 s" in answer.json["detail"]
    on_loop(app)
    assert traffic(app) == {status: 1}
    assert len(app.service.engine.submissions) == (status == 200)


def test_a_small_body_that_was_asked_for_too_late_is_not_late_by_itself(hosting):
    clock = Moved()
    app = hosting(started=False, clock=clock, timeout=30.0)
    start = app.service.start

    async def slowly():
        clock.later += 31.0
        await start()

    app.service.start = slowly
    assert Answer(app, body=b"[1]").status == 200  # the engine, which is a fake here, has the last word


@pytest.mark.parametrize("error", [ConnectionResetError(), ValueError("no chunk"), SystemExit(1)])
@pytest.mark.parametrize("length", [3, READ_BYTES + 1])
def test_what_a_read_raises_goes_to_the_server_and_the_call_is_counted_as_left(hosting, error, length):
    app = hosting()

    def fail(got):
        raise error

    with pytest.raises(type(error)):
        Answer(app, body=Input(b"1" * length, fail))
    on_loop(app)
    assert app.service.engine.held_bytes == 0
    assert (app.service.engine.submissions, traffic(app).get(499, 0)) == ([], 0 if length == 3 else 1)


# -- ends of a call ---------------------------------------------------------------------------------------------------


def test_an_interrupt_in_the_thread_of_a_call_withdraws_its_item(hosting, monkeypatch):
    app = hosting()
    submissions = hold_answers(app)
    submitted = Told(app.service.engine, "submit")
    ask = app._hosted.thread.ask

    def interrupted(begin):
        future = ask(begin)
        assert submitted.wait(PATIENCE)
        monkeypatch.setattr(future, "result", lambda: (_ for _ in ()).throw(SystemExit(1)))
        return future

    monkeypatch.setattr(app._hosted.thread, "ask", interrupted)
    with pytest.raises(SystemExit):
        Answer(app, body=b"1")
    monkeypatch.undo()
    on_loop(app)
    assert app.service.engine.cancelled == submissions
    assert traffic(app) == {499: 1}
    assert (app.service.engine.held_bytes, app._hosted.answering) == (0, set())


def test_an_answer_counts_as_held_until_it_was_taken(hosting):
    app = hosting()
    answer = Answer(app, body=b"[1]", close=False)
    assert on_loop(app, lambda: app.service.engine.answer_bytes) == 3
    assert traffic(app) == {}
    assert list(answer.result) == [b"[1]"]
    answer.result.close()
    answer.result.close()
    assert on_loop(app, lambda: app.service.engine.answer_bytes) == 0
    assert traffic(app) == {200: 1}


def test_what_was_taken_of_a_large_answer_counts_no_longer(hosting):
    app = hosting()
    app.service.engine.answer = lambda payload: bytes(700_000)
    answer = Answer(app, body=b"[1]", close=False)
    sizes = []
    for piece in answer.result:
        sizes.append((len(piece), on_loop(app, lambda: app.service.engine.answer_bytes)))
    answer.result.close()
    assert sizes == [(262_144, 700_000), (262_144, 437_856), (175_712, 175_712)]
    assert on_loop(app, lambda: app.service.engine.answer_bytes) == 0


def test_an_answer_that_the_server_gives_up_counts_as_one_whose_client_left(hosting):
    app = hosting()
    answer = Answer(app, body=b"[1]", close=False)
    next(answer.result)
    answer.result.close()
    on_loop(app)
    assert traffic(app) == {499: 1}
    assert app.service.engine.answer_bytes == 0


def test_a_start_response_that_raises_ends_the_call(hosting):
    app = hosting()

    def refuse(status, fields):
        raise KeyError("headers are sent")

    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/predict", "CONTENT_LENGTH": "1", "wsgi.input": Input(b"1")}
    with pytest.raises(KeyError, match="headers are sent"):
        app(environ, refuse)
    on_loop(app)
    assert traffic(app) == {499: 1}
    assert app.service.engine.answer_bytes == 0


def test_an_answer_that_nobody_takes_shuts_nobody_out(hosting):
    app = hosting(options=ServerOptions(write_timeout=0.1), max_queued_bytes=300_000)
    engine = app.service.engine
    engine.answer = lambda payload: bytes(600_000)
    freed = Told(engine, "hold_answer", lambda: not engine.answers_overfull)
    answer = Answer(app, body=b"[1]", close=False)
    next(answer.result)
    assert on_loop(app, lambda: engine.answers_overfull)
    assert freed.wait(PATIENCE)
    with pytest.raises(BrokenPipeError):
        next(answer.result)
    answer.result.close()
    on_loop(app)
    assert traffic(app) == {499: 1}


# -- start and stop ---------------------------------------------------------------------------------------------------


def test_nothing_starts_before_the_first_call(fakes, hosting):
    before = set(threading.enumerate())  # other tests of this process may have left some
    app = hosting(started=False)
    assert (app.service.calls, app._hosted, set(threading.enumerate()) - before) == ([], None, set())


def test_what_cannot_be_served_is_said_at_once(fakes):
    with pytest.raises(ConfigError, match="different names"):
        wsgi([fakes.Service(), fakes.Service()])


def test_an_app_among_green_threads_is_refused_when_it_is_made(fakes, monkeypatch):
    of_the_system = threading.get_ident
    monkeypatch.setattr(threading, "get_ident", lambda: of_the_system())
    with pytest.raises(ConfigError, match="gthread"):
        wsgi(fakes.Service())


def test_a_call_waits_for_the_start_and_the_probes_do_not(hosting):
    app = hosting(started=False)
    slow = Slow(app.service)
    waiting = [in_thread(lambda: Answer(app, body=b"[1]")) for _ in range(3)]
    assert slow.begun.wait(PATIENCE)
    assert Answer(app, "/livez", "GET").status == 200
    assert Answer(app, "/readyz", "GET").status == 503
    assert Answer(app, "/predict", "GET").status == 405
    slow.go()
    assert [result().status for result in waiting] == [200, 200, 200]
    assert app.service.calls == ["start"]
    assert Answer(app, "/readyz", "GET").status == 200


def test_a_probe_begins_the_start(hosting):
    app = hosting(started=False)
    slow = Slow(app.service)
    assert Answer(app, "/readyz", "GET").status == 503
    slow.go()
    app._hosted.wait_started()
    assert Answer(app, "/readyz", "GET").status == 200


def test_a_call_waits_for_the_start_no_longer_than_its_deadline(hosting):
    app = hosting(started=False)
    slow = Slow(app.service)
    answer = Answer(app, body=b"[1]", HTTP_X_REQUEST_TIMEOUT="0.02")
    assert (answer.status, answer.json["detail"]) == (503, "The service is starting.")
    assert "retry-after" in answer.headers
    slow.go()


@pytest.mark.parametrize(
    ("environ", "status"), [({"HTTP_X_REQUEST_TIMEOUT": "x"}, 400), ({"REQUEST_METHOD": "PUT"}, 405)]
)
def test_what_is_refused_whatever_the_service_does_does_not_wait_for_it(hosting, environ, status):
    app = hosting(started=False)
    slow = Slow(app.service)
    assert Answer(app, body=b"[1]", **environ).status == status
    slow.go()


def test_who_has_no_key_does_not_wait(hosting, tmp_path):
    (tmp_path / "keys").write_text("k" * 32 + "\n")
    (tmp_path / "keys").chmod(0o600)
    app = hosting(started=False, options=ServerOptions(api_key_file=str(tmp_path / "keys")))
    slow = Slow(app.service)
    assert Answer(app, body=b"[1]").status == 401
    slow.go()
    assert Answer(app, body=b"[1]", HTTP_X_API_KEY="k" * 32).status == 200


def test_a_start_that_fails_is_told_to_callers_and_tried_again(hosting, monkeypatch, caplog):
    monkeypatch.setattr("penstock.server.wsgi_services.RETRY_SECONDS", 0.2)
    app = hosting(started=False)
    app.service.broken = StartFailed("no weights", traceback="Traceback\nsecret")
    answer = Answer(app, body=b"[1]")
    assert answer.status == 503
    assert answer.json["detail"] == "The service failed to start, and retries: no weights"
    assert "retries: no weights" in Answer(app, "/readyz", "GET").json["detail"]
    assert len(app.service.calls) == 1
    app.service.broken = None
    again = Slow(app.service)
    again.go()
    assert Answer(app, body=b"[1]").status == 200
    assert "the service failed to start" in caplog.text


def test_a_start_that_was_asked_for_raises_what_went_wrong_and_stops_all(fakes, hosting, caplog):
    fine, broken = fakes.Service(name="fine", started=False), fakes.Service(name="broken", started=False)
    broken.broken = StartFailed("no weights")
    app = hosting(fine, broken, started=False)
    with pytest.raises(StartFailed, match="no weights"):
        app.start()
    assert fine.calls == ["start", ("stop", 30.0)]
    assert broken.calls == ["start"]
    broken.broken = None
    app.start()
    assert Answer(app, "/broken/predict", body=b"[1]").status == 200


def test_a_start_after_one_that_failed_does_not_wait_for_the_next_try(hosting):
    app = hosting(started=False)
    app.service.broken = StartFailed("no weights")
    assert Answer(app, body=b"[1]").status == 503
    with pytest.raises(StartFailed, match="no weights"):
        app.start()
    assert app.service.calls == ["start", "start"]
    assert Answer(app, body=b"[1]").status == 503
    app.service.broken = None
    app.start()
    assert Answer(app, body=b"[1]").status == 200


def test_a_start_is_harmless_where_the_services_run(hosting):
    app = hosting()
    app.start()
    assert app.service.calls == ["start"]


def test_a_stop_before_the_first_call_does_nothing(hosting):
    app = hosting(started=False)
    app.stop()
    assert Answer(app, body=b"[1]").status == 200


def test_a_stop_answers_what_is_in_hand_and_later_calls_get_503(hosting):
    app = hosting(options=ServerOptions(drain_timeout=7.0))
    submissions = hold_answers(app)
    submitted = Told(app.service.engine, "submit")
    waiting = in_thread(lambda: Answer(app, body=b"[1]"))
    assert submitted.wait(PATIENCE)
    stop = app.service.stop

    async def drain(*, drain_timeout):
        submissions[0].settle(b"[2]")
        await stop(drain_timeout=drain_timeout)

    app.service.stop = drain
    app.stop()
    assert waiting().body == b"[2]"
    assert app.service.calls == ["start", ("stop", 7.0)]
    later = Answer(app, body=b"[1]", HTTP_X_REQUEST_ID="mine")
    assert (later.status, later.json["detail"]) == (503, "service 'echo' was stopped")
    assert (later.json["type"], later.json["state"]) == ("urn:penstock:problem:not-ready", "stopped")
    assert (later.headers["retry-after"], later.headers["x-request-id"]) == ("1", "mine")
    assert Answer(app, "/livez", "GET").status == 503
    assert Answer(app, "/none", "GET").status == 404
    assert traffic(app) == {200: 1, 503: 1}
    app.stop()
    app.start()
    assert Answer(app, body=b"[1]").status == 200


def test_the_page_of_a_named_origin_is_given_leave_and_may_read_each_answer(hosting):
    page = "https://app.example"
    app = hosting(options=ServerOptions(cors_allow_origin=page, max_body_bytes=10))
    leave = Answer(app, method="OPTIONS", HTTP_ORIGIN=page, HTTP_ACCESS_CONTROL_REQUEST_METHOD="POST")
    assert (leave.status, leave.headers["access-control-allow-origin"]) == (204, page)
    assert "x-api-key" in leave.headers["access-control-allow-headers"]
    asked = {
        200: {"body": b"[1]"},
        413: {"body": b"[1, 2, 3, 4]"},
        404: {"path": "/nowhere"},
        400: {"body": b"[1", "CONTENT_LENGTH": "9"},
    }
    for status, how in asked.items():
        answer = Answer(app, **how, HTTP_ORIGIN=page)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, page)
        assert answer.headers["vary"] == "origin"
        stranger = Answer(app, **how, HTTP_ORIGIN="https://evil.example")
        assert "access-control-allow-origin" not in stranger.headers
    app.stop()
    for path, status in (("/predict", 503), ("/none", 404)):
        answer = Answer(app, path, body=b"[1]", HTTP_ORIGIN=page)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, page)


def test_a_start_waits_for_the_stop_before_it(hosting):
    app = hosting()
    slow = Slow(app.service, "stop")
    stopping = in_thread(app.stop)
    assert slow.begun.wait(PATIENCE)
    starting = in_thread(app.start)
    slow.go()
    stopping()
    starting()
    assert app.service.calls == ["start", ("stop", 30.0), "start"]
    assert Answer(app, body=b"[1]").status == 200


def test_a_stop_in_the_middle_of_a_start_ends_it_and_tells_who_waits(fakes, hosting):
    app = hosting(started=False)
    slow = Slow(app.service)
    waiting = in_thread(lambda: Answer(app, body=b"[1]"))
    assert slow.begun.wait(PATIENCE)
    begun, wait_started = threading.Event(), app._hosted.wait_started
    app._hosted.wait_started = lambda: (begun.set(), wait_started())
    starting = in_thread(app.start)
    assert begun.wait(PATIENCE)  # a start after the stop would be a new one
    app.service.engine = fakes.Service().engine
    app.service.engine.refused = NotReady("draining", state=State.DRAINING)
    app.stop()
    assert waiting().status == 503
    with pytest.raises(NotReady, match="stopped while they were starting"):
        starting()
    assert app.service.calls == [("stop", 30.0)]


def test_an_answer_that_is_closed_after_the_stop_is_counted(hosting):
    app = hosting()
    answer = Answer(app, body=b"[1]", close=False)
    app.stop()
    assert b"".join(answer.result) == b"[1]"
    answer.result.close()
    assert traffic(app) == {200: 1}


def test_a_fork_starts_its_own_and_drops_the_copy(hosting):
    app = hosting()
    copy = app._hosted
    app._lock.acquire()  # as another thread may have at the moment of the fork
    app.service.elsewhere = ConfigError("started in process 41")
    app._after_fork()  # what the interpreter does in the child
    assert Answer(app, body=b"[1]").body == b"[1]"
    assert app._hosted is not copy
    assert app.service.calls == ["start", ("stop", 0.0), "start"]
    copy.thread.end()


def test_a_fork_of_a_process_that_has_not_started_has_nothing_to_drop(hosting):
    app = hosting(started=False)
    app._after_fork()
    assert Answer(app, body=b"[1]").body == b"[1]"
    assert app.service.calls == ["start"]


def test_a_fork_reads_the_file_of_keys_no_more(hosting, tmp_path):
    """It may run as another user, who may not read it."""
    (tmp_path / "keys").write_text("k" * 32 + "\n")
    (tmp_path / "keys").chmod(0o600)
    app = hosting(started=False, options=ServerOptions(api_key_file=str(tmp_path / "keys")))
    (tmp_path / "keys").unlink()
    app._after_fork()
    assert Answer(app, body=b"[1]").status == 401
    assert Answer(app, body=b"[1]", HTTP_X_API_KEY="k" * 32).status == 200


def test_ids_of_two_processes_differ_though_they_were_forked_after_the_import(hosting):
    app = hosting(started=False)
    told = []
    for _ in range(2):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.write(write, Answer(app, "/livez", "GET").headers["x-request-id"].encode())
            os._exit(0)
        os.waitpid(child, 0)
        told.append(os.read(read, 100))
        os.close(read)
        os.close(write)
    assert len(set(told)) == 2
    assert all(told)
