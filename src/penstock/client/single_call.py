"""What a call is to the sender, and the call whose answer is one thing.

A call says what is sent, and what an answer means: a value, or a setback.  It does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol, TypeVar

from penstock.client.call_bodies import CallBody, UnreadableBody
from penstock.client.problem_errors import is_refusal, reply_error, unreadable
from penstock.client.replies import NoReply, Reply
from penstock.client.retry_rules import Retry, judge_reply, told_seconds
from penstock.client.tries import Setback
from penstock.errors import JobNotSucceeded, PenstockError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Finished(Generic[T_co]):
    """What the caller gets."""

    value: T_co


@dataclass(frozen=True, slots=True)
class CallHead:
    """What every call has."""

    method: str
    path: str
    """Behind the server's address, with the query."""
    headers: Mapping[str, str]
    request_id: str
    timeout: float
    urgency: int
    harmless: bool
    """Whether a second run does no harm, so that also what may have run is tried again."""
    largest: int
    """Most bytes of a success."""
    flow_controlled: bool = True
    """Whether it waits for its turn, and counts."""


class Call(Protocol[T_co]):
    """A request to come, and what its answers mean."""

    @property
    def head(self) -> CallHead:
        """What stays the same in all its tries."""

    def body(self) -> CallBody | None:
        """The body of the next try; None is no body."""

    def take(self, reply: Reply | NoReply, wall: float) -> Finished[T_co] | Setback:
        """What has come of a try; `wall` is the moment in Unix seconds."""

    def give_up(self, error: PenstockError) -> T_co:
        """What the caller gets where there is no further try because of `error`; or raise it."""


class SingleCall(Generic[T]):
    """A call whose answer is one thing, which `read` makes of it."""

    def __init__(self, head: CallHead, body: CallBody | None, read: Callable[[Reply], T]) -> None:
        self.head = head
        self._body = body
        self._read = read

    def body(self) -> CallBody | None:
        """Always the same."""
        return self._body

    def take(self, reply: Reply | NoReply, wall: float) -> Finished[T] | Setback:
        """A success is read; one that cannot be read is never tried again."""
        if isinstance(reply, NoReply) or not reply.is_success:
            return setback_of(reply, self.head, wall)
        try:
            return Finished(self._read(reply))
        except UnreadableBody as error:
            return Setback(unreadable(reply, self.head.request_id, str(error)), Retry.NEVER)

    def give_up(self, error: PenstockError) -> NoReturn:
        """Raise it."""
        try:
            raise error from None
        finally:
            del error  # it leads to this frame: only the cycle collector would free both, and the call's input


def setback_of(reply: Reply | NoReply, head: CallHead, wall: float) -> Setback:
    """What an answer that is no success, or the lack of one, means for the whole call."""
    error = reply_error(reply, head.request_id)
    retry = judge_reply(reply, harmless=head.harmless)
    if isinstance(error, JobNotSucceeded):
        retry = Retry.NEVER  # a job's own end, whatever its status says of servers
    told = None if isinstance(reply, NoReply) else told_seconds(reply.headers, wall)
    return Setback(error, retry, told, is_refusal(reply, error))
