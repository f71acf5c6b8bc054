"""Show what goes on in one line at the bottom of the terminal, which changes while it lasts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from penstock.core.clock import Clock, Timer
from penstock.core.load_progress import cut_to_width
from penstock.hosting.line_streams import LineStream

SHOW_INTERVAL_SECONDS = 1.0


class _Terminal:
    """The terminal of this process."""

    line_shown = False


def line_can_be_shown() -> bool:
    """Whether standard error is a terminal on which a line can change."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def line_is_shown() -> bool:
    """Whether a line at the bottom of the terminal may be there: who else writes to it has to erase that first."""
    return _Terminal.line_shown


class _Repeated:
    """Calls `tell` every `seconds`, the first time after that long, until `end`."""

    def __init__(self, clock: Clock, seconds: float, tell: Callable[[], object]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._tell = tell
        self._timer: Timer = clock.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer = self._clock.call_later(self._seconds, self._ring)
        self._tell()

    def end(self) -> None:
        self._timer.cancel()


@contextlib.contextmanager
def repeated(clock: Clock, seconds: float, tell: Callable[[], object]) -> Iterator[None]:
    """Inside, `tell` is called every `seconds`, the first time after that long."""
    calls = _Repeated(clock, seconds, tell)
    try:
        yield
    finally:
        calls.end()


@contextlib.contextmanager
def shown_below(words: Callable[[], str], clock: Clock) -> Iterator[bool]:
    """Inside, a line at the bottom of the terminal has what `words` gives, asked every second; "" is no line.

    What the `with` gives says whether there is such a terminal.  It is that of standard error, whose lines were handed
    over.  Whatever else is written there stands above.
    """
    stream = sys.stderr
    if not isinstance(stream, LineStream) or not line_can_be_shown():
        yield False
        return

    def show() -> None:
        told = words()
        stream.show_below(cut_to_width(f"penstock: {told}", _columns(stream)) if told else "")

    _Terminal.line_shown = True
    try:
        with repeated(clock, SHOW_INTERVAL_SECONDS, show):
            yield True
    finally:
        _Terminal.line_shown = False
        stream.show_below("")


def _columns(stream: LineStream) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
