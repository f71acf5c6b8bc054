"""Places for transfers, which hosts share: one that hangs has at most half of them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque


def host_share(places: int) -> int:
    """The most of so many places that one host has."""
    return max(1, places // 2)


class HostPlaces:
    """`most` places for the transfers of one service.  Each who asks for one gives it back, whether it came or not."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._share = host_share(most)
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By host, the oldest first; the host first that was not served for longest."""

    def ask(self, host: str) -> asyncio.Future[None]:
        """A future that is done as soon as there is a place for a transfer with `host`."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        self._serve()
        return turn

    def give_back(self, host: str, turn: asyncio.Future[None]) -> None:
        """Have others use the place, or no longer wait for it."""
        if not turn.cancel():
            self._free += 1
            self._taken[host] -= 1
            self._serve()

    def _serve(self) -> None:
        for host in [each for each in self._waiting if self._taken[each] < self._share]:
            turns = self._waiting[host]
            while turns and turns[0].done():
                turns.popleft()
            if turns and self._free:
                del self._waiting[host]  # behind the other hosts, if it waits on
                while turns and self._free and self._taken[host] < self._share:
                    if not (turn := turns.popleft()).done():
                        self._free -= 1
                        self._taken[host] += 1
                        turn.set_result(None)
                if turns:
                    self._waiting[host] = turns
            elif not turns:
                del self._waiting[host]
        self._taken = +self._taken
