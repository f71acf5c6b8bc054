"""Several doors that are run as one: a consumer and the HTTP listener beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.hosting.run import Door


class Doors:
    """Opens `doors` in their order, and closes them together."""

    def __init__(self, doors: Sequence[Door]) -> None:
        self._doors = tuple(doors)

    async def start(self) -> None:
        """Open each; where one cannot be opened the run closes them all."""
        for door in self._doors:
            await door.start()

    def stop_accepting(self) -> None:
        """Accept no more work."""
        for door in self._doors:
            door.stop_accepting()

    async def see_out(self, seconds: float) -> None:
        """Stop accepting, and let those who are in go on for at most `seconds`."""
        await asyncio.gather(*[door.see_out(seconds) for door in self._doors])

    async def close(self, grace: float) -> None:
        """Stop accepting, and wait at most `grace` seconds for what is owed."""
        await asyncio.gather(*[door.close(grace) for door in self._doors])
