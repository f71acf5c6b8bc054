"""Check a service in a process of its own, and show as a table what was found.

The service's code may end that process, crash it or hang.  That is a finding too.  The process and its group are ended
in every case.  Where a signal ends this process first, the kernel ends them: this process has the other end of their
lifeline.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.findings import Done, Finding, NothingToCheck, Report, Step, decode
from penstock.config import ArtifactOptions
from penstock.errors import ConfigError, PenstockError
from penstock.runtime.process import describe_exit

_LONGEST_POLL_MILLISECONDS = 2**31 - 1
"""The longest wait that poll(2) takes."""


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
    step, done = "import", False
    process = _Process(name, patience, artifact)
    try:
        for report in process.reports():
            match report:
                case Step(what):
                    step = what
                case Finding():
                    findings.append(report)
                case NothingToCheck():
                    return report
                case Done():
                    step, done = "the end of the process", True
    except TimeoutError:
        return [*findings, Finding(step, f"it did not finish within {patience:g} s; --timeout gives it longer")]
    finally:
        exit_words = process.end()
    if not done or exit_words != "exit status 0":
        findings.append(Finding(step, f"the check's process ended: {exit_words}"))
    return findings


class _Process:
    """The process of a check, leader of a group of its own; `end` must be called."""

    def __init__(self, name: str, patience: float, artifact: ArtifactOptions) -> None:
        self._pipe, theirs = os.pipe()
        lifeline, self._lifeline = os.pipe()
        command = [sys.executable, "-P", "-m", "penstock.cli.rehearsal", name, str(theirs), repr(patience)]
        command += [str(lifeline), msgspec.json.encode(artifact).decode()]
        try:
            # Our own interpreter and module; the name is an argument of its own, never read by a shell.
            self._popen = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs, lifeline), process_group=0
            )
        finally:
            os.close(theirs)
            os.close(lifeline)
        self._patience = patience
        self._pidfd = os.pidfd_open(self._popen.pid)

    def reports(self) -> Iterator[Report]:
        """What the process reports until it ends; TimeoutError if no report comes within `patience` seconds."""
        ready = select.poll()
        ready.register(self._pipe, select.POLLIN)
        ready.register(self._pidfd, select.POLLIN)
        kept = b""
        while True:
            found = [fd for fd, _ in ready.poll(min(self._patience * 1000, _LONGEST_POLL_MILLISECONDS))]
            if self._pipe in found:
                piece = os.read(self._pipe, 1 << 16)
                if not piece:
                    ready.unregister(self._pipe)
                *lines, kept = (kept + piece).split(b"\n")
                yield from map(decode, lines)
            elif found:
                return  # the process has ended; a child of its may still have the pipe open
            else:
                raise TimeoutError

    def end(self) -> str:
        """Kill the process and its group; how the process ended, in words."""
        # Before the wait: until then no other group can have its id.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        status = self._popen.wait()
        os.close(self._pidfd)
        os.close(self._pipe)
        os.close(self._lifeline)
        return describe_exit(status)
