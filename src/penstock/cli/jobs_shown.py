"""Write jobs to standard output: a table for people, lines for programs, JSON for those who ask for it.

What a job says of itself, such as a model's error message, may be anything: no control character of it reaches a
terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from penstock.codec.text import printable
from penstock.errors import PenstockError
from penstock.hosting.stdio import is_terminal
from penstock.jobs.job import Job

LONGEST_CELL: Final = 300
"""The most characters of a message that a table shows."""


def _counts(failures: dict[str, int]) -> str:
    return ", ".join(f"{cause} {count}" for cause, count in sorted(failures.items()))


def _moment(seconds: float | None) -> str:
    if seconds is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f}"  # a moment beyond every calendar


def _error(job: Job) -> str:
    if job.error is None:
        return ""
    told = f"{job.error.type}: {job.error.message}" if job.error.type else job.error.message
    return printable(told[:LONGEST_CELL])


_FIELDS: Final[dict[str, Callable[[Job], str]]] = {
    "id": lambda job: job.id,
    "state": lambda job: job.state.value,
    "generation": lambda job: str(job.generation),
    "failures": lambda job: _counts(job.failures),
    "priority": lambda job: str(job.priority),
    "service": lambda job: job.service,
    "created_at": lambda job: _moment(job.created_at),
    "finished_at": lambda job: _moment(job.finished_at),
    "error": _error,
}


def show_jobs(jobs: Sequence[Job], *, as_json: bool, columns: Sequence[str] = tuple(_FIELDS)) -> None:
    """Write `jobs`: with `as_json` an object a line, on a terminal a table, else a line each with tabs in it.

    Raises:
        PenstockError: nobody takes what is written.
    """
    if as_json:
        write_lines(msgspec.json.encode(job).decode() for job in jobs)
    elif is_terminal(sys.stdout):
        _show_table(columns, [[_FIELDS[name](job) for name in columns] for job in jobs])
    else:
        write_lines("\t".join(_FIELDS[name](job) for name in columns) for job in jobs)


def show_numbers(numbers: Any, *, as_json: bool) -> None:
    """Write the fields of an object, a line each; with `as_json` as one object.  Raises as `show_jobs`."""
    fields = msgspec.to_builtins(numbers)
    if as_json:
        write_lines([msgspec.json.encode(numbers).decode()])
    elif is_terminal(sys.stdout):
        _show_table(("", ""), [[name, _number(value)] for name, value in fields.items()])
    else:
        write_lines(f"{name}\t{_number(value)}" for name, value in fields.items())


def write_lines(lines: Iterator[str] | Sequence[str]) -> None:
    """Write lines to standard output; raises as `show_jobs`."""
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError as error:
        raise _unwritten(error) from None


def write_bytes(body: bytes) -> None:
    """Write bytes to standard output as they are; raises as `show_jobs`."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise _unwritten(error) from None


def _show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # `penstock serve` needs none of it
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        # As `Text`: rich would read markup in a plain string, and a user's error may look like markup.
        table.add_row(*map(Text, row))
    try:
        Console().print(table)
    except OSError as error:
        raise _unwritten(error) from None


def _unwritten(error: OSError) -> PenstockError:
    return PenstockError(f"cannot write to standard output: {error.strerror or error}")


def _number(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value).lower()
