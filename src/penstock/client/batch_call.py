"""The call of `/batch`: many items, each with an outcome of its own, of which only some are sent again.

Contract
--------
* Answers stand in the order of the items, whatever was sent how often.
* An item is sent again only if it may succeed then and was not at work, or where a second run does no harm.
* The wait is the longest that one of them is told.  A try is asked for where it is asked for one of its items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.client.call_bodies import CallBody, UnreadableBody, join_items, read_outcomes
from penstock.client.problem_errors import item_error, unreadable
from penstock.client.replies import NoReply, Reply
from penstock.client.retry_rules import Retry, item_seconds, judge_item
from penstock.client.single_call import CallHead, Finished, setback_of
from penstock.client.tries import Setback
from penstock.codec.formats import Codec
from penstock.errors import InvalidItem, Overloaded, PenstockError


class BatchCall:
    """A client batch.

    Args:
        head: what all its tries have.
        items: the items as they are sent; or the error of one that could not be written.
        codec: the format of the items.
    """

    def __init__(self, head: CallHead, items: Sequence[bytes | InvalidItem], codec: Codec) -> None:
        self.head = head
        self._items = items
        self._codec = codec
        self._answers: list[Any] = list(items)
        self._open = [place for place, item in enumerate(items) if isinstance(item, bytes)]
        """The places of those without a last answer."""
        self._partial: PenstockError | None = None
        """The error of the setback that only some items had."""

    @property
    def unsendable(self) -> list[Any] | None:
        """The answers, where there is nothing to send; else None."""
        return None if self._open else self._answers

    def body(self) -> CallBody:
        """Those that have no last answer."""
        return join_items([self._written(place) for place in self._open], self._codec)

    def take(self, reply: Reply | NoReply, wall: float) -> Finished[list[Any]] | Setback:
        """Keep the answers of the items; a setback where some are sent again."""
        if isinstance(reply, NoReply) or not reply.is_success:
            return setback_of(reply, self.head, wall)
        try:
            outcomes = read_outcomes(reply.body, reply.headers.get("content-type", ""), len(self._open))
        except UnreadableBody as error:
            return Setback(unreadable(reply, self.head.request_id, str(error)), Retry.NEVER)
        again: list[int] = []
        problems: list[dict[str, Any]] = []
        for place, outcome in zip(self._open, outcomes, strict=True):
            problem = outcome.get("error")
            if not isinstance(problem, dict):
                self._answers[place] = outcome["result"]
                continue
            self._answers[place] = item_error(problem, self.head.request_id)
            if judge_item(problem, harmless=self.head.harmless) is not Retry.NEVER:
                again.append(place)
                problems.append(problem)
        self._open = again
        return self._setback(problems) if again else Finished(self._answers)

    def give_up(self, error: PenstockError) -> list[Any]:
        """The answers, where there is no further try."""
        if error is not self._partial:  # else each has an error of its own
            for place in self._open:
                self._answers[place] = error
        self._partial = None  # one of the answers: whoever raises it can so let go of it
        return self._answers

    def _setback(self, problems: Sequence[dict[str, Any]]) -> Setback:
        told = [seconds for problem in problems if (seconds := item_seconds(problem)) is not None]
        errors = [self._answers[place] for place in self._open]
        refused = any(isinstance(error, Overloaded) and error.reason != "quota" for error in errors)
        self._partial = errors[0]
        return Setback(errors[0], Retry.ASKED if told else Retry.UNASKED, max(told, default=None), refused)

    def _written(self, place: int) -> bytes:
        item = self._items[place]
        assert isinstance(item, bytes), "only what could be written is sent"
        return item
