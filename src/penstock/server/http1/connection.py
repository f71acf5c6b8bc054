"""One client's socket: bytes in, requests to the application, answers out in the order of the requests.

Contract
--------
* There is no task, coroutine, future or timer.  Everything happens in a callback of the transport, in `Exchange.reply`,
  in `go_on`, or in `sweep`, which is told the time.
* Answers leave in the order of the requests, however the application finishes them.  At most `max_pipelined`
  requests are in hand; beyond that, and while the client does not read, the socket is not read either.
* A connection goes on with the requests or the chunks that it has read for a short turn only.  Then it rests, and the
  socket is not read, until all others had theirs.  So who pipelines what is answered at once keeps nobody waiting.
* Between two pieces of a body there may be no more time than the options say.  The whole body may take no longer than
  its request has.
* One blank line before a request line is ignored as soon as it came: it keeps no connection from being idle.
* Every admitted request ends with exactly one `answered`: with the status written, or with 499 if the client left
  first.
* The requests in hand of a client that hangs up are cancelled.  The end of its sending side counts as hanging up: a
  closed socket and a half-closed one look the same until it is too late to save the work.
* From the moment that `Connections.last_answer_from` says, or from `end_soon` on, the connection ends with the first
  answer behind which nothing has come: what is pipelined is answered first.
* A connection that came when there were too many is answered one probe, and 503 to anything else unless there is room
  by then.  With that answer it ends.
* A table in `refusals.py` says what becomes of the connection after a refusal; a table in `states.py` has its states.
* A large body that gets a piece is received into it: `large_bodies.py`.  Once it is whole, `Exchange.body` has the only
  view of it here, until the application takes that or answers.
* The bytes of half-received bodies are reported to `Application.hold` and given back.  To `Application.hold_answer` go
  those of answers that wait for earlier ones, and of answers that the client has not read.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Final, cast

from penstock.core.payload import payload_size
from penstock.server.application import DROPPED, Application, HttpRequest, Response
from penstock.server.fields import RequestRefused
from penstock.server.http1.answers import BODILESS, CLOSING, CONTINUE, KEEP_ALIVE, KEEP_ALIVE_1_0
from penstock.server.http1.connections import ABORTED, EXCESS, Connections
from penstock.server.http1.heads import END_OF_HEAD, Head
from penstock.server.http1.intake import LARGE_BODY_BYTES, BodyIntake
from penstock.server.http1.large_bodies import LargeBodies
from penstock.server.http1.reading import ReadingFlow
from penstock.server.http1.refusals import (
    CLOSE_AFTER,
    LINGER_AFTER,
    LINGER_BYTES,
    SKIP_BODY,
    after_refusal,
)
from penstock.server.http1.states import (
    AWAITING_TURN,
    CLOSE,
    CLOSED,
    DISCARD,
    END_BODY,
    EXPECT,
    FINISH,
    FINISHING,
    HALF_CLOSE,
    LINGERING,
    POSTPONE,
    READING_BODY,
    READING_HEAD,
    SKIP,
    SKIPPING,
    ConnectionState,
)
from penstock.server.http1.unread import UnreadAnswers
from penstock.server.status import CLIENT_LEFT
from penstock.server_names import UNIX_PEER

NO_HEAD: Final = -1
"""`Exchange.minor` of what is no request."""


class Exchange(HttpRequest):
    """A request as the application sees it, and the connection's own record of it, in one object.

    `minor` is that of its version, or `NO_HEAD` where the head made no sense; such an exchange only keeps the order of
    answers.  `head` is None then, and once there is an answer.  `connection` is None once the answer was written or the
    client has left.  `last` says that the connection ends with this answer.  `ready` is when there was an answer; it is
    unset before.
    """

    __slots__ = ("connection", "head", "last", "minor", "ready", "response")

    def __init__(self, connection: Connection, head: Head | None, now: float) -> None:
        if head is None:
            HttpRequest.__init__(self, "", b"", b"", {}, now)
        else:
            HttpRequest.__init__(self, head.method, head.path, head.query, head.headers, now)
            self.peer = connection.peer
        self.head = head
        self.minor = NO_HEAD if head is None else head.minor
        self.connection: Connection | None = connection
        self.response: Response | None = None
        self.last = False
        self.ready: float

    def reply(self, response: Response) -> None:
        """Answer.  Ignored where the client has left, and the second time."""
        connection = self.connection
        if connection is not None and self.response is None:
            if response is DROPPED:
                connection.abort()
                return
            self.response = response
            connection.settle(self)

    def cancel(self, app: Application) -> None:
        """The client has left before the answer was written."""
        self.connection = None
        if self.response is None:
            app.cancel(self)
        else:
            app.hold_answer(self, -payload_size(self.response.body))
            self.response = None  # the application may know this request for longer
        if self.minor != NO_HEAD:
            app.answered(self, CLIENT_LEFT, 0)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """The address at the other end, or `UNIX_PEER` where that has none."""
    address = transport.get_extra_info("peername")
    return str(address[0]) if isinstance(address, tuple) and address else UNIX_PEER


# Never make a weak reference to a connection.  mypyc allows them on a class with a Python base, but does not clear them
# when the object is freed: to follow one then reads freed memory.
class Connection(asyncio.Protocol):
    """The protocol object of one connection."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._app = connections.app
        self._max_header = connections.options.max_header_bytes
        self._max_body = connections.options.max_body_bytes
        self._now = connections.clock.now
        self._transport: asyncio.Transport | None = None
        self.peer = ""
        """Whoever is at the other end, where the access log needs it."""
        self._state: ConnectionState = READING_HEAD
        self._queue: deque[Exchange] = deque()
        """The requests in hand, in their order."""
        self._reading = ReadingFlow(connections.options.max_pipelined, self._now)
        self._intake = BodyIntake(self._app, connections.options)
        self._large: LargeBodies | None = None
        """What the transport is given while large bodies come; made for the first of them."""
        self._discarded_bytes = 0
        """History: how much came after the last request."""
        self._fresh = True
        """History: no request was begun yet."""
        self._last_from = math.inf
        """From when on an answer is the last one, where nothing has come behind its request."""
        self._excess = False
        """Cause: it has no place, because it came when there were too many or has made way."""
        self._idle_since = self._reading.waiting_since
        """When an answer was last owed to the client or lay unread."""
        self._unread = UnreadAnswers(self._app, self._idle_since)

    # ---- callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast("asyncio.Transport", transport)
        if self._connections.options.access_log:
            self.peer = peer_of(transport)
        self._idle_since = self._now()  # not while a TLS handshake lasted
        self._last_from = self._connections.last_answer_from(self._idle_since)
        entry = self._connections.enter(self)
        self._excess = entry is EXCESS
        if entry is ABORTED:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._excess:
            self._connections.heard(self)
        reading = self._reading
        if not reading.kept:
            self._read(data)
            return
        reading.add(data)
        if not reading.blocked(self._state, len(self._queue)):
            self._read(reading.take())

    def eof_received(self) -> None:
        """The client will send no more: it is taken for gone."""
        self._close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        """The socket is gone: cancel what was in hand, and give back what was held."""
        self._leave()
        self._unread.charge(0)
        self._transport = None
        self._large = None  # the two refer to each other
        self._connections.leave(self)

    def pause_writing(self) -> None:
        """The client reads too slowly: stop reading from it."""
        self._reading.choked = True
        self._unread.measure(self._transport)
        self._reading.match(self._transport, self._state, len(self._queue))

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._reading.choked = False
        self._idle_since = self._now()
        self._unread.measure(self._transport)
        self._resume()
        if self._state is CLOSED and self._transport is not None:
            self._transport.close()

    # ---- bytes to requests

    def _read(self, data: bytes | bytearray) -> None:
        """Use up `data`; what cannot be used yet is kept."""
        reading = self._reading
        at, end = 0, len(data)
        began, before = 0.0, READING_HEAD
        while at < end:
            state = self._state
            # A turn ends before another request, or in the midst of many chunks; never between a head and its body.
            if began and (state is READING_HEAD or state is before) and self._turn_is_over(began):
                break
            if state is READING_HEAD:
                start = at
                if reading.blocked(state, len(self._queue)) or (at := self._read_head(data, at)) == start:
                    break
            elif state is READING_BODY or state is AWAITING_TURN:
                at = self._read_body(data, at)
            elif state is SKIPPING:
                at = self._skip_body(data, at)
            else:
                self._discard(end - at)
                return
            if at < end and not began:
                began = self._now()
            before = state
        reading.more = False
        if at < end:
            reading.keep(data, at)
            reading.match(self._transport, self._state, len(self._queue))

    def _turn_is_over(self, began: float) -> bool:
        """Whether the rest of what was read waits for the next turn."""
        if not self._connections.turn_is_over(self._now() - began):
            return False
        self._reading.resting = self._reading.rested = True
        self._connections.rest(self)
        return True

    def _read_head(self, data: bytes | bytearray, at: int) -> int:
        """Read the head that begins at `at`; returns where to read on, which is `at` where its end has not come."""
        reading = self._reading
        stop = data.find(END_OF_HEAD, at + reading.judged_bytes) + 4
        if stop >= 4 and stop - at <= self._max_header:
            reading.judged_bytes = 0
            return self._begin(data, at, stop)
        if reading.passes_blank_line(data, at):
            return at + 2
        try:
            reading.judge_head(self._connections.heads, data, at)
        except RequestRefused as refused:
            self._refuse(refused.status, refused.detail)
            return len(data)
        return at

    def _begin(self, data: bytes | bytearray, at: int, stop: int) -> int:
        """Start the request whose head lies between `at` and `stop`; returns where to read on."""
        raw = data[at:stop]
        if at or self._queue:
            self._reading.pipelines = True
        try:
            head = self._connections.heads.read(raw if type(raw) is bytes else bytes(raw))
        except RequestRefused as refused:
            # Looked for only here, where a request has failed by it, so that it costs the others nothing.
            if self._reading.passes_blank_line(data, at):
                return at + 2
            self._refuse(refused.status, refused.detail)
            return len(data)
        self._fresh = self._reading.passed_blank_line = False
        exchange = Exchange(self, head, self._now())
        exchange.last = not (head.keep_alive and self._connections.persistent)
        self._queue.append(exchange)
        refusal = self._app.admit(exchange)
        if self._excess:
            refusal = self._judge_excess(exchange, head, refusal)
        length = head.length
        self._reading.more = stop + length < len(data)
        if refusal is None and (head.objection is not None or length > self._max_body):
            status, detail = head.objection or (
                413,
                f"the request body is larger than {self._max_body} bytes (max_body_bytes)",
            )
            refusal = self._app.refuse(status, detail, exchange)
        if refusal is not None:
            self._refuse_request(exchange, refusal)
        elif 0 <= length <= len(data) - stop:
            if length >= LARGE_BODY_BYTES:
                exchange.body = self._intake.take_at_once(exchange, data, stop, length, exchange.arrived)
            elif length:
                exchange.body = data[stop : stop + length]
            self._complete(exchange)
            return stop + length
        else:
            self._expect_body(exchange, head, stop == len(data))
        return stop

    def _expect_body(self, exchange: Exchange, head: Head, nothing_came: bool) -> None:
        """Wait for the body of `exchange`, and ask for it where the client waits for that."""
        self._reading.waiting_since = exchange.arrived
        self._intake.expect(head.length)
        if head.expects and nothing_came:
            self._state = POSTPONE[self._state]
            self._send_continue()
        else:
            self._state = EXPECT[self._state]

    def _send_continue(self) -> None:
        """Ask for the body, as soon as no earlier answer is owed."""
        if len(self._queue) == 1 and self._transport is not None:
            self._state = EXPECT[self._state]
            self._reading.sign_of_life()
            self._transport.write(CONTINUE)
            self._unread.written += len(CONTINUE)

    def _read_body(self, data: bytes | bytearray, at: int) -> int:
        """Read on in a body; returns where the body, or `data`, ends."""
        intake, exchange = self._intake, self._queue[-1]
        if self._state is AWAITING_TURN:
            self._state = EXPECT[self._state]
        self._reading.sign_of_life()
        refusal = intake.feed(exchange, data, at, self._reading.waiting_since)
        self._reading.more = intake.position < len(data)
        self._end_body(exchange, refusal)
        if intake.large():
            self._receive_large()
        return intake.position

    def _end_body(self, exchange: Exchange, refusal: Response | None) -> None:
        """Pass on `exchange` if its body is whole, or answer it with `refusal`."""
        if refusal is not None:
            self._refuse_request(exchange, refusal)
        elif self._intake.whole():
            exchange.body = self._intake.take(exchange)
            self._state = END_BODY[self._state]
            self._complete(exchange)

    def _receive_large(self) -> None:
        """Have the rest of the body in arrival received where it is to lie."""
        transport = self._transport
        assert transport is not None
        if self._large is None:
            self._large = LargeBodies(self, self._intake, self._reading, self._connections.head_room)
        if transport.get_protocol() is self:
            transport.set_protocol(self._large)

    def body_received(self, nbytes: int) -> None:  # see `PlainProtocol`
        reading, exchange = self._reading, self._queue[-1]
        reading.sign_of_life()
        self._end_body(exchange, self._intake.received(exchange, nbytes, reading.waiting_since))

    def plain_again(self) -> None:  # see `PlainProtocol`
        assert self._transport is not None
        self._transport.set_protocol(self)

    def _skip_body(self, data: bytes | bytearray, at: int) -> int:
        """Let a refused body pass; returns where it, or `data`, ends."""
        self._reading.sign_of_life()
        at += self._intake.pass_by(len(data) - at)
        if not self._intake.skipping_bytes:
            self._state = END_BODY[self._state]
            if self._connections.draining:
                self.drain()
        return at

    def _complete(self, exchange: Exchange) -> None:
        """Pass on a request whose body is whole."""
        if exchange.last:
            self._state = FINISH[self._state]
        self._app.handle(exchange, exchange.reply)

    def _discard(self, nbytes: int) -> None:
        """Drop `nbytes` that came after the last request."""
        if self._state is FINISHING:
            self._state = DISCARD[self._state]
        self._discarded_bytes += nbytes
        if self._discarded_bytes > LINGER_BYTES:
            self.abort()

    # ---- refusals

    def _judge_excess(self, exchange: Exchange, head: Head, refusal: Response | None) -> Response | None:
        """Judge a request on a connection in excess; `refusal` is what the application says of it.

        A probe without a body is the application's affair.  Anything else is refused, unless there is room by now.
        """
        probes = head.path in self._connections.probes and not head.length
        if not probes and self._connections.promote(self):
            self._excess = False
            return refusal
        exchange.last = True
        return refusal if probes else self._app.refuse(503, "the server has reached max_connections", exchange)

    def _refuse(self, status: int, detail: str) -> None:
        """Answer something that is no request, after the answers owed; the connection then ends."""
        exchange = Exchange(self, None, self._now())
        self._queue.append(exchange)
        self._refuse_request(exchange, self._app.refuse(status, detail))

    def _refuse_request(self, exchange: Exchange, refusal: Response) -> None:
        """Answer `exchange` before its body is whole.  The table of refusals says what becomes of the rest of it."""
        head, length, after = exchange.head, 0, LINGER_AFTER
        if head is not None:
            length = head.length
            self._intake.drop(exchange)
            last = exchange.last = exchange.last or (self._now() >= self._last_from and not self._reading.more)
            after = after_refusal(length, self._state is not READING_HEAD, head.expects, last)
        if after is SKIP_BODY:
            self._state = SKIP[self._state]
            self._intake.skip(length)
            self._reading.waiting_since = exchange.arrived
        elif after is CLOSE_AFTER:
            self._state = FINISH[self._state]
        elif after is LINGER_AFTER:
            self._state = DISCARD[self._state]
            self._reading.kept = b""
            exchange.last = True
        exchange.reply(refusal)

    # ---- answers

    def settle(self, exchange: Exchange) -> None:
        """Write the answer of `exchange` and those that waited for it, or let it wait for its turn."""
        queue = self._queue
        exchange.body = b""
        exchange.head = None
        now = exchange.ready = self._now()
        if queue[0] is not exchange:
            assert exchange.response is not None
            self._app.hold_answer(exchange, payload_size(exchange.response.body))
            exchange.forget_fields()  # it may wait for long
            return
        blocked = self._reading.blocked(self._state, len(queue))
        self._write(queue.popleft(), False, now)
        while queue and queue[0].response is not None:
            self._write(queue.popleft(), True, now)
        if blocked:
            self._resume()
        if self._state is AWAITING_TURN:
            self._send_continue()

    def _write(self, exchange: Exchange, held: bool, now: float) -> None:
        """Write one answer whose turn has come; `held` says that it was reported as held."""
        response, transport = exchange.response, self._transport
        assert response is not None
        assert transport is not None
        if held:
            self._app.hold_answer(exchange, -payload_size(response.body))
        exchange.connection = None
        body = response.body
        nbytes = len(body) if type(body) is bytes else payload_size(body)
        last = exchange.last or self._owes_no_more(now)
        persistence = CLOSING if last else KEEP_ALIVE_1_0 if exchange.minor == 0 else KEEP_ALIVE
        if exchange.method == "HEAD" or response.status in BODILESS:
            body = b""
        out = self._connections.answers.encode(response, exchange.id, body, nbytes, persistence)
        self._unread.write(transport, out, exchange, exchange.ready)
        if self._reading.choked:
            self._unread.measure(transport)
        self._idle_since = now
        if exchange.minor != NO_HEAD:
            self._app.answered(exchange, response.status, nbytes if body else 0)
        exchange.response = None  # `UnreadAnswers` may keep the request for a while, not the answer
        if last:
            self._finish(transport)

    def _owes_no_more(self, now: float) -> bool:
        """Whether the connection ends with the answer that is written now, because it drains or its time is up."""
        if self._queue or self._state is not READING_HEAD:
            return False
        reading = self._reading
        return self._connections.draining or (now >= self._last_from and not reading.kept and not reading.more)

    def _finish(self, transport: asyncio.Transport) -> None:
        """The last answer was written: close, or linger where the client may still be sending."""
        reading = self._reading
        # The system resets a connection that is closed before all was read, and its client loses answers.
        more = reading.kept or reading.rested or (reading.pipelines and transport.can_write_eof())
        if self._state is FINISHING or (self._state is READING_HEAD and not more):
            self._close()
            return
        self._state = HALF_CLOSE[self._state]
        reading.kept = b""
        if transport.can_write_eof():
            transport.write_eof()
        reading.match(transport, self._state, len(self._queue))

    def _resume(self) -> None:
        """Go on with what was kept, where another request may be begun now."""
        reading = self._reading
        if reading.kept and not reading.blocked(self._state, len(self._queue)):
            self._read(reading.take())
        reading.match(self._transport, self._state, len(self._queue))

    def go_on(self) -> None:  # see `OpenConnection`
        self._reading.resting = False
        if self._transport is not None and not self._transport.is_closing():
            self._resume()

    # ---- making way

    def idle_since(self) -> float:  # see `Guest`
        transport = self._transport
        idle = self._state is CLOSED or (self._state is READING_HEAD and not self._queue and not self._reading.kept)
        if not idle or self._excess or transport is None or transport.get_write_buffer_size():
            return math.inf
        return self._idle_since

    def has_asked(self) -> bool:  # see `Guest`
        return not self._fresh

    def make_way(self) -> None:  # see `OpenConnection`
        self._excess = True
        self._close()

    # ---- ends

    def end_soon(self) -> None:  # see `OpenConnection`
        self._last_from = -math.inf

    def drain(self) -> None:  # see `OpenConnection`
        if self._state is READING_HEAD and not self._queue and not self._reading.kept:
            self._close()

    def abort(self) -> None:  # see `OpenConnection`
        self._leave()
        if self._transport is not None:
            self._transport.abort()
        self._unread.charge(0)  # now, not when the loss is reported: the sweep asks how much is left

    def _close(self) -> None:
        """Close once what was written has been sent; cancel what is in hand."""
        if self._state is not CLOSED:
            self._leave()
            transport = self._transport
            assert transport is not None
            if transport.can_write_eof() or not transport.get_write_buffer_size():
                transport.close()
            else:
                # TLS: the event loop cuts who has not taken all and said goodbye `TLS_GOODBYE_SECONDS` after the close.
                # A large answer may take longer, so the close waits for `resume_writing`.  Meanwhile the sweep watches.
                transport.set_write_buffer_limits(0)

    def _leave(self) -> None:
        """Take the connection for closed, and cancel every request in hand: its client has left."""
        if self._state is not CLOSED:
            self._state = CLOSE[self._state]
        self._reading.kept = b""
        if not self._queue:
            return
        left = tuple(self._queue)
        self._queue.clear()
        self._intake.drop(left[-1])
        for exchange in left:
            exchange.cancel(self._app)

    # ---- time

    def sweep(self, now: float) -> None:  # see `OpenConnection`
        transport = self._transport
        if transport is None:
            return
        limits, unread = self._connections.limits, transport.get_write_buffer_size()
        if self._unread.stalled(unread, now, limits.unread):
            self.abort()
        elif unread:
            self._idle_since = now
        elif not self._queue and not self._reading.kept:
            idle, silent = now - self._idle_since, now - self._reading.waiting_since
            if limits.end_idle(self._state, self._fresh, idle, silent):
                self.abort() if self._state is LINGERING else self._close()
        self._refuse_late(now)

    def overdue_bytes(self, now: float) -> int:  # see `OpenConnection`
        ready_by = now - self._connections.limits.unread
        overdue = self._unread.overdue_bytes(ready_by)
        for exchange in self._queue:
            response = exchange.response
            if response is not None and exchange.ready <= ready_by and self._app.answers_overfull(exchange):
                overdue += payload_size(response.body)
        return overdue

    def _refuse_late(self, now: float) -> None:
        """Refuse a head or a body that takes too long.

        Nobody is blamed for silence while the socket is not read.  The time of a whole body runs on all the same: its
        bytes are held, and the client may end that by reading its answers.
        """
        reading, limits = self._reading, self._connections.limits
        silent = now - reading.waiting_since if reading.on else 0.0
        if self._state is READING_HEAD and reading.judged_bytes and not reading.blocked(self._state, len(self._queue)):
            detail = limits.late_head(silent)
            if detail is not None:
                self._refuse(408, detail)
        elif self._state is READING_BODY:
            exchange = self._queue[-1]
            arrived = exchange.arrived
            detail = limits.late_body(silent, now - arrived, self._app.body_due(exchange) - arrived)
            if detail is not None:
                self._refuse_request(exchange, self._app.refuse(408, detail, exchange))
                reading.match(self._transport, self._state, len(self._queue))
