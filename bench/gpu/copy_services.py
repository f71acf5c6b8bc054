"""Stages that bring large inputs from the shared memory to the device, each in another way."""

from __future__ import annotations

import os
import time
from typing import Any

import penstock as ps

ON_GPU = os.environ.get("PART_DEVICE") == "cuda"
BYTES = 600_000
MOST = 32
_READ_ONLY = 8
"""cudaHostRegisterReadOnly."""
_PAGE = os.sysconf("SC_PAGESIZE")


class Copy(ps.Stage):
    """Gives for each input the seconds and the bytes of the batch's copy, and of what it took before that."""

    batch = ps.Batch(max_size=MOST)

    def setup(self) -> None:
        if ON_GPU:
            import torch

            self.target: Any = torch.empty(MOST * BYTES, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
        else:
            self.target = memoryview(bytearray(MOST * BYTES))
        self.prepare()

    def prepare(self) -> None:
        """What is made once."""

    def predict(self, inputs: list[memoryview]) -> list[list[float]]:
        started = time.perf_counter()
        self.copy(inputs)
        self.wait()
        seconds = time.perf_counter() - started
        right = self.first_bytes(len(inputs)) == [view[0] for view in inputs]
        return [[seconds, float(sum(map(len, inputs))), float(right)]] * len(inputs)

    def wait(self) -> None:
        """Until the device has everything."""
        if ON_GPU:
            import torch

            torch.cuda.synchronize()

    def first_bytes(self, count: int) -> list[int]:
        """The first byte of each input as the device has it."""
        found = self.target[: count * BYTES : BYTES]
        return list(found.tolist()) if ON_GPU else list(found)

    def copy(self, inputs: list[memoryview]) -> None:
        """Bring them there as they lie."""
        for index, view in enumerate(inputs):
            self.put(index, self.tensor(view) if ON_GPU else view)

    def put(self, index: int, source: Any) -> None:
        """Copy one to its place on the device."""
        place = self.target[index * BYTES : (index + 1) * BYTES]
        if ON_GPU:
            place.copy_(source, non_blocking=True)
        else:
            place[:] = source

    @staticmethod
    def tensor(view: memoryview) -> Any:
        """The input as a tensor that shares its memory; PyTorch warns that it must not be written."""
        import warnings

        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.frombuffer(view, dtype=torch.uint8)


class ThroughPinned(Copy):
    """Through one pinned buffer."""

    def prepare(self) -> None:
        if ON_GPU:
            import torch

            self.pinned: Any = torch.empty(MOST * BYTES, dtype=torch.uint8, pin_memory=True)
        else:
            self.pinned = memoryview(bytearray(MOST * BYTES))

    def copy(self, inputs: list[memoryview]) -> None:
        for index, view in enumerate(inputs):
            place = self.pinned[index * BYTES : (index + 1) * BYTES]
            if ON_GPU:
                place.copy_(self.tensor(view))
            else:
                place[:] = view
        size = len(inputs) * BYTES
        if ON_GPU:
            self.target[:size].copy_(self.pinned[:size], non_blocking=True)
        else:
            self.target[:size] = self.pinned[:size]


class PinnedWhereTheyLie(Copy):
    """With the pages of each input pinned by cudaHostRegister, where they lie in the shared memory."""

    def prepare(self) -> None:
        import torch

        self.runtime: Any = torch.cuda.cudart()

    def copy(self, inputs: list[memoryview]) -> None:
        pages: dict[int, int] = {}
        for index, view in enumerate(inputs):
            tensor = self.tensor(view)
            first = tensor.data_ptr() // _PAGE * _PAGE
            size = -(-(tensor.data_ptr() + BYTES - first) // _PAGE) * _PAGE
            if first not in pages:
                status = self.runtime.cudaHostRegister(first, size, _READ_ONLY)
                if int(status):
                    for done in pages:
                        self.runtime.cudaHostUnregister(done)
                    raise RuntimeError(f"cudaHostRegister refused: {status}")
                pages[first] = size
            self.put(index, tensor)
        self.wait()
        for first in pages:
            self.runtime.cudaHostUnregister(first)


class FromPinned(Copy):
    """As many bytes from pinned memory, which is the most that can be had."""

    def prepare(self) -> None:
        import torch

        self.source: Any = torch.empty(MOST * BYTES, dtype=torch.uint8, pin_memory=True)

    def copy(self, inputs: list[memoryview]) -> None:
        for index, view in enumerate(inputs):
            self.source[index * BYTES] = view[0]
        size = len(inputs) * BYTES
        self.target[:size].copy_(self.source[:size], non_blocking=True)


WAYS = {"as they lie": Copy, "through one pinned buffer": ThroughPinned}
if ON_GPU:
    WAYS |= {"pinned where they lie": PinnedWhereTheyLie, "from pinned memory": FromPinned}
