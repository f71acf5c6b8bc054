"""Threads for calls that block: the store's, and those that move inputs and outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class CallThreads:
    """At most `most` threads.  Each is started when a call finds none that is free."""

    def __init__(self, most: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(most, thread_name_prefix=name)

    async def run(self, call: Callable[[], T]) -> T:
        """What `call` returns or raises, made in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def start(self, call: Callable[[], object]) -> None:
        """Make `call` in a thread, and wait for nothing."""
        self._executor.submit(call)

    def end(self) -> None:
        """Begin no further call; what runs goes on until it returns."""
        self._executor.shutdown(wait=False, cancel_futures=True)
