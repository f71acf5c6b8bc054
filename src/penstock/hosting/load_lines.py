"""Tell what still loads while services start: every 10 s in the log, or by a line on a terminal that changes.

`loading_logged` is around the start of each service.  `loading_shown` is around the starts of all services of a server:
where it shows a line, the log has none of these.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from penstock.codec.text import one_line
from penstock.core.clock import Clock, Timer
from penstock.core.load_progress import cut_to_width, loading_words
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.line_streams import LineStream
from penstock.hosting.servable import Servable

log = guarded_logger("penstock.loading")
"""A logger of its own: who shows the same in another way turns it off."""

LOG_INTERVAL_SECONDS = 10.0
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
def _repeated(clock: Clock, seconds: float, tell: Callable[[], object]) -> Iterator[None]:
    calls = _Repeated(clock, seconds, tell)
    try:
        yield
    finally:
        calls.end()


def loading_logged(service: Servable, clock: Clock) -> AbstractContextManager[None]:
    """Inside, the log tells every 10 s what `service` still loads."""

    def tell() -> None:
        if words := _words(service):
            log.info("service %r: %s", service.name, words)

    return _repeated(clock, LOG_INTERVAL_SECONDS, tell)


@contextlib.contextmanager
def loading_shown(services: Sequence[Servable], clock: Clock) -> Iterator[None]:
    """Inside, a line at the bottom of the terminal tells what `services` still load; without a terminal, nothing does.

    The terminal is that of standard error, whose lines were handed over.  Whatever else is written there stands above.
    """
    stream = sys.stderr
    if not isinstance(stream, LineStream) or not line_can_be_shown():
        yield
        return

    def show() -> None:
        told = [f"{service.name}: {words}" for service in services if (words := _words(service))]
        line = cut_to_width(f"penstock: {'; '.join(told)}", _columns(stream)) if told else ""
        stream.show_below(line)

    was_disabled, log.disabled = log.disabled, True
    _Terminal.line_shown = True
    try:
        with _repeated(clock, SHOW_INTERVAL_SECONDS, show):
            yield
    finally:
        log.disabled = was_disabled
        _Terminal.line_shown = False
        stream.show_below("")


def _words(service: Servable) -> str:
    """What `service` still loads, in a line without control characters: an error message may hold any."""
    words = one_line(loading_words(service.engine.loading)) if service.engine is not None else ""
    return "".join(c if c.isprintable() else "?" for c in words)


def _columns(stream: LineStream) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
