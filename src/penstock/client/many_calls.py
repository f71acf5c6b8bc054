"""Do many things, and only some at a time: the client batches of one call, the jobs that one call waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def gather_bounded(makers: Sequence[Callable[[], Awaitable[T]]], most: int) -> list[T]:
    """What each of `makers` gives, in their order; `most` run at a time.

    The first error ends all others, and is raised.
    """
    results: dict[int, T] = {}
    places = iter(range(len(makers)))

    async def run_next() -> None:
        for place in places:
            results[place] = await makers[place]()

    if len(makers) == 1:
        return [await makers[0]()]
    error: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(most, len(makers))):
                group.create_task(run_next())
    except BaseExceptionGroup as failures:
        error = failures.exceptions[0]
        failures.__traceback__ = None  # a frame of asyncio in it has the group
    if error is not None:  # raised behind the handler: else the group would be its context
        try:
            raise error
        finally:
            del error  # as in `SingleCall.give_up`
    return [results[place] for place in range(len(makers))]
