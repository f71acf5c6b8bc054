"""`POST /predict`: one item in, its result alone out.

The path of a single item makes no task, future or timer.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Final

from penstock.core.outcome import Outcome, Result
from penstock.core.state import State
from penstock.errors import InvalidItem, NotReady, RequestError
from penstock.server.application import HttpRequest, Reply, Response
from penstock.server.protocols.batch import BatchRoute
from penstock.server.protocols.route import Formats, ServiceRoute

_GOT_LIST: Final = "got `array`"
"""How the reason ends where a list was sent and none was expected."""


class PredictRoute(ServiceRoute):
    """Takes one item, and answers with its result alone."""

    verb: ClassVar[str] = "predict"
    passes_body_on = True

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Give the body to the engine as it came."""
        formats: Formats = request.formats
        engine = request.engine = self.service.engine
        if engine is None:
            reply(self._answer_refusal(NotReady(state=State.STOPPED), request))
            return
        try:
            # This is a `partial`, because a compiled nested function makes two objects for each request.  Nothing is
            # given by its name: the engine is any that is hosted, and reading names would cost 0.1 us.
            request.ticket = engine.submit(
                [request.body],
                formats.codec_in,
                formats.codec_out,
                self.deadline(request),
                partial(self._finish, request, reply, formats.media),
                request.id,
                request.urgency,
                request.tenant,
            )
        except RequestError as error:
            reply(self.problems.answer(error, request))
        request.body = b""  # it is the item's, which may be done with it long before the answer is written

    def _finish(self, request: HttpRequest, reply: Reply, media: bytes, outcomes: list[Outcome]) -> None:
        request.ticket = None  # the ticket refers to this call: a cycle would wait for the collector
        outcome = outcomes[0]
        if isinstance(outcome, Result):
            reply(Response(200, media, outcome.payload))
        else:
            reply(self.problems.answer(self._advised(outcome.error), request))

    def _advised(self, error: RequestError) -> RequestError:
        """`error`; where the body was a list and the item is none, it names the path that takes lists."""
        if isinstance(error, InvalidItem) and not error.path and error.reason.endswith(_GOT_LIST):
            several = self.traffic.route.removesuffix(self.verb) + BatchRoute.verb
            return InvalidItem(f"{error.reason}; send a list of items to {several}")
        return error

    def cancel(self, request: HttpRequest) -> None:
        """Take the item back."""
        if request.ticket is not None:
            request.engine.cancel(request.ticket)
