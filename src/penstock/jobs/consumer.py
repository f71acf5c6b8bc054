"""Feed services from a store of jobs: claim as there is room, take each job through its steps, end its attempt.

A `Consumer` is a `Door`, run and drained as an HTTP listener is.  It is the coordinator: the services' engines live on
its event loop.  What may block runs in threads, a bounded number of them: claims, ends of attempts, transfers, upkeep.

Contract
--------
* A store that is gone ends nothing: what is held goes on, and the store is asked again with growing rests.
* At the first word of the end it gives back what has not begun, and has what a worker was sent ahead left out.  `close`
  lets the rest go on for as long as it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from penstock.core.clock import Clock
from penstock.core.leases import LONGEST_RETRY_SECONDS
from penstock.errors import StoreUnavailable
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.fault_points import hit
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.host_clock import boot_seconds
from penstock.hosting.loop_clock import wait_on
from penstock.hosting.servable import Servable
from penstock.jobs.call_threads import CallThreads
from penstock.jobs.claiming import TICK_SECONDS, Claiming
from penstock.jobs.commits import Commits
from penstock.jobs.deliveries import Deliveries
from penstock.jobs.held_work import HeldWork, Holding, JobStep
from penstock.jobs.job_counters import JobCounters
from penstock.jobs.job_formats import JobTarget
from penstock.jobs.left_jobs import LeftJobs
from penstock.jobs.lost_jobs import LostJobs
from penstock.jobs.renewing import Renewing
from penstock.jobs.rules.job_states import ENDED
from penstock.jobs.spool import Spool
from penstock.jobs.steps import Steps
from penstock.jobs.store import STORE_TROUBLE, Answer, ClaimedJob, Renewed, Room, Store
from penstock.jobs.store_watch import StoreWatch
from penstock.jobs.upkeep import Upkeep
from penstock.jobs.work_options import WorkOptions
from penstock.transfer.transfers import Transfers

log = guarded_logger("penstock.jobs")

LEAST_TRANSFERS: Final = 16
MOST_TRANSFERS: Final = 128
"""How many inputs of a service are fetched at a time, and how many outputs stored: two for each item of a batch of
every worker, within these bounds.  A single host has half of them at most."""
FILE_THREADS: Final = 4
"""How many files of ours are read, written or removed at a time."""
STUCK_SECONDS: Final = 60.0
"""After so long without a turn of the claim loop the process is no longer alive: each of its calls ends sooner."""


class Consumer:
    """One process that works on the jobs of a queue."""

    name = "jobs"
    """What `/health` calls it."""

    def __init__(
        self,
        services: Sequence[Servable],
        open_store: Callable[[], Store],
        options: WorkOptions,
        *,
        clock: Clock,
        transfers: Transfers,
        boot: Callable[[], float] = boot_seconds,
        wall: Callable[[], float] = time.time,
        draw: Callable[[], float] = random.random,
        threads: Callable[[int, str], CallThreads] = CallThreads,
    ) -> None:
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.counters = JobCounters()
        self.store_watch = StoreWatch(clock.now)
        self.faults = FaultLog(clock, log)
        self.holding = Holding()
        self._targets = {service.name: JobTarget(service) for service in services}
        self._options = options
        self._clock = clock
        self._boot = boot
        self._open_store = open_store
        self._store: Store | None = None
        at_once = {
            name: max(LEAST_TRANSFERS, min(MOST_TRANSFERS, 2 * target.batch_items))
            for name, target in self._targets.items()
        }
        max_held_bytes = max(1, options.max_buffered_bytes // len(self._targets))
        self._store_threads = threads(4, "penstock-store")
        self._file_threads = threads(FILE_THREADS, "penstock-files")
        self._transfer_threads = {name: threads(2 * most, "penstock-transfer") for name, most in at_once.items()}
        folder = Path(options.spool_dir).resolve() if options.spool_dir is not None else None
        self.spool = Spool(
            folder, max(1, options.max_spool_bytes // len(self._targets)), self.holding, self._file_threads
        )
        self.renewing = Renewing(
            open_store,
            self.holding,
            lease=options.lease,
            now=clock.now,
            boot=boot,
            told=self._told,
            died=self._thread_died,
            draw=draw,
        )
        self._claiming = Claiming(
            self._targets,
            self.holding,
            options,
            catch_up=self._catch_up,
            claim=self._claim,
            begin=self._begin,
            renewed=self._renewed,
            is_done=self._all_done,
            spool=self.spool,
            store_watch=self.store_watch,
            downloads=at_once,
            max_held_bytes=max_held_bytes,
            clock=clock,
            boot=boot,
            draw=draw,
        )
        self._steps = Steps(
            self._targets,
            self.holding,
            options,
            transfers=transfers,
            spool=self.spool,
            counters=self.counters,
            faults=self.faults,
            clock=clock,
            boot=boot,
            wall=wall,
            threads=self._transfer_threads,
            file_threads=self._file_threads,
            fence_holds=self._fence_holds,
            commit=self._commit,
            dropped=self._drop,
            broke=self._finish,
            moved_on=self._claiming.look_soon,
            uploads=at_once,
            max_held_bytes=max_held_bytes,
            draw=draw,
        )
        self._commits = Commits(
            lambda ends: self._store_threads.run(lambda: self.store.end_attempts(ends)),
            clock=clock,
            may_begin=self._may_commit,
            load=self.spool.load,
            ended=self._ended,
            store_up=self.store_watch.answered,
            draw=draw,
        )
        self._lost = LostJobs(lambda ids: self._store_threads.run(lambda: self.store.get(ids)), clock)
        self._left = LeftJobs(
            self._targets,
            lambda state, limit: self._store_threads.run(lambda: self.store.list_jobs(state, limit, None)),
            clock,
        )
        self._upkeep = Upkeep(self, list(self._targets.values()), options, self._store_threads, clock, draw)
        self._deliveries = Deliveries(
            self,
            transfers,
            options,
            store_threads=self._store_threads,
            threads=threads,
            clock=clock,
            broke=self._finish,
            draw=draw,
        )
        self._transfers = transfers
        self._empty = asyncio.Event()
        """Set when nothing is held, and no claim is under way that could bring something."""
        self._claims: asyncio.Task[None] | None = None
        self._finished: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # -- the door -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, and claim for each service as soon as it is ready.

        Raises:
            ConfigError: the store or the spool cannot be used.
            StoreUnavailable: the store cannot be reached.
        """
        self._loop = asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        self._store = await self._store_threads.run(self._open_store)
        await self._store_threads.run(self.spool.open)
        hit("after_start")
        self.renewing.start()
        parts = (self._commits.run(), self._upkeep.run(), self._deliveries.run(), self._lost.run())
        for work in (self._claim_all(), *parts):
            task = self._loop.create_task(work)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)
        self._claims = self._tasks[0]

    def services_ready(self) -> None:
        """Claim at once: every service is ready now.  Without that each one is found to be ready a little later."""
        self._claiming.look()

    async def finished(self) -> None:
        """Returns when the queue is empty, if that is when to end; raises what a part of the consumer died of."""
        assert self._finished is not None, "the consumer was not started"
        await self._finished

    def stop_accepting(self) -> None:
        """Claim nothing more, and give back what no worker has begun: another consumer may have it at once.

        A job that a worker was sent ahead goes back when the worker has left it out.  A job that a worker from outside
        was sent goes on.
        """
        self._claiming.stop()
        for job in self.holding.jobs():
            if job.ticket is not None:
                job.engine.recall(job.ticket)
            else:
                self._release(job)

    def leave_soon(self) -> None:
        """Claim nothing more, and give back what has not begun."""
        self.stop_accepting()

    async def see_out(self, seconds: float) -> None:  # noqa: ARG002  # jobs have nobody who waits on a connection
        """Claim nothing more, and give back what has not begun."""
        self.stop_accepting()

    async def close(self, grace: float) -> None:
        """Give back what has not begun, and let the rest go on for at most `grace` seconds."""
        self.stop_accepting()
        if self._store is None:
            self._end_threads()
            return
        hit("before_drain")
        await self._until_empty(grace)
        hit("after_drain")
        for job in self.holding.jobs():
            self._release(job)
        self._steps.cancel_tasks()
        await self._until_empty(1.0)
        for task in self._tasks:
            task.cancel()
        await self._lost.tell()
        self.renewing.stop()
        if len(self.holding):
            log.warning(
                "shutting down with %d jobs still leased: other consumers claim them when their leases expire",
                len(self.holding),
            )
        with contextlib.suppress(*STORE_TROUBLE):
            await self._store_threads.run(self.store.close)
        self._end_threads()
        self.spool.close()
        self.renewing.join(1.0)
        self.faults.flush()

    @property
    def queue(self) -> str:
        """The name of the queue; "" before the start."""
        return self._store.queue if self._store is not None else ""

    # -- what health asks ---------------------------------------------------------------------------------------------

    @property
    def in_hand(self) -> int:
        """How many jobs are held."""
        return len(self.holding)

    def unready_because(self) -> str:
        """Why no work should come here, or ""."""
        return self.store_watch.unready_because()

    def stuck_because(self) -> str:
        """Why this process will not go on by itself, or ""."""
        now = self._clock.now()
        if self._loop is not None and not self._claiming.stopped and now - self._claiming.turned > STUCK_SECONDS:
            return f"no claim has finished for {now - self._claiming.turned:.0f} s"
        for job in self.holding.jobs():
            if job.overdue(now):
                return f"job {job.claimed.id} has been in step {job.step} for {now - job.step_began:.0f} s"
        return ""

    def describe(self) -> dict[str, Any]:
        """What the consumer is doing, as plain data."""
        stats = self.counters.stats
        return {
            "consumer_id": self.holder,
            "queue": self.queue,
            "in_flight": len(self.holding),
            "buffered_bytes": self.holding.nbytes,
            "store_up": self.store_watch.up,
            "store_error": self.store_watch.why,
            "queued": stats.queued if stats is not None else None,
            "oldest_queued_seconds": stats.oldest_queued_seconds if stats is not None else None,
        }

    # -- claims -------------------------------------------------------------------------------------------------------

    async def _claim_all(self) -> None:
        if await self._claiming.run():
            self._finish(None)

    async def _catch_up(self) -> float:
        """Renew what may have run out, and return the seconds to wait then: others renew what they hold meanwhile.

        Without that it is a moment while ends wait that the store has missed, and else 0.

        Raises:
            StoreUnavailable, ConfigError: the store does not answer.
        """
        jobs = self.renewing.run_out().to_renew
        if jobs:
            if not await self._store_threads.run(lambda: self.renewing.renew_over(self.store, jobs)):
                raise StoreUnavailable("the store did not confirm the renewal of leases")
            self._commits.try_now()
            return LONGEST_RETRY_SECONDS
        return TICK_SECONDS if self._commits.behind else 0.0

    async def _claim(self, rooms: Sequence[Room]) -> list[ClaimedJob]:
        given_up = [job.hold for job in self.renewing.run_out().given_up]
        return await self._store_threads.run(
            lambda: self.store.claim(self.holder, lease=self._options.lease, rooms=rooms, given_up=given_up)
        )

    def _begin(self, job: HeldWork) -> None:
        self._steps.begin(job)

    def _renewed(self, job: HeldWork) -> None:
        self._steps.renewed(job)

    async def _all_done(self) -> bool:
        """Whether nothing is scheduled, queued or running, and every output is in its place."""
        if len(self.holding):
            return False
        try:
            stats = await self._store_threads.run(self.store.stats)
            await self._left.tell(stats)
        except STORE_TROUBLE:
            return False
        if stats.scheduled or stats.queued or stats.running:
            return False
        return await self._deliveries.deliver_all()

    # -- the ends of attempts -----------------------------------------------------------------------------------------

    def _commit(self, job: HeldWork) -> None:
        self._commits.put(job)

    def _may_commit(self, job: HeldWork) -> bool:
        # At the end a late word is better than none, and what was sent already is no new step.
        if job.end_sent or self._claiming.stopped or self._steps.may_begin(job):
            return True
        job.resume = partial(self._commits.put, job)
        return False

    def _ended(self, job: HeldWork, answer: Answer) -> None:
        end = job.end
        self.counters.step_ended(JobStep.COMMIT, self._clock.now() - job.step_began)
        if answer is Answer.OK and end is not None:
            if end.to in ENDED:
                self.counters.run_ended(end.to)
            if end.cause is not None:
                self.counters.attempt_failed(end.cause)
            if job.claimed.output is not None:
                self._deliveries.ask()
        elif answer is Answer.LOST and job.end_sent == 1:
            self._lost.add(job.hold)
            job.lost = True  # after a second time an earlier one may have ended it, and what it wrote may be needed
        self._drop(job)

    def _drop(self, job: HeldWork) -> None:
        """Hold `job` no longer: its attempt has ended, or another has it."""
        self.holding.drop(job)
        self.spool.forget(job)
        if job.file is not None:
            self._file_threads.start(job.file.remove)
        if job.lost and job.claimed.output is not None and job.service:  # without one nothing was written
            output, hold = job.claimed.output, job.hold
            self._transfer_threads[job.service].start(
                partial(self._transfers.discard_output, output, hold.job_id, hold.fence)
            )
        self._steps.gave_back()
        self._claiming.look()
        self._look_whether_empty()

    def _release(self, job: HeldWork) -> None:
        if job.end is None:
            job.released = True
            self._steps.withdraw(job)

    # -- what the thread that renews says -----------------------------------------------------------------------------

    def _told(self, news: Sequence[tuple[HeldWork, Renewed]]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._take_news, news)

    def _thread_died(self, error: Exception) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._finish, error)

    def _take_news(self, news: Sequence[tuple[HeldWork, Renewed]]) -> None:
        for job, renewed in news:
            if self.holding.get(job.hold) is not job:
                continue
            if renewed.answer is Answer.LOST and job.end_sent:
                continue  # perhaps it has ended as the store was told: the answer to that says so
            if renewed.answer is Answer.LOST:
                job.lost = True
                self._lost.add(job.hold)
                self._steps.withdraw(job)
            elif renewed.cancel and not job.cancelled and job.step is not JobStep.COMMIT:
                job.cancelled = True
                self._steps.withdraw(job)
            elif renewed.answer is Answer.OK:
                self._steps.renewed(job)

    async def _fence_holds(self, job: HeldWork) -> bool:
        """Whether the store says that `job` is still ours."""
        sent = self._boot()
        try:
            (renewed,) = await self._store_threads.run(lambda: self.store.renew([job.hold], self._options.lease))
        except STORE_TROUBLE:
            job.lease_until = min(job.lease_until, sent)  # nothing is put before the store has answered
            return False
        if renewed.answer is Answer.OK and not renewed.cancel:
            job.lease_until = sent + self._options.lease
            return True
        self._take_news([(job, renewed)])
        return False

    # -- how ----------------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store of this consumer, which is there once it was started."""
        assert self._store is not None, "the consumer was not started"
        return self._store

    def _look_whether_empty(self) -> None:
        if not len(self.holding) and (self._claims is None or self._claims.done()):
            self._empty.set()

    async def _until_empty(self, seconds: float) -> None:
        self._empty.clear()
        self._look_whether_empty()
        await wait_on(self._clock, self._empty, seconds)

    def _end_threads(self) -> None:
        self._deliveries.end()
        self._store_threads.end()
        for each in (self._file_threads, *self._transfer_threads.values()):
            each.end()

    def _finish(self, error: BaseException | None) -> None:
        if self._finished is not None and not self._finished.done():
            if error is None:
                self._finished.set_result(None)
            else:
                log.error("internal error in the consumer, shutting down: %r", error)
                self._finished.set_exception(error)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._look_whether_empty()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._finish(error)
