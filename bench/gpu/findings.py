"""The report of a run: what each part found, as objects, as JSON and as a page of tables.

A part sends its findings one by one while it runs, so a part that is killed has told what it had found until then.
It needs the standard library alone: it runs before anything is installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

OK, FAILED, NOT_RUN = "ok", "failed", "not run"
JSON_NAME, PAGE_NAME, LOG_NAME = "gpu-report.json", "gpu-report.md", "gpu-report.log"
MOST_FINDINGS = 2000
"""Checks and figures that are kept of one part."""


class Garbled(ValueError):
    """A line that no part of ours has written."""


@dataclass(frozen=True, slots=True)
class Check:
    """A claim that was tried."""

    name: str
    ok: bool
    words: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that was measured: of its rounds the least, the one in the middle and the most."""

    name: str
    unit: str
    min: float
    median: float
    max: float
    rounds: int

    @staticmethod
    def of(name: str, unit: str, values: Sequence[float]) -> Figure:
        """The figure of at least one measured value."""
        return Figure(name, unit, min(values), median(values), max(values), len(values))

    def shown(self) -> str:
        """Its value as people read it."""
        least, middle, most = map(_shown, (self.min, self.median, self.max))
        return middle if self.rounds == 1 else f"{least} / {middle} / {most}"


def _shown(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(slots=True)
class PartReport:
    """A part's findings."""

    name: str
    verdict: str = NOT_RUN
    why: str = ""
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, line: bytes) -> None:
        """Take one line of those that the part has sent.

        Raises:
            Garbled: the part has not written it, or it has written more than are kept.
        """
        if len(self.checks) + len(self.figures) + len(self.notes) >= MOST_FINDINGS:
            raise Garbled(f"more than {MOST_FINDINGS} findings")
        try:
            match json.loads(line):
                case {"check": str(name), "ok": bool(ok), "words": str(words)}:
                    self.checks.append(Check(name, ok, words))
                case {"figure": str(name), "unit": str(unit), "values": [_, *_] as values}:
                    self._add_figure(Figure.of(name, unit, [float(value) for value in values]))
                case {"note": str(words)}:
                    self.notes.append(words)
                case {"not_run": str(why)}:
                    self.verdict, self.why = NOT_RUN, why
                case {"done": True}:
                    self.verdict = OK
                case _:
                    raise Garbled("no finding")
        except (ValueError, TypeError) as error:
            raise Garbled(str(error)) from None

    def _add_figure(self, figure: Figure) -> None:
        """Put it in the place of an earlier one of that name, which had fewer rounds."""
        for index, kept in enumerate(self.figures):
            if kept.name == figure.name:
                self.figures[index] = figure
                return
        self.figures.append(figure)

    def judge(self, ending: str) -> None:
        """Say how the part went; `ending` says how its process failed, "" if it did not."""
        wrong = [check.name for check in self.checks if not check.ok]
        if ending:
            self.verdict, self.why = FAILED, ending
        elif wrong:
            self.verdict, self.why = FAILED, "not met: " + ", ".join(wrong)
        elif self.verdict == OK:
            self.why = f"{len(self.checks)} checks passed, {len(self.figures)} figures"


@dataclass(slots=True)
class Report:
    """All that a run found."""

    device: dict[str, Any] | None
    """Name, memory in bytes and driver; None where there is no GPU."""
    versions: dict[str, str]
    build: str
    """`compiled` or `sources`: the build of Penstock that every figure is of."""
    build_why: str
    """The reason for that build, or a doubt about it; "" if there is nothing to say."""
    day: str
    parts: list[PartReport]
    seconds: float = 0.0

    @property
    def status(self) -> int:
        """The exit status: 1 if a part failed."""
        return int(any(part.verdict == FAILED for part in self.parts))

    def write(self, folder: Path) -> None:
        """Write both files, each whole or not at all."""
        write_whole(folder / JSON_NAME, (json.dumps(asdict(self), indent=2) + "\n").encode())
        write_whole(folder / PAGE_NAME, ("\n".join(self.page()) + "\n").encode())

    def summary(self) -> Iterator[str]:
        """The lines that say how each part went."""
        yield f"On {self._where()}, {self.build} build, {self.day}, {self.seconds:.0f} s:"
        for part in self.parts:
            yield f"{part.name:<9}{part.verdict:<9}{part.seconds:5.0f} s  {one_line(part.why)}"

    def page(self) -> Iterator[str]:
        """The lines of the page in Markdown."""
        yield from ("# Penstock on a GPU", "")
        yield f"{self._where()}. {self.build.capitalize()} build, {self.day}, {self.seconds:.0f} s."
        if self.build_why:
            yield from ("", one_line(f"Of the build: {self.build_why}."))
        yield from ("", "| part | verdict | seconds | |", "|---|---|---|---|")
        for part in self.parts:
            yield _row(part.name, part.verdict, f"{part.seconds:.0f}", part.why)
        for part in self.parts:
            yield from ("", f"## {part.name}", "", f"{part.verdict}: {one_line(part.why)}")
            for note in part.notes:
                yield from ("", one_line(note))
            yield from _tables(part.figures, self.build)
            if part.checks:
                yield from ("", "| check | | |", "|---|---|---|")
                for check in part.checks:
                    yield _row(check.name, "ok" if check.ok else "**failed**", check.words)
        yield from ("", "## Versions", "", "| | |", "|---|---|")
        for name, version in self.versions.items():
            yield _row(name, version)

    def _where(self) -> str:
        if self.device is None:
            return "no GPU: small models on the CPU"
        memory = self.device.get("memory", 0) / 2**30
        return f"{self.device.get('name')}, {memory:.0f} GiB, driver {self.device.get('driver')}"


def _tables(figures: Sequence[Figure], build: str) -> Iterator[str]:
    """The figures as tables: those called `subject: aspect` are a row for each subject, with a column an aspect."""
    plain = [figure for figure in figures if ": " not in figure.name]
    if plain:
        yield from ("", f"| {build} build, min / median / max | | |", "|---|---|---|")
        for figure in plain:
            yield _row(figure.name, f"{figure.shown()} {figure.unit}", _rounds(figure))
    rows: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        subject, colon, aspect = figure.name.partition(": ")
        if colon:
            rows.setdefault(subject, {})[f"{aspect}, {figure.unit}"] = figure
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    if rows:
        yield from (
            "",
            _row(f"{build} build, min / median / max", *columns, "rounds"),
            "|---" * (len(columns) + 2) + "|",
        )
        for subject, row in rows.items():
            cells = [row[column].shown() if column in row else "" for column in columns]
            yield _row(subject, *cells, str(max(figure.rounds for figure in row.values())))


def _rounds(figure: Figure) -> str:
    return f"{figure.rounds} rounds" if figure.rounds > 1 else ""


def one_line(text: str) -> str:
    """The text without line breaks and what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)


def _row(*cells: str) -> str:
    return "| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in cells) + " |"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file by rename: who reads it sees the old one or the new one."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
