"""The stage that the tests of ASGI and WSGI servers serve: its file is copied to where a server runs."""

from __future__ import annotations

import time
from pathlib import Path

import penstock as ps


class Double(ps.Stage):
    """Takes as many seconds as its least item is below 0; tells in a file that it was torn down."""

    batch = ps.Batch(max_size=8)
    examples = [1.0]

    def predict(self, xs: list[float]) -> list[float]:
        time.sleep(max(0.0, -min(xs)))
        return [x * 2 for x in xs]

    def teardown(self) -> None:
        with Path("torn_down").open("a") as log:
            log.write("1")
