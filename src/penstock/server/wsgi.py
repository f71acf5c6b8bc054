"""The same application as a WSGI app: for gunicorn's `sync` and `gthread` workers, alone or mounted in Flask.

Contract
--------
* Routes, refusals, ids, metrics and the key are those of `App`: only the carrier differs.
* The services start in the process that first calls the app, or its `start`: never at import, and never before a fork.
  They run on a loop thread of that process.  A fork of it starts its own, and leaves its parent's workers alone.
* A call of a service waits for the start, until its deadline.  Everything else is answered at once, `/livez` and
  `/readyz` above all.
* A start that fails is tried again after `RETRY_SECONDS`; calls get a 503 with the reason meanwhile.
* `stop` answers what is in hand; later calls get a 503.  Without it the workers end with their process.
* The loop is asked once for each request.  A body in chunks, or of more than `SMALL_BODY_BYTES`, is read after its head
  was judged: then it is asked twice, and one that is refused stays unread.
* Bytes of half-received bodies count as held, but for small ones: of those a server has at most one in each thread.
* Nobody can end a `read` that waits.  A body that is late is refused with 408 when its next piece has come.
* WSGI does not tell that a client has left.  Its item runs, and the call counts as 499 where the server then stops in
  the middle of the answer, or is interrupted: an interrupt in the thread of a call withdraws its item.
* While more bytes of answers are held than may be, one that was ready `unread_timeout` ago counts no longer, and ends
  with its next piece.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import cache, partial
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from penstock.codec.text import one_line
from penstock.config import ServerOptions
from penstock.core.clock import Clock
from penstock.core.payload import Buffer, payload_size
from penstock.core.state import State
from penstock.errors import ConfigError, NotReady
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.loop_clock import LoopClock, sleep_on
from penstock.hosting.loop_thread import LoopThread
from penstock.hosting.servable import Servable
from penstock.server.app import App
from penstock.server.application import DROPPED, HttpRequest, Response
from penstock.server.fields import RequestRefused, read_length
from penstock.server.gateway import GatewayCall, answer_fields, answer_pieces, judge_head, judge_size
from penstock.server.status import CLIENT_LEFT, phrase

Environ: TypeAlias = MutableMapping[str, Any]
StartResponse: TypeAlias = Callable[..., object]

SMALL_BODY_BYTES: Final = 64 * 1024
"""A body up to so long is read before its head is judged, which saves a turn of the loop: some 60 µs."""
READ_BYTES: Final = 256 * 1024
"""Most bytes of a larger body that are read at once."""
RETRY_SECONDS: Final = 10.0
"""How long after a start that failed the next one begins."""

log = guarded_logger("penstock.server")


def wsgi(served: Servable | Sequence[Servable], options: ServerOptions | None = None) -> WsgiApp:
    """A WSGI app for one service or several.

    `options` are the server's.  Those about sockets and connections have no effect here: the outer server has its own.

    Raises:
        ConfigError: the services cannot be served together, or the file of API keys cannot be read.
    """
    services = served if isinstance(served, Sequence) else (served,)
    return WsgiApp(services, options or ServerOptions(), LoopClock())


class WsgiApp:
    """What `wsgi` makes: call it with an environ and start_response.  Any number of threads may."""

    def __init__(self, services: Sequence[Servable], options: ServerOptions, clock: Clock) -> None:
        # One for each process: two that were forked from one would give the same ids to their requests.
        self._make_app = partial(App, tuple(services), options, clock)
        self._make_app()  # what cannot be served is said here
        self._hosted: _Hosted | None = None
        self._lock = threading.RLock()
        """Taken to make what hosts the services: of two calls that come first, one does."""
        self._is_copy = False
        """Whether this process is a fork of one that had started the services."""
        _apps.add(self)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        """Answer one request: the body of its answer, to be closed as WSGI says."""
        hosted = self._hosted or self._host()
        return _Call(hosted, _request(environ, hosted.app.clock.now()), environ).run(start_response)

    def start(self) -> None:
        """Start the services, and return once they are ready: for a server's hook.  Harmless where they run.

        Raises:
            StartFailed: a stage could not be set up.  The services are stopped then.
            ConfigError: a service runs already, elsewhere in this process.
        """
        hosted = self._host(again=True)
        try:
            hosted.wait_started()
        except BaseException:
            hosted.stop()
            raise

    def stop(self) -> None:
        """Answer what is in hand, for at most the option `drain`, and end the workers; later calls get a 503.

        It may be called at any time, any number of times.  `start` starts the services again.
        """
        hosted = self._hosted
        if hosted is not None:
            hosted.stop()

    def _host(self, *, again: bool = False) -> _Hosted:
        """What hosts the services in this process; with `again` also after a `stop`."""
        with self._lock:
            hosted = self._hosted
            if again and hosted is not None and hosted.stopped:
                hosted.stop()  # to its end, before the services are started again
                hosted = None
            if hosted is None:
                self._hosted = hosted = _Hosted(self._make_app(), is_copy=self._is_copy)
            return hosted

    def _after_fork(self) -> None:
        self._is_copy = self._is_copy or self._hosted is not None
        self._hosted = None
        self._lock = threading.RLock()  # another thread of the parent may have had it


_apps: weakref.WeakSet[WsgiApp] = weakref.WeakSet()


def _forget_copies() -> None:
    for app in _apps:
        app._after_fork()


os.register_at_fork(after_in_child=_forget_copies)


class _Hosted:
    """The services of one process on the thread of their loop, and the `App` in front of them."""

    def __init__(self, app: App, *, is_copy: bool) -> None:
        self.app = app
        self.answering: set[GatewayCall] = set()
        self.lock = threading.RLock()  # a signal handler may stop the app in the middle of a call
        """Taken to use the app where the loop does not run any more."""
        self.ready = False
        """Whether every service has started, so that nobody has to wait."""
        self._stopping: concurrent.futures.Future[None] | None = None
        self._is_copy = is_copy
        self._started: list[Servable] = []
        self._error: Exception | None = None
        """Why the last start has failed."""
        self._settled = threading.Event()
        """Set while no start is under way."""
        self._task: asyncio.Task[Any] | None = None
        """What starts the services."""
        names = ", ".join(service.name for service in app.services)
        self.thread = LoopThread(names, f"service {names!r} was stopped")
        self._starting = self.thread.submit(self._start())
        self._starting.add_done_callback(lambda _: self._settled.set())

    @property
    def stopped(self) -> bool:
        """Whether nothing more is taken."""
        return self._stopping is not None

    def wait(self, request: HttpRequest) -> None:
        """Wait for the start, where the request is a call that may; at most until its deadline."""
        until = self.app.waits_until(request)
        if until is not None:
            left = until - self.app.clock.now()
            self._settled.wait(min(max(left, 0.0), threading.TIMEOUT_MAX))

    def wait_started(self) -> None:
        """Wait for the start that is under way; raises what it has raised."""
        self._settled.wait()
        if self._error is not None:
            raise self._error
        if not self.ready:
            raise NotReady("the services were stopped while they started", state=State.STOPPED)

    def stop(self) -> None:
        """Stop the services and end the thread; harmless where that was done."""
        with self.lock, contextlib.suppress(NotReady):  # the loop has ended
            if self._stopping is None:
                self._stopping = self.thread.submit(self._stop())
        try:
            if self._stopping is not None:
                self._stopping.result()
        except NotReady:  # it ended meanwhile
            pass
        finally:
            self.thread.end()

    async def _start(self) -> None:
        self._task = asyncio.current_task()
        while not self.ready:
            self._settled.clear()
            try:
                await self._start_services()
            except Exception as error:  # a stage's module may raise anything
                log.exception("the service could not start; the next try is in %g s", RETRY_SECONDS)
                self._error = error
                self.app.problems.unstarted = f"The service could not start, and tries again: {one_line(str(error))}"
                self._settled.set()
                await sleep_on(self.app.clock, RETRY_SECONDS)
            else:
                self._error = None
                self.ready = True
                self._settled.set()

    async def _start_services(self) -> None:
        for service in self.app.services:
            if service in self._started:
                continue  # by a try before this one
            if self._is_copy:
                await _drop_copy(service)
            self._started.append(service)  # first: the start may be cancelled
            try:
                await service.start()
            except Exception:
                self._started.remove(service)
                raise

    async def _stop(self) -> None:
        assert self._task is not None, "it was the first thing that the loop was given"
        self._task.cancel()
        await asyncio.wait((self._task,))
        self.app.problems.unstarted = "The service was stopped."
        for service in reversed(self._started):
            await service.stop(drain=self.app.options.drain)
        self.app.problems.faults.flush()


async def _drop_copy(service: Servable) -> None:
    """Forget what the parent of this process has started: its workers are the parent's."""
    try:
        service.check_process()
    except ConfigError:
        await service.stop(drain=0.0)


