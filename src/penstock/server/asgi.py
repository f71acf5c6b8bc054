"""The same application as an ASGI app: to mount in FastAPI or Starlette, or to run under another server.

Contract
--------
* Routes, refusals, ids, metrics and the key are those of `App`: only the carrier differs.
* The server's lifespan starts the services of an app that runs by itself, and drains them at the end.  A mounted app
  receives no lifespan: the outer app enters ours (``FastAPI(lifespan=app.lifespan)``) or uses ``async with service``.
  Until the services were started, requests get a 503 that says so.
* A request is cancelled when its client leaves.  Whatever `receive` or `send` raises says that it has left.
* A body that is not whole by the deadline of its request is refused with 408.
* Bytes of half-received bodies count as held.  When too many are held, a body that is not whole yet is refused.
* Bytes of an answer count as held from when it is ready until `send` has returned for them, or the call ends otherwise.
  While more are held than may be, an answer that was ready `write_timeout` ago is not sent on: its call ends.
* Each process of a server with several runs its own workers.  In a fork of the process that started a service, requests
  and the lifespan raise a ConfigError that says so: the server logs it.

Only here in `server` does a single request have futures and tasks: the interface asks for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

from penstock.config import ServerOptions
from penstock.core.clock import calling_later
from penstock.core.payload import payload_size
from penstock.core.state import State
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.loop_clock import LoopClock
from penstock.hosting.servable import Servable
from penstock.server.app import App
from penstock.server.application import DROPPED, HttpRequest, Response
from penstock.server.body_parts import BodyParts
from penstock.server.fields import join_fields
from penstock.server.gateway import GatewayCall, answer_fields, answer_pieces, judge_head, judge_size
from penstock.server.status import CLIENT_LEFT
from penstock.server_names import UNIX_PEER

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

UNSTARTED = (
    "The service was never started: a mounted app receives no lifespan. Set "
    "`lifespan=app.lifespan` on the outer app, or start the service with `async with service`."
)

log = guarded_logger("penstock.server")


def asgi(served: App | Servable | Sequence[Servable], options: ServerOptions | None = None) -> AsgiApp:
    """An ASGI app for one service, several, or an `App` made elsewhere.

    `options` are the server's.  Those about sockets and connections have no effect here: the outer server has its own.
    Of `write_timeout` only the bound on unsent responses has an effect.
    """
    if isinstance(served, App):
        return AsgiApp(served)
    services = served if isinstance(served, Sequence) else (served,)
    return AsgiApp(App(services, options or ServerOptions(), LoopClock()))


class AsgiApp:
    """What `asgi` makes: call it with scope, receive and send."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._answering: set[GatewayCall] = set()
        app.problems.unstarted = UNSTARTED

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope: ``http`` or ``lifespan``; a websocket is refused."""
        if scope["type"] == "http":
            self._check_process()
            await _Call(self.app, _request(scope, self.app.clock.now()), receive, send, self._answering).run()
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000, "reason": "WebSocket is not supported"})
        else:
            raise ValueError(f"cannot serve an ASGI scope of type {scope['type']!r}")

    @contextlib.asynccontextmanager
    async def lifespan(self, outer: object = None) -> AsyncIterator[None]:  # noqa: ARG002  # frameworks pass themselves
        """Start the services, and drain them at the end; those that run already are left alone."""
        async with contextlib.AsyncExitStack() as started:
            self._check_process()
            started.callback(self.app.problems.faults.flush)  # the last thing that is done
            for service in self.app.services:
                engine = service.engine
                if engine is None or engine.state is State.STOPPED:
                    await service.start()
                    started.push_async_callback(service.stop, drain_timeout=self.app.options.drain_timeout)
            yield

    def _check_process(self) -> None:
        for service in self.app.services:
            service.check_process()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup is the only first message there is
        life = self.lifespan()
        try:
            await life.__aenter__()
        except Exception as error:
            log.exception("the service failed to start")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            await life.__aexit__(None, None, None)
        except Exception as error:
            log.exception("error during shutdown")
            await send({"type": "lifespan.shutdown.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


class DroppedError(ConnectionAbortedError):
    """The call is not answered, on purpose: an ASGI server mostly answers 500 to what raises."""


class _ClientLeftError(Exception):
    """The client left before its answer."""


class _RefusedError(Exception):
    """The body is not taken: `response` says why."""

    def __init__(self, response: Response) -> None:
        self.response = response


class _InterruptedError(Exception):
    """What a call was waiting for takes longer than it may."""


class _Call(GatewayCall):
    """A call of the app."""

    def __init__(
        self, app: App, request: HttpRequest, receive: Receive, send: Send, answering: set[GatewayCall]
    ) -> None:
        super().__init__(app, request, answering)
        self._receive = receive
        self._send = send
        self._held = 0
        self._parts = BodyParts(app, request)
        self._waiting: asyncio.Task[Any] | None = None
        """The task of the call, while it waits for what `_interrupt` may end: its body, or that its answer is sent."""
        self._interrupted = False
        """Cause: the task was cancelled by `_interrupt`."""

    async def run(self) -> None:
        """Answer the request, or count it as one whose client left."""
        request = self._request
        try:
            response = judge_head(self._app, request)
            if response is None:
                response = await self._serve()
            nbytes = await self._write(response)
        except _ClientLeftError:
            self._app.cancel(request)
            self._app.answered(request, CLIENT_LEFT, 0)
        except (asyncio.CancelledError, DroppedError):
            self._app.cancel(request)
            self._app.answered(request, CLIENT_LEFT, 0)
            raise
        else:
            self._app.answered(request, response.status, nbytes)
        finally:
            self._let_go()

    async def _serve(self) -> Response:
        try:
            await self._read_body()
            self._request.body = self._parts.whole()
        except _RefusedError as refused:
            return refused.response
        finally:
            self._parts.drop()
            self._app.hold(self._request, -self._held)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def reply(response: Response) -> None:
            if not answer.done():  # it is once nobody waits for it
                self._hold_answer(payload_size(response.body))
                answer.set_result(response)

        self._app.handle(self._request, reply)
        if not answer.done():
            await self._wait(answer)
        response = answer.result()
        if response is DROPPED:
            raise DroppedError("chaos: request dropped on purpose; the server closes it as its protocol allows")
        return response

    async def _wait(self, answer: asyncio.Future[Response]) -> None:
        """Wait until there is an answer; raises _ClientLeftError if the client hangs up first."""
        leaving = asyncio.ensure_future(self._hang_up())
        try:
            await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise _ClientLeftError
        finally:
            # Unless it is there: an answer may come after its call has ended, and nobody would give it back.
            answer.cancel()
            leaving.cancel()
            await asyncio.wait((leaving,))
            if not leaving.cancelled():
                leaving.exception()  # marks it as seen: where `receive` failed, the client was taken for gone above

    async def _hang_up(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _read_body(self) -> None:
        request = self._request
        allowed = self._app.body_due(request) - request.arrived
        left = max(0.0, request.arrived + allowed - self._app.clock.now())
        try:
            with calling_later(self._app.clock, left, self._interrupt), self._interruptible():
                await self._gather_body()
        except _InterruptedError:
            detail = f"the request body was incomplete after {allowed:g} s, the time limit of this request"
            raise _RefusedError(self._app.refuse(408, detail, request)) from None

    async def _gather_body(self) -> None:
        while True:
            try:
                message = await self._receive()
            except Exception as error:  # noqa: BLE001  # see `_left`
                raise _left(error) from None
            if message["type"] == "http.disconnect":
                raise _ClientLeftError
            piece = message.get("body", b"")
            refusal = judge_size(self._app, self._request, self._held + len(piece))
            if refusal is not None:
                raise _RefusedError(refusal)
            self._held += len(piece)
            self._app.hold(self._request, len(piece))
            self._parts.add(piece)
            if not message.get("more_body", False):
                return
            refusal = self._app.overfull(self._request, self._held)
            if refusal is not None:
                raise _RefusedError(refusal)

    async def _write(self, response: Response) -> int:
        """Send the answer; returns how many bytes of body it had."""
        if self not in self._answering:
            self._hold_answer(payload_size(response.body))
        headers = answer_fields(self._request, response)
        pieces = answer_pieces(self._request, response) or [b""]
        nbytes = payload_size(pieces)
        self._sending = True
        try:
            with self._interruptible():
                await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
                for piece in pieces[:-1]:
                    await self._send({"type": "http.response.body", "body": bytes(piece), "more_body": True})
                    self._give_back(len(piece))
                await self._send({"type": "http.response.body", "body": bytes(pieces[-1])})
        except Exception as error:  # noqa: BLE001  # see `_left`
            raise _left(error) from None
        finally:
            self._sending = False
        return nbytes

    # -- an end to waiting --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Inside, `_interrupt` ends what the task of the call waits for, with an _InterruptedError."""
        task = self._waiting = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        try:
            yield
        except asyncio.CancelledError:
            if not self._interrupted or task.uncancel() > cancelled_before:
                raise  # the server has cancelled the call, too
            self._interrupted = False
            raise _InterruptedError from None
        finally:
            self._waiting = None

    def _interrupt(self) -> None:
        if self._waiting is not None and not self._interrupted:
            self._interrupted = True
            self._waiting.cancel()

    def _stop_sending(self) -> None:
        if self._sending:
            self._interrupt()


def _left(error: Exception) -> _ClientLeftError:
    """What the error of a `receive` or `send` says: nobody takes the answer.

    A server should say so with an OSError.  Some raise what their transport raises, a RuntimeError with uvloop.
    """
    if not isinstance(error, (OSError, _InterruptedError)):
        log.debug("client disconnected, or the ASGI server failed: %r", error)
    return _ClientLeftError()


def _request(scope: Scope, arrived: float) -> HttpRequest:
    """The request that `scope` describes, its path as seen from our mount point."""
    path, root = scope["path"], scope.get("root_path", "")
    if root and path.startswith(root) and (path[len(root) :] == "*" or path[len(root) :][:1] in ("", "/")):
        path = path[len(root) :]
    headers = join_fields([(bytes(name), bytes(value)) for name, value in scope["headers"]])
    # A path begins with a slash: only `OPTIONS *` has none, to which some servers add the mount point all the same.
    target = b"*" if path == "*" else quote(path or "/", safe="/:").encode()
    request = HttpRequest(scope["method"], target, scope.get("query_string", b""), headers, arrived)
    client = scope.get("client")
    request.peer = str(client[0]) if client else UNIX_PEER
    return request
