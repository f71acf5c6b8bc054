"""The echo: eight floats in, the same eight floats out, one worker, everything at its defaults.

There is no model, so what is measured is what Penstock costs: HTTP, batching, the way to the worker process and
back, decoding, validation and encoding of each item.

    penstock serve echo:service
"""

from __future__ import annotations

import penstock as ps


class Echo(ps.Stage):
    """Give each list back."""

    batch = ps.Batch()

    def predict(self, xs: list[list[float]]) -> list[list[float]]:
        return xs


service = ps.Service(ps.stage(Echo), name="echo")
