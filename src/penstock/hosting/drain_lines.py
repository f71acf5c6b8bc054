"""Tell how the end of a run goes: in the log, or by a line on a terminal that changes.

Each phase has a line in the log when it begins, and one every 10 s while it lasts.  On a terminal the line at the
bottom takes the place of the latter.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

from penstock.core.clock import Clock
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.moving_line import repeated, shown_below

log = guarded_logger("penstock.server")

LOG_INTERVAL_SECONDS = 10.0


@contextlib.contextmanager
def phase_told(
    what: str, seconds: float, in_hand: Callable[[], int], clock: Clock, *, why: str, shows: bool
) -> Iterator[None]:
    """Inside, it is told that a phase goes on, for how long at most, and how many requests and jobs are in hand.

    Args:
        what: what goes on, with a place for the time that is left and one for the number in hand:
            ``shutting down, waiting up to %s for %d in flight``.
        seconds: how long it may last; inf: however long.
        in_hand: counts them.
        clock: tells how much of the time is left.
        why: what began it, for the log: the name of a signal.  "" keeps the first line out of the log.
        shows: whether a terminal may show a line.
    """
    end = clock.now() + seconds

    def words() -> str:
        return what % (_time_in_words(end - clock.now()), in_hand())

    if why:
        log.info("%s: %s; a second signal forces exit", why, words())
    with contextlib.ExitStack() as telling:
        if not (shows and telling.enter_context(shown_below(words, clock))):
            telling.enter_context(repeated(clock, LOG_INTERVAL_SECONDS, lambda: log.info("%s", words())))
        yield


def _time_in_words(seconds: float) -> str:
    if seconds == math.inf:
        return "an unlimited time"
    return f"{round(max(0.0, seconds), 2):.3g} s"
