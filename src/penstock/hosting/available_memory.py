"""How many bytes of memory this process may still take, and how many it may have in all.

Contract of what is available
-----------------------------
* With cgroups of version 2, each has at most `memory.max` and has taken `memory.current`.  What is available is the
  smallest difference of the process's own cgroup and of those above it; one without a limit does not count.
* Without any such limit it is `MemAvailable` of the machine.
* None where the system tells neither.

Contract of the limit
---------------------
* It is the smallest of `MemTotal` of the machine and of the limits of the process's own cgroup and of those above it:
  `memory.max` with version 2, `memory.limit_in_bytes` with version 1; and the process's own limit of address space.
* None where the system tells none of them.

`memory.current` counts the page cache too, of which the kernel would give back a part before it kills anybody.  So a
cgroup whose processes read large files tells less than they could have.  `MemAvailable` leaves that part out.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

NO_LIMIT = "max"
NO_LIMIT_OF_VERSION_1 = 1 << 62
"""Version 1 has a number where there is no limit: the largest that it can count, which is a little less than 2**63."""


@dataclass(frozen=True, slots=True)
class MemoryFiles:
    """Where the kernel tells of memory."""

    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")

    def available(self) -> int | None:
        """The bytes that are available now; None where nothing tells."""
        rooms = [room for folder in self._own_cgroups() if (room := _room(folder)) is not None]
        return min(rooms) if rooms else read_meminfo(_text(self.proc / "meminfo"), "MemAvailable")

    def limit(self) -> int | None:
        """The most bytes that there can be, whatever is in use now; None where nothing tells."""
        limits = [
            read_meminfo(_text(self.proc / "meminfo"), "MemTotal"),
            *[_limit(folder / "memory.max") for folder in self._own_cgroups()],
            *[_limit(folder / "memory.limit_in_bytes") for folder in self._own_cgroups_of_version_1()],
        ]
        return min([limit for limit in limits if limit is not None], default=None)

    def _own_cgroups(self) -> Iterator[Path]:
        """The folders of the process's own cgroup of version 2 and of those above it; some may not be there.

        In a container the path may be that of the machine, where the container sees its own cgroup as the root.
        """
        name = read_cgroup_name(_text(self.proc / "self/cgroup"))
        if name is not None:
            for part in (name, *name.parents):
                yield self.cgroups / part

    def _own_cgroups_of_version_1(self) -> Iterator[Path]:
        """The same of version 1, which has a tree of its own for memory."""
        name = read_cgroup_name(_text(self.proc / "self/cgroup"), "memory")
        if name is not None:
            for part in (name, *name.parents):
                yield self.cgroups / "memory" / part


HERE = MemoryFiles()
"""Those of this machine."""


def available_memory() -> int | None:
    """The bytes of memory that this process may still take; None where the system does not tell."""
    return HERE.available()


def memory_limit() -> int | None:
    """The most bytes of memory that this process can have, with all others; None where the system does not tell.

    What it maps counts for its own limit of address space, `ulimit -v`, whether it is used or not.
    """
    limits = [HERE.limit(), resource.getrlimit(resource.RLIMIT_AS)[0]]
    return min([limit for limit in limits if limit not in (None, resource.RLIM_INFINITY)], default=None)


def read_cgroup_name(text: str, controller: str = "") -> PurePosixPath | None:
    """The process's cgroup, relative to the root of all, from `/proc/self/cgroup`; None where it has none.

    Without a `controller` it is that of version 2, whose line is ``0::/a/b``.  With one it is that of version 1 which
    has the controller: ``4:cpu,memory:/a/b``.  A path that leads out of what the process sees begins with ``..``, and
    is taken as far as it can be seen.
    """
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(",") and (number == "0") == (controller == "") and path.startswith("/"):
            return PurePosixPath(*[part for part in path.split("/") if part not in ("", ".", "..")])
    return None


def read_meminfo(text: str, wanted: str) -> int | None:
    """The bytes of `wanted`, as MemTotal, from `/proc/meminfo`, which has kibibytes; None where it is not there."""
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name == wanted:
            number = rest.split()[:1]
            return int(number[0]) * 1024 if number and number[0].isdigit() else None
    return None


def _room(cgroup: Path) -> int | None:
    """The bytes that `cgroup` may still take; None where it has no limit."""
    most, taken = _text(cgroup / "memory.max").strip(), _text(cgroup / "memory.current").strip()
    if most == NO_LIMIT or not most.isdigit() or not taken.isdigit():
        return None
    return max(int(most) - int(taken), 0)


def _limit(file: Path) -> int | None:
    """The bytes that `file` of a cgroup, of either version, has as the most; None where that is no limit."""
    most = _text(file).strip()  # of a cgroup without a limit version 2 has "max"
    return int(most) if most.isdigit() and int(most) < NO_LIMIT_OF_VERSION_1 else None


def _text(path: Path) -> str:
    """What the file at `path` has; "" where it cannot be read."""
    try:
        # Not `read_text`, which imports the codec: a service that starts imports nothing.
        return path.read_bytes().decode("ascii", "replace")
    except OSError:
        return ""
