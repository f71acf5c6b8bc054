"""Submit jobs and ask for them on behalf of clients over the network: what a server sees of a queue.

It implements the server's Protocol `JobsPort`, which says what each call means.  Nothing here blocks the event loop,
and a client that waits for the end of a job has no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from penstock.codec.schema import json_schema
from penstock.core.clock import Clock
from penstock.errors import StoreUnavailable
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.servable import Servable
from penstock.jobs.call_threads import CallThreads
from penstock.jobs.job import Job
from penstock.jobs.job_waits import JobWaits
from penstock.jobs.queue_calls import QueueCalls
from penstock.jobs.submit_rules import MISSING_TYPE, SubmitRules
from penstock.jobs.submitting import JobQueue
from penstock.jobs.work_options import QueueOptions

log = guarded_logger("penstock.jobs")

JSON: Final = "application/json"
_REF_TEMPLATE: Final = "#/components/schemas/{name}"


class ShownJob(NamedTuple):
    """A job as a client sees it."""

    id: str
    ended: bool
    text: bytes
    """The job as JSON."""

    @classmethod
    def of(cls, job: Job) -> ShownJob:
        """The job as it is now."""
        return cls(job.id, job.is_finished, msgspec.json.encode(job))


class ShownResult(NamedTuple):
    """The result of a job as a client gets it."""

    body: bytes
    content_type: str


class QueuePort:
    """One queue, for the clients of a host with `services`.

    Args:
        connect: connects to the queue; it may block.
        services: the services that jobs may be for.
        options: what jobs may name, and how large they may be.
        clock: the clock of waits.
        threads: makes the threads.

    Raises:
        ConfigError: an option cannot be read.
    """

    def __init__(
        self,
        connect: Callable[[], JobQueue],
        services: Sequence[Servable],
        options: QueueOptions,
        *,
        clock: Clock,
        threads: Callable[[int, str], CallThreads] = CallThreads,
    ) -> None:
        self.max_inline = options.max_inline_bytes
        self._rules = SubmitRules(services, options)
        self._calls = QueueCalls(connect, now=clock.now, threads=threads)
        self._waits = JobWaits(lambda ids: self._calls.run(lambda queue: queue.get_many(ids)), clock)

    # -- the life of the port -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect; a store that cannot be reached is only told, for it may come.

        Raises:
            ConfigError: the store cannot be used.
        """
        try:
            await self._calls.run(JobQueue.stats)
        except StoreUnavailable as error:
            log.warning("cannot reach the job store, rejecting calls about jobs: %s", error)

    def let_go(self) -> None:
        """Keep nobody waiting any more."""
        self._waits.let_go()

    async def close(self) -> None:
        """Give up the connection."""
        self.let_go()
        await self._calls.close()

    # -- the calls ----------------------------------------------------------------------------------------------------

    def schemas(self) -> dict[str, Any]:
        """See `JobsPort`."""
        _, found = json_schema(Job, ref_template=_REF_TEMPLATE)
        return found

    def check(self, options: Mapping[str, Any]) -> None:
        """See `JobsPort`."""
        self._rules.check(options)

    async def submit(self, body: bytes, options: Mapping[str, Any]) -> ShownJob:
        """See `JobsPort`."""
        return await self._calls.run(partial(_submit, body, options))

    async def get(self, job_id: str, wait: float = 0.0) -> ShownJob:
        """See `JobsPort`."""
        job = await self._calls.run(lambda queue: queue.get(job_id))
        return ShownJob.of(await self._waits.until_ended(job, wait))

    async def result(self, job_id: str) -> ShownResult | None:
        """See `JobsPort`."""
        return await self._calls.run(partial(_result, job_id))

    async def list_jobs(self, state: str | None, limit: int, after: str | None) -> bytes:
        """See `JobsPort`."""
        return await self._calls.run(lambda queue: msgspec.json.encode(queue.list(state, limit, after)))

    async def cancel(self, job_id: str) -> ShownJob:
        """See `JobsPort`."""
        return await self._calls.run(lambda queue: ShownJob.of(queue.cancel(job_id)))

    async def retry(self, job_id: str) -> ShownJob:
        """See `JobsPort`."""
        return await self._calls.run(lambda queue: ShownJob.of(queue.retry(job_id)))


def _submit(body: bytes, options: Mapping[str, Any], queue: JobQueue) -> ShownJob:
    given = dict(options)
    if given.get("input_url") is None or body:  # both are an error, which the queue tells
        given["content_type"] = given.get("content_type") or MISSING_TYPE
        return ShownJob.of(queue.submit(body, **given))
    return ShownJob.of(queue.submit(**given))


def _result(job_id: str, queue: JobQueue) -> ShownResult | None:
    found = queue.raw_result(job_id)
    if found is None:
        return None
    if found.output_url is not None:
        return ShownResult(msgspec.json.encode({"output_url": found.output_url}), JSON)
    return ShownResult(found.body, found.content_type)
