"""Wait for the ends of jobs, by asking again and again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial
from typing import Any

from penstock.client.job_asking import Asking
from penstock.client.job_calls import Ended, JobCallMaker, id_of, may_lie_elsewhere
from penstock.client.many_calls import gather_bounded
from penstock.client.problem_errors import with_source
from penstock.client.sending import Sender
from penstock.core.clock import Clock
from penstock.errors import ConfigError, DeadlineExceeded, JobNotSucceeded
from penstock.jobs.job import Job


class JobWaiting:
    """The waits of one client; `most` jobs are asked for at a time."""

    def __init__(self, sender: Sender, calls: JobCallMaker, clock: Clock, most: int) -> None:
        self._sender = sender
        self._calls = calls
        self._clock = clock
        self._most = most

    async def result(self, job: Job | str, timeout: float | None) -> Any:
        """The result of a job, once it has ended; of one with an output the output's URL."""
        self._sender.check()
        result = await self._end(job, Asking(timeout, self._clock.now()))
        return (
            result["output_url"]
            if may_lie_elsewhere(result) and (await self._get(job)).output_url is not None
            else result
        )

    async def wait(self, jobs: Iterable[Job | str], timeout: float | None) -> list[Job]:
        """The jobs as they are once all have ended, however they end."""
        if isinstance(jobs, (str, Job)):
            raise ConfigError("wait expects several jobs or ids, got one: write [job]")
        self._sender.check()
        ids = [id_of(job) for job in jobs]
        now = self._clock.now()
        asked = {job_id: Asking(timeout, now) for job_id in ids}
        makers = [partial(self._ended_job, job_id, asking) for job_id, asking in asked.items()]
        found = dict(zip(asked, await gather_bounded(makers, self._most), strict=True)) if makers else {}
        return [found[job_id] for job_id in ids]

    async def _ended_job(self, job_id: str, asking: Asking) -> Job:
        with contextlib.suppress(JobNotSucceeded):  # that is an end, too
            await self._end(job_id, asking)
        return await self._get(job_id)

    async def _get(self, job: Job | str) -> Job:
        return await self._sender.send(self._calls.get(job), is_part=True)

    async def _end(self, job: Job | str, asking: Asking) -> Any:
        """The result as it came."""
        now = self._clock.now
        while True:
            began = now()
            wait = asking.wait_seconds(began)
            call = self._calls.ask(job, wait)
            found = await self._sender.send(call, asking.deadline(began), is_part=True)
            if isinstance(found, Ended):
                return found.result
            pause = asking.pause_seconds(wait, now() - began, now())
            if pause is None:
                late = DeadlineExceeded(f"job {found.id} is still {found.state.value} after {asking.timeout:g} s")
                raise with_source(late, None, call.head.request_id)
            if pause:
                await self._sender.pause(pause, call.head)
