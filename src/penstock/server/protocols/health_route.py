"""`GET /health`: what everything is doing, at once; with `deep=1` once an example has come through every service."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.server.application import HttpRequest, Reply, Response
from penstock.server.pages.deep_check import DeepCheck
from penstock.server.pages.health import Health
from penstock.server.protocols.route import PageRoute
from penstock.server.status import Problems


class HealthRoute(PageRoute):
    """Answers a deep check when it has ended, and everybody else at once."""

    def __init__(self, path: str, health: Health, deep: DeepCheck, problems: Problems) -> None:
        super().__init__(path, health.health, problems)
        self._health = health
        self._deep = deep

    def admit(self, request: HttpRequest) -> Response | None:
        """Refuses a large body (413), a `deep` that is neither 0 nor 1 (400), and a deep check without examples (501).

        Other parameters are nobody's, and ignored.
        """
        refusal = super().admit(request)
        if refusal is not None or not request.query:
            return refusal
        if any(value not in (b"0", b"1") for value in deep_values(request.query)):
            return self._problems.refuse(400, "deep must be 0 or 1", request.id)
        if asks_deep(request) and (lacking := self._deep.lacking()):
            detail = f"no example to send through {', '.join(lacking)}: its first stage has no examples"
            return self._problems.refuse(501, detail, request.id)
        return None

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Answer, at once or once the check has ended."""
        if asks_deep(request):
            self._deep.ask(partial(self._answer, reply))
        else:
            reply(self._health.health(request))

    def _answer(self, reply: Reply, found: dict[str, Any]) -> None:
        reply(self._health.answer(found))


def asks_deep(request: HttpRequest) -> bool:
    """Whether a request that was admitted wants an example sent through the services."""
    return b"1" in deep_values(request.query)


def deep_values(query: bytes) -> list[bytes]:
    """The values of the parameter `deep`."""
    if not query:
        return []
    pairs = [pair.partition(b"=") for pair in query.split(b"&")]
    return [value for name, _, value in pairs if name == b"deep"]
