"""Say as JSON what this Python is and has, and on which device.  It imports torch, so it is a process of its own."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("penstock", "torch", "triton", "numpy", "tokenizers", "safetensors", "fastapi", "uvicorn", "litserve")


def device() -> dict[str, Any] | None:
    """The first GPU that torch sees; None without torch, or without one."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory": properties.total_memory,
        "driver": _driver(),
        "count": torch.cuda.device_count(),
        "uuid": str(getattr(properties, "uuid", "")),
    }


def versions() -> dict[str, str]:
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
    torch = sys.modules.get("torch")
    if torch is not None:
        found["cuda"] = str(torch.version.cuda)
    return found


def _driver() -> str:
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split("\n")[0].split()
    except OSError:
        return "unknown"
    return next((word for word in words if word[:1].isdigit()), "unknown")


if __name__ == "__main__":
    print(json.dumps({"device": device(), "versions": versions()}))
