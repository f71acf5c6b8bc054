"""From the start to the first answer, with weights of 1 GB: one worker, and four on one device."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from encoders import HAS_TORCH, WHY_NO_TORCH
from part import NotRun, Part
from serving import Server, free_port

PIECE = 4 * 1024 * 1024
COMPILE_SECONDS = 40.0

CUDA_START = """
import time
began = time.perf_counter()
import torch
imported = time.perf_counter()
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
print(imported - began, time.perf_counter() - imported)
"""
COMPILE = """
import sys, time, torch
device = sys.argv[1]
module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).to(device).eval()
x = torch.ones(8, 64, device=device)
with torch.inference_mode():
    module(x)
    began = time.perf_counter()
    try:
        torch.compile(module)(x)
    except Exception as error:
        # Its first lines are the reason; behind them is advice on how to see more.
        sys.exit(" ".join(str(error).split("\\n")[:2]))
    if device == "cuda":
        torch.cuda.synchronize()
    print(time.perf_counter() - began)
"""


def run(part: Part) -> None:
    """Start it cold and warm, with one worker and with four; then see what CUDA and a compiler add."""
    weights = part.folder / "weights.safetensors"
    size = _write_weights(weights, 1024**3 if part.on_gpu else 64 * 1024**2)
    part.figure("weights", "MB", size / 1e6)
    for workers, cold in ((1, True), (1, False), (4, False)):
        if part.seconds_left() > 8:
            _start(part, weights, size, workers, cold=cold)
    if part.on_gpu:
        _cuda_start(part)
    _compiler(part)


def _start(part: Part, weights: Path, size: int, workers: int, *, cold: bool) -> None:
    name = f"{workers} worker{'s' if workers > 1 else ''}, {'cold' if cold else 'in the page cache'}"
    if cold:
        _drop_from_cache(weights)
    env = {"GPU_WEIGHTS": str(weights), "GPU_WORKERS": str(workers)}
    log = part.folder / f"start-{workers}-{cold}.log"
    with Server.penstock("weight_services:load", log, port=free_port(), **env) as server:
        statuses: set[int] = set()

        def seen() -> bool:
            statuses.add(_status(server))
            return 200 in statuses

        server.until(seen, "it gave no answer", part.seconds_left() - 1)
        first = time.monotonic() - server.started
        server.until(lambda: json.loads(server.get("/health"))["state"] == "ready", "it was not ready")
        part.figure(f"{name}: to the first answer", "s", first)
        # A worker that has just become ready may have answered nothing yet: each is asked until all have.
        found: dict[int, dict[str, float]] = {}
        deadline = time.monotonic() + 5
        while len(found) < workers and time.monotonic() < deadline:
            outcomes = json.loads(server.ask([0] * 64, "/batch")[1])["outcomes"]
            found |= {outcome["result"]["index"]: outcome["result"] for outcome in outcomes}
        workers_seen = list(found.values())
        part.figure(f"{name}: loading the weights", "s", [one["seconds"] for one in workers_seen])
        if part.on_gpu:
            contexts = [one["framework_seconds"] for one in workers_seen]
            part.figure(f"{name}: import and context of CUDA in a worker", "s", contexts)
        disk = [min(size, one["disk"]) for one in workers_seen if one["disk"] is not None]
        part.figure(f"{name}: read from the disk by a worker", "MB", [one / 1e6 for one in disk])
        part.figure(f"{name}: from the page cache", "MB", [(size - one) / 1e6 for one in disk])
        meanwhile = sorted(statuses - {0})
        part.check(f"{name}: meanwhile 503, then 200", meanwhile == [200, 503], f"statuses {meanwhile}")


def _status(server: Server) -> int:
    try:
        return server.ask(0)[0]
    except OSError:
        return 0  # the port is not open yet


def _write_weights(path: Path, size: int) -> int:
    """Write weights of so many bytes in pieces: a header of JSON behind its length, and the numbers."""
    count = size // PIECE
    header = json.dumps(
        {
            f"layer.{n}": {"dtype": "F16", "shape": [PIECE // 2048, 1024], "data_offsets": [n * PIECE, (n + 1) * PIECE]}
            for n in range(count)
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    piece = random.Random(7).randbytes(PIECE)
    try:
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for _ in range(count):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise NotRun(f"no room for the weights: {error.strerror}") from None
    return 8 + len(header) + count * PIECE


def _drop_from_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _cuda_start(part: Part) -> None:
    done = _python(CUDA_START, part.seconds_left() - 1)
    if isinstance(done, str):
        part.note(f"CUDA's own start was not measured: {done}.")
        return
    part.figure("importing PyTorch, alone", "s", done[0])
    part.figure("CUDA's own start, alone", "s", done[1])


def _compiler(part: Part) -> None:
    if not HAS_TORCH:
        part.note(f"torch.compile was not run: {WHY_NO_TORCH}.")
        return
    seconds = min(COMPILE_SECONDS, part.seconds_left() - 1)
    done = _python(COMPILE, seconds, part.device)
    if isinstance(done, str):
        part.note(f"torch.compile was not run: {done}.")
    else:
        part.figure("torch.compile of one small module", "s", done[0])


def _python(program: str, seconds: float, *arguments: str) -> list[float] | str:
    """The numbers that a program prints, or why there are none."""
    if seconds <= 0:
        return "there was no time left"
    command = [sys.executable, "-c", program, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"it took longer than {seconds:.0f} s"
    if done.returncode:
        return (done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}")[:300]
    return [float(word) for word in done.stdout.split()]
