"""Cut those who leave their answers unread while more bytes of answers are held than may be.

Contract
--------
* Only who holds overdue answers is cut: those that were ready long enough ago, of a service that holds too many.
* Who holds most is cut first.
* Nobody is cut once those before have given back enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Protocol

from penstock.hosting.guarded_log import guarded_logger

log = guarded_logger("penstock.server")


class AnswerHolder(Protocol):
    """A connection, or whatever else holds finished answers of one client."""

    def overdue_bytes(self, now: float) -> int:
        """The bytes of its finished answers that were ready `write_timeout` ago, where too many are held."""

    def abort(self) -> None:
        """End now, and give back at once what is held."""


def cut_overdue(holders: Iterable[AnswerHolder], now: float) -> None:
    """Cut as many as it takes, and write to the log how many that were."""
    overdue = [(nbytes, holder) for holder in holders if (nbytes := holder.overdue_bytes(now))]
    overdue.sort(key=itemgetter(0), reverse=True)
    cut = given_back = 0
    for nbytes, holder in overdue:
        if holder.overdue_bytes(now):
            holder.abort()
            cut += 1
            given_back += nbytes
    if cut:
        log.warning(
            "unsent responses exceed max_queued_bytes: closed %d slow clients (%d bytes unsent)",
            cut,
            given_back,
        )