class _InterruptedAnswerError(BrokenPipeError):
    """The client has left its answer unread for too long."""


class _DroppedError(BrokenPipeError):
    """The call is not answered, on purpose: a WSGI server takes its client for gone, or answers 500."""


class _Call(GatewayCall):
    """One request, and the body of its answer, as the server iterates over it and closes it.

    The methods of the first part are called in the server's thread, those of the second on the loop.
    """

    def __init__(self, hosted: _Hosted, request: HttpRequest, environ: Environ) -> None:
        super().__init__(hosted.app, request, hosted.answering)
        self._hosted = hosted
        self._environ = environ
        self._pieces: list[Buffer] = []
        self._next = 0
        self._status = 0
        self._whole = False
        """Whether the server has taken all of the answer."""
        self._over = False
        """Whether the call has been counted."""
        # What the loop knows:
        self._answer: concurrent.futures.Future[Response | None] | None = None
        """What the server's thread waits for."""
        self._left = False
        """Whether nobody waits for an answer any more."""
        self._held = 0
        """Bytes of the body that are held."""
        self._refusal: Response | None = None
        """Why the rest of the body is not taken."""
        self._cut = False
        """Whether the answer was unread for too long."""
        self._due = 0.0
        """When the body must be whole."""

    def run(self, start_response: StartResponse) -> _Call:
        """Have the request answered."""
        try:
            response = self._respond()
            fields = [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in answer_fields(self._request, response)
            ]
            start_response(_status_line(response.status), fields)
        except BaseException:
            self._leave()
            raise
        self._status = response.status
        self._pieces = answer_pieces(self._request, response)
        self._whole = not self._pieces
        return self

    def _respond(self) -> Response:
        try:
            return self._ask_app()
        except NotReady as gone:  # nobody runs the loop any more
            with self._hosted.lock:
                return self._app.refuse(503, str(gone), self._request)

    def _ask_app(self) -> Response:
        if not self._hosted.ready:
            self._hosted.wait(self._request)
        length = self._length()
        if length is None or length > min(SMALL_BODY_BYTES, self._app.options.max_body):
            response = self._ask(self._judge)
            if response is None:
                response = self._read_large(length) or self._ask(self._handle)
        else:
            response = (self._read_small(length) if length else None) or self._ask(self._judge_and_handle)
        assert response is not None, "the app has answered"
        if response is DROPPED:
            raise _DroppedError(32, "the call is dropped on purpose, by chaos")
        return response

    def _length(self) -> int | None:
        """The length of the body, None where it comes in chunks; 0 where it makes no sense, which its head says."""
        headers = self._request.headers
        if b"transfer-encoding" in headers:
            return None
        try:
            return read_length(headers.get(b"content-length"))
        except RequestRefused:
            return 0

    def _read_small(self, length: int) -> Response | None:
        """Read a body that is short enough; the answer where it was cut off."""
        read = self._environ["wsgi.input"].read
        body = read(length)
        while len(body) < length:
            piece = read(length - len(body))
            if not piece:
                return self._refuse(400, "the body ended before it was whole")
            body += piece
        self._request.body = body
        return None

    def _read_large(self, length: int | None) -> Response | None:
        """Read a body in pieces that count as held, one in chunks where `length` is None; the answer that refuses it.

        The loop is told of a piece, and nobody waits for what it makes of it: it is looked at before the next one.
        """
        if length is None and not self._environ.get("wsgi.input_terminated"):
            return self._refuse(411, "the server in front does not tell where a body in chunks ends; send a length")
        read, limit = self._environ["wsgi.input"].read, self._app.options.max_body
        pieces: list[bytes] = []
        got = 0
        while length is None or got < length:
            # One byte over the limit is enough to refuse a body in chunks.
            piece = read(min(READ_BYTES, (limit + 1 if length is None else length) - got))
            if not piece and length is None:
                break
            if not piece:
                return self._refuse(400, "the body ended before it was whole")
            got += len(piece)
            if got > limit:
                return self._ask(partial(self._judge_length, got))
            pieces.append(piece)
            self._hosted.thread.tell(partial(self._hold, len(piece)))
            if self._refusal is not None:
                return self._ask(partial(self._reply, self._refusal))
            if self._app.clock.now() > self._due:
                allowed = self._due - self._request.arrived
                return self._refuse(408, f"the body was not whole within {allowed:g} s, the time this request has")
        self._request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return None

    def _refuse(self, status: int, detail: str) -> Response | None:
        return self._ask(lambda: self._reply(self._app.refuse(status, detail, self._request)))

    def _ask(self, work: Callable[[], object]) -> Response | None:
        """Do `work` on the loop, and wait for the answer that it, or something later, gives; None is to go on."""
        answer: concurrent.futures.Future[Response | None] = self._hosted.thread.ask(partial(self._begin, work))
        return answer.result()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        at = self._next
        if at == len(self._pieces):
            self._whole = True
            raise StopIteration
        if at:
            if self._cut:
                raise _InterruptedAnswerError(32, "the answer was unread for too long")
            self._tell(partial(self._give_back, len(self._pieces[at - 1])))
        self._next = at + 1
        return bytes(self._pieces[at])

    def close(self) -> None:
        """Count the request: the server has sent the answer, or has given it up."""
        if not self._over:
            self._over = True
            self._tell(self._end)

    def _leave(self) -> None:
        """Withdraw the request: nobody waits for its answer."""
        self._over = True
        self._tell(self._withdraw)

    def _tell(self, work: Callable[[], object]) -> None:
        try:
            self._hosted.thread.tell(work)
        except NotReady:  # the loop has ended
            with self._hosted.lock:
                work()

    # -- on the loop --------------------------------------------------------------------------------------------------

    def _begin(self, work: Callable[[], object], answer: concurrent.futures.Future[Response | None]) -> None:
        self._answer = answer
        work()

    def _judge(self) -> None:
        refusal = judge_head(self._app, self._request)
        if refusal is None:
            self._due = self._app.body_due(self._request)
        self._give(refusal)

    def _judge_length(self, nbytes: int) -> None:
        self._give(judge_size(self._app, self._request, nbytes))

    def _judge_and_handle(self) -> None:
        refusal = judge_head(self._app, self._request)
        if refusal is None:
            self._app.handle(self._request, self._reply)
        else:
            self._reply(refusal)

    def _hold(self, nbytes: int) -> None:
        self._held += nbytes
        self._app.hold(self._request, nbytes)
        if self._refusal is None:
            self._refusal = self._app.overfull(self._request, self._held)

    def _handle(self) -> None:
        self._give_body_back()
        self._app.handle(self._request, self._reply)

    def _give(self, response: Response | None) -> None:
        if response is not None:
            self._reply(response)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _reply(self, response: Response) -> None:
        if not self._left and self._answer is not None and not self._answer.done():
            self._hold_answer(payload_size(response.body))
            self._sending = True
            self._answer.set_result(response)

    def _give_body_back(self) -> None:
        self._app.hold(self._request, -self._held)
        self._held = 0

    def _withdraw(self) -> None:
        self._left = True
        self._app.cancel(self._request)
        self._end(CLIENT_LEFT)

    def _end(self, status: int = 0) -> None:
        if self._held:
            self._give_body_back()
        self._let_go()
        if status or not self._whole:
            self._app.answered(self._request, CLIENT_LEFT, 0)
        else:
            self._app.answered(self._request, self._status, payload_size(self._pieces))

    def _stop_sending(self) -> None:
        self._cut = True


@cache
def _status_line(status: int) -> str:
    return f"{status} {phrase(status)}"


def _request(environ: Environ, arrived: float) -> HttpRequest:
    """The request that `environ` describes; its path begins below our mount point, as WSGI has it."""
    headers = {
        name[5:].replace("_", "-").lower().encode("latin-1"): value.strip(" \t").encode("latin-1")
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    # These two stand for themselves, and are empty where the client has not sent them.
    for name, field in (("CONTENT_TYPE", b"content-type"), ("CONTENT_LENGTH", b"content-length")):
        value = environ.get(name)
        if value:
            headers[field] = value.strip(" \t").encode("latin-1")
    if b"transfer-encoding" in headers:
        headers.pop(b"content-length", None)  # chunks have none (RFC 9112, 6.3)
    path = environ.get("PATH_INFO") or "/"
    target = b"*" if path == "*" else quote(path.encode("latin-1"), safe="/").encode()
    query = environ.get("QUERY_STRING", "").encode("latin-1")
    return HttpRequest(environ["REQUEST_METHOD"], target, query, headers, arrived)
