"""Stages that bring large inputs from the shared memory to the device, each in another way."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from encoders import ON_GPU
from numpy.typing import NDArray

import penstock as ps

BYTES = 600_000
MOST = 32
_READ_ONLY = 8
"""cudaHostRegisterReadOnly."""
_PAGE = os.sysconf("SC_PAGESIZE")

Input = NDArray[np.uint8]


class Copy(ps.Stage):
    """Gives for each input the seconds and the bytes of the batch's copy, and whether all came, from shared memory."""

    batch = ps.Batch(max_size=MOST)

    def setup(self) -> None:
        if ON_GPU:
            import torch

            self.target: Any = torch.empty(MOST * BYTES, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
        else:
            self.target = np.empty(MOST * BYTES, np.uint8)
        self.prepare()

    def prepare(self) -> None:
        """What is made once."""

    def predict(self, inputs: list[Input]) -> list[list[float]]:
        started = time.perf_counter()
        self.copy(inputs)
        self.wait()
        seconds = time.perf_counter() - started
        right = self.ends(len(inputs)) == [(int(each[0]), int(each[-1])) for each in inputs]
        size = float(sum(each.nbytes for each in inputs))
        return [[seconds, size, float(right), float(lie_in_shared_memory(inputs))]] * len(inputs)

    def wait(self) -> None:
        """Until the device has everything."""
        if ON_GPU:
            import torch

            torch.cuda.synchronize()

    def ends(self, count: int) -> list[tuple[int, int]]:
        """The first and the last byte of each input as the device has it."""
        first, last = self.target[: count * BYTES : BYTES], self.target[BYTES - 1 : count * BYTES : BYTES]
        return list(zip(first.tolist(), last.tolist(), strict=True))

    def copy(self, inputs: list[Input]) -> None:
        """Bring them there as they lie."""
        for index, each in enumerate(inputs):
            self.put(index, tensor(each) if ON_GPU else each)

    def put(self, index: int, source: Any) -> None:
        """Copy one to its place on the device."""
        place = self.target[index * BYTES : (index + 1) * BYTES]
        if ON_GPU:
            place.copy_(source, non_blocking=True)
        else:
            place[:] = source


class ThroughPinned(Copy):
    """Through one pinned buffer."""

    def prepare(self) -> None:
        if ON_GPU:
            import torch

            self.pinned: Any = torch.empty(MOST * BYTES, dtype=torch.uint8, pin_memory=True)
            self.rows: Any = self.pinned.numpy().reshape(MOST, BYTES)
        else:
            self.rows = np.empty((MOST, BYTES), np.uint8)

    def copy(self, inputs: list[Input]) -> None:
        for row, each in zip(self.rows, inputs, strict=False):
            row[:] = each
        size = len(inputs) * BYTES
        if ON_GPU:
            self.target[:size].copy_(self.pinned[:size], non_blocking=True)
        else:
            self.target[:size] = self.rows.reshape(-1)[:size]


class PinnedWhereTheyLie(Copy):
    """With the pages of the inputs pinned by cudaHostRegister, where they lie in the shared memory."""

    def prepare(self) -> None:
        import torch

        self.runtime: Any = torch.cuda.cudart()

    def copy(self, inputs: list[Input]) -> None:
        pinned: list[int] = []
        try:
            for begin, end in page_runs([(each.ctypes.data, each.nbytes) for each in inputs]):
                status = self.runtime.cudaHostRegister(begin, end - begin, _READ_ONLY)
                if status != self.runtime.cudaError.success:
                    raise RuntimeError(f"cudaHostRegister refused: {self.runtime.cudaGetErrorString(status)}")
                pinned.append(begin)
            super().copy(inputs)
            self.wait()
        finally:
            for begin in pinned:
                self.runtime.cudaHostUnregister(begin)


class FromPinned(Copy):
    """As many bytes from pinned memory, which is the most that can be had."""

    def prepare(self) -> None:
        import torch

        self.pinned: Any = torch.empty(MOST * BYTES, dtype=torch.uint8, pin_memory=True)

    def predict(self, inputs: list[Input]) -> list[list[float]]:
        for row, each in zip(self.pinned.numpy().reshape(MOST, BYTES), inputs, strict=False):
            row[:] = each
        return super().predict(inputs)

    def copy(self, inputs: list[Input]) -> None:
        size = len(inputs) * BYTES
        self.target[:size].copy_(self.pinned[:size], non_blocking=True)


def tensor(array: Input) -> Any:
    """The input as a tensor that shares its memory; PyTorch warns that it must not be written."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


def page_runs(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The runs of whole pages, as begin and end, that have all pieces, which are addresses and sizes.

    No two overlap: a page that is pinned already cannot be pinned once more.
    """
    runs: list[tuple[int, int]] = []
    for address, nbytes in sorted(pieces):
        begin, end = address // _PAGE * _PAGE, -(-(address + nbytes) // _PAGE) * _PAGE
        if runs and begin <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
        else:
            runs.append((begin, end))
    return runs


def lie_in_shared_memory(inputs: list[Input]) -> bool:
    """Whether all inputs lie in a map of Penstock's memfd."""
    maps = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if "memfd" in line]
    runs = [(int(begin, 16), int(end, 16)) for begin, end in maps]
    return all(any(begin <= each.ctypes.data < end for begin, end in runs) for each in inputs)


WAYS = {"as they lie": Copy, "through one pinned buffer": ThroughPinned}
if ON_GPU:
    WAYS |= {"pinned where they lie": PinnedWhereTheyLie, "from pinned memory": FromPinned}
