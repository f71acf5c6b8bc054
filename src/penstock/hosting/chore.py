"""Work that somebody asks for again and again: it never runs twice at a time, and whoever asks last is served."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.hosting.guarded_log import guarded_logger

log = guarded_logger("penstock.server")


class Chore:
    """Runs `work` on the event loop when asked.  Asked while it runs, it runs once more afterwards."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._asked = False
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Run the work, now or as soon as it has ended."""
        self._asked = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """Leave undone what is not done yet."""
        self._asked = False
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._asked:
                self._asked = False
                await self._work()
        except Exception:
            log.exception("background task failed")
        finally:
            self._task = None
