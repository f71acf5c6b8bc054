"""What a sample saw: for whoever watches, as a table, and as a file."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from rich.table import Table

ALL = "all"


class Result(msgspec.Struct, frozen=True):
    """One change, and what the unit tests made of it."""

    file: str
    line: int
    kind: str
    before: str
    """The line as it is, and as it was changed."""
    after: str
    noticed_by: str | None
    """The test that failed, or what else ended the run; None if nothing did."""
    tests: int
    """How many tests ran; 0 when none of them executes the line."""
    seconds: float

    @property
    def room(self) -> str:
        """The folder of the file."""
        return self.file.rpartition("/")[0] or "."

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.before}  ->  {self.after}"


class Sample(msgspec.Struct):
    """All results of one sample, and how to draw it again."""

    commit: str
    seed: int
    count: int
    targets: list[str]
    places: int
    """How many places the sample was drawn from."""
    finished: bool = False
    """Whether all changes were tried, and the unchanged tree passed once more."""
    results: list[Result] = []

    def unnoticed(self) -> list[Result]:
        """The changes that no test noticed, by file and line."""
        return sorted((r for r in self.results if r.noticed_by is None), key=lambda r: (r.file, r.line))


def table(sample: Sample) -> Table:
    """How many changes were noticed, by room."""
    shown = Table("room", title=f"{len(sample.results)} of {sample.places} places, seed {sample.seed}")
    for heading in ("changes", "noticed", "unnoticed", "share unnoticed", "of these, lines no test executes"):
        shown.add_column(heading, justify="right")
    rooms = sorted({result.room for result in sample.results})
    for room in (*rooms, ALL):
        chosen = [result for result in sample.results if room in {ALL, result.room}]
        shown.add_row(room, *_figures(chosen), end_section=room == rooms[-1])
    return shown


def _figures(results: list[Result]) -> Iterable[str]:
    unnoticed = [result for result in results if result.noticed_by is None]
    not_run = sum(not result.tests for result in unnoticed)
    share = f"{len(unnoticed) / len(results):.1%}"
    return str(len(results)), str(len(results) - len(unnoticed)), str(len(unnoticed)), share, str(not_run)
