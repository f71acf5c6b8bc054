"""Check a service in a process of its own, and show as a table what was found."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.check_process import CheckProcess, follow
from penstock.cli.findings import Finding, NothingToCheck, Report
from penstock.config import ArtifactOptions
from penstock.errors import ConfigError, PenstockError


def check(name: str, patience: float, console: Console, *, artifact: ArtifactOptions) -> int:
    """Check the service `name` and print a table of what was found; 0 if all is well, else 1.

    `patience` is how many seconds, more than 0, one step may take: the import, the setup, one example in one format.
    `artifact` says how the service is opened where it is a folder.

    Raises:
        ConfigError: there is no such service.
        PenstockError: the table cannot be written.
    """
    started = time.monotonic()
    findings = _rehearse(name, patience, artifact)
    if isinstance(findings, NothingToCheck):
        if findings.sentence:
            raise ConfigError(findings.sentence)
        sys.stderr.write(findings.traceback)
        return 1
    table = Table(title=Text(f"penstock check: {name}"), title_justify="left")
    for column in ("", "what", "found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        # As `Text`: rich would read markup in a plain string, and a user's error may look like markup.
        table.add_row(_mark(finding), Text(finding.what), Text((finding.problem or finding.note).rstrip()))
    wrong = sum(bool(finding.problem) for finding in findings)
    warned = sum(finding.warning for finding in findings)
    skipped = sum(finding.skipped for finding in findings)
    counts = f"{wrong} wrong, {len(findings) - wrong - warned - skipped} well"
    counts += (f", {warned} warned of" if warned else "") + (f", {skipped} skipped" if skipped else "")
    try:
        console.print(table)
        console.print(f"{counts}, in {time.monotonic() - started:.1f} s", highlight=False)
    except OSError as error:
        raise PenstockError(f"what was found ({counts}) cannot be written: {error.strerror}") from None
    return 1 if wrong else 0


def _mark(finding: Finding) -> Text:
    """The word in the table's first column."""
    if finding.problem:
        return Text("wrong", "red")
    if finding.warning:
        return Text("warning", "yellow")
    return Text("skipped", "yellow") if finding.skipped else Text("ok", "green")


def _rehearse(name: str, patience: float, artifact: ArtifactOptions) -> list[Finding] | NothingToCheck:
    """What the check's process found and how it ended, or why there is nothing to check."""
    findings: list[Finding] = []
    refused: list[NothingToCheck] = []

    def take(report: Report) -> None:
        match report:
            case Finding():
                findings.append(report)
            case NothingToCheck():
                refused.append(report)

    fault = follow(CheckProcess(name, patience, artifact), patience, "import", take)
    return refused[0] if refused else findings + ([fault] if fault is not None else [])
