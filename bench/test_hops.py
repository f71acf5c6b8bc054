"""Every hop is measured, and is labelled with the file it is in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hops import COORDINATOR, WORKER, walk

HOPS = COORDINATOR + WORKER
SOURCES = Path(__file__).parents[1] / "src" / "penstock"


@pytest.mark.night
def test_each_hop_has_a_figure():
    found = asyncio.run(walk(1))
    assert {piece for _, _, piece in HOPS} <= found.keys()


def test_each_hop_is_in_a_file_that_is_there():
    files = {file for _, file, _ in HOPS if not file.startswith("(")}
    assert [file for file in sorted(files) if not (SOURCES / f"{file}.py").is_file()] == []
