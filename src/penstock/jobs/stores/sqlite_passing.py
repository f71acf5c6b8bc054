"""Move the jobs that only the passing of time moves, and leave deliveries for those whose run has ended.

Contract
--------
* `is_due` reads only, and is True exactly where `catch_up` would change something.
* Whoever ends runs calls `leave_deliveries` first, in the same transaction.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from penstock.hosting.host_clock import Reading

FALLEN_DUE: Final = "queue = ? AND state = 0 AND due <= ?"
FALLEN_DUE_SINCE_BOOT: Final = "queue = ? AND state = 0 AND due IS NULL AND not_before <= ?"
EXPIRED: Final = "queue = ? AND state < 2 AND deadline <= ?"

_IS_DUE: Final = (
    f"SELECT EXISTS (SELECT 1 FROM jobs WHERE {FALLEN_DUE}) "  # noqa: S608
    f"OR EXISTS (SELECT 1 FROM jobs WHERE {FALLEN_DUE_SINCE_BOOT}) OR EXISTS (SELECT 1 FROM jobs WHERE {EXPIRED})"
)


def is_due(connection: sqlite3.Connection, queue: int, now: Reading) -> bool:
    """Whether a scheduled job has fallen due, or one that nobody holds has expired."""
    values = (queue, now.boottime, queue, now.wall, queue, now.wall)
    return bool(connection.execute(_IS_DUE, values).fetchone()[0])


def catch_up(connection: sqlite3.Connection, queue: int, now: Reading) -> None:
    """Expire what nobody holds and has expired; let what has fallen due wait."""
    if not is_due(connection, queue, now):
        return
    leave_deliveries(connection, EXPIRED, queue, now.wall)
    connection.execute(
        "UPDATE jobs SET state = 6, ended = max(deadline, created), due = NULL, not_before = NULL "  # noqa: S608
        f"WHERE {EXPIRED}",
        (queue, now.wall),
    )
    for condition, moment in ((FALLEN_DUE, now.boottime), (FALLEN_DUE_SINCE_BOOT, now.wall)):
        connection.execute(
            "UPDATE jobs SET state = 1, since = min(not_before, ?), due = NULL, not_before = NULL "  # noqa: S608
            f"WHERE {condition}",
            (now.wall, queue, moment),
        )


def leave_deliveries(connection: sqlite3.Connection, condition: str, *values: Any) -> None:
    """Have what the attempts of the jobs that meet `condition` left at their outputs removed."""
    connection.execute(
        "INSERT OR REPLACE INTO deliveries SELECT queue, id, fence, first_fence, 0, output, -1.0 FROM jobs "  # noqa: S608
        f"WHERE {condition} AND output IS NOT NULL AND first_fence IS NOT NULL",
        values,
    )
