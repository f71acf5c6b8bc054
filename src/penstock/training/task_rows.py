"""The tables of a training run's file, and how its tasks are read from them and written.

Phases, in the columns `kind`, and states are numbers in the order of `Phase` and `TaskState`.  `lease_until` and
`since` are readings of the host's clock since its boot, and `boot_id` says since which.  Each function is part of a
transaction of its caller.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any, Final

from penstock.errors import RunUnavailable
from penstock.hosting.file_kind import FileKind
from penstock.training.rules.task_plans import PlanTexts
from penstock.training.rules.task_rules import (
    KINDS,
    HostTime,
    Situation,
    TaskRecord,
    current_kind,
    failure_of,
    may_be_claimed,
)
from penstock.training.rules.task_states import Phase, TaskState

STATES: Final = tuple(TaskState)

FIRST: Final = (
    # One row, from the plan on.  failed_kind, failed_place: the task that failed first; NULL in a run that has not.
    """CREATE TABLE run (
        one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, publish_to TEXT,
        failed_kind INTEGER, failed_place INTEGER)""",
    # The counts, which would take a look at every task otherwise.
    "CREATE TABLE kinds (kind INTEGER PRIMARY KEY, total INTEGER NOT NULL, left INTEGER NOT NULL)",
    """CREATE TABLE tasks (
        kind INTEGER NOT NULL, place INTEGER NOT NULL, state INTEGER NOT NULL, fence INTEGER NOT NULL,
        attempts INTEGER NOT NULL, lease_until REAL, boot_id TEXT NOT NULL, since REAL, claimed REAL, pid INTEGER,
        host TEXT NOT NULL, trouble TEXT NOT NULL, PRIMARY KEY (kind, place))""",
    # Apart, because SQLite writes a whole row when a part of it changes.
    """CREATE TABLE payloads (
        kind INTEGER NOT NULL, place INTEGER NOT NULL, json TEXT NOT NULL, PRIMARY KEY (kind, place))""",
    """CREATE TABLE results (
        kind INTEGER NOT NULL, place INTEGER NOT NULL, json TEXT NOT NULL, PRIMARY KEY (kind, place))""",
    "CREATE INDEX waiting ON tasks (kind, place) WHERE state = 0",
    "CREATE INDEX leased ON tasks (kind, place) WHERE state = 1",
)
RUN_FILE: Final = FileKind(
    what="training run",
    contents="tasks",
    elsewhere="put the run on a disk of this host",
    application_id=0x506E7372,  # the letters "Pnsr"
    steps=(FIRST,),
    unavailable=RunUnavailable,
)

_COLUMNS: Final = ", ".join(TaskRecord._fields)
_PLACES: Final = ", ".join("?" * len(TaskRecord._fields))
_CHANGES: Final = ", ".join(f"{name} = ?" for name in TaskRecord._fields[2:])
_SELECT: Final = f"SELECT {_COLUMNS} FROM tasks"  # noqa: S608  # the names are ours


def insert_plan(connection: sqlite3.Connection, run_id: str, publish_to: str | None, texts: PlanTexts) -> None:
    """Write a plan into a file that has none."""
    connection.execute("INSERT INTO run (one, id, publish_to) VALUES (1, ?, ?)", (run_id, publish_to))
    for number, kind in enumerate(KINDS):
        count = len(texts[kind])
        connection.execute("INSERT INTO kinds VALUES (?, ?, ?)", (number, count, count))
        new = (_row(TaskRecord(kind, place)) for place in range(count))
        connection.executemany(f"INSERT INTO tasks ({_COLUMNS}) VALUES ({_PLACES})", new)  # noqa: S608
        payloads = ((number, place, text) for place, text in enumerate(texts[kind]))
        connection.executemany("INSERT INTO payloads VALUES (?, ?, ?)", payloads)


def read_plan(connection: sqlite3.Connection) -> tuple[str, str | None] | None:
    """The run's id and where it publishes to; None where there is no plan."""
    found: tuple[str, str | None] | None = connection.execute("SELECT id, publish_to FROM run").fetchone()
    return found


def read_texts(connection: sqlite3.Connection) -> PlanTexts:
    """The JSON of all payloads."""
    query = "SELECT json FROM payloads WHERE kind = ? ORDER BY place"
    return {kind: [text for (text,) in connection.execute(query, (number,))] for number, kind in enumerate(KINDS)}


def read_payload(connection: sqlite3.Connection, task: TaskRecord) -> str:
    """The JSON of a task's payload."""
    at = KINDS.index(task.kind), task.place
    (text,) = connection.execute("SELECT json FROM payloads WHERE kind = ? AND place = ?", at).fetchone()
    return str(text)


