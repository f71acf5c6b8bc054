"""The client for programs with an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import msgspec

from penstock.client.client_core import ClientCore
from penstock.client.client_options import CallTerms, ClientOptions
from penstock.client.job_calls import submitted_options
from penstock.client.sending import ClientStats
from penstock.client.world import World
from penstock.config import checked_keywords
from penstock.core.tenants import USUAL_URGENCY
from penstock.hosting.one_process import OfOneProcess
from penstock.jobs.job import Job


class AsyncClient(OfOneProcess):
    """A server's services, called over HTTP: ``async with AsyncClient(url) as c: await c.predict(3)``.

    Args:
        url: the server: ``http://``, ``https://``, or ``http+unix://`` and the path of its Unix socket.
        api_key: the key that is sent with every request.
        timeout: seconds for a call, every wait and every try included; inf is no limit.
        max_retries: most further tries of a request.
        max_concurrency: most requests in flight, however well it goes.
        max_result: most bytes of a result; a larger one is `ConnectionFailed`.
        tenant_header: the header that names the tenant, as the server's option of this name has it.
        retry_non_idempotent: whether to try again what may have run: the model may run twice then.
        format: ``"json"`` or ``"msgpack"``, the format of items that are neither bytes nor arrays.
        _deps: for tests: time, chance and the wire.

    Raises:
        ConfigError: an argument has a value that it cannot have.
    """

    @checked_keywords("penstock.client.AsyncClient")
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
        self.jobs = AsyncClientJobs(self._core)
        """The jobs of the server's queue."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient {self._core.url}>"

    @property
    def stats(self) -> ClientStats:
        """What the client has done, and how much it may do."""
        return self._core.sender.stats

    async def close(self) -> None:
        """End every call with `Cancelled`, and close every connection; may be called any number of times."""
        await self._core.sender.close()

    async def predict(
        self,
        item: Any,
        *,
        service: str = "",
        urgency: int = USUAL_URGENCY,
        tenant: str = "",
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> Any:
        """The result of one item.

        Args:
            item: what can be written as JSON or MessagePack; bytes; or a numpy array, for which an array comes back.
            service: which one, where the server has several.
            urgency: how soon it is to be served, from 0, first, to 7, last.
            tenant: on whose behalf.
            timeout: seconds, every wait and every try included; None is the client's own.
            request_id: what to look for in the server's log; None makes one.

        Raises:
            RequestError: there is no result, and its class says why.
            ConfigError: an argument has a value that it cannot have.
        """
        terms = CallTerms(service, urgency, tenant, timeout, request_id)
        return await self._core.sender.send(self._core.maker.predict(item, terms))

    @checked_keywords("predict_many")
    async def predict_many(
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
        """The results of many items in their order.  Of what fails, only what may be retried is sent again.

        Args:
            items: each as `predict` takes it; arrays travel as lists here.
            return_exceptions: whether errors stand in the places of their items; without it the first is raised.
            batch_size: most items of one request.
            service: as `predict` has it.
            urgency: likewise.
            tenant: likewise.
            timeout: likewise, for all items together.
            request_id: the id of the request; of several it is this, a dash and a number.

        Raises:
            RequestError: an item has no result, and its class says why.
            ConfigError: an argument has a value that it cannot have.
        """
        terms = CallTerms(service, urgency, tenant, timeout, request_id)
        calls = self._core.maker.predict_many(items, terms, batch_size, keep_going=return_exceptions)
        return await self._core.send_many(calls, keep_going=return_exceptions)

    async def health(self) -> dict[str, Any]:
        """What the server says at `/health`; it never waits for its turn."""
        return await self._core.sender.send(self._core.maker.health())


class AsyncClientJobs(OfOneProcess):
    """The jobs of a server's queue."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core

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
        """Submit a job; it is durable when this returns.  The arguments are those of `JobQueue.submit`.

        Without a `key` one is made for this call, so that a try that may have succeeded can be made again.

        Raises:
            JobConflict, InputTooLarge, InvalidItem, TransferRejected: the job is not taken.
            RequestError: it is not known whether the job is kept.  With a `key` it may be submitted once more.
        """
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
        return await self._core.sender.send(call)

    async def get(self, job: Job | str) -> Job:
        """The job as it is now.

        Raises:
            JobNotFound: there is none.
        """
        return await self._core.sender.send(self._core.jobs.get(job))

    async def wait(self, jobs: Iterable[Job | str], timeout: float | None = None) -> list[Job]:
        """Wait until all of `jobs` have ended, however they end, and give them in their order.

        Args:
            jobs: jobs, or their ids.
            timeout: how many seconds to wait; 0 asks once, None waits for ever.

        Raises:
            JobNotFound: one of them is not there.
            DeadlineExceeded: one has not ended in time.
        """
        return await self._core.waiting.wait(jobs, timeout)

    async def result(self, job: Job | str, timeout: float | None = None) -> Any:
        """Wait until the job has ended, and give its result; of one with an `output_url`, the output's URL.

        Args:
            job: the job, or its id.
            timeout: how many seconds to wait; 0 asks once, None waits for ever.

        Raises:
            JobFailed, JobCancelled, JobExpired: it ended without a result.
            JobNotFound: there is none.
            DeadlineExceeded: it has not ended in time.
        """
        return await self._core.waiting.result(job, timeout)

    async def cancel(self, job: Job | str) -> Job:
        """End a job that nobody runs; have the holder of another one end it.  The job as it is then.

        Raises:
            JobNotFound: there is none.
            JobConflict: it has ended in another way.
        """
        return await self._core.sender.send(self._core.jobs.cancel(job))
