"""Run a part as a process of its own, within its time, and leave nothing of it behind.

Whatever the part starts, also what leaves its group and outlives its parent, comes to this process when its parent
ends, because this process is a subreaper (prctl(2)).  So after a part every child of this process is one to kill.

A keeper stands between the two, `part_process.py LIFELINE COMMAND ...`.  It is a subreaper too, and kills what the part
has started where this process is killed: it reads the end of the lifeline then.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from findings import Garbled, PartReport

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
DIES_WITH_PARENT = (
    sys.executable, "-I", "-S", "-c",
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])",
)  # fmt: skip
"""What stands before a command that the kernel is to kill when the process ends that has started it.

PR_SET_PDEATHSIG outlives the exec.  A function between fork and exec would do the same, and may hang where the process
has threads, as one with PyTorch does.
"""
MOST_LOGGED = 4 * 1024 * 1024
"""Bytes of a part's output that the log keeps."""
LONGEST_LINE = 64 * 1024
"""Bytes of one finding."""
END_SECONDS = 10.0
"""For how long what was killed is waited for.  A process in the kernel's hands may take longer than its signal."""


def adopt_orphans() -> None:
    """Be the parent of every descendant whose own parent has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def run_part(
    command: Sequence[str],
    report: PartReport,
    seconds: float,
    env: Mapping[str, str],
    folder: Path,
    log: IO[bytes],
) -> None:
    """Run `command` in `folder` for at most so many seconds, fill its report, and append its output to `log`.

    `adopt_orphans` must have been called.  The command finds the descriptor for its findings in `PART_FINDINGS`.
    """
    started = time.monotonic()
    (ours, theirs), (output, stdout), (kept, lifeline) = os.pipe(), os.pipe(), os.pipe()
    reading = _Reading(ours, output, report, log)
    process, late = None, None  # both stay so where a signal interrupts the start
    try:
        try:
            process = subprocess.Popen(
                [sys.executable, "-S", __file__, str(kept), *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.STDOUT,
                env={**env, "PART_FINDINGS": str(theirs), "PART_SECONDS": str(seconds)},
                pass_fds=(theirs, kept),
                start_new_session=True,
            )
        finally:
            for fd in (theirs, stdout, kept):
                os.close(fd)
        late = not reading.until_end(process, started + seconds)
    finally:
        left = end_children(process and process.pid)
        status = None if process is None or left else process.wait()
        reading.rest()
        for fd in (ours, output, lifeline):
            os.close(fd)
        report.seconds = time.monotonic() - started
        report.judge(_ending(seconds, status, late=late, left=left, reading=reading))


def _keep(lifeline: int, command: Sequence[str]) -> int:
    """Run the command, and end as it ends; or kill it, with all that it has started, at the end of the lifeline."""
    adopt_orphans()
    part = os.fork()
    if not part:
        os.close(lifeline)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execvp(command[0], command)
    os.close(int(os.environ["PART_FINDINGS"]))
    ready, _, _ = select.select([lifeline, os.pidfd_open(part)], [], [])
    if lifeline in ready:
        return len(end_children())
    status = os.waitstatus_to_exitcode(os.waitpid(part, 0)[1])
    if status < 0:
        with contextlib.suppress(OSError):  # that of SIGKILL is always the default
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _ending(seconds: float, status: int | None, *, late: bool | None, left: list[int], reading: _Reading) -> str:
    if left:
        return f"processes that it started could not be ended: {left}"
    if late is None:
        return "it was interrupted; what it had found until then is here"
    if late:
        return f"it was ended after its {seconds:g} s; what it had found until then is here"
    if status is not None and status < 0:
        with contextlib.suppress(ValueError):
            return f"its process was killed by {signal.Signals(-status).name}"
        return f"its process was killed by signal {-status}"
    if status:
        return f"its process ended with status {status}: {reading.last_words() or 'it said nothing'}"
    return f"it sent what is no finding: {reading.garbled}" if reading.garbled else ""


class _Reading:
    """What a part says: its findings on the one descriptor, its output on the other."""

    def __init__(self, findings: int, output: int, report: PartReport, log: IO[bytes]) -> None:
        self.garbled = ""
        self._findings, self._output = findings, output
        self._report, self._log = report, log
        self._line = b""
        self._logged = 0
        self._tail = b""
        self._open = {findings, output}
        for fd in self._open:
            os.set_blocking(fd, False)

    def until_end(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        """Read until the process has ended, and say so, or until the deadline."""
        ended = os.pidfd_open(process.pid)
        try:
            while (wait := deadline - time.monotonic()) > 0:
                ready, _, _ = select.select([*self._open, ended], [], [], wait)
                for fd in ready:
                    if fd != ended:
                        self._read(fd)
                if ready == [ended]:
                    return True
        finally:
            os.close(ended)
        return False

    def rest(self) -> None:
        """Read what is left of a process that has ended, and close the log's chapter."""
        for fd in list(self._open):
            # No more than a pipe holds: something that could not be killed may write on.
            for _ in range(64):
                if not self._read(fd):
                    break
        if self._logged > MOST_LOGGED:
            self._log.write(b"\n[%d bytes more were dropped]\n" % (self._logged - MOST_LOGGED))
        self._log.flush()

    def last_words(self) -> str:
        """The last line of the output that has any words."""
        lines = [line.strip() for line in self._tail.decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")

    def _read(self, fd: int) -> bool:
        try:
            piece = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not piece:
            self._open.discard(fd)
        elif fd == self._output:
            room = max(0, MOST_LOGGED - self._logged)
            self._log.write(piece[:room])
            self._logged += len(piece)
            self._tail = (self._tail + piece)[-4096:]
        else:
            *lines, self._line = (self._line + piece).split(b"\n")
            for line in lines:
                self._take(line)
            if len(self._line) > LONGEST_LINE:
                self.garbled, self._line = f"a line of more than {LONGEST_LINE} bytes", b""
        return bool(piece)

    def _take(self, line: bytes) -> None:
        try:
            self._report.add(line)
        except Garbled as error:
            self.garbled = self.garbled or str(error)


def end_children(first: int | None = None) -> list[int]:
    """Kill every child that this process has, and the group of `first`; those that are still there after ten seconds.

    `first` itself is left to be waited for.
    """
    if first is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first, signal.SIGKILL)
    deadline = time.monotonic() + END_SECONDS
    while left := list(_children()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if pid != first:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        if left == [first] and _is_zombie(left[0]):
            break
        if time.monotonic() > deadline:
            return left
        time.sleep(0.01)
    return []


def _is_zombie(pid: int) -> bool:
    return _stat(pid)[:1] == ["Z"]


def _children() -> Iterator[int]:
    """The processes whose parent is this one."""
    me = str(os.getpid())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _stat(int(entry.name))[1:2] == [me]:
            yield int(entry.name)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()  # the name before it may contain anything


if __name__ == "__main__":
    sys.exit(_keep(int(sys.argv[1]), sys.argv[2:]))
