"""Tell what still loads while services start: every 10 s in the log, or by a line on a terminal that changes.

`loading_logged` is around the start of each service.  `loading_shown` is around the starts of all services of a server:
where it shows a line, the log has none of these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from penstock.codec.text import one_line
from penstock.core.clock import Clock
from penstock.core.load_progress import loading_words
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.moving_line import repeated, shown_below
from penstock.hosting.servable import Servable

log = guarded_logger("penstock.loading")
"""A logger of its own: who shows the same in another way turns it off."""

LOG_INTERVAL_SECONDS = 10.0


def loading_logged(service: Servable, clock: Clock) -> AbstractContextManager[None]:
    """Inside, the log tells every 10 s what `service` still loads."""

    def tell() -> None:
        if words := _words(service):
            log.info("service %r: %s", service.name, words)

    return repeated(clock, LOG_INTERVAL_SECONDS, tell)


@contextlib.contextmanager
def loading_shown(services: Sequence[Servable], clock: Clock) -> Iterator[None]:
    """Inside, a line at the bottom of the terminal tells what `services` still load; elsewhere nothing does."""

    def words() -> str:
        return "; ".join([f"{service.name}: {words}" for service in services if (words := _words(service))])

    with shown_below(words, clock) as shown:
        was_disabled, log.disabled = log.disabled, log.disabled or shown
        try:
            yield
        finally:
            log.disabled = was_disabled


def _words(service: Servable) -> str:
    """What `service` still loads, in a line without control characters: an error message may hold any."""
    words = one_line(loading_words(service.engine.loading)) if service.engine is not None else ""
    return "".join(c if c.isprintable() else "?" for c in words)
