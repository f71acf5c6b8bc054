"""What a connection needs from the application behind it, and nothing else.

Every call is made from the event loop's thread and must return soon.  For each request the order is `admit`, then
either a refusal or `handle`, then `answered` exactly once; `cancel` may come any time after `admit` if the client
leaves.
"""

from __future__ import annotations

from typing import Protocol

from penstock.server.messages import HttpRequest, Reply, Response


class Application(Protocol):
    """The application, as a connection sees it."""

    def admit(self, request: HttpRequest) -> Response | None:
        """Judge a request by its head, before its body is read: None to go on, or the answer that refuses it.

        Sets `request.id` and `request.route`.
        """
        ...

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Take a request whose body is whole; `reply` is called exactly once, at once or later."""
        ...

    def cancel(self, request: HttpRequest) -> None:
        """The client left before the answer; a `reply` that comes all the same is ignored."""
        ...

    def refuse(self, status: int, detail: str, request: HttpRequest | None = None) -> Response:
        """The answer for something the connection itself refuses; `request` is None where its head made no sense."""
        ...

    def hold(self, request: HttpRequest | None, nbytes: int) -> None:
        """Bytes held outside the queues: bodies half received, answers not yet read.

        Negative gives back; for each request the sum ends at 0.
        """
        ...

    def overfull(self, request: HttpRequest, own: int) -> Response | None:
        """Whether a body must not grow further: None, or the answer that ends it.

        Asked after `hold`; `own` is how much of this body is held.
        """
        ...

    def body_due(self, request: HttpRequest) -> float:
        """When a body in arrival must be whole, on the clock of `request.arrived`; inf: whenever it is."""
        ...

    def answered(self, request: HttpRequest, status: int, nbytes: int) -> None:
        """The answer was written (`nbytes` of body), or the client left first (499, 0)."""
        ...
