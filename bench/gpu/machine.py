"""Say as JSON what this Python is and has, and on which device.  It imports torch, so it is a process of its own.

On a GPU it runs a small encoder once: the libraries are then in memory, and no part waits for a disk.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from encoders import MINILM, TorchEncoder, some_ids

PACKAGES = ("penstock", "torch", "triton", "numpy", "tokenizers", "safetensors", "fastapi", "uvicorn", "litserve")


def try_torch() -> tuple[Any, str]:
    """PyTorch, or None where it cannot be used; and the reason why there is no GPU, "" if there is one."""
    if importlib.util.find_spec("torch") is None:
        return None, "PyTorch is not installed"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            import torch

            if torch.cuda.is_available():
                return torch, ""
            built = torch.version.cuda
        except Exception as error:  # noqa: BLE001  # a broken install raises anything
            return None, f"PyTorch cannot be used: {type(error).__name__}: {error}"
    if built is None:
        return torch, "PyTorch is built without CUDA"
    said = [f": {warning.message}" for warning in warned if "CUDA" in str(warning.message)]
    return torch, "PyTorch finds none" + "".join(said[-1:])


def device(torch: Any) -> dict[str, Any]:
    """The first GPU that torch sees."""
    properties = torch.cuda.get_device_properties(0)
    uuid = str(getattr(properties, "uuid", ""))
    return {
        "name": properties.name,
        "memory": properties.total_memory,
        "driver": _driver(),
        "count": torch.cuda.device_count(),
        "id": uuid and f"{'MIG' if ' MIG ' in properties.name else 'GPU'}-{uuid}",
        "trouble": _trouble(),
    }


def versions(torch: Any) -> dict[str, str]:
    """What the figures depend on, by name."""
    found = {
        "python": sys.version.split()[0],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "cores": str(len(os.sched_getaffinity(0))),
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    if torch is not None:
        found["cuda"] = str(torch.version.cuda)
    return found


def _trouble() -> str:
    """Why the GPU does not compute, "" if it does."""
    try:
        TorchEncoder(MINILM, "cuda").encode(some_ids(MINILM, 64))
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return ""


def _driver() -> str:
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split("\n")[0].split()
    except OSError:
        return "unknown"
    return next((word for word in words if word[:1].isdigit()), "unknown")


if __name__ == "__main__":
    torch_here, why_no_gpu = try_torch()
    answer = {
        "device": None if why_no_gpu else device(torch_here),
        "no_gpu": why_no_gpu,
        "no_torch": why_no_gpu if torch_here is None else "",
        "versions": versions(torch_here),
    }
    print(json.dumps(answer))
