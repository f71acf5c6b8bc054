"""`POST /batch`: a list of items in, a list of outcomes out.

The one place where the coordinator looks into a body: it is split into items, syntax only.  Above `SPLIT_INLINE` bytes
a thread does that, and above `JOIN_INLINE` outcomes a thread puts the answer together; the client may leave meanwhile.
One thread serves all batches in turn: what it does holds the interpreter, and a second one would only take memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from penstock.codec.formats import Codec
from penstock.codec.listing import TooManyItems, join_outcomes, split_list
from penstock.config import ServerOptions
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure, Outcome
from penstock.core.state import State
from penstock.errors import InvalidItem, NotReady, RequestError
from penstock.hosting.logs import log, report_fault
from penstock.hosting.servable import Servable
from penstock.server.application import HttpRequest, Reply, Response
from penstock.server.protocols.route import ServiceRoute, Target
from penstock.server.status import CLIENT_LEFT, Problems

T = TypeVar("T")

SPLIT_INLINE = 256 * 1024
"""Bytes of a client batch that are split on the event loop; more would hold up everybody else."""
JOIN_INLINE = 2000
"""Outcomes that are put together on the event loop; more would hold up everybody else."""

_CODECS = (Codec.JSON, Codec.MSGPACK)


class BatchRoute(ServiceRoute):
    """Takes client batches: 200 if all items are well, 207 if not."""

    def __init__(self, path: str, service: Servable, problems: Problems, options: ServerOptions) -> None:
        super().__init__(path, service, problems, options.max_body)
        self.accepts = frozenset(_CODECS)
        self.offers = _CODECS
        self.max_items = options.max_batch_items
        self._executor: ThreadPoolExecutor | None = None

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Split the body and give its items to the engine as one."""
        call = ClientBatch(self, request, reply)
        request.ticket = call
        call.split()

    def cancel(self, request: HttpRequest) -> None:
        """Take all its items back."""
        if request.ticket is not None:
            request.ticket.cancel()

    def in_thread(self, work: Callable[[], T], done: Callable[[asyncio.Future[T]], None]) -> None:
        """Do `work` beside the event loop, and tell `done` on it."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-batch")
        asyncio.get_running_loop().run_in_executor(self._executor, work).add_done_callback(done)


class ClientBatch:
    """One call of `/batch`, from its body to its answer."""

    def __init__(self, route: BatchRoute, request: HttpRequest, reply: Reply) -> None:
        self._route = route
        self._request = request
        self._reply = reply
        self._target: Target = request.route
        self._ticket: object = None
        self._left = False

    # -- taken apart ------------------------------------------------------------------------------------------------

    def split(self) -> None:
        """Find the items, in a thread if the body is long."""
        body = self._request.body
        if len(body) > SPLIT_INLINE:
            self._hold(len(body))
            self._route.in_thread(self._items, self._was_split)
            return
        try:
            items = self._items()
        except (InvalidItem, TooManyItems) as error:
            self._refuse(error)
        else:
            self._submit(items)

    def _items(self) -> list[memoryview]:
        return split_list(self._target.codec_in, self._request.body, self._route.max_items)

    def _was_split(self, splitting: asyncio.Future[list[memoryview]]) -> None:
        """Back on the loop: go on, unless the body was broken, the client left, or the loop is ending."""
        self._hold(-len(self._request.body))
        if self._left:
            self._answer(Response(CLIENT_LEFT, b"", b""))
            return
        error = NotReady(state=State.STOPPED) if splitting.cancelled() else splitting.exception()
        if error is None:
            self._submit(splitting.result())
        else:
            self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        """The whole call ends with `error`: nobody is left waiting, even when the fault is ours."""
        problems, request_id = self._route.problems, self._request.id
        if isinstance(error, InvalidItem):
            self._answer(problems.refuse(400, str(error), request_id))
        elif isinstance(error, TooManyItems):
            self._answer(problems.refuse(413, str(error), request_id))
        elif isinstance(error, RequestError):
            self._answer(problems.answer(error, self._request))
        else:
            log.error("%s: a batch failed", request_id.decode(), exc_info=error)
            self._answer(problems.refuse(500, "the batch could not be taken apart or put together", request_id))

    def _submit(self, items: list[memoryview]) -> None:
        engine = self._route.engine()
        if not items:
            self._finish([])
            return
        if engine is None:
            self._refuse(NotReady(state=State.STOPPED))
            return
        try:
            self._ticket = engine.submit(
                items,
                self._target.codec_in,
                self._target.codec_out,
                self._route.deadline(self._request),
                self._finish,
                lane=Lane.BULK,
                nbytes=len(self._request.body),
            )
        except RequestError as error:
            self._refuse(error)

    # -- put together -------------------------------------------------------------------------------------------------

    def _finish(self, outcomes: list[Outcome]) -> None:
        self._ticket = None
        if self._left:
            self._answer(Response(CLIENT_LEFT, b"", b""))
        elif len(outcomes) <= JOIN_INLINE:
            self._answer(self._join(outcomes))
        else:
            self._route.in_thread(lambda: self._join(outcomes), self._was_joined)

    def _was_joined(self, joining: asyncio.Future[Response]) -> None:
        error = NotReady(state=State.STOPPED) if joining.cancelled() else joining.exception()
        if error is None:
            self._answer(joining.result())
        else:
            self._refuse(error)

    def _join(self, outcomes: list[Outcome]) -> Response:
        request_id = self._request.id.decode()
        describe = self._route.problems.describe
        entries: list[tuple[Any, dict[str, Any] | None]] = []
        faults: dict[str, tuple[RequestError, list[str]]] = {}  # one log entry for many items with one cause
        last: Failure | None = None
        told: tuple[Any, dict[str, Any] | None] = (None, None)  # the entry of `last`
        for index, outcome in enumerate(outcomes):
            if not isinstance(outcome, Failure):
                entries.append((outcome.payload, None))
            elif outcome is last:
                entries.append(told)  # items that were never run end alike, perhaps by the ten thousand
            else:
                occurrence = f"{request_id}:{index}"
                told = (None, describe(outcome.error, request_id, occurrence))
                entries.append(told)
                faults.setdefault(str(outcome.error), (outcome.error, []))[1].append(occurrence)
                last = outcome
        for error, occurrences in faults.values():
            report_fault(error, occurrences)
        body = join_outcomes(self._target.codec_out, entries)
        return Response(207 if faults else 200, self._target.media, body)

    # -- ends -----------------------------------------------------------------------------------------------------

    def _answer(self, response: Response) -> None:
        self._request.ticket = None
        self._ticket = None
        self._reply(response)

    def _hold(self, nbytes: int) -> None:
        engine = self._route.engine()
        if engine is not None:
            engine.hold(nbytes)

    def cancel(self) -> None:
        """The client left: withdraw the items, or do not submit them once they are known."""
        self._left = True
        engine = self._route.engine()
        if self._ticket is not None and engine is not None:
            engine.cancel(self._ticket)
