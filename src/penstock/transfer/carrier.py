"""Transfers for an event loop: many at once, each in a thread of its own, stopped with the task that awaits it.

Contract
--------
* A call is tried again after TransferFailed, `retries` times, with a rest before each.  TransferRejected is raised at
  once.
* A call that is cancelled has its transfer stopped, and ends when that has ended: its thread is free then.  A transfer
  by HTTP stops within `GLANCE_SECONDS`, a transfer by S3 at the next piece or when the server has been silent for
  `STALL_SECONDS`, and that of a file when the file system answers.
* A thread is started where none is free, and kept.  The pool needs no size: what bounds the calls in progress, the
  `concurrency` of a stage, bounds the threads.
* After `close` no thread is left.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from penstock.config import MOST_IN_PROGRESS
from penstock.errors import TransferError, TransferFailed
from penstock.transfer.place_rules import PlaceRules
from penstock.transfer.transfers import Stopped, TransferOptions, Transfers

FIRST_REST_SECONDS = 0.2
"""Bound of the rest before the second try; it doubles with each try."""
LONGEST_REST_SECONDS = 5.0

T = TypeVar("T")


class Carrier:
    """Fetches into memory and stores what is there.  Its methods belong to one event loop.

    Raises ConfigError as `Transfers` does.
    """

    def __init__(self, rules: PlaceRules, *, most_bytes: int, timeout: float, retries: int) -> None:
        # The folder is for downloads into files, which are not made here.
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            self._transfers = Transfers(
                TransferOptions(
                    Path(folder),
                    allowed_inputs=rules.inputs,
                    allowed_outputs=rules.outputs,
                    allowed_nets=rules.nets,
                    net_option=rules.net_option,
                    max_input=most_bytes,
                    timeout=timeout,
                )
            )
        self._retries = retries
        self._threads = ThreadPoolExecutor(MOST_IN_PROGRESS, thread_name_prefix="penstock-transfer")
        self._running: dict[asyncio.Future[Any], threading.Event] = {}
        """Each transfer, and what stops it."""

    async def fetch(self, url: str) -> bytes:
        """The bytes at `url`.  Raises TransferRejected and TransferFailed."""
        return await self._carry(partial(self._fetch, url))

    async def store(self, url: str, body: bytes, content_type: str) -> None:
        """Store `body` at `url`, whatever is there.  Raises as `fetch` does.

        A file or an object appears in its place whole or not at all.  A PUT may be made more than once.
        """
        await self._carry(partial(self._store, url, uuid4().hex, body, content_type))

    async def close(self) -> None:
        """Stop what is in progress, and wait until all threads have ended."""
        for stop in self._running.values():
            stop.set()
        if self._running:
            await asyncio.wait(list(self._running))
        self._threads.shutdown()  # each is free, so that none is waited for

    async def _carry(self, call: Callable[[Stopped], T]) -> T:
        """Return what `call` returns, tried again where it fails."""
        rest = FIRST_REST_SECONDS
        for _ in range(self._retries):
            with suppress(TransferFailed):
                return await self._in_thread(call)
            await asyncio.sleep(rest * random.uniform(0.5, 1.0))
            rest = min(2 * rest, LONGEST_REST_SECONDS)
        return await self._in_thread(call)

    async def _in_thread(self, call: Callable[[Stopped], T]) -> T:
        """Return what `call` returns.  It has ended when this ends, also where this is cancelled."""
        stop = threading.Event()
        future = asyncio.get_running_loop().run_in_executor(self._threads, call, stop.is_set)
        self._running[future] = stop
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
                stop.set()
        del self._running[future]
        if cancelled is not None:
            future.exception()  # else the loop would say that nobody has asked for it
            raise cancelled
        return future.result()

    def _fetch(self, url: str, stopped: Stopped) -> bytes:
        return self._transfers.read(url, stopped).body

    def _store(self, url: str, upload: str, body: bytes, content_type: str, stopped: Stopped) -> None:
        """Store under the name of `upload` first, as an attempt of a job does; its second try replaces the first."""
        self._transfers.write_output(url, upload, 1, body, content_type, stopped)
        try:
            self._transfers.finish_output(url, upload, 1)
        except TransferError:
            with suppress(TransferError):
                self._transfers.discard_output(url, upload, 1)
            raise