def read_results(connection: sqlite3.Connection, kind: Phase) -> list[str | None]:
    """The JSON of what the tasks of a kind have returned."""
    query = "SELECT json FROM tasks LEFT JOIN results USING (kind, place) WHERE kind = ? ORDER BY place"
    return [text for (text,) in connection.execute(query, (KINDS.index(kind),))]


def read_task(connection: sqlite3.Connection, kind: Phase, place: int) -> TaskRecord | None:
    """One task; None where the plan has none at that place."""
    at = KINDS.index(kind), place
    row = connection.execute(f"{_SELECT} WHERE kind = ? AND place = ?", at).fetchone()
    return None if row is None else _record(row)


def read_tasks(connection: sqlite3.Connection) -> list[TaskRecord]:
    """All tasks, by kind and place."""
    return [_record(row) for row in connection.execute(f"{_SELECT} ORDER BY kind, place")]


def read_retriable(connection: sqlite3.Connection) -> Iterator[TaskRecord]:
    """The tasks that a retry may change."""
    done = STATES.index(TaskState.DONE)
    rows = connection.execute(f"{_SELECT} WHERE state <> ? AND (state > 0 OR attempts > 0)", (done,)).fetchall()
    return map(_record, rows)


def count_tasks(connection: sqlite3.Connection) -> dict[Phase, tuple[int, int]]:
    """How many tasks each kind has, and how many of them are not done."""
    rows = connection.execute("SELECT kind, total, left FROM kinds ORDER BY kind")
    return dict.fromkeys(KINDS, (0, 0)) | {KINDS[number]: (total, left) for number, total, left in rows}


def read_situation(connection: sqlite3.Connection, now: HostTime) -> Situation:
    """What `decide_claim` asks for."""
    left = {kind: count for kind, (_, count) in count_tasks(connection).items()}
    failed, kind = _read_failed(connection), current_kind(left)
    version = connection.execute(
        "SELECT json FROM results WHERE kind = ? AND place = 0", (KINDS.index(Phase.SAVE),)
    ).fetchone()
    return Situation(
        failed=None if failed is None else failure_of(failed),
        left=left,
        first=None if kind is None else _read_first(connection, kind, now),
        version=None if version is None else json.loads(version[0]),
    )


def update_task(connection: sqlite3.Connection, task: TaskRecord) -> None:
    """Write a task that was changed."""
    row = _row(task)
    connection.execute(f"UPDATE tasks SET {_CHANGES} WHERE kind = ? AND place = ?", (*row[2:], *row[:2]))  # noqa: S608


def insert_result(connection: sqlite3.Connection, task: TaskRecord, text: str) -> None:
    """Write the result of a task that has just been done."""
    number = KINDS.index(task.kind)
    connection.execute("INSERT INTO results VALUES (?, ?, ?)", (number, task.place, text))
    connection.execute("UPDATE kinds SET left = left - 1 WHERE kind = ?", (number,))


def write_failed(connection: sqlite3.Connection, task: TaskRecord | None) -> None:
    """Have the run fail by a task, if it has not failed yet; None: it has no longer failed."""
    if task is None:
        connection.execute("UPDATE run SET failed_kind = NULL, failed_place = NULL")
        return
    connection.execute(
        "UPDATE run SET failed_kind = ?, failed_place = ? WHERE failed_kind IS NULL",
        (KINDS.index(task.kind), task.place),
    )


def has_failed(connection: sqlite3.Connection) -> bool:
    """Whether the run has failed."""
    return _read_failed(connection) is not None


def _read_failed(connection: sqlite3.Connection) -> TaskRecord | None:
    query = f"{_SELECT} WHERE (kind, place) = (SELECT failed_kind, failed_place FROM run)"  # noqa: S608
    row = connection.execute(query).fetchone()
    return None if row is None else _record(row)


def _read_first(connection: sqlite3.Connection, kind: Phase, now: HostTime) -> TaskRecord | None:
    """The first task of a kind that may be claimed.  Few are leased, one for each worker, so all of them are read."""
    number = KINDS.index(kind)
    waiting = connection.execute(f"{_SELECT} WHERE state = 0 AND kind = ? ORDER BY place LIMIT 1", (number,))
    leased = connection.execute(f"{_SELECT} WHERE state = 1 AND kind = ?", (number,))
    found = [task for row in (*waiting, *leased) if may_be_claimed(task := _record(row), now)]
    return min(found, key=lambda task: task.place, default=None)


def _record(row: tuple[Any, ...]) -> TaskRecord:
    return TaskRecord(KINDS[row[0]], row[1], STATES[row[2]], *row[3:])


def _row(task: TaskRecord) -> tuple[Any, ...]:
    return (KINDS.index(task.kind), task.place, STATES.index(task.state), *task[3:])
