"""Check a service in a process of its own, and measure each of its stages in another; show what was found as tables."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.check_process import CheckProcess, follow
from penstock.cli.findings import (
    Finding,
    MeasuringOrder,
    NothingToCheck,
    Report,
    StageToMeasure,
    Step,
    results_not_kept,
)
from penstock.cli.measurements import StageFigures
from penstock.codec.text import without_controls
from penstock.config import ArtifactOptions
from penstock.core.load_progress import cut_to_width
from penstock.errors import ConfigError, PenstockError
from penstock.hosting.moving_line import line_can_be_shown
from penstock.runtime.process import worker_environment

Show: TypeAlias = Callable[[str], None]
"""Shows what is done at the moment."""


def check(name: str, patience: float, console: Console, *, artifact: ArtifactOptions, measured: bool = False) -> int:
    """Check the service `name` and print a table of what was found; 0 if all is well, else 1.

    `patience` is how many seconds, more than 0, one step may take: the import, the setup, one example in one format.
    `artifact` says how the service is opened where it is a folder.  With `measured` each stage is measured besides.

    Raises:
        ConfigError: there is no such service.
        PenstockError: the table cannot be written.
    """
    started = time.monotonic()
    stages: list[StageToMeasure] = []
    findings = _rehearse(name, patience, artifact, stages)
    if isinstance(findings, NothingToCheck):
        if findings.sentence:
            raise ConfigError(findings.sentence)
        sys.stderr.write(findings.traceback)
        return 1
    figures: list[StageFigures] = []
    if measured:
        with _progress_shown() as show:
            findings += _measure(name, patience, artifact, stages, figures, show)
    table = Table(title=Text(f"penstock check: {name}"), title_justify="left")
    for column in ("", "what", "found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        # As `Text`: rich would read markup in a plain string, and a user's error may look like markup.
        words = without_controls((finding.problem or finding.note).rstrip())
        table.add_row(_mark(finding), Text(finding.what), Text(words))
    wrong = sum(bool(finding.problem) for finding in findings)
    warned = sum(finding.warning for finding in findings)
    skipped = sum(finding.skipped for finding in findings)
    counts = f"{wrong} failed, {len(findings) - wrong - warned - skipped} ok"
    counts += (f", {warned} with a warning" if warned else "") + (f", {skipped} skipped" if skipped else "")
    try:
        console.print(table)
        if figures:
            console.print(_figures_table(figures))
        for line in filter(None, (each.line() for each in figures)):
            console.print(line, soft_wrap=True, markup=False, highlight=False)
        console.print(f"{counts}, in {time.monotonic() - started:.1f} s", highlight=False)
    except OSError as error:
        raise PenstockError(f"cannot write the results ({counts}): {error.strerror}") from None
    return 1 if wrong else 0


def _mark(finding: Finding) -> Text:
    """The word in the table's first column."""
    if finding.problem:
        return Text("failed", "red")
    if finding.warning:
        return Text("warning", "yellow")
    return Text("skipped", "yellow") if finding.skipped else Text("ok", "green")


def _figures_table(figures: Sequence[StageFigures]) -> Table:
    table = Table()
    for column in ("stage", "measured", "found"):
        table.add_column(column, overflow="fold")
    for each in figures:
        for what, found in each.rows():
            table.add_row(Text(each.stage), Text(what), Text(found))
        table.add_section()
    return table


def _rehearse(
    name: str, patience: float, artifact: ArtifactOptions, stages: list[StageToMeasure]
) -> list[Finding] | NothingToCheck:
    """The findings of the check's process, or why there is nothing to check; `stages` gets those to measure."""
    findings: list[Finding] = []
    refused: list[NothingToCheck] = []

    def take(report: Report) -> None:
        match report:
            case Finding():
                findings.append(report)
            case NothingToCheck():
                refused.append(report)
            case StageToMeasure():
                stages.append(report)

    fault = follow(CheckProcess(name, patience, artifact), patience, "import", take)
    return refused[0] if refused else findings + ([fault] if fault is not None else [])


def _measure(
    name: str,
    patience: float,
    artifact: ArtifactOptions,
    stages: Sequence[StageToMeasure],
    figures: list[StageFigures],
    show: Show,
) -> list[Finding]:
    """Measure each of `stages` in a process of its own; the findings, and in `figures` what was measured."""
    if not stages:
        return [Finding("measuring", note="nothing was measured: fix the failed checks first", skipped=True)]
    findings: list[Finding] = []
    with contextlib.ExitStack() as files:
        inputs: IO[bytes] | None = None
        for stage in stages:
            what, given = f"measuring stage {stage.stage}", inputs
            inputs = None
            if stage.feeds:
                # An open file without a name: it takes no memory of the stages, and is gone however this process ends.
                try:
                    inputs = files.enter_context(tempfile.TemporaryFile())
                except OSError as error:
                    findings.append(results_not_kept(what, error))
            why = stage.skipped
            if stage.fed and (given is None or not os.fstat(given.fileno()).st_size):
                why = "the stage before it gave no results"
            if why:
                findings.append(Finding(what, note=f"not measured: {why}", skipped=True))
                continue
            order = MeasuringOrder(
                stage.stage,
                stage.cores,
                inputs=given.fileno() if stage.fed and given is not None else -1,
                results=inputs.fileno() if inputs is not None else -1,
            )
            variables = [os.fsdecode(each).partition("=") for each in stage.variables]
            environment = worker_environment(stage.threads, {key: value for key, _, value in variables})
            process = CheckProcess(name, patience, artifact, order, environment)
            found = StageFigures(stage.stage, stage.max_size, stage.batched, stage.concurrency)
            figures.append(found)
            findings += _measure_one(process, patience, found, show)
    return findings


def _measure_one(process: CheckProcess, patience: float, figures: StageFigures, show: Show) -> list[Finding]:
    """The findings of one stage's process, and in `figures` what it measured."""
    what = f"measuring stage {figures.stage}"
    findings: list[Finding] = []

    def take(report: Report) -> None:
        match report:
            case Step(step):
                show(step)
            case Finding():
                findings.append(report)
            case NothingToCheck(sentence, traceback):
                findings.append(Finding(what, sentence or traceback))
            case _:
                figures.take(report)

    fault = follow(process, patience, what, take, end=f"{what}: the end of the process")
    findings += [fault] if fault is not None else []
    figures.finished = not any(finding.problem for finding in findings)
    return findings


@contextlib.contextmanager
def _progress_shown() -> Iterator[Show]:
    """Show a line that changes, where standard error is a terminal, and take it away in the end."""
    shown = ""

    def show(words: str) -> None:
        nonlocal shown
        if words != shown:
            shown = words
            sys.stderr.write(f"\r\x1b[2K{cut_to_width(words, shutil.get_terminal_size().columns)}")
            sys.stderr.flush()

    if not line_can_be_shown():
        yield lambda _: None
        return
    try:
        yield show
    finally:
        show("")
