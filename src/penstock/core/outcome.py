"""What an item becomes: either a result or a failure."""

from __future__ import annotations

from typing import ClassVar, TypeAlias

from penstock.core.payload import Payload, payload_size
from penstock.errors import RequestError, StageFailed


# mypyc matches a class by position only where `__match_args__` is a ClassVar.
class Result:
    """The item's answer, as bytes in the format its caller asked for."""

    __match_args__: ClassVar[tuple[str, ...]] = ("payload",)
    __slots__ = ("payload",)

    def __init__(self, payload: Payload) -> None:
        self.payload = payload

    def __repr__(self) -> str:
        return f"Result({self.payload!r})"


class Failure:
    """Why the item has no answer."""

    __match_args__: ClassVar[tuple[str, ...]] = ("error",)
    __slots__ = ("error",)

    def __init__(self, error: RequestError) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"Failure({self.error!r})"


Outcome: TypeAlias = Result | Failure


def outcome_size(outcome: Outcome) -> int:
    """The bytes of a result, or the characters of a failure's texts: both are what the outcome takes in memory."""
    if isinstance(outcome, Result):
        return payload_size(outcome.payload)
    error = outcome.error
    if isinstance(error, StageFailed):
        return len(error.message) + len(error.traceback)
    return len(str(error))
