"""Write what a command has found or done to standard output: tables on a terminal, lines for programs, JSON.

What is shown may come from anybody: no character reaches a terminal that cannot be printed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.codec.text import printable, printable_lines
from penstock.errors import PenstockError

Row = Sequence[str]

CELL_WIDTH: Final = 7
"""The least width of a column with its border: four characters.  In narrower ones nobody can read anything."""


def readable_path(path: str | os.PathLike[str]) -> str:
    """A path as text that can be written, whatever bytes it has."""
    return os.fsencode(path).decode(errors="backslashreplace")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Row], *, done: str | None = None) -> None:
    """Write a table; without `columns` it has two, and no head.  `done` is as for `print_shown`."""
    print_shown(Text(printable(title), "bold"), done=done)
    print_shown(fitting_table(Console().width, columns, rows), done=done)


def fitting_table(width: int, columns: Sequence[str], rows: Iterable[Row]) -> Table | Text:
    """A table, without `columns` one of two and no head; lines with tabs where `width` has no room for a table."""
    if width < CELL_WIDTH * (len(columns) or 2):
        return Text("\n".join(lines_of([columns, *rows] if columns else rows)))
    # As `Text`: rich would read markup in a plain string, and a name may look like markup.
    table = Table(show_header=bool(columns))
    for column in columns or ("", ""):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable_lines(cell)) for cell in row))
    return table


def lines_of(rows: Iterable[Row]) -> list[str]:
    """A line for each row, with tabs in it."""
    return ["\t".join(map(printable, row)) for row in rows]


def printable_json(value: Any) -> str:
    """`value` as JSON of printable characters; others can be in its strings alone, where JSON has escapes for them."""
    text = msgspec.json.encode(value).decode()
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def print_json(value: Any, *, done: str | None = None) -> None:
    """Write `value` as JSON, on one line, without a character that cannot be printed; `done` as for `print_shown`."""
    print_shown(printable_json(value), done=done)


def print_shown(shown: Table | Text | str, *, done: str | None = None) -> None:
    """Write a table, a coloured text, or a line as it is.

    Args:
        shown: what is written.
        done: what the command has done already, as a sentence; None: it has only looked.

    Raises:
        PenstockError: nobody takes what is written; the sentence says what was done all the same.
    """
    if sys.stdout is None:  # somebody closed it before this process began
        raise unwritten("stdout is closed", done=done)
    try:
        if isinstance(shown, str):
            sys.stdout.write(f"{shown}\n")
            sys.stdout.flush()
        else:
            Console().print(shown, soft_wrap=isinstance(shown, Text))
    except OSError as error:
        raise unwritten(error.strerror or str(error), done=done) from None


def unwritten(reason: str, *, done: str | None = None) -> PenstockError:
    """What is raised where nobody takes what is written; `done` as for `print_shown`."""
    if done is None:
        return PenstockError(f"cannot write to standard output: {reason}")
    return PenstockError(f"{done}; cannot write to standard output: {reason}")
