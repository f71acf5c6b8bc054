"""Does each worker see the device that it was given: by number, by id, and within what the server itself sees?"""

from __future__ import annotations

import os
import subprocess
from typing import Any

from part import NotRun, Part
from serving import Server, ServerFailed

VARIABLE = "CUDA_VISIBLE_DEVICES"


def run(part: Part) -> None:
    """Start a server for each way to name a device, all at once."""
    before = os.environ.pop(VARIABLE, None)
    uuid = _uuid(before) if part.on_gpu else "GPU-5ec7ab1e-0000-0000-0000-000000000000"
    outer = before or ("0" if part.on_gpu else None)
    first = (before or "0").split(",")[0]
    many = outer or "3,5"
    ways: dict[str, tuple[str, str | None, list[str]]] = {
        # what the service gives, what the server has, what its workers have then
        "by number": ("0", before, [first]),
        "by id": (uuid, None, [uuid]),
        "within the server's": ("0", many, [many.split(",")[0]]),
        "two workers on one": (f"{uuid},{uuid}", None, [uuid, uuid]),
        "within an id": ("0", uuid, [uuid]),
    }
    beyond, hidden = _start(part, "beyond", "9", many), _start(part, "hidden", "0", "")
    servers = {name: _start(part, name, given, has) for name, (given, has, _) in ways.items()}
    for name, (_, _, wanted) in ways.items():
        with servers[name] as server:
            try:
                server.ready(part.seconds_left() - 2)
                seen = [server.answer(0) for _ in range(8 * len(wanted))]
            except ServerFailed as error:
                part.check(name, ok=False, words=str(error))
                continue
            part.check(name, *_judged(seen, wanted, uuid if part.on_gpu else ""))
    with hidden as server:
        server.ready(part.seconds_left() - 1)
        found = server.answer(0)
        well = found["variable"] in ("", "-1") and VARIABLE in server.output and not found.get("uuids")
        part.check("a variable that hides all", ok=well, words=f"the worker has {found['variable']!r}")
    with beyond as server:
        try:
            status: int | None = server.process.wait(max(0.0, part.seconds_left() - 1))
        except subprocess.TimeoutExpired:
            status = None
        well = status not in (0, None) and "this process sees" in server.output
        part.check("a number beyond is refused", ok=well, words=server.output.strip().rpartition("\n")[2])


def _uuid(visible: str | None) -> str:
    """The id of the first device, asked in this process."""
    if visible is not None:
        os.environ[VARIABLE] = visible
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", ""))
    os.environ.pop(VARIABLE, None)
    if not uuid:
        raise NotRun("this PyTorch does not tell the id of a device")
    if visible is not None and visible.startswith("MIG-"):
        return visible.split(",")[0]
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"


def _start(part: Part, name: str, given: str, variable: str | None) -> Server:
    env = {"GPU_GIVEN": given} | ({} if variable is None else {VARIABLE: variable})
    log = part.folder / f"{name.replace(' ', '-')}.log"
    return Server.penstock("trouble_services:given", log, **env)


def _judged(seen: list[dict[str, Any]], wanted: list[str], uuid: str) -> tuple[bool, str]:
    variables = sorted({str(answer["variable"]) for answer in seen})
    devices = sorted({device for answer in seen for device in answer.get("uuids", [])})
    well = set(variables) <= set(wanted) and all(len(answer.get("uuids", [0])) == 1 for answer in seen)
    if uuid:
        well = well and all(uuid.endswith(device.removeprefix("GPU-")) for device in devices if "MIG" not in uuid)
    return well, f"workers have {', '.join(variables)}" + (f" and see {', '.join(devices)}" if devices else "")
