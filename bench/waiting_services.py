"""The services of the bench of waiting stages: stages that wait, and the plain line that one of them is compared with.

penstock serve waiting_services:nap
"""

from __future__ import annotations

import asyncio
import os
import time

import penstock as ps
from waiting_notes import NOTES_VARIABLE, note

NAP_SECONDS = 0.1
MAX_SIZE = 8


def plain_echo(x: list[float]) -> list[float]:
    """Give it back."""
    return x


async def async_echo(x: list[float]) -> list[float]:
    """Give it back; the same line, but for `async`."""
    return x


async def take_nap(x: list[float]) -> list[float]:
    """Wait, and give it back."""
    await asyncio.sleep(NAP_SECONDS)
    return x


class Hooked(ps.Stage):
    """Hooks that wait around a predict that takes as long for a batch."""

    batch = ps.Batch(max_size=MAX_SIZE)

    async def preprocess(self, x: list[float]) -> list[float]:
        await asyncio.sleep(NAP_SECONDS)
        return x

    def predict(self, xs: list[list[float]]) -> list[list[float]]:
        time.sleep(NAP_SECONDS)
        return xs

    async def postprocess(self, y: list[float]) -> list[float]:
        await asyncio.sleep(NAP_SECONDS)
        return y


class Left(ps.Stage):
    """Wait for ever with an empty list, and note the cancel; give back any other."""

    def setup(self) -> None:
        self.notes = os.environ[NOTES_VARIABLE]

    async def predict(self, x: list[float]) -> list[float]:
        if not x:
            note(self.notes, cancelled=False)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                note(self.notes, cancelled=True)
        return x


plain = ps.Service(ps.stage(plain_echo, name="echo"), name="plain")
waits = ps.Service(ps.stage(async_echo, name="echo", concurrency=256), name="waits")
nap = ps.Service(ps.stage(take_nap, name="nap", concurrency=256), name="nap")
# By default 2 batches are in progress.  Each takes 0.3 s here and `predict` a third of it, so it needs 3, and a fourth
# is there when one ends.
hooks = ps.Service(ps.stage(Hooked, concurrency=4), name="hooks")
left = ps.Service(ps.stage(Left), name="left")
