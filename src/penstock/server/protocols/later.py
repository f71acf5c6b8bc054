"""A route that is answered later, and by no engine: what is asked of it may take time somewhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

from penstock.hosting.logs import log
from penstock.server.application import HttpRequest, Reply, Response
from penstock.server.fields import read_length
from penstock.server.protocols.route import PAGE_BODY_BYTES, Route
from penstock.server.status import Problems

Judge: TypeAlias = Callable[[HttpRequest], Response | None]
"""The refusal of a request by its head, or None."""
Answer: TypeAlias = Callable[[HttpRequest], Coroutine[Any, Any, Response]]


class LaterRoute(Route):
    """Answers each request with what the coroutine that `answer` makes for it returns; that takes a task.

    `judge` sees the head of a request before its body is read.  `too_large` makes the refusal of a body of more than
    `max_body_bytes` bytes.  A client that leaves has its task cancelled.
    """

    def __init__(
        self,
        method: str,
        path: str,
        answer: Answer,
        problems: Problems,
        *,
        judge: Judge | None = None,
        max_body_bytes: int = PAGE_BODY_BYTES,
        too_large: Callable[[HttpRequest], Response] | None = None,
    ) -> None:
        super().__init__(method, "", path)
        self.bounded = True
        self._answer = answer
        self._problems = problems
        self._judge = judge
        self._max_body = max_body_bytes
        self._too_large = too_large

    def admit(self, request: HttpRequest) -> Response | None:
        """Refuses a body that is too large (413), and what `judge` refuses."""
        request.route = self
        refusal = self.judge_body(request, read_length(request.headers.get(b"content-length")))
        if refusal is None and self._judge is not None:
            return self._judge(request)
        return refusal

    def judge_body(self, request: HttpRequest, nbytes: int) -> Response | None:
        """The refusal of a request whose body has, or will have, so many bytes; None to go on."""
        if nbytes <= self._max_body:
            return None
        if self._too_large is not None:
            return self._too_large(request)
        detail = f"this path does not accept a body larger than {self._max_body} bytes"
        return self._problems.refuse(413, detail, request.id)

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Begin to answer."""
        refusal = self.judge_body(request, len(request.body))  # one in chunks may have come whole, at once
        if refusal is not None:
            reply(refusal)
            return
        task = asyncio.get_running_loop().create_task(self._answer(request))
        request.ticket = task
        task.add_done_callback(partial(self._answered, request, reply))

    def _answered(self, request: HttpRequest, reply: Reply, task: asyncio.Task[Response]) -> None:
        request.ticket = None
        if task.cancelled():  # the client has left, and takes no answer; or the event loop ends
            reply(self._problems.refuse(503, "the server is shutting down", request.id))
            return
        error = task.exception()
        if error is None:
            reply(task.result())
        else:
            log.error("%s: internal error, no response could be made", request.id.decode(), exc_info=error)
            reply(self._problems.refuse(500, "internal error: no response could be made", request.id))

    def cancel(self, request: HttpRequest) -> None:
        """End the task of a client that has left."""
        if request.ticket is not None:
            request.ticket.cancel()
