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
from collections.abc import Callable, Iterator, Mapping

import msgspec

from penstock.cli.findings import Done, Finding, MeasuringOrder, NothingToCheck, Report, Step, decode
from penstock.config import ArtifactOptions
from penstock.runtime.process import describe_exit

_LONGEST_POLL_MILLISECONDS = 2**31 - 1
"""The longest wait that poll(2) takes."""
_KILLED = describe_exit(-signal.SIGKILL)


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
                pass_fds=inherited,
                env=environment,
                process_group=0,
            )
        finally:
            os.close(theirs)
            os.close(lifeline)
        self._patience = patience
        self._pidfd = os.pidfd_open(self._popen.pid)

    def reports(self) -> Iterator[Report]:
        """Yield the reports of the process until it ends; TimeoutError if no report comes within `patience` seconds."""
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
    done = False
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
        return Finding(step, f"it did not finish within {patience:g} s; --timeout gives it longer")
    finally:
        exit_words = process.end()
    if done and exit_words == "exit status 0":
        return None
    hint = "; where there is too little memory, the kernel ends a process so" if exit_words == _KILLED else ""
    return Finding(step, f"the check's process ended: {exit_words}{hint}")
