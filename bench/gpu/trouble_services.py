"""Stages that lose their device, run out of its memory, and hold most of it; each does the like without a GPU."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from typing import Any

from encoders import HAS_TORCH, ON_GPU

import penstock as ps

# -- a device-side assert ---------------------------------------------------------------------------------------------

ROWS = 1000


class Lose(ps.Stage):
    """Looks up a row of a table on the device.  A row that is not there is a device-side assert."""

    batch = ps.Batch(max_size=32)
    examples = [0]

    def setup(self) -> None:
        if ON_GPU:
            import torch

            self.table = torch.arange(ROWS, device="cuda") * 2
        self.lost: BaseException | None = None

    def predict(self, rows: list[int]) -> list[int]:
        if ON_GPU:
            import torch

            return [int(x) for x in self.table[torch.tensor(rows, device="cuda")].cpu()]
        if self.lost is None and max(rows) >= ROWS:
            self.lost = _torch_error("CUDA error: device-side assert triggered")
        if self.lost is not None:
            raise self.lost
        return [2 * row for row in rows]


def _torch_error(words: str) -> BaseException:
    """The error as PyTorch has it, of its own class where it is installed."""
    if HAS_TORCH:
        import torch

        if hasattr(torch, "AcceleratorError"):
            return torch.AcceleratorError(words)
    return type("AcceleratorError", (RuntimeError,), {"__module__": "torch"})(words)


lose = ps.Service(ps.stage(Lose), name="lose")

# -- a batch for which there is no memory -----------------------------------------------------------------------------

SHARE = 0.1
"""Of the memory of the device, what torch may have."""
FITS = 20
"""About how many items have room in it at once."""
MOST = int(os.environ.get("GPU_MAX_SIZE", "64"))


class Shorten(ps.Stage):
    """Needs a part of the device's memory for each item, and gives its square."""

    batch = ps.Batch(max_size=MOST, max_wait=0)

    def setup(self) -> None:
        if ON_GPU:
            import torch

            torch.cuda.set_per_process_memory_fraction(SHARE)
            total = torch.cuda.get_device_properties(0).total_memory
            self.numbers = int(total * SHARE / FITS * 0.9) // 4

    def predict(self, xs: list[int]) -> list[int]:
        if ON_GPU:
            import torch

            ones = torch.ones(len(xs), self.numbers, device="cuda")[:, :1024].mean(dim=1).cpu()
            return [round(x * x * float(one)) for x, one in zip(xs, ones, strict=True)]
        if len(xs) > FITS:
            raise MemoryError(f"no room for {len(xs)} items")
        time.sleep(0.0005 * len(xs))
        return [x * x for x in xs]


shorten = ps.Service(ps.stage(Shorten), name="shorten")

# -- most of the memory -----------------------------------------------------------------------------------------------

HELD = 0.6
KEEPER = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdin.read()
time.sleep(0.7)
"""


class Hold(ps.Stage):
    """Holds so much of the device that there is no room for a second one.  -1 hangs, 0 fails."""

    def setup(self) -> None:
        if ON_GPU:
            import torch

            # In one piece: where there is no room for it, none of it is taken, and the card is never full.
            total = torch.cuda.get_device_properties(0).total_memory
            self.held: Any = torch.empty(int(total * HELD), dtype=torch.uint8, device="cuda")
        else:
            self.held = os.open(os.environ["GPU_LOCK"], os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MemoryError("another process has it") from None
            # As a driver that takes its time: the memory is held a while longer than the worker lives.
            command = [sys.executable, "-I", "-S", "-c", KEEPER]
            self.keeper = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[self.held])

    def predict(self, x: int) -> int:
        if x < 0:
            time.sleep(1000)
        return x + 1 if x else 1 // x


# Without `retry`: an item that hangs would hang once more, and take another worker with it.
hold = ps.Service(ps.stage(Hold, unhealthy_after=0, timeout=0.5, retry=False), name="hold")


# -- the devices that a worker sees -----------------------------------------------------------------------------------


class Which(ps.Stage):
    """Tells what its worker sees."""

    def setup(self) -> None:
        self.seen: dict[str, Any] = {"variable": os.environ.get("CUDA_VISIBLE_DEVICES"), "given": self.worker.gpus}
        if ON_GPU:
            import torch

            count = torch.cuda.device_count()
            uuids = [str(getattr(torch.cuda.get_device_properties(n), "uuid", "")) for n in range(count)]
            self.seen |= {"uuids": uuids}

    def predict(self, _: int) -> dict[str, Any]:
        return self.seen


def which(gpus: str) -> ps.Service:
    """A service of a worker for each of the GPUs, numbers or ids with commas between."""
    named = [int(gpu) if gpu.isdigit() else gpu for gpu in gpus.split(",")]
    return ps.Service(ps.stage(Which, gpus=named), name="which")


if os.environ.get("GPU_GIVEN"):
    given = which(os.environ["GPU_GIVEN"])
else:
    seen = ps.Service(ps.stage(Which), name="which")
