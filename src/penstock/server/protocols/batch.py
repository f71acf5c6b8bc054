"""`POST /batch`: a list of items in, a list of outcomes out.

Only here does the coordinator look into a body: it splits the body into items and checks no more than the syntax.  A
thread splits a body of more than `SPLIT_INLINE_BYTES` or `SPLIT_INLINE_ITEMS`, and puts an answer of more than
`JOIN_INLINE_OUTCOMES` together.
The client may leave meanwhile.  One thread serves all client batches in turn.  It keeps the interpreter while it works,
so a second thread would take memory and save no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

from penstock.codec.formats import Codec
from penstock.codec.listing import ItemViews, TooManyItems, join_outcomes, most_items, split_list
from penstock.config import ServerOptions
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.payload import payload_size
from penstock.core.state import State
from penstock.errors import InvalidItem, NotReady, RequestError
from penstock.hosting.fault_log import BatchFaults
from penstock.hosting.logs import log
from penstock.hosting.servable import HostedEngine, Servable
from penstock.server.application import HttpRequest, Reply, Response
from penstock.server.protocols.route import Formats, ServiceRoute
from penstock.server.status import CLIENT_LEFT, Problems

T = TypeVar("T")

SPLIT_INLINE_BYTES = 256 * 1024
"""Largest body that is split on the event loop; a larger one would delay all other requests."""
SPLIT_INLINE_ITEMS = 20_000
"""Most items that are split on the event loop, commas taken for items: half a millisecond."""
JOIN_INLINE_OUTCOMES = 2000
"""Most outcomes that are put together on the event loop; more would delay all other requests."""

ITEM_BYTES = 320
"""What an item of a client batch counts besides its own bytes, from when the batch is let in until its answer is there.

