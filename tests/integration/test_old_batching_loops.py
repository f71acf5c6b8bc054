"""A worker of the old batching protocol, which the test speaks itself, on each event loop."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

import penstock as ps

LOOPS = ("asyncio", "uvloop")
SIZES = (0, 1000, 60_000, 70_000, 200_000, 3_000_000)


async def speak(path):
    """Answer each item with its bytes, until the end of the stream."""
    reader, writer = await asyncio.open_unix_connection(path)
    with contextlib.closing(writer):
        writer.write(bytes(4))
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                length = int.from_bytes(await reader.readexactly(4), "big")
                items = msgspec.msgpack.decode(await reader.readexactly(length))
                packed = msgspec.msgpack.encode(items)
                writer.write(len(packed).to_bytes(4, "big") + packed)
                await writer.drain()


@pytest.mark.smoke
async def test_items_of_every_size_go_there_and_back(tmp_path):
    path = str(tmp_path / "echo.sock")
    stage = ps.remote("echo", batch=ps.Batch(max_size=4, max_wait=0.01), accepts=("msgpack",))
    service = ps.Service(stage, name="echo", remote_worker_socket=path)
    await service.start()
    worker = asyncio.create_task(speak(path))
    try:
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(ps.NotReady):
                    await service.predict("ready?")
                    break
                await asyncio.sleep(0.002)
        items = ["x" * size for size in SIZES]
        assert await asyncio.gather(*map(service.predict, items)) == items
    finally:
        await service.stop()
    await asyncio.wait_for(worker, 30)
