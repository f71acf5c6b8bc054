"""What the kernel tells of processes: whether they run, their groups, their memory, their open files."""

from __future__ import annotations

import contextlib
import gc
import os
import re
from itertools import pairwise
from pathlib import Path


def running(pid: int) -> bool:
    """Whether process `pid` exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def in_group(group: int) -> list[int]:
    """The living processes of process group `group`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and running(int(entry.name)):
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


def with_variable(name: str, value: str) -> dict[int, str]:
    """The processes that were started with the environment variable `name`, and their command lines."""
    wanted = f"{name}={value}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
    return found


def runs_a_stage(pid: int) -> bool:
    """Whether process `pid` was started as a worker of Penstock's; no word in a path says so."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it ended meanwhile
        return False
    return (b"-m", b"penstock.worker") in pairwise(words)


def resident(pid: int) -> int:
    """Bytes of memory that process `pid` has to itself or shares, now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


def most_resident(pid: int) -> int:
    """Bytes of memory that process `pid` has had at most."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def private(pid: int | str) -> int:
    """Bytes of memory that process `pid`, or "self", has to itself and has written to, now."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"Private_Dirty:\s+(\d+) kB", rollup)[1]) * 1024


def mapped_slabs() -> set[str]:
    """The numbers of the files in memory that this process maps for Penstock, when what nobody has any more is gone."""
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "memfd:penstock" in line}


def descriptors(pid: int) -> int:
    """How many files process `pid` has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def open_files() -> set[str]:
    """This process's open file descriptors, as what each leads to.

    What nobody has any more is closed first: left by one test and collected in the middle of another, it would count
    there.  For the same reason a test looks for new ones, and never at their number.  Left out are eventfds: threads of
    libraries that earlier tests have imported make some when they like, and Penstock makes none.
    """
    gc.collect()
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found[entry.name] = str(entry.readlink())
    return {f"{number} -> {leads_to}" for number, leads_to in found.items() if leads_to != "anon_inode:[eventfd]"}
