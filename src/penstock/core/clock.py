"""The clock of the code that drives the core.

Times are seconds as floats, on a clock that only goes forward and is the same in every process of the machine.  Code
that decides is told `now` as a number; only the code that drives it has a `Clock`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

FOREVER_SECONDS = 1e9
"""A span longer than this, about 30 years, counts as endless: no timer is set for it."""


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Forget it; harmless once it was made."""


class FineTimer(Protocol):
    """A timer that is set again and again, and rings once for each time."""

    def set(self, delay: float) -> None:
        """Ring after `delay` seconds, on the event loop that runs, and not when it was to ring before."""

    def close(self) -> None:
        """Ring no more, and keep nothing of the system; it may be set again."""


class Clock(Protocol):
    """Tells the time, and calls back when some of it has passed."""

    @property
    def now(self) -> Callable[[], float]:
        """A function that returns the time in seconds.

        It is a property that gives a callable, and not a method.  A class that asks for the time at each request keeps
        the callable in an attribute.  Compiled, such a call costs 47 ns, and a call of a Protocol's method 78 ns.
        """

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` once, `delay` seconds from now, on the event loop that runs; never earlier."""

    @property
    def fine_step(self) -> float:
        """The resolution of fine timers, in seconds."""

    def fine_timer(self, callback: Callable[[], object]) -> FineTimer:
        """A timer that calls `callback`, for what cannot wait for a tick of `call_later`.

        It may cost a descriptor until it is closed.
        """


@contextmanager
def calling_later(clock: Clock, delay: float, callback: Callable[[], object]) -> Iterator[None]:
    """Inside, `callback` is due after `delay` seconds; never where `delay` is more than `FOREVER_SECONDS`."""
    timer = clock.call_later(delay, callback) if delay <= FOREVER_SECONDS else None
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
