"""How many bytes of memory this process may still take: what its cgroup leaves, else what the machine has available.

Contract
--------
* With cgroups of version 2, each has at most `memory.max` and has taken `memory.current`.  What is available is the
  smallest difference of the process's own cgroup and of those above it; one without a limit does not count.
* Without any such limit it is `MemAvailable` of the machine.
* None where the system tells neither.

`memory.current` counts the page cache too, of which the kernel would give back a part before it kills anybody.  So a
cgroup whose processes read large files tells less than they could have.  `MemAvailable` leaves that part out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

NO_LIMIT = "max"


@dataclass(frozen=True, slots=True)
class MemoryFiles:
    """Where the kernel tells of memory."""

    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")

    def available(self) -> int | None:
        """The bytes that are available now; None where nothing tells."""
        rooms = [room for folder in self._own_cgroups() if (room := _room(folder)) is not None]
        return min(rooms) if rooms else read_mem_available(_text(self.proc / "meminfo"))

    def _own_cgroups(self) -> Iterator[Path]:
        """The folders of the process's own cgroup and of those above it; some may not be there.

        In a container the path may be that of the machine, where the container sees its own cgroup as the root.
        """
        name = read_cgroup_name(_text(self.proc / "self/cgroup"))
        if name is not None:
            for part in (name, *name.parents):
                yield self.cgroups / part


HERE = MemoryFiles()
"""Those of this machine."""


def available_memory() -> int | None:
    """The bytes of memory that this process may still take; None where the system does not tell."""
    return HERE.available()


def read_cgroup_name(text: str) -> PurePosixPath | None:
    """The process's cgroup of version 2, relative to the root of all, from `/proc/self/cgroup`; None where it has none.

    Its line is ``0::/a/b``; lines with another number are of version 1.  A path that leads out of what the process
    sees begins with ``..``, and is taken as far as it can be seen.
    """
    for line in text.splitlines():
        if line.startswith("0::/"):
            return PurePosixPath(*[part for part in line[4:].split("/") if part not in ("", ".", "..")])
    return None


def read_mem_available(text: str) -> int | None:
    """The bytes of `MemAvailable`, from `/proc/meminfo`, which has kibibytes; None where it is not there."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            number = rest.split()[:1]
            return int(number[0]) * 1024 if number and number[0].isdigit() else None
    return None


def _room(cgroup: Path) -> int | None:
    """The bytes that `cgroup` may still take; None where it has no limit."""
    most, taken = _text(cgroup / "memory.max").strip(), _text(cgroup / "memory.current").strip()
    if most == NO_LIMIT or not most.isdigit() or not taken.isdigit():
        return None
    return max(int(most) - int(taken), 0)


def _text(path: Path) -> str:
    """What the file at `path` has; "" where it cannot be read."""
    try:
        return path.read_text("ascii", "replace")
    except OSError:
        return ""
