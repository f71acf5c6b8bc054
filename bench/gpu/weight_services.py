"""A stage that loads weights from a file, and tells what that took."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import Any

from encoders import ON_GPU

import penstock as ps

WORKERS = int(os.environ.get("GPU_WORKERS", "1"))


class Load(ps.Stage):
    """Loads `$GPU_WEIGHTS` onto the device in `setup`, and answers with what that took."""

    batch = ps.Batch(max_size=8)

    def setup(self) -> None:
        before, started = _read_so_far(), time.perf_counter()
        if ON_GPU:
            import torch

            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
        framework = time.perf_counter() - started
        self.weights = _loaded(os.environ["GPU_WEIGHTS"])
        after = _read_so_far()
        self.seen = {
            "seconds": time.perf_counter() - started - framework,
            "framework_seconds": framework,
            "disk": after - before if after >= 0 else None,
            "index": self.worker.index,
        }

    def predict(self, xs: list[int]) -> list[dict[str, Any]]:
        return [self.seen for _ in xs]


def _loaded(path: str) -> Any:
    if ON_GPU:
        from safetensors.torch import load_file

        weights = load_file(path, device="cuda")
        import torch

        torch.cuda.synchronize()
        return weights
    if importlib.util.find_spec("numpy") is not None:
        from safetensors.numpy import load_file as load_arrays

        return load_arrays(path)
    return Path(path).read_bytes()


def _read_so_far() -> int:
    """Bytes that the disk has read for this process, by a call or for pages that it has mapped; -1 where none tells."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return -1
    return next((int(line.partition(": ")[2]) for line in lines if line.startswith("read_bytes")), -1)


load = ps.Service(ps.stage(Load, workers=WORKERS), name="load")
