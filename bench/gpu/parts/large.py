"""Inputs of 600 KB from the shared memory to the device, in GB/s."""

from __future__ import annotations

import asyncio
import importlib.util

from part import NotRun, Part

import penstock as ps

ROUNDS = 9


def run(part: Part) -> None:
    """Have each way copy a batch, in turns."""
    if importlib.util.find_spec("numpy") is None:
        raise NotRun("numpy is not installed: what lies in the shared memory between processes is an array")
    asyncio.run(_run(part))
    if not part.on_gpu:
        part.note("Without a GPU the copies go to a buffer of the worker; pinned pages are not run.")


async def _run(part: Part) -> None:
    import numpy as np
    from copy_services import BYTES, MOST, WAYS

    inputs = [np.full(BYTES, n + 1, np.uint8) for n in range(MOST)]
    services = {name: ps.Service(ps.stage(stage), name="copy") for name, stage in WAYS.items()}
    rates: dict[str, list[float]] = {name: [] for name in services}
    try:
        await asyncio.gather(*(service.start() for service in services.values()))
        for turn in range(ROUNDS + 1):
            for name, service in list(services.items()):
                if part.seconds_left() < 3:
                    return
                found = await service.predict_many(inputs, return_exceptions=True)
                failed = next((one for one in found if isinstance(one, Exception)), None)
                if failed is not None:
                    part.note(f"{name}: refused: {str(failed).rpartition('Error: ')[2]}")
                    del services[name]
                    await service.stop()
                    continue
                if turn == 0:
                    part.check(f"{name}: the device has what was sent", all(right for _, _, right, _ in found))
                    part.check(f"{name}: inputs lie in the shared memory", all(there for *_, there in found))
                    continue  # the first pages are touched
                batches = {(seconds, size) for seconds, size, _, _ in found}
                rates[name].append(sum(size for _, size in batches) / sum(s for s, _ in batches) / 1e9)
                part.figure(name, "GB/s", rates[name])
    finally:
        await asyncio.gather(*(service.stop(0) for service in services.values()))
