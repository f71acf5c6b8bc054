"""What an item becomes: a result or a failure, never both, never neither."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

from penstock.errors import RequestError


class Result:
    """The item's answer, as bytes in the format its caller asked for.

    `payload` is one bytes-like object, or a list of them to be read as if joined.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ("payload",)
    __slots__ = ("payload",)

    def __init__(self, payload: Any) -> None:
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
