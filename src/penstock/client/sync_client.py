"""The client for synchronous code: its calls run on an event loop in a thread of its own, and any thread may call.

So there is one implementation of every decision, and one thread changes what all threads share.  The loop also ends
what a thread waits for: no thread can safely close a socket that another one reads.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from penstock.client.client_core import ClientCore
from penstock.client.client_options import CallTerms, ClientOptions
from penstock.client.job_calls import submitted_options
from penstock.client.sending import ClientStats
from penstock.client.world import World
from penstock.config import checked_keywords
from penstock.core.tenants import USUAL_URGENCY
from penstock.errors import ConfigError, NotReady
from penstock.hosting.loop_thread import LoopThread
from penstock.hosting.one_process import OfOneProcess
from penstock.jobs.job import Job

T = TypeVar("T")
_CLOSED = "the client is closed"


class CallingThread:
    """Runs coroutines for other threads.  The thread begins with the first call, and belongs to this process."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        # A finalizer or a signal handler may close the client in the middle of a call of the same thread.
        self._lock = threading.RLock()
        self._thread: LoopThread | None = None
        self._closed = False
        self._process = os.getpid()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises; an interrupt of this thread cancels it."""
        try:
            future = self._loop().submit(coroutine)
        except NotReady:  # it was closed between the two
            raise ConfigError(_CLOSED) from None
        except ConfigError:
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            del future  # as in `SingleCall.give_up`

    def close(self) -> None:
        """End every call, and the thread; may be called any number of times, and in a fork does nothing."""
        if os.getpid() != self._process:
            return
        with self._lock:
            thread, self._thread, self._closed = self._thread, None, True
        if thread is None:
            return
        if thread.is_current:  # a finalizer that it happens to run: to wait here would be to wait for itself
            thread.end_after(self._core.sender.close())
            return
        with contextlib.suppress(NotReady):  # an error has ended the thread, or the interpreter ends
            thread.submit(self._core.sender.close()).result()
        thread.end()

    def close_later(self) -> None:
        """End every call, and the thread, without waiting for it."""
        thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._process:
            thread.end_after(self._core.sender.close())

    def _loop(self) -> LoopThread:
        if os.getpid() != self._process:
            raise ConfigError(
                f"the client was made in process {self._process}, before a fork; make another one after the fork"
            )
        with self._lock:
            if self._closed:
                raise ConfigError(_CLOSED)
            if self._thread is None:
                self._thread = LoopThread(self._core.url, _CLOSED)
            thread = self._thread
        if thread.is_current:
            raise ConfigError("the client was called in the thread of its own event loop: this would deadlock")
        return thread


class Client(OfOneProcess):
    """A server's services, called over HTTP by any number of threads: ``with Client(url) as c: c.predict(3)``.

    The arguments are those of `AsyncClient`.
    """

    @checked_keywords("penstock.client.Client")
    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 30.0,
        max_retries: int = 4,
        max_concurrency: int = 64,
        max_result: int = 1 << 30,
        tenant_header: str | None = None,
        retry_non_idempotent: bool = False,
        format: str = "json",  # noqa: A002  # the word that users of other clients look for
        _deps: World | None = None,
    ) -> None:
        options = ClientOptions(
            api_key, timeout, max_retries, max_concurrency, max_result, tenant_header, retry_non_idempotent, format
        )
        self._core = ClientCore(url, options, _deps)
        self._thread = CallingThread(self._core)
        self.jobs = ClientJobs(self._core, self._thread)
        """The jobs of the server's queue."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        thread: CallingThread | None = getattr(self, "_thread", None)
        if thread is not None:
            thread.close_later()

    def __repr__(self) -> str:
        return f"<Client {self._core.url}>"

    @property
    def stats(self) -> ClientStats:
        """What the client has done, and how much it may do."""
        if self._thread.is_closed:  # nothing changes any more
            return self._core.sender.stats
        return self._thread.run(_stats(self._core))

    def close(self) -> None:
        """End every call with `Cancelled`, and close every connection; may be called any number of times."""
        self._thread.close()

    def predict(
        self,
        item: Any,
        *,
        service: str = "",
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> Any:
        """See `AsyncClient.predict`."""
        call = self._core.maker.predict(item, CallTerms(service, urgency, tenant, timeout, request_id))
        return self._thread.run(self._core.sender.send(call))

    @checked_keywords("predict_many")
    def predict_many(
        self,
        items: Iterable[Any],
        *,
        return_exceptions: bool = False,
        batch_size: int = 256,
        service: str = "",
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> list[Any]:
        """See `AsyncClient.predict_many`."""
        terms = CallTerms(service, urgency, tenant, timeout, request_id)
        calls = self._core.maker.predict_many(items, terms, batch_size, keep_going=return_exceptions)
        return self._thread.run(self._core.send_many(calls, keep_going=return_exceptions))

    def health(self) -> dict[str, Any]:
        """See `AsyncClient.health`."""
        return self._thread.run(self._core.sender.send(self._core.maker.health()))


class ClientJobs(OfOneProcess):
    """The jobs of a server's queue, for any thread."""

    def __init__(self, core: ClientCore, thread: CallingThread) -> None:
        self._core = core
        self._thread = thread

    @checked_keywords("submit")
    def submit(
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
        """See `AsyncClientJobs.submit`."""
        options = submitted_options(
            priority=priority,
            delay=delay,
            deadline=deadline,
            id=id,
            service=service,
            input_url=input_url,
            output_url=output_url,
            content_type=content_type,
            accept=accept,
        )
        call = self._core.jobs.submit(input, options, self._core.world.new_key() if key is None else key)
        return self._thread.run(self._core.sender.send(call))

    def get(self, job: Job | str) -> Job:
        """See `AsyncClientJobs.get`."""
        return self._thread.run(self._core.sender.send(self._core.jobs.get(job)))

    def wait(self, jobs: Iterable[Job | str], timeout: float | None = None) -> list[Job]:
        """See `AsyncClientJobs.wait`."""
        return self._thread.run(self._core.waiting.wait(jobs, timeout))

    def result(self, job: Job | str, timeout: float | None = None) -> Any:
        """See `AsyncClientJobs.result`."""
        return self._thread.run(self._core.waiting.result(job, timeout))

    def cancel(self, job: Job | str) -> Job:
        """See `AsyncClientJobs.cancel`."""
        return self._thread.run(self._core.sender.send(self._core.jobs.cancel(job)))


async def _stats(core: ClientCore) -> ClientStats:
    return core.sender.stats
