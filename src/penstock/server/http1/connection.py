"""One client's socket: bytes in, requests to the application, answers out in the order of the requests.

Contract
--------
* No task, coroutine, future or timer: everything happens in a callback of the transport, in `Exchange.reply`, or in
  `sweep`, which is told the time.
* Answers leave in the order of the requests, however the application finishes them.  At most `max_pipelined`
  requests are in hand; beyond that, and while the client does not read, the socket is not read either.
* A body has the time between two pieces that the options give, and in all no more than its request has.
* Every admitted request ends with exactly one `answered`: what was written, or 499 where the client left first.
* A client that hangs up is gone: what it had in hand is cancelled.  The end of its sending side counts as hanging
  up, because a closed socket and a half-closed one look the same until it is too late to save the work.
* After a refusal in mid-request the connection lingers: it discards what the client still sends, within bounds, so
  that the answer is not lost to a reset.  A refused body of up to `SKIPPED_BODY` bytes is skipped instead, and the
  connection stays.
* Bytes of half-received bodies, of answers that wait for earlier ones, and of answers the client has not read are
  reported to `Application.hold`, and given back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, cast

from penstock.core.payload import payload_size
from penstock.server.application import BODY_TIMEOUTS_PER_BODY, HttpRequest, Response
from penstock.server.http1.answers import BODILESS, CLOSE, CONTINUE, KEEP_ALIVE, KEEP_ALIVE_1_0
from penstock.server.http1.bodies import ChunkedBody, SizedBody
from penstock.server.http1.connections import Connections
from penstock.server.http1.heads import CHUNKED, END_OF_HEAD, Head, RequestRefused
from penstock.server.http1.unread import UnreadAnswers
from penstock.server.status import CLIENT_LEFT

SKIPPED_BODY: Final = 64 * 1024
LINGER: Final = 5.0
"""Seconds a refused client may go on sending before its connection is cut."""
LINGER_BYTES: Final = 64 * 1024 * 1024
"""Bytes a refused client may go on sending before its connection is cut."""

# What the next byte from the client belongs to.
HEAD, BODY, SKIP, ENDING, CLOSED = range(5)


class Exchange(HttpRequest):
    """What the application sees as a request is also the connection's record of it: one object for both.

    `head` is None where the head made no sense; such an exchange only keeps a place in the order of answers.
    `connection` is None once the answer was written or the client has left; `last` says that the connection ends
    with this answer.
    """

    __slots__ = ("connection", "head", "last", "response")

    def __init__(self, connection: Connection, head: Head | None, now: float) -> None:
        if head is None:
            HttpRequest.__init__(self, "", b"", b"", {}, now)
        else:
            HttpRequest.__init__(self, head.method, head.path, head.query, head.headers, now)
        self.head = head
        self.connection: Connection | None = connection
        self.response: Response | None = None
        self.last = False

    def reply(self, response: Response) -> None:
        """Answer.  Ignored where the client has left, and the second time."""
        connection = self.connection
        if connection is not None and self.response is None:
            self.response = response
            connection.settle(self)


class Connection(asyncio.Protocol):
    """The protocol object of one connection."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._app = connections.app
        self._options = connections.options
        self._max_pipelined = connections.options.max_pipelined
        self._max_header = connections.options.max_header
        self._max_body = connections.options.max_body
        self._clock = connections.clock
        self._transport: asyncio.Transport | None = None
        self._state = HEAD
        self._queue: deque[Exchange] = deque()
        self._kept: bytes | bytearray = b""
        """Bytes not used yet: an unfinished head, or what lies beyond the pipelining cap."""
        self._scanned = 0
        """How much of an unfinished head in `_kept` was judged."""
        self._body: SizedBody | ChunkedBody | None = None
        self._held = 0
        """Bytes of `_body` that were reported as held."""
        self._skipping = 0
        """Bytes of a refused body that are still to pass."""
        self._ignored = 0
        """Bytes that came after the last request."""
        self._continue_due = False
        self._reading = True
        self._choked = False
        """Whether the write buffer is past its high mark."""
        self._fresh = True
        """Whether no request was begun yet."""
        self._turned_away = False
        """Whether it came when there were too many; it takes nobody's place while it lingers."""
        self._idle_since = self._input_since = now = self._clock()
        self._unread = UnreadAnswers(self._app, now)

    # ---- callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket, or refuse it where there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        connections = self._connections
        full = len(connections.open) - connections.turned_away >= self._options.max_connections
        connections.open.add(self)
        if full and connections.turned_away < connections.crowd and not connections.draining:
            self._turned_away = True
            connections.turned_away += 1
            self._refuse(503, "the server has as many connections as it may")
        elif full or connections.draining:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if not self._kept:
            self._read(data)
            return
        if type(self._kept) is bytes:
            self._kept = bytearray(self._kept)
        self._kept += data
        if not self._blocked():
            kept, self._kept = self._kept, b""
            self._read(kept)

    def eof_received(self) -> None:
        """The client will send no more: it is taken for gone."""
        self._close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        """The socket is gone: cancel what was in hand, give back what was held, let go of everything."""
        self._state = CLOSED
        self._abandon()
        self._unread.charge(0)
        self._transport = None
        if self._turned_away:
            self._turned_away = False
            self._connections.turned_away -= 1
        self._connections.leave(self)

    def pause_writing(self) -> None:
        """The client reads too slowly: stop reading from it."""
        self._choked = True
        if self._transport is not None:
            self._unread.charge(self._transport.get_write_buffer_size())
        self._match_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._choked = False
        if self._transport is not None:
            self._unread.charge(self._transport.get_write_buffer_size())
        self._resume()

    # ---- bytes to requests

    def _read(self, data: bytes | bytearray) -> None:
        """Use up `data`; what cannot be used yet is kept."""
        at, end = 0, len(data)
        while at < end:
            state = self._state
            if state == HEAD:
                if self._choked or len(self._queue) >= self._max_pipelined:
                    break
                stop = data.find(END_OF_HEAD, at + self._scanned) + 4
                if stop < 4 or stop - at > self._max_header:
                    if self._keep_partial(data, at):
                        break
                    return
                self._scanned = 0
                at = self._begin(data, at, stop)
            elif state == BODY:
                at = self._read_body(data, at)
            elif state == SKIP:
                at = self._skip(at, end)
            else:
                self._ignore(end - at)
                return
        if at < end:
            self._kept = data if at == 0 else data[at:]
            self._match_reading()

    def _keep_partial(self, data: bytes | bytearray, at: int) -> bool:
        """Judge the start of a head at `at`; whether it may still become one."""
        partial = data[at:] if at else data
        try:
            self._connections.heads.judge_unfinished(partial, self._scanned)
        except RequestRefused as refused:
            self._refuse(refused.status, refused.detail)
            return False
        if not self._scanned:
            self._input_since = self._clock()
        self._scanned = max(1, len(partial) - 3)  # the end of the head may have begun
        return True

    def _begin(self, data: bytes | bytearray, at: int, stop: int) -> int:
        """Start the request whose head lies between `at` and `stop`; where to read on."""
        raw = data[at:stop]
        try:
            head = self._connections.heads.read(raw if type(raw) is bytes else bytes(raw))
        except RequestRefused as refused:
            self._refuse(refused.status, refused.detail)
            return len(data)
        self._fresh = False
        exchange = Exchange(self, head, self._clock())
        exchange.last = not head.keep_alive or not self._options.keep_alive
        self._queue.append(exchange)
        refusal = self._app.admit(exchange)
        length = head.length
        if refusal is None and (head.objection is not None or length > self._max_body):
            status, detail = head.objection or (413, f"the body is larger than {self._max_body} bytes")
            refusal = self._app.refuse(status, detail, exchange)
        if refusal is not None:
            self._turn_away(exchange, refusal)
        elif 0 <= length <= len(data) - stop:
            if length:
                exchange.body = data[stop : stop + length]
            self._complete(exchange)
            return stop + length
        else:
            self._expect_body(exchange, head, stop == len(data))
        return stop

    def _expect_body(self, exchange: Exchange, head: Head, nothing_came: bool) -> None:
        self._state = BODY
        self._input_since = exchange.arrived
        if head.length == CHUNKED:
            self._body = ChunkedBody(self._max_body, self._max_header)
        else:
            self._body = SizedBody(head.length)
        if head.expects and nothing_came:
            self._continue_due = True
            self._send_continue()

    def _send_continue(self) -> None:
        """Ask for the body, as soon as no earlier answer is owed."""
        if len(self._queue) == 1 and self._transport is not None:
            self._continue_due = False
            self._input_since = self._clock()
            self._transport.write(CONTINUE)
            self._unread.written += len(CONTINUE)

    def _read_body(self, data: bytes | bytearray, at: int) -> int:
        """Read on in a body; where it, or `data`, ends."""
        body, exchange = self._body, self._queue[-1]
        assert body is not None
        self._continue_due = False
        self._input_since = self._clock()
        try:
            at = body.feed(data, at)
        except RequestRefused as refused:
            self._turn_away(exchange, self._app.refuse(refused.status, refused.detail, exchange))
            return len(data)
        if body.done:
            self._drop_body(exchange)
            self._state = HEAD
            exchange.body = body.body
            self._complete(exchange)
        elif len(body.body) > self._held:
            self._app.hold(exchange, len(body.body) - self._held)
            self._held = len(body.body)
            refusal = self._app.overfull(exchange, self._held)
            if refusal is not None:
                self._turn_away(exchange, refusal)
                return len(data)
        return at

    def _drop_body(self, exchange: Exchange) -> None:
        """Let go of a body in arrival, and give back what was held for it."""
        self._body = None
        self._continue_due = False
        if self._held:
            self._app.hold(exchange, -self._held)
            self._held = 0

    def _complete(self, exchange: Exchange) -> None:
        """Pass on a request whose body is whole."""
        if exchange.last:
            self._state = ENDING
        self._app.handle(exchange, exchange.reply)

    def _skip(self, at: int, end: int) -> int:
        """Let a refused body pass."""
        take = min(self._skipping, end - at)
        self._input_since = self._clock()
        self._skipping -= take
        if not self._skipping:
            self._state = HEAD
            if self._connections.draining:
                self.drain()
        return at + take

    def _ignore(self, nbytes: int) -> None:
        """Discard what comes after the last request."""
        self._ignored += nbytes
        if self._ignored > LINGER_BYTES:
            self.abort()

    # ---- refusals

    def _refuse(self, status: int, detail: str) -> None:
        """Answer something that is no request, after the answers owed, and end."""
        exchange = Exchange(self, None, self._clock())
        self._queue.append(exchange)
        self._end_with(exchange, self._app.refuse(status, detail))

    def _turn_away(self, exchange: Exchange, refusal: Response) -> None:
        """Answer a request without its whole body: skip a small one, end the connection over any other."""
        head = exchange.head
        assert head is not None
        self._drop_body(exchange)
        skippable = self._state == HEAD and not head.expects and 0 <= head.length <= SKIPPED_BODY
        if not skippable:
            self._end_with(exchange, refusal)
            return
        if exchange.last:
            self._state = ENDING
            self._ignored += head.length  # where there is a body, it lingers
        elif head.length:
            self._state = SKIP
            self._skipping = head.length
            self._input_since = exchange.arrived
        exchange.reply(refusal)

    def _end_with(self, exchange: Exchange, refusal: Response) -> None:
        self._state = ENDING
        self._ignored = max(self._ignored, 1)
        self._kept = b""
        exchange.last = True
        exchange.reply(refusal)

    # ---- answers

    def settle(self, exchange: Exchange) -> None:
        """Write the answer of `exchange` and those that waited for it, or let it wait for its turn."""
        queue = self._queue
        exchange.body = b""
        if queue[0] is not exchange:
            assert exchange.response is not None
            self._app.hold(exchange, payload_size(exchange.response.body))
            return
        full = len(queue) >= self._max_pipelined
        self._write(queue.popleft(), False)
        while queue and queue[0].response is not None:
            self._write(queue.popleft(), True)
        if full:
            self._resume()
        if self._continue_due:
            self._send_continue()

    def _write(self, exchange: Exchange, held: bool) -> None:
        """Write one answer whose turn has come; `held` says that it was reported as held."""
        response, head, transport = exchange.response, exchange.head, self._transport
        assert response is not None
        if held:
            self._app.hold(exchange, -payload_size(response.body))
        if transport is None or self._state == CLOSED:
            return
        exchange.connection = None
        body = response.body
        nbytes = len(body) if type(body) is bytes else payload_size(body)
        # A draining connection ends with the last answer it owes.
        last = exchange.last or (self._connections.draining and not self._queue and self._state == HEAD)
        ending = CLOSE if last else KEEP_ALIVE if head is None or head.minor else KEEP_ALIVE_1_0
        if exchange.method == "HEAD" or response.status in BODILESS:
            body = b""
        out = self._connections.answers.encode(response, exchange.id, body, nbytes, ending)
        self._unread.last = exchange
        if isinstance(out, bytes):
            self._unread.written += len(out)
            transport.write(out)
        else:
            self._unread.written += payload_size(out)
            transport.writelines(out)
        if self._choked:
            self._unread.charge(transport.get_write_buffer_size())
        self._idle_since = self._clock()
        if head is not None:
            self._app.answered(exchange, response.status, nbytes if body else 0)
        exchange.response = None  # the request may stay for a while, to say whose the unread bytes are
        if last:
            self._finish(transport)

    def _finish(self, transport: asyncio.Transport) -> None:
        """The last answer was written: close, after lingering where the client may still be sending."""
        if not self._ignored and not self._kept:
            self._close()
            return
        self._state = ENDING
        self._kept = b""
        if transport.can_write_eof():
            transport.write_eof()
        self._match_reading()

    # ---- flow of reading

    def _blocked(self) -> bool:
        """Whether no further request may be begun now."""
        return self._choked or len(self._queue) >= self._max_pipelined

    def _match_reading(self) -> None:
        """Read from the socket exactly while that is wanted."""
        transport = self._transport
        if transport is None or self._state == CLOSED:
            return
        if self._state == ENDING:
            wanted = True  # to learn that the client leaves
        elif self._state == HEAD:
            # With nothing kept, the cap is no reason to stop: the next bytes may be the news that the client left.
            wanted = not self._choked and not (self._kept and self._blocked())
        else:
            wanted = not self._choked
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._input_since = self._clock()
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _resume(self) -> None:
        """Go on with what was kept, now that there may be room."""
        if self._kept and not self._blocked():
            kept, self._kept = self._kept, b""
            self._read(kept)
        self._match_reading()

    # ---- ends

    def drain(self) -> None:
        """Close if nothing is in hand; otherwise the last answer owed will close."""
        if self._state == HEAD and not self._queue and not self._kept:
            self._close()

    def abort(self) -> None:
        """Cut the connection, and cancel what is in hand."""
        self._state = CLOSED
        self._abandon()
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        """Close once what was written has been sent; cancel what is in hand."""
        if self._state != CLOSED:
            self._state = CLOSED
            self._abandon()
            if self._transport is not None:
                self._transport.close()

    def _abandon(self) -> None:
        """Cancel every request in hand: its client has left."""
        self._kept = b""
        if not self._queue:
            return
        left = tuple(self._queue)
        self._queue.clear()
        self._drop_body(left[-1])
        for exchange in left:
            exchange.connection = None
            if exchange.response is None:
                self._app.cancel(exchange)
            else:
                self._app.hold(exchange, -payload_size(exchange.response.body))
            if exchange.head is not None:
                self._app.answered(exchange, CLIENT_LEFT, 0)

    # ---- time

    def sweep(self, now: float) -> None:
        """End what has taken too long at `now`."""
        transport = self._transport
        if transport is None:
            return
        unread = transport.get_write_buffer_size()
        if self._unread.stalled(unread, now, self._options.unread_timeout):
            self.abort()
        elif unread:
            self._idle_since = now
        elif not self._queue:
            self._sweep_idle(now)
        if self._state == HEAD:
            self._sweep_head(now)
        elif self._state == BODY:
            self._sweep_body(now)

    def _sweep_idle(self, now: float) -> None:
        """Close a connection that is owed nothing and asks for nothing."""
        idle, state = now - self._idle_since, self._state
        if state == HEAD and not self._kept:
            # One that never asked anything gets the time of a head, and goes without a word.
            if idle >= (self._options.header_timeout if self._fresh else self._options.keep_alive):
                self._close()
        elif state == SKIP:
            limit = self._options.body_timeout
            if now - self._input_since >= limit or idle >= BODY_TIMEOUTS_PER_BODY * limit:
                self._close()
        elif state == ENDING and idle >= LINGER:
            self.abort()

    def _sweep_head(self, now: float) -> None:
        limit = self._options.header_timeout
        if self._scanned and not self._blocked() and now - self._input_since >= limit:
            self._refuse(408, f"the request head took longer than {limit:g} s")

    def _sweep_body(self, now: float) -> None:
        if not self._reading or self._continue_due:
            return  # the client is not to blame
        exchange, limit = self._queue[-1], self._options.body_timeout
        if now - self._input_since >= limit:
            self._turn_away(exchange, self._app.refuse(408, f"nothing of the body came for {limit:g} s", exchange))
            return
        due = self._app.body_due(exchange)
        if now >= due:
            took = due - exchange.arrived
            detail = f"the body was not whole within {took:g} s, the time this request has"
            self._turn_away(exchange, self._app.refuse(408, detail, exchange))
