"""What the processes of a server cost, read from /proc: CPU seconds and memory, coordinator and workers apart.

A process is a worker if its command line contains the mark its server gave; all others of the tree, the one that
was started and its children, are the coordinator.  CPU is user and system time of all threads,
to the nanosecond in sum and to 10 ms for the kernel's part; memory is RSS, which counts shared pages in every
process, and PSS, which divides them among their users.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds since their start, and bytes of memory now, of some processes."""

    cpu: float = 0.0
    kernel: float = 0.0
    """The part of `cpu` that was spent in the kernel."""
    rss: int = 0
    pss: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu + other.cpu, self.kernel + other.kernel, self.rss + other.rss, self.pss + other.pss)


def tree(root: int) -> list[int]:
    """`root` and all its descendants that live now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat_fields(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, []))
    return found


def costs(root: int, worker_mark: str) -> tuple[Cost, Cost]:
    """What the coordinator and the workers of the tree under `root` cost so far."""
    coordinator, workers = Cost(), Cost()
    for pid in tree(root):
        cost = _cost(pid)
        if worker_mark and worker_mark in _command_line(pid):
            workers += cost
        else:
            coordinator += cost
    return coordinator, workers


def cpu_apart(root: int, worker_mark: str) -> tuple[float, float]:
    """CPU seconds so far of the coordinator and of the workers, as `costs` tells them apart.

    It reads no memory: where a process has gigabytes of it, the kernel takes long to add them up.
    """
    coordinator = workers = 0.0
    for pid in tree(root):
        if worker_mark in _command_line(pid):
            workers += _cpu_clock(pid)
        else:
            coordinator += _cpu_clock(pid)
    return coordinator, workers


def machine_busy() -> float:
    """Seconds of CPU that all processes of the machine took since it was started."""
    user, nice, system, _idle, _iowait, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) * TICK


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on, or [] if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()  # the name before it may contain anything


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _cost(pid: int) -> Cost:
    fields = _stat_fields(pid)
    if not fields:
        return Cost()
    rss = pss = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "Rss":
                rss = int(rest.split()[0]) * 1024
            elif name == "Pss":
                pss = int(rest.split()[0]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended meanwhile; its CPU still counts
    user, kernel = int(fields[11]) * TICK, int(fields[12]) * TICK
    return Cost(_cpu_clock(pid) or user + kernel, kernel, rss, pss)


def cpu_seconds(root: int) -> float:
    """CPU seconds so far of `root` and all its descendants."""
    return sum(map(_cpu_clock, tree(root)))


def _cpu_clock(pid: int) -> float:
    """CPU seconds of a process, all its threads, to the nanosecond; 0 if it is gone.

    The kernel numbers the CPU clock of process PID so; glibc's clock_getcpuclockid(3) does nothing else.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def mapped_files(pid: int) -> set[Path]:
    """The files that a process has mapped into its memory, libraries among them; empty if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return {Path(fields[5]) for line in lines if len(fields := line.split(maxsplit=5)) == 6 and fields[5][0] == "/"}
