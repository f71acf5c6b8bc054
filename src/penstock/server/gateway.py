"""What the ASGI and the WSGI app have in common: requests that another server has read, and answers that it writes."""

from __future__ import annotations

from typing import Final

from penstock.core.clock import Timer
from penstock.core.payload import Buffer, Payload, payload_buffers, payload_size
from penstock.server.app import App
from penstock.server.application import HttpRequest, Response
from penstock.server.fields import RequestRefused, judge_encoding, read_length
from penstock.server.overdue import cut_overdue

SEND_BYTES: Final = 256 * 1024
"""Most bytes of an answer that a server is given at once: it may wait while what it was given before is unread."""
OVERDUE_INTERVAL_SECONDS: Final = 1.0
"""How often, while too many bytes of answers are held, those are looked for that nobody takes."""


def judge_head(app: App, request: HttpRequest) -> Response | None:
    """The refusal of a request by its head, or None to read its body.  The order is that of the native server."""
    try:
        length = read_length(request.headers.get(b"content-length"))
    except RequestRefused as refused:
        return app.refuse(refused.status, refused.detail, request)
    refusal = app.admit(request)
    if refusal is not None:
        return refusal
    objection = judge_encoding(request.headers.get(b"content-encoding"))
    if objection is not None:
        return app.refuse(*objection, request)
    return judge_size(app, request, length)


def judge_size(app: App, request: HttpRequest, nbytes: int) -> Response | None:
    """The refusal of a body that has, or will have, so many bytes; None where it may."""
    limit = app.options.max_body_bytes
    if nbytes <= limit:
        return None
    return app.refuse(413, f"the request body is larger than {limit} bytes (max_body_bytes)", request)


def answer_fields(request: HttpRequest, response: Response) -> list[tuple[bytes, bytes]]:
    """The header fields of an answer."""
    fields = [(b"x-request-id", request.id), *response.headers]
    if response.content_type:
        fields.append((b"content-type", response.content_type))
    if response.status != 204:
        fields.append((b"content-length", b"%d" % payload_size(response.body)))
    return fields


def answer_pieces(request: HttpRequest, response: Response) -> list[Buffer]:
    """The body of an answer in pieces of at most `SEND_BYTES`; none where it is empty, as for HEAD."""
    return [] if request.method == "HEAD" else cut_pieces(response.body)


def cut_pieces(body: Payload) -> list[Buffer]:
    """`body` in pieces of at most `SEND_BYTES`, none of them empty."""
    pieces: list[Buffer] = []
    for piece in payload_buffers(body):
        if len(piece) > SEND_BYTES:
            view = memoryview(piece)
            pieces += [view[at : at + SEND_BYTES] for at in range(0, len(view), SEND_BYTES)]
        elif len(piece):
            pieces.append(piece)
    return pieces


class GatewayCall:
    """One request and its answer, whose bytes are held from when it is ready until it was written.

    Every method is called on the event loop's thread.  `answering` are the calls of the app that hold an answer.
    """

    def __init__(self, app: App, request: HttpRequest, answering: set[GatewayCall]) -> None:
        self._app = app
        self._request = request
        self._answering = answering
        self._answer_held = 0
        """Bytes of the answer that are held."""
        self._ready = 0.0
        """When there was an answer."""
        self._watch: Timer | None = None
        self._sending = False
        """Whether the server writes the answer now."""

    def _hold_answer(self, nbytes: int) -> None:
        self._ready = self._app.clock.now()
        self._answer_held = nbytes
        self._answering.add(self)
        self._app.hold_answer(self._request, nbytes)
        # One watch is enough, so an answer has none that finds room.  While too many bytes are held, the call that came
        # last of those that hold them has one.
        if self._app.answers_overfull(self._request):
            self._watch = self._app.clock.call_later(OVERDUE_INTERVAL_SECONDS, self._look)

    def _give_back(self, nbytes: int) -> None:
        part = min(nbytes, self._answer_held)
        self._answer_held -= part
        self._app.hold_answer(self._request, -part)

    def _let_go(self) -> None:
        """Give back what is held of the answer, however the call has ended."""
        self._answering.discard(self)
        if self._watch is not None:
            self._watch.cancel()
        if self._answer_held:
            self._give_back(self._answer_held)

    def _look(self) -> None:
        self._watch = self._app.clock.call_later(OVERDUE_INTERVAL_SECONDS, self._look)
        cut_overdue(self._answering, self._app.clock.now())

    def overdue_bytes(self, now: float) -> int:
        """See `AnswerHolder`."""
        overdue = self._sending and now - self._ready >= self._app.options.write_timeout
        return self._answer_held if overdue and self._app.answers_overfull(self._request) else 0

    def abort(self) -> None:
        """Send no more of the answer: the server closes the connection of a call that ends in its midst."""
        self._give_back(self._answer_held)
        self._stop_sending()

    def _stop_sending(self) -> None:
        """End what the server does with the answer, as far as that can be done."""
        raise NotImplementedError
