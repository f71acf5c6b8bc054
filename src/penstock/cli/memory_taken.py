"""Tell how much memory this process takes: on a device where it computes there with torch, else what is resident.

Torch is never imported here, and never made to begin with a device: a context would take memory of its own.
"""

from __future__ import annotations

import contextlib
import re
import resource
import sys
from pathlib import Path
from typing import Any, Final

from penstock.cli.findings import Memory
from penstock.worker.device_memory import MOST_BYTES, MOST_DEVICES, initialised_cuda
from penstock.worker.problems import USER_ERRORS

_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_FORGET_PEAK: Final = "5"
"""The word that sets the kernel's peak of a process back to what is resident now; see proc(5)."""


def taken_now() -> Memory:
    """The memory that is taken at this moment."""
    return _on_devices("memory_allocated") or Memory(_resident("VmRSS"))


def taken_at_most() -> Memory:
    """The most that was taken since `forget_peak`; since the start of the process where the kernel cannot forget."""
    return _on_devices("max_memory_allocated") or Memory(_resident("VmHWM"))


def forget_peak() -> None:
    """Begin a new peak, which is what is taken now."""
    with contextlib.suppress(*USER_ERRORS):
        for cuda, device in _devices():
            cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text(_FORGET_PEAK)


def await_devices() -> None:
    """Wait until the devices have done what they were given; raises what went wrong there."""
    for cuda, device in _devices():
        cuda.synchronize(device)


def _on_devices(function: str) -> Memory | None:
    """The sum of what a function of `torch.cuda` tells of each device; None where it tells of none."""
    try:
        each = [getattr(cuda, function)(device) for cuda, device in _devices()]
    except USER_ERRORS:
        return None
    usable = each and all(type(nbytes) is int and 0 <= nbytes <= MOST_BYTES for nbytes in each)
    return Memory(sum(each), on_device=True) if usable else None


def _devices() -> list[tuple[Any, int]]:
    """The devices on which torch has memory, each behind `torch.cuda`: to ask for another one could begin it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    try:
        cuda = initialised_cuda(torch)
        if cuda is None:
            return []
        count = min(cuda.device_count(), MOST_DEVICES)
        return [(cuda, device) for device in range(count) if cuda.memory_reserved(device)]
    except USER_ERRORS:  # it may be something of that name that is the user's
        return []


def _resident(name: str) -> int:
    """The field `name` of what the kernel tells of this process; the peak of its life where it does not tell."""
    with contextlib.suppress(OSError):
        found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
