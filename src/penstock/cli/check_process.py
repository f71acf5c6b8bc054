"""Run a part of a check in a process of its own, and hear what it reports.

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
from collections.abc import Callable, Iterator, Mapping

import msgspec

from penstock.cli.findings import Done, Finding, MeasuringOrder, NothingToCheck, Report, Step, decode
from penstock.config import ArtifactOptions
from penstock.runtime.process import describe_exit

_LONGEST_POLL_MILLISECONDS = 2**31 - 1
"""The longest wait that poll(2) takes."""
_KILLED = describe_exit(-signal.SIGKILL)
_PIPE_BYTES = 1 << 16
"""No pipe of ours holds more."""
_LAST_BYTES, _LAST_LINES = 4096, 10
"""How much is shown of what a stage that was measured has printed last."""


class CheckProcess:
    """The process of a check, leader of a group of its own; `end` must be called.

    It runs the examples of the whole service; with an `order` it measures one stage, in that `environment`.
    """

    def __init__(
        self,
        name: str,
        patience: float,
        artifact: ArtifactOptions,
        order: MeasuringOrder | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._pipe, theirs = os.pipe()
        lifeline, self._lifeline = os.pipe()
        command = [sys.executable, "-P", "-m", "penstock.cli.rehearsal", name, str(theirs), repr(patience)]
        command += [str(lifeline), msgspec.json.encode(artifact).decode()]
        inherited = [theirs, lifeline]
        if order is not None:
            command.append(msgspec.json.encode(order).decode())
            inherited += [fd for fd in (order.inputs, order.results) if fd >= 0]
        try:
            # Our own interpreter and module; the name is an argument of its own, never read by a shell.
            self._popen = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                # A stage that prints something for each batch has done so before, and would for each run.
                stdout=None if order is None else subprocess.DEVNULL,
                stderr=None if order is None else subprocess.PIPE,
                pass_fds=inherited,
                env=environment,
                process_group=0,
            )
        finally:
            os.close(theirs)
            os.close(lifeline)
        self._patience = patience
        self._pidfd = os.pidfd_open(self._popen.pid)
        self._stderr = self._popen.stderr
        self._printed = b""
        """The last of what a process that measures a stage has written to standard error."""

    def reports(self) -> Iterator[Report]:
        """Yield the reports of the process until it ends; TimeoutError if no report comes within `patience` seconds."""
        ready = select.poll()
        ready.register(self._pipe, select.POLLIN)
        ready.register(self._pidfd, select.POLLIN)
        if self._stderr is not None:
            ready.register(self._stderr, select.POLLIN)
        kept = b""
        due = time.monotonic() + self._patience
        while True:
            wait = max(0.0, min((due - time.monotonic()) * 1000, _LONGEST_POLL_MILLISECONDS))
            found = [fd for fd, _ in ready.poll(wait)]
            if self._pipe in found:
                piece = os.read(self._pipe, _PIPE_BYTES)
                if not piece:
                    ready.unregister(self._pipe)
                *lines, kept = (kept + piece).split(b"\n")
                yield from map(decode, lines)
                due = time.monotonic() + self._patience
            elif self._pidfd in found:
                return  # the process has ended; a child of its may still have the pipes open
            elif not found or time.monotonic() >= due:
                raise TimeoutError
            if self._stderr is not None and self._stderr.fileno() in found and not self._hear():
                ready.unregister(self._stderr)

    def _hear(self) -> bool:
        """Keep the last of what is in the pipe of standard error; whether there was anything."""
        assert self._stderr is not None
        piece = os.read(self._stderr.fileno(), _PIPE_BYTES)
        self._printed = (self._printed + piece)[-_LAST_BYTES:]
        return bool(piece)

    def printed(self) -> str:
        """The last lines of what a process that measures a stage has written to standard error."""
        return "\n".join(self._printed.decode(errors="replace").splitlines()[-_LAST_LINES:])

    def end(self) -> str:
        """Kill the process and its group; how the process ended, in words."""
        # Before the wait: until then no other group can have its id.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        status = self._popen.wait()
        if self._stderr is not None:
            os.set_blocking(self._stderr.fileno(), False)
            with contextlib.suppress(BlockingIOError), self._stderr:
                self._hear()
        os.close(self._pidfd)
        os.close(self._pipe)
        os.close(self._lifeline)
        return describe_exit(status)


def follow(
    process: CheckProcess,
    patience: float,
    step: str,
    take: Callable[[Report], None],
    *,
    end: str = "the end of the process",
) -> Finding | None:
    """Hand what `process` reports to `take`, and end it; a finding where it did not end by itself, and well.

    `step` is what it begins with, and `end` what follows all the others.  After a NothingToCheck it is not waited for.
    """
    done, problem = False, ""
    try:
        for report in process.reports():
            match report:
                case Step(what):
                    step = what
                case Done():
                    step, done = end, True
                case NothingToCheck():
                    take(report)
                    return None
            take(report)
    except TimeoutError:
        problem = f"not finished within {patience:g} s; set a longer --timeout"
    finally:
        exit_words = process.end()
    if not problem:
        if done and exit_words == "exit status 0":
            return None
        hint = (
            "; the kernel also ends a process this way if there is too little memory" if exit_words == _KILLED else ""
        )
        problem = f"the check's process ended: {exit_words}{hint}"
    printed = process.printed()
    return Finding(step, f"{problem}\n\nIts last output:\n{printed}" if printed else problem)
