"""The queue of a submitter for programs with an event loop: the calls of `JobQueue`, awaited.

Each call runs in one of a few threads of this connection, so that a slow store holds up no event loop.  A wait takes no
thread between its looks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeAlias, TypeVar

import msgspec

from penstock.config import checked_keywords
from penstock.errors import ConfigError
from penstock.hosting.one_process import OfOneProcess
from penstock.jobs.job import Job, Stats
from penstock.jobs.new_jobs import MAX_INLINE
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.stores.urls import masked, read_store_url
from penstock.jobs.submitting import JobQueue, check_max_inline, connect
from penstock.jobs.waiting_for import Watch

P = ParamSpec("P")
T = TypeVar("T")

Jobs: TypeAlias = list[Job]
"""In a class with a method `list` that name is the method's."""

THREADS = 8
"""How many calls of one connection run at a time; others wait for their turn."""


@checked_keywords("penstock.jobs.connect_async")
def connect_async(url: str, *, max_inline_bytes: int = MAX_INLINE) -> AsyncJobQueue:
    """As `connect`, for ``async with``: the same methods, awaited.

    Raises:
        ConfigError: `url` names no queue.
    """
    read_store_url(url)
    check_max_inline(max_inline_bytes)
    return AsyncJobQueue(partial(connect, url, max_inline_bytes=max_inline_bytes), shown=masked(url))


class AsyncJobQueue(OfOneProcess):
    """The jobs of one queue, as a submitter on an event loop sees them.  `connect_async` makes one.

    Args:
        connected: makes the `JobQueue` that answers; it may block.
        shown: the store's URL without its password.
        sleep: pauses a wait.
    """

    def __init__(
        self,
        connected: Callable[[], JobQueue],
        *,
        shown: str = "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connected = connected
        self._shown = shown
        self._sleep = sleep
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock jobs")  # starts none before a call
        self._queue: JobQueue | None = None
        self._closed = False
        self._process = os.getpid()

    async def __aenter__(self) -> Self:
        if self._queue is not None or self._closed:
            raise ConfigError(f"the queue {self._shown} is connected already; connect_async makes another connection")
        self._queue = await self._call(self._connected)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up the connection; may be called any number of times."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        try:
            if self._queue is not None:
                await self._call(self._queue.close)
        finally:
            self._threads.shutdown(wait=False)

    @checked_keywords("submit")
    async def submit(
        self,
        input: Any = msgspec.UNSET,  # noqa: A002  # as in JobQueue
        *,
        priority: int = 0,
        delay: float = 0,
        deadline: float | None = None,
        key: str | None = None,
        id: str | None = None,  # noqa: A002  # as in JobQueue
        service: str = "",
        input_url: str | None = None,
        output_url: str | None = None,
        content_type: str | None = None,
        accept: str | None = None,
    ) -> Job:
        """As `JobQueue.submit`."""
        return await self._call(
            self._open().submit,
            input,
            priority=priority,
            delay=delay,
            deadline=deadline,
            key=key,
            id=id,
            service=service,
            input_url=input_url,
            output_url=output_url,
            content_type=content_type,
            accept=accept,
        )

    async def submit_many(self, entries: Iterable[Mapping[str, Any]]) -> Jobs:
        """As `JobQueue.submit_many`."""
        return await self._call(self._open().submit_many, entries)

    async def get(self, job: Job | str) -> Job:
        """As `JobQueue.get`."""
        return await self._call(self._open().get, job)

    async def result(self, job: Job | str, timeout: float | None = None) -> Any:
        """As `JobQueue.result`."""
        watch = self._open().result_poller(job, timeout)
        await self._run_poller(watch)
        return watch.answer()

    async def wait(self, jobs: Iterable[Job | str], timeout: float | None = None) -> Jobs:
        """As `JobQueue.wait`."""
        watch = self._open().poller(jobs, timeout)
        await self._run_poller(watch)
        return watch.jobs

    async def cancel(self, job: Job | str) -> Job:
        """As `JobQueue.cancel`."""
        return await self._call(self._open().cancel, job)

    async def retry(self, job: Job | str) -> Job:
        """As `JobQueue.retry`."""
        return await self._call(self._open().retry, job)

    async def purge(self, state: JobState | str | None = None, older_than: float = 0) -> int:
        """As `JobQueue.purge`."""
        return await self._call(self._open().purge, state, older_than)

    async def pause(self) -> None:
        """As `JobQueue.pause`."""
        await self._call(self._open().pause)

    async def resume(self) -> None:
        """As `JobQueue.resume`."""
        await self._call(self._open().resume)

    async def stats(self) -> Stats:
        """As `JobQueue.stats`."""
        return await self._call(self._open().stats)

    async def list(self, state: JobState | str | None = None, limit: int = 100, after: Job | str | None = None) -> Jobs:
        """As `JobQueue.list`."""
        return await self._call(self._open().list, state, limit, after)

    async def _run_poller(self, watch: Watch) -> None:
        while (pause := await self._call(watch.look)) is not None:
            await self._sleep(pause)
            self._open()  # somebody may have closed it meanwhile

    def _open(self) -> JobQueue:
        if self._queue is None:
            raise ConfigError(
                f"the queue {self._shown} is not connected: write `async with jobs.connect_async(...) as q`"
            )
        if self._closed:
            raise ConfigError(f"the connection to the queue {self._shown} is closed")
        return self._queue

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns in one of the threads."""
        if os.getpid() != self._process:
            # A fork has the pool without its threads, and would wait for ever.
            raise ConfigError(f"the queue {self._shown} was connected in process {self._process}; connect in the fork")
        call = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
