"""Several doors that are run as one: a consumer and the HTTP listener beside it, and what is needed behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from penstock.hosting.run import Door


class Behind(Protocol):
    """What those who come through a door need until the door is closed."""

    async def start(self) -> None:
        """Be ready for those who come."""

    def let_go(self) -> None:
        """Keep nobody waiting any more: the doors are about to be closed."""

    async def close(self) -> None:
        """End; nobody comes any more."""


class Doors:
    """Opens what is `behind`, then `doors`, each in its order; closes the doors together, then what is behind."""

    def __init__(self, doors: Sequence[Door], behind: Sequence[Behind] = ()) -> None:
        self._doors = tuple(doors)
        self._behind = tuple(behind)

    async def start(self) -> None:
        """Open each; where one cannot be opened the run closes them all."""
        for part in self._behind:
            await part.start()
        for door in self._doors:
            await door.start()

    def stop_accepting(self) -> None:
        """Accept no more work."""
        for door in self._doors:
            door.stop_accepting()

    def leave_soon(self) -> None:
        """Go on accepting where somebody waits for an answer, and claim no more."""
        for door in self._doors:
            door.leave_soon()

    async def see_out(self, seconds: float) -> None:
        """Stop accepting, and let those who are in go on for at most `seconds`."""
        self._let_go()
        await asyncio.gather(*[door.see_out(seconds) for door in self._doors])

    async def close(self, grace: float) -> None:
        """Stop accepting, and wait at most `grace` seconds for what is owed."""
        self._let_go()
        await asyncio.gather(*[door.close(grace) for door in self._doors])
        for part in self._behind:
            await part.close()

    def _let_go(self) -> None:
        for part in self._behind:
            part.let_go()
