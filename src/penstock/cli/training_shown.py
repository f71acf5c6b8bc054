"""A training run on a terminal, as lines, or as JSON.

What the functions of tasks raise may be anything: no text of it reaches a terminal with a character that cannot be
printed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.printing import Row, fitting_table, lines_of, print_json, print_shown, readable_path, unwritten
from penstock.codec.text import printable, printable_lines
from penstock.hosting.stdio import is_terminal
from penstock.training.rules.task_states import TaskState
from penstock.training.run_status import PhaseStatus, RunState, RunStatus, TaskError, WorkerStatus

Show = Callable[[RunStatus], None]

LONGEST_TROUBLES: Final = 3
"""How many tracebacks are shown in full, the newest; JSON has more."""


@contextlib.contextmanager
def status_shown(*, as_json: bool, watched: bool) -> Iterator[Show]:
    """What shows a run: with `as_json` an object a line, on a terminal tables, else lines.

    Raises:
        PenstockError: nobody takes what is written.
    """
    if sys.stdout is None:  # somebody closed it before this process began
        raise unwritten("stdout is closed")
    try:
        if as_json:
            yield lambda status: print_json(_readable(status))
        elif watched and is_terminal(sys.stdout):
            console = Console()
            with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
                yield lambda status: live.update(Group(*_pieces(status, console.width)), refresh=True)
        else:
            write = _print_tables if is_terminal(sys.stdout) else _print_lines
            yield _Changes(write).show if watched else write
    except OSError as error:
        raise unwritten(error.strerror or str(error)) from None


class _Changes:
    """Prints what is not as it was when it was printed last, and when that was; that time has passed is no change."""

    def __init__(self, write: Show) -> None:
        self._write = write
        self._last: RunStatus | None = None

    def show(self, status: RunStatus) -> None:
        held = tuple(
            msgspec.structs.replace(holder, running_seconds=None, lease_left=None) for holder in status.workers
        )
        timeless = msgspec.structs.replace(status, taken_at="", workers=held)
        if timeless != self._last:
            print_shown(status.taken_at if self._last is None else f"\n{status.taken_at}")
            self._last = timeless
            self._write(status)


def _readable(status: RunStatus) -> RunStatus:
    """The same, with paths that can be written, whatever bytes they have."""
    publish_to = None if status.publish_to is None else readable_path(status.publish_to)
    return msgspec.structs.replace(status, folder=readable_path(status.folder), publish_to=publish_to)


def _print_tables(status: RunStatus) -> None:
    for piece in _pieces(status, Console().width):  # a line of a traceback stays one, however narrow the terminal
        print_shown(piece)


def _print_lines(status: RunStatus) -> None:
    print_shown(_facts(status))
    for columns, rows in _grids(status):
        print_shown("\n".join(lines_of([columns, *rows])))
    for told in _troubles(status):
        print_shown(told)


def _pieces(status: RunStatus, width: int) -> list[Table | Text]:
    tables = [fitting_table(width, columns, rows) for columns, rows in _grids(status)]
    return [Text(_facts(status)), *tables, *map(Text, _troubles(status))]


def _grids(status: RunStatus) -> list[tuple[Sequence[str], list[Row]]]:
    """The tables: the names of the columns, and the rows."""
    grids: list[tuple[Sequence[str], list[Row]]] = []
    if status.phases:
        kinds = [[str(cell) for cell in msgspec.structs.astuple(kind)] for kind in status.phases]
        grids.append((PhaseStatus.__struct_fields__, list(kinds)))
    if status.workers:
        grids.append((("task", "pid", "host", "attempt", "running", "lease"), list(map(_holder_row, status.workers))))
    return grids


def _troubles(status: RunStatus) -> list[str]:
    return [
        f"\n{trouble.task} {_how_it_is(trouble)}:\n{printable_lines(trouble.error.rstrip())}"
        for trouble in status.errors[-LONGEST_TROUBLES:]
    ]


def _how_it_is(trouble: TaskError) -> str:
    if not trouble.attempts:
        return f"({trouble.state}) failed before the last retry, by"
    attempts = f"{trouble.attempts} of its attempts"
    if trouble.state is TaskState.DONE:
        return f"is done; before that {attempts} failed, the last one by"
    return f"({trouble.state}) failed in {attempts}, the last time by"


def _facts(status: RunStatus) -> str:
    status = _readable(status)
    lines = [f"run {status.run or 'without a plan'} in {printable(status.folder)}: {status.state}"]
    if status.publish_to is None and status.run is not None:
        lines.append("it publishes nothing")
    elif status.publish_to is not None:
        version = "nothing yet" if status.version is None else f"version {status.version}"
        lines.append(f"published in {printable(status.publish_to)}: {version}")
    if status.state is RunState.RUNNING and not status.workers:
        lines.append("no worker has a task now")
    return "\n".join(lines)


def _holder_row(holder: WorkerStatus) -> Row:
    held = "since before a restart of the host" if holder.running_seconds is None else f"{holder.running_seconds:.1f} s"
    left = holder.lease_left
    lease = "expired" if left is None or left <= 0 else f"{left:.1f} s left"
    return holder.task, str(holder.pid or ""), holder.host, str(holder.attempt), held, lease
