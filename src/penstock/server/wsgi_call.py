"""One call of a WSGI app: its body is read, the app on the loop is asked, and the server iterates over the answer.

Contract
--------
* The loop is asked once.  A body in chunks, or of more than `SMALL_BODY_BYTES`, is read after its head was judged: then
  the loop is asked twice, and what is refused stays unread.
* Bytes of half-received bodies count as held, but for small ones: of those a server has at most one in each thread.
* Nobody can end a `read` that waits.  A body that is late is refused with 408 when its next piece has come, or its end.
* WSGI does not tell that a client has left.  Its item runs, and the call counts as 499 where the server then stops in
  the middle of the answer, or is interrupted: an interrupt in the thread of a call withdraws its item.
* While more bytes of answers are held than may be, one that was ready `write_timeout` ago counts no longer, and ends
  with its next piece.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Final, TypeAlias

from penstock.core.payload import Buffer, payload_size
from penstock.errors import NotReady
from penstock.server.application import DROPPED, HttpRequest, Response
from penstock.server.body_parts import BodyParts
from penstock.server.gateway import GatewayCall, answer_fields, answer_pieces, judge_head, judge_size
from penstock.server.status import CLIENT_LEFT, phrase
from penstock.server.wsgi_environ import Environ, body_length
from penstock.server.wsgi_services import WsgiServices

StartResponse: TypeAlias = Callable[..., object]

SMALL_BODY_BYTES: Final = 64 * 1024
"""A body up to so long is read before its head is judged, which saves a turn of the loop: some 60 µs."""
READ_BYTES: Final = 256 * 1024
"""Most bytes of a larger body that are read at once."""
CUT_OFF: Final = "the request body ended before Content-Length"


class _InterruptedAnswerError(BrokenPipeError):
    """The client has left its answer unread for too long."""


class _DroppedError(BrokenPipeError):
    """The call is not answered, on purpose: a WSGI server takes its client for gone, or answers 500."""


class WsgiCall(GatewayCall):
    """One request, and the body of its answer, as the server iterates over it and closes it.

    The methods of the first part are called in the server's thread, those of the second on the loop.
    """

    def __init__(self, services: WsgiServices, request: HttpRequest, environ: Environ) -> None:
        super().__init__(services.app, request, services.answering)
        self._services = services
        self._environ = environ
        self._pieces: list[Buffer] = []
        self._next = 0
        self._status = 0
        self._read_began = 0.0
        """When the first piece of a small body was asked for."""
        self._read_ended = 0.0
        """When a small body was whole."""
        self._small_body = b""
        """A small body."""
        self._cut_off = False
        """Whether a small body has ended too early."""
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
        self._parts = BodyParts(services.app, request)
        """What came of the body."""
        self._refusal: Response | None = None
        """Why the rest of the body is not taken."""
        self._cut = False
        """Whether the answer was unread for too long."""
        self._due = 0.0
        """When the body must be whole."""

    def run(self, start_response: StartResponse) -> WsgiCall:
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
            with self._services.lock:
                return judge_head(self._app, self._request) or self._app.answer_error(gone, self._request)

    def _ask_app(self) -> Response:
        if not self._services.ready:
            self._services.wait(self._request)
        length = body_length(self._request, self._environ)
        if length is None or length > min(SMALL_BODY_BYTES, self._app.options.max_body_bytes):
            response = self._ask(self._judge)
            if response is None:
                response = self._read_large(length) or self._ask(self._handle)
        else:
            if length:
                self._read_small(length)
            response = self._ask(self._judge_and_handle)
        assert response is not None, "the app has answered"
        if response is DROPPED:
            raise _DroppedError(32, "chaos: request dropped on purpose")
        return response

    def _read_small(self, length: int) -> None:
        """Read a body that is short enough; what was wrong with it is told once its head was judged."""
        read, now = self._environ["wsgi.input"].read, self._app.clock.now
        self._read_began = now()
        body = read(length)
        while len(body) < length:
            piece = read(length - len(body))
            if not piece:
                self._cut_off = True
                return
            body += piece
        self._read_ended = now()
        self._small_body = body

    def _read_large(self, length: int | None) -> Response | None:
        """Read a body in pieces that count as held, one in chunks where `length` is None; the answer that refuses it.

        The loop is told of a piece, and nobody waits for what it makes of it: it is looked at before the next one.
        """
        if length is None and not self._environ.get("wsgi.input_terminated"):
            return self._refuse(411, "the WSGI server does not mark the end of a chunked body; send a Content-Length")
        read, limit = self._environ["wsgi.input"].read, self._app.options.max_body_bytes
        got = 0
        while length is None or got < length:
            # One byte over the limit is enough to refuse a body in chunks.
            piece = read(min(READ_BYTES, (limit + 1 if length is None else length) - got))
            if not piece and length is None:
                break
            if not piece:
                return self._refuse(400, CUT_OFF)
            got += len(piece)
            if got > limit:
                return self._ask(partial(self._judge_length, got))
            self._services.thread.tell(partial(self._take, piece))
            if self._refusal is not None:
                return self._ask(partial(self._reply, self._refusal))
            if self._app.clock.now() > self._due:
                return self._refuse(408, self._lateness())
        return None

    def _lateness(self) -> str:
        allowed = self._due - self._request.arrived
        return f"the request body was incomplete after {allowed:g} s, the time limit of this request"

    def _refuse(self, status: int, detail: str) -> Response | None:
        return self._ask(lambda: self._reply(self._app.refuse(status, detail, self._request)))

    def _ask(self, work: Callable[[], object]) -> Response | None:
        """Do `work` on the loop, and wait for the answer that it, or something later, gives; None is to go on."""
        answer: concurrent.futures.Future[Response | None] = self._services.thread.ask(partial(self._begin, work))
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
                raise _InterruptedAnswerError(32, "the client did not read the response in time (write_timeout)")
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
            self._services.thread.tell(work)
        except NotReady:  # the loop has ended
            with self._services.lock:
                work()

    # -- on the loop --------------------------------------------------------------------------------------------------

    def _begin(self, work: Callable[[], object], answer: concurrent.futures.Future[Response | None]) -> None:
        self._answer = answer
        work()

    def _judge(self) -> None:
        self._give(self._judge_head())

    def _judge_head(self) -> Response | None:
        refusal = judge_head(self._app, self._request)
        if refusal is None:
            self._due = self._app.body_due(self._request)
        return refusal

    def _judge_length(self, nbytes: int) -> None:
        self._give(judge_size(self._app, self._request, nbytes))

    def _judge_and_handle(self) -> None:
        refusal = self._judge_head() or self._judge_small()
        if refusal is None:
            self._parts.add(self._small_body)
            self._handle()
        else:
            self._reply(refusal)

    def _judge_small(self) -> Response | None:
        """The refusal of a body that was read before its head was judged; None where it is whole, and in time."""
        if self._cut_off:
            return self._app.refuse(400, CUT_OFF, self._request)
        # One that was not asked for in time, because the services started, is not late by itself.
        if self._read_began <= self._due < self._read_ended:
            return self._app.refuse(408, self._lateness(), self._request)
        return None

    def _take(self, part: bytes) -> None:
        self._parts.add(part)
        self._held += len(part)
        self._app.hold(self._request, len(part))
        if self._refusal is None:
            self._refusal = self._app.overfull(self._request, self._held)

    def _handle(self) -> None:
        self._request.body = self._parts.whole()
        self._parts.drop()
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
        self._end()

    def _end(self) -> None:
        self._parts.drop()
        if self._held:
            self._give_body_back()
        self._let_go()
        if self._whole:
            self._app.answered(self._request, self._status, payload_size(self._pieces))
        else:
            self._app.answered(self._request, CLIENT_LEFT, 0)

    def _stop_sending(self) -> None:
        self._cut = True


@cache
def _status_line(status: int) -> str:
    return f"{status} {phrase(status)}"
