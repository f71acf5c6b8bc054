"""Tell how much memory of its devices torch has reserved in this process.

Torch is found where the stage has imported it, and asked only once the stage has initialised CUDA by itself.  Nothing
here imports torch, initialises CUDA or makes a context on a device: a context takes some hundred MB.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Final

from penstock.transport.framing import encode_device_memory
from penstock.worker.problems import USER_ERRORS

INTERVAL_SECONDS: Final = 1.0
"""Torch is asked at most once in so long: its answer is a hundred numbers of each device, and a batch waits for it."""
MOST_DEVICES: Final = 128
MOST_BYTES: Final = 1 << 62
"""Numbers above these are none that torch gives."""


class DeviceMemory:
    """When torch is asked, and what is told of its answer."""

    def __init__(self) -> None:
        self._ask_from = -math.inf

    def notes(self, now: float) -> list[bytes]:
        """The frame that tells of the memory; none where it is too soon, or where there is nothing to tell."""
        torch = sys.modules.get("torch")
        if torch is None or now < self._ask_from:
            return []
        self._ask_from = now + INTERVAL_SECONDS
        try:
            nbytes = _reserved(torch)
        except USER_ERRORS:  # it may be another version, or something of that name that is the user's
            return []
        return [] if nbytes is None else [encode_device_memory(nbytes)]


def initialised_cuda(torch: Any) -> Any:
    """`torch.cuda` where the stage has initialised CUDA and its allocator can be asked; else None.

    Raises whatever something of that name raises that is not PyTorch.
    """
    # Not `torch.cuda`: to look up an attribute of a lazy module is to import it.
    cuda = object.__getattribute__(torch, "__dict__").get("cuda")
    # The other allocators go to a device to be asked, which makes a context there.
    usable = cuda is not None and cuda.is_initialized() is True and cuda.get_allocator_backend() == "native"
    return cuda if usable else None


def _reserved(torch: Any) -> int | None:
    """The bytes that torch's caching allocator has reserved on all devices; None where CUDA is not initialised."""
    cuda = initialised_cuda(torch)
    if cuda is None:
        return None
    total = sum([cuda.memory_reserved(device) for device in range(min(cuda.device_count(), MOST_DEVICES))])
    return total if type(total) is int and 0 <= total <= MOST_BYTES else None
