"""Every hop is measured, and is labelled with the file it is in."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hops import COORDINATOR, WORKER, walk

HOPS = COORDINATOR + WORKER
SOURCES = Path(__file__).parents[1] / "src" / "penstock"


def test_each_hop_has_a_figure():
    found = asyncio.run(walk(1))
    assert {piece for _, _, piece in HOPS} <= found.keys()


def test_each_room_is_a_file():
    rooms = {room for _, room, _ in HOPS if not room.startswith("(")}
    assert [room for room in sorted(rooms) if not (SOURCES / f"{room}.py").is_file()] == []
