"""Does each worker see the device that it was given: by number, by id, and within what the server itself sees?"""

from __future__ import annotations

import os
import subprocess
from typing import Any

from part import Part
from serving import Server, ServerFailed

VARIABLE = "CUDA_VISIBLE_DEVICES"
MADE_UP = "GPU-5ec7ab1e-0000-0000-0000-000000000000"
"""The id of a device where there is none."""


def run(part: Part) -> None:
    """Start a server for each way to name a device, all at once: importing PyTorch takes most of the time."""
    before = os.environ.pop(VARIABLE, None)
    entry = (before or "").split(",")[0].strip()
    known = entry if entry.startswith(("GPU-", "MIG-")) else os.environ.get("PART_GPU", "")
    gpu = known if part.on_gpu else MADE_UP
    first = entry or "0"
    many = before or ("0" if part.on_gpu else "3,5")
    ways: dict[str, tuple[str, str | None, list[str]]] = {
        # what the service gives, what the server has, what its workers have then
        "by number": ("0", before, [first]),
        "within the server's": ("0", many, [many.split(",")[0].strip()]),
    }
    if gpu:
        ways |= {
            "by id": (gpu, None, [gpu]),
            "two workers on one": (f"{gpu},{gpu}", None, [gpu, gpu]),
            "within an id": ("0", gpu, [gpu]),
        }
    else:
        part.note("Ids are not run: this PyTorch does not tell the id of a device.")
    servers = {name: _start(part, name, given, has) for name, (given, has, _) in ways.items()}
    beyond, hidden = _start(part, "beyond", "9", many), _start(part, "hidden", "0", "")
    with beyond as server:
        try:
            status: int | None = server.process.wait(max(0.0, part.seconds_left() - 1))
        except subprocess.TimeoutExpired:
            status = None
        well = status not in (0, None) and "this process sees" in server.output
        part.check("a number beyond is refused", ok=well, words=server.output.strip().rpartition("\n")[2])
    for name, (_, _, wanted) in ways.items():
        with servers[name] as server:
            try:
                server.ready(part.seconds_left() - 1)
                seen = [server.answer(0) for _ in range(8 * len(wanted))]
            except ServerFailed as error:
                part.check(name, ok=False, words=str(error))
            else:
                part.check(name, *_judged(seen, wanted, gpu if part.on_gpu else ""))
    with hidden as server:
        try:
            server.ready(part.seconds_left() - 1)
            found = server.answer(0)
        except ServerFailed as error:
            part.check("a variable that hides all", ok=False, words=str(error))
        else:
            well = found["variable"] in ("", "-1") and VARIABLE in server.output and not found.get("uuids")
            part.check("a variable that hides all", ok=well, words=f"the worker has {found['variable']!r}")


def _start(part: Part, name: str, given: str, variable: str | None) -> Server:
    env = {"GPU_GIVEN": given} | ({} if variable is None else {VARIABLE: variable})
    log = part.folder / f"{name.replace(' ', '-')}.log"
    return Server.penstock("trouble_services:given", log, **env)


def _judged(seen: list[dict[str, Any]], wanted: list[str], gpu: str) -> tuple[bool, str]:
    variables = sorted({str(answer["variable"]) for answer in seen})
    devices = sorted({device for answer in seen for device in answer.get("uuids", [])})
    well = set(variables) <= set(wanted) and all(len(answer.get("uuids", [0])) == 1 for answer in seen)
    # An id may be given by its beginning, and the one of a part of a card is written in two ways.
    if gpu.startswith("GPU-"):
        well = well and all(device.startswith(gpu.removeprefix("GPU-")) for device in devices if device)
    return well, f"workers have {', '.join(variables)}" + (f" and see {', '.join(devices)}" if any(devices) else "")