The objects of an item are 64 bytes until it has a result, and those of its result 250.  Where the items and their
results are of a few bytes each, nearly all the memory that a batch takes is this.
"""

_CODECS = (Codec.JSON, Codec.MSGPACK)
_NO_BATCHES = (
    "a client batch and its response are lists in JSON or MessagePack, and a stage of this service "
    "supports neither: send each item by itself to predict"
)
_NO_LIST = "expected `array`"
"""How the reason begins where the body is no list."""


class BatchRoute(ServiceRoute):
    """Takes client batches: 200 if every item has a result, 207 if not."""

    verb: ClassVar[str] = "batch"
    many: ClassVar[bool] = True
    lane: ClassVar[Lane] = Lane.BULK

    def __init__(self, path: str, service: Servable, problems: Problems, options: ServerOptions) -> None:
        super().__init__(path, service, problems, options)
        self.offers = tuple(codec for codec in _CODECS if codec in self.offers)
        if self.accepts and not (self.offers and self.accepts.intersection(_CODECS)):
            self.takes_nothing = _NO_BATCHES
        self.accepts = self.accepts.intersection(_CODECS) if self.offers else frozenset()
        self.max_items = options.max_batch_items
        self._executor: ThreadPoolExecutor | None = None

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Split the body and give its items to the engine as one."""
        request.engine = self.service.engine
        call = ClientBatch(self, request, reply)
        request.ticket = call
        call.split()

    def cancel(self, request: HttpRequest) -> None:
        """Take all its items back."""
        if request.ticket is not None:
            request.ticket.cancel()

    def in_thread(self, work: Callable[[], T], done: Callable[[asyncio.Future[T]], None]) -> None:
        """Do `work` in the thread, then call `done` on the event loop."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-batch")
        asyncio.get_running_loop().run_in_executor(self._executor, work).add_done_callback(done)


class ClientBatch:
    """One call of `/batch`, from its body to its answer."""

    def __init__(self, route: BatchRoute, request: HttpRequest, reply: Reply) -> None:
        self._route = route
        self._request = request
        self._reply = reply
        self._formats: Formats = request.formats
        self._ticket: object = None
        self._client_left = False
        self._objects_bytes = 0
        """What is held for the objects of its items: `ITEM_BYTES` for each."""
        self._joining_bytes = 0
        """Bytes of the results that the thread puts together."""

    # -- body to items ------------------------------------------------------------------------------------------------

    def split(self) -> None:
        """Find the items, in a thread if the body is long."""
        body = self._request.body
        if len(body) > SPLIT_INLINE_BYTES or most_items(self._formats.codec_in, body) > SPLIT_INLINE_ITEMS:
            self._hold(len(body))
            self._route.in_thread(self._items, self._was_split)
            return
        try:
            items = self._items()
        except (InvalidItem, TooManyItems) as error:
            self._refuse(error)
        else:
            self._submit(items)

    def _items(self) -> ItemViews:
        return split_list(self._formats.codec_in, self._request.body, self._route.max_items)

    def _was_split(self, splitting: asyncio.Future[ItemViews]) -> None:
        """Submit the items, on the event loop, unless the body was broken, the client left, or the loop was closed."""
        self._hold(-len(self._request.body))
        if self._client_left:
            self._answer(Response(CLIENT_LEFT, b"", b""))
            return
        error = NotReady(state=State.STOPPED) if splitting.cancelled() else splitting.exception()
        if error is None:
            self._submit(splitting.result())
        else:
            self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        """Answer the whole call with `error`.  An error of Penstock's own is answered too: each call has an answer."""
        problems, request_id = self._route.problems, self._request.id
        if isinstance(error, InvalidItem):
            self._answer(problems.refuse(400, self._advised(str(error)), request_id))
        elif isinstance(error, TooManyItems):
            self._answer(problems.refuse(413, str(error), request_id))
        elif isinstance(error, RequestError):
            self._answer(problems.answer(error, self._request))
        else:
            log.error("%s: batch request failed", request_id.decode(), exc_info=error)
            self._answer(
                problems.refuse(500, "the batch could not be split or its results could not be joined", request_id)
            )

    def _advised(self, reason: str) -> str:
        """`reason`; where the body is one item and no list, it names the path that takes one."""
        if reason.startswith(_NO_LIST):
            one = self._route.traffic.route.removesuffix(BatchRoute.verb) + "predict"
            return f"{reason}; send a single item to {one}"
        return reason

    def _submit(self, items: ItemViews) -> None:
        engine = self._request.engine = self._route.engine()
        if not items:
            self._finish([])
            return
        if engine is None:
            self._refuse(NotReady(state=State.STOPPED))
            return
        try:
            self._ticket = engine.submit(
                items,
                self._formats.codec_in,
                self._formats.codec_out,
                self._route.deadline(self._request),
                self._finish,
                self._request.id,
                lane=Lane.BULK,
                urgency=self._request.urgency,
                tenant=self._request.tenant,
                nbytes=len(self._request.body),
                hold_results=True,
            )
        except RequestError as error:
            self._refuse(error)
            return
        if self._request.ticket is self:  # else it was answered within `submit`
            self._objects_bytes = ITEM_BYTES * len(items)
            self._hold(self._objects_bytes)

    # -- outcomes to answer -------------------------------------------------------------------------------------------

    def _finish(self, outcomes: list[Outcome]) -> None:
        self._ticket = None
        if self._client_left:
            self._answer(Response(CLIENT_LEFT, b"", b""))
            return
        named = self._report(outcomes)
        if len(outcomes) <= JOIN_INLINE_OUTCOMES:
            self._answer(self._join(outcomes, named))
        else:
            self._joining_bytes = sum([payload_size(o.payload) for o in outcomes if isinstance(o, Result)])
            self._hold_answer(self._joining_bytes)
            self._route.in_thread(lambda: self._join(outcomes, named), self._was_joined)

    def _was_joined(self, joining: asyncio.Future[Response]) -> None:
        self._hold_answer(-self._joining_bytes)
        error = NotReady(state=State.STOPPED) if joining.cancelled() else joining.exception()
        if error is None:
            self._answer(joining.result())
        else:
            self._refuse(error)

    def _report(self, outcomes: list[Outcome]) -> set[str]:
        """Write the faults to the log, on the event loop; which items the log names."""
        faults: BatchFaults | None = None
        last: Failure | None = None
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, Failure) and outcome is not last:
                faults = faults or BatchFaults()
                faults.add(outcome.error, self._occurrence(index))
                last = outcome
        return set() if faults is None else faults.report(self._route.problems.faults)

    def _occurrence(self, index: int) -> str:
        """The name of an item of this request."""
        return f"{self._request.id.decode()}:{index}"

    def _join(self, outcomes: list[Outcome], named: set[str]) -> Response:
        request_id = self._request.id.decode()
        describe = self._route.problems.describe
        entries: list[tuple[Any, dict[str, Any] | None]] = []
        last: Failure | None = None
        last_entry: tuple[Any, dict[str, Any] | None] = (None, None)
        for index, outcome in enumerate(outcomes):
            if not isinstance(outcome, Failure):
                entries.append((outcome.payload, None))
            elif outcome is last:
                entries.append(last_entry)  # thousands of items that were never run may share one outcome
            else:
                occurrence = self._occurrence(index)
                last_entry = (None, describe(outcome.error, request_id, occurrence, logged=occurrence in named))
                entries.append(last_entry)
                last = outcome
        body = join_outcomes(self._formats.codec_out, entries)
        return Response(200 if last is None else 207, self._formats.media, body)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _answer(self, response: Response) -> None:
        self._request.ticket = None
        self._ticket = None
        if self._objects_bytes:
            self._hold(-self._objects_bytes)
            self._objects_bytes = 0
        self._reply(response)

    def _hold(self, nbytes: int) -> None:
        engine: HostedEngine | None = self._request.engine
        if engine is not None:
            engine.hold(nbytes)

    def _hold_answer(self, nbytes: int) -> None:
        engine: HostedEngine | None = self._request.engine
        if engine is not None:
            engine.hold_answer(nbytes)

    def cancel(self) -> None:
        """Withdraw the items of a client that left; items that are not split yet are not submitted."""
        self._client_left = True
        if self._ticket is not None:
            self._request.engine.cancel(self._ticket)
