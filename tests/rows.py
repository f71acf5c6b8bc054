"""A table of cases in one test, where pytest's own `parametrize` would make a test of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from functools import wraps
from typing import Any


@contextmanager
def named(row: str):
    """Name the case in what a failure says."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"The case: {row}")
        raise


def each(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable:
    """Call a test with one row after another; the first that fails is named.

    For cheap and pure cases alone: they share the fixtures, the limit of time and the event loop of one test.
    """
    names = (names,) if isinstance(names, str) else names
    values = [row if len(names) > 1 else (row,) for row in rows]
    assert values, "a table without rows tests nothing"
    calls = [dict(zip(names, row, strict=True)) for row in values]
    told = [", ".join(f"{name}={f'{value!r:.200}'}" for name, value in call.items()) for call in calls]

    def wrapper(test: Callable) -> Callable:
        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in names]
        assert len(left) + len(names) == len(signature.parameters), f"{test.__name__} does not take {names}"

        @wraps(test)
        def in_turn(**fixtures: Any) -> None:
            __tracebackhide__ = True
            for row, call in zip(told, calls, strict=True):
                with named(row):
                    test(**call, **fixtures)

        @wraps(test)
        async def awaited_in_turn(**fixtures: Any) -> None:
            __tracebackhide__ = True
            for row, call in zip(told, calls, strict=True):
                with named(row):
                    await test(**call, **fixtures)

        found = awaited_in_turn if inspect.iscoroutinefunction(test) else in_turn
        found.__signature__ = signature.replace(parameters=left)
        return found

    return wrapper
