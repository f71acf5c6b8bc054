"""The echo, and beside it a service that takes bodies of 16 MB: what do the small requests wait for the large ones?

penstock serve beside_services:echo beside_services:large
"""

from __future__ import annotations

import penstock as ps


class Echo(ps.Stage):
    """Give each list back."""

    batch = ps.Batch()

    def predict(self, xs: list[list[float]]) -> list[list[float]]:
        return xs


class Length(ps.Stage):
    """Say how long each is."""

    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[memoryview]) -> list[int]:
        return [len(x) for x in xs]


echo = ps.Service(ps.stage(Echo), name="echo")
large = ps.Service(ps.stage(Length), name="large")
