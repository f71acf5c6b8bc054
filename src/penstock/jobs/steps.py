"""Take a job that was claimed through its steps: fetch its input, compute, store its output, end the attempt.

Contract
--------
* Each job that is begun is given to `commit` exactly once, with `end` set, or to `dropped` because another has it.
* The steps of different jobs overlap.  A job without an input URL and without an output makes no task and no thread:
  its body goes to the engine as it came, or as workers from outside read it.
* No step begins while the job's lease cannot be relied on: the job waits for the next renewal.
* What was computed is kept until its output is stored, however often that takes, up to the last `transfer` allowed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec

from penstock.codec import pickle_
from penstock.core.clock import Clock
from penstock.core.lanes import Lane
from penstock.core.outcome import Failure, Outcome, Result
from penstock.core.payload import Payload, copy_to_piece, join_payload, payload_size
from penstock.errors import (
    DeadlineExceeded,
    InvalidItem,
    RequestError,
    StageFailed,
    TransferCancelled,
    TransferError,
    TransferFailed,
    TransferRejected,
    WorkerLost,
)
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.fault_points import hit
from penstock.jobs.call_threads import CallThreads
from penstock.jobs.held_work import HeldWork, Holding, JobStep
from penstock.jobs.host_places import HostPlaces
from penstock.jobs.job import AttemptError
from penstock.jobs.job_counters import JobCounters
from penstock.jobs.job_formats import JobFormats, JobTarget
from penstock.jobs.rules.attempts import MOST_ATTEMPTS, FailureCause, judge, rest_bound
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.spool import Spool
from penstock.jobs.store import AttemptEnd
from penstock.jobs.work_options import WorkOptions
from penstock.transfer.places import host_of
from penstock.transfer.transfers import Transfers

STEP_GRACE_SECONDS = 15.0
"""How long a step may take beyond the limit that is set for what it does, before it counts as stuck."""


class Steps:
    """The steps of the jobs of one consumer.  Everything but the transport is called on the event loop's thread.

    `threads` and `uploads` are for each service: the threads of its transfers, and how many of its outputs are stored
    at a time; whoever claims bounds the inputs.  `file_threads` do what only our own disk and processor can hold up.
    `max_held_bytes` is how many bytes may be held for a service.  `fence_holds` asks the store whether the job is still
    ours.  `moved_on` is called when the model may have begun with further jobs.  `wall` tells Unix seconds, and `boot`
    the time on the clock of leases.
    """

    def __init__(
        self,
        targets: Mapping[str, JobTarget],
        holding: Holding,
        options: WorkOptions,
        *,
        transfers: Transfers,
        spool: Spool,
        counters: JobCounters,
        faults: FaultLog,
        clock: Clock,
        boot: Callable[[], float],
        wall: Callable[[], float],
        threads: Mapping[str, CallThreads],
        file_threads: CallThreads,
        fence_holds: Callable[[HeldWork], Coroutine[Any, Any, bool]],
        commit: Callable[[HeldWork], None],
        dropped: Callable[[HeldWork], None],
        broke: Callable[[BaseException], None],
        moved_on: Callable[[], None],
        uploads: Mapping[str, int],
        max_held_bytes: int,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._targets = targets
        self._holding = holding
        self._options = options
        self._transfers = transfers
        self._spool = spool
        self._counters = counters
        self._faults = faults
        self._clock = clock
        self._boot = boot
        self._wall = wall
        self._threads = threads
        self._file_threads = file_threads
        self._fence_holds = fence_holds
        self._commit = commit
        self._dropped = dropped
        self._broke = broke
        self._moved_on = moved_on
        self._draw = draw
        self._upload_places = {service: HostPlaces(most) for service, most in uploads.items()}
        self._max_held_bytes = max_held_bytes
        self._roomier = asyncio.Event()
        """Set whenever bytes that were held are given back."""
        self._tasks: set[asyncio.Task[None]] = set()

    # -- from outside -------------------------------------------------------------------------------------------------

    def begin(self, job: HeldWork) -> None:
        """Take `job` through its steps, or give it back at once where it was released before it began."""
        claimed = job.claimed
        if job.unwanted:
            self._leave(job)
            return
        body: Payload = b""
        try:
            target = self._target(job)
            formats = target.formats(claimed.content_type, claimed.accept)
            if claimed.output is not None:
                self._transfers.check_output(claimed.output)
            if claimed.input_url is not None:
                self._transfers.check_input(claimed.input_url)
            else:
                target.check_inline()
                body = target.crossing.item(claimed.body, formats.codec_in)
        except (InvalidItem, StageFailed, TransferRejected) as error:
            self._fail(job, error)
            return
        if claimed.input_url is None:
            self._compute(job, target, formats, body)
        else:
            self._spawn(job, self._download(job, target, formats, claimed.input_url))

    def withdraw(self, job: HeldWork) -> None:
        """Stop what is being done for `job`: it is lost, to be cancelled, or released."""
        if job.ticket is not None:
            job.engine.cancel(job.ticket)
        else:
            self.renewed(job)  # it waits no longer for that: it looks whether it is wanted
        self._roomier.set()  # it may wait for room

    def renewed(self, job: HeldWork) -> None:
        """Go on with `job`, whose lease can be relied on again."""
        if job.resume is not None:
            resume, job.resume = job.resume, None
            resume()

    def may_begin(self, job: HeldWork) -> bool:
        """Whether the lease of `job` can be relied on, so that a step may begin."""
        return job.lease_until > self._boot()

    def gave_back(self) -> None:
        """Bytes that were held are given back."""
        self._roomier.set()

    def cancel_tasks(self) -> None:
        """Give up every transfer: the process ends."""
        for task in self._tasks:
            task.cancel()

    # -- fetch --------------------------------------------------------------------------------------------------------

    async def _download(self, job: HeldWork, target: JobTarget, formats: JobFormats, url: str) -> None:
        if not await self._lease(job):
            return
        self._enter(job, JobStep.DOWNLOAD, self._options.transfer_timeout + STEP_GRACE_SECONDS)
        hit("before_download")
        try:
            got = await self._threads[job.service].run(
                partial(self._transfers.download, url, job.claimed.id, job.claimed.fence, lambda: job.unwanted)
            )
        except TransferError as error:
            self._fail(job, error)
            return
        hit("after_download")
        job.file = got
        job.enter(JobStep.DOWNLOAD, self._clock.now())  # it waits for room or for a renewal, and may do so for long
        if target.takes_file:
            payload: Payload = bytes(join_payload(pickle_.dumps(got.path)))
        else:
            while (held := self._holding.bytes_of(job.service)) and held + got.nbytes > self._max_held_bytes:
                if job.unwanted:
                    break
                self._roomier.clear()
                await self._roomier.wait()
            self._holding.resize(job, got.nbytes)
            try:
                payload = await self._file_threads.run(got.read)
            except TransferError as error:
                self._fail(job, error)
                return
        chosen = formats
        try:
            if got.content_type and not job.claimed.content_type:
                chosen = target.formats(got.content_type, job.claimed.accept)
            if target.crossing.sent_in(chosen.codec_in) is not chosen.codec_in:
                payload = await self._file_threads.run(partial(target.crossing.item, payload, chosen.codec_in))
                self._holding.resize(job, payload_size(payload))
        except (InvalidItem, StageFailed) as error:
            self._fail(job, error)
            return
        self._compute(job, target, chosen, payload)

    # -- compute ------------------------------------------------------------------------------------------------------

    def _compute(self, job: HeldWork, target: JobTarget, formats: JobFormats, payload: Payload) -> None:
        if job.unwanted:
            self._leave(job)
            return
        if not self.may_begin(job):
            job.resume = partial(self._compute, job, target, formats, payload)
            return
        claimed = job.claimed
        now = self._clock.now()
        self._enter(job, JobStep.COMPUTE)
        engine = job.engine = target.service.engine
        deadline = float("inf") if claimed.deadline is None else now + claimed.deadline - self._wall()
        hit("before_compute")
        if engine is None:
            self._release(job)
            return
        try:
            job.ticket = engine.submit(
                [copy_to_piece(payload, engine.piece) or payload],
                target.crossing.sent_in(formats.codec_in),
                target.crossing.given_in(formats.codec_out),
                deadline,
                partial(self._computed, job, target, formats),
                claimed.id.encode(),
                lane=Lane.BACK,
                alone=claimed.alone,
                nbytes=payload_size(payload),
            )
        except RequestError as error:
            self._fail(job, error)
        else:
            self._moved_on()

    def _computed(self, job: HeldWork, target: JobTarget, formats: JobFormats, outcomes: list[Outcome]) -> None:
        job.ticket = job.engine = None
        self._moved_on()
        try:
            self._take_outcome(job, target, formats, outcomes[0])
        except Exception as error:
            self._broke(error)
            raise

    def _take_outcome(self, job: HeldWork, target: JobTarget, formats: JobFormats, outcome: Outcome) -> None:
        if job.unwanted and not (job.released and isinstance(outcome, Result)):
            self._leave(job)
            return
        match outcome:
            case Result(payload):
                try:
                    result = target.crossing.result(payload, formats.codec_out)
                except StageFailed as error:
                    self._fail(job, error)
                else:
                    self._keep(job, result, formats.media)
            case Failure(error):
                self._fail(job, error)

    def _keep(self, job: HeldWork, result: bytes, media: str) -> None:
        """Store what was computed."""
        hit("after_compute")
        self._holding.resize(job, len(result))
        most = self._options.max_inline_bytes
        if job.claimed.output is not None:
            self._spawn(job, self._upload(job, job.claimed.output, result, media))
        elif len(result) > most:
            self._fail(
                job,
                InvalidItem(
                    f"the result has {len(result)} bytes, more than max_inline_bytes ({most}): submit the job with "
                    "output_url= and a URL to store it at"
                ),
            )
        else:
            self._end(job, AttemptEnd(job.hold, JobState.SUCCEEDED, result=result, content_type=media))

    # -- store --------------------------------------------------------------------------------------------------------

    async def _upload(self, job: HeldWork, output: str, result: bytes, media: str) -> None:
        job.end = AttemptEnd(job.hold, JobState.SUCCEEDED, result=result, content_type=media)
        places, host = self._upload_places[job.service], host_of(output)
        while True:
            turn = places.ask(host)
            try:
                await self._until_turn(job, turn)
                rest = await self._store(job, output, media) if await self._lease(job) else None
            finally:
                places.give_back(host, turn)
            if rest is None:
                return
            job.enter(JobStep.UPLOAD, self._clock.now())  # it rests, or waits for a renewal, and may do so for long
            if rest:
                await self._rest(job, rest)

    async def _store(self, job: HeldWork, output: str, media: str) -> float | None:
        """Try once to store the output of `job`: the seconds until the next try, or None, and the attempt was ended."""
        claimed = job.claimed
        self._enter(job, JobStep.UPLOAD)
        hit("before_upload")
        try:
            end = await self._spool.load(job)
            if end.to is not JobState.SUCCEEDED:
                self._end(job, end)
                return None
            if self._transfers.is_put_in_place(output) and not await self._fence_holds(job):
                return 0.0  # lost: the next look at the lease says so; or unknown: it waits for a renewal
            # Now, because the store may have been asked in vain for long, behind the calls of many others.
            job.enter(JobStep.UPLOAD, self._clock.now(), self._options.transfer_timeout + STEP_GRACE_SECONDS)
            await self._threads[job.service].run(
                partial(
                    self._transfers.write_output,
                    output,
                    claimed.id,
                    claimed.fence,
                    end.result,
                    media,
                    lambda: job.useless,
                )
            )
        except TransferCancelled:
            return 0.0  # the look at the lease ends it
        except TransferFailed as error:
            tries = claimed.attempts.get(FailureCause.TRANSFER, 0) + end.transfers + 1
            if tries >= MOST_ATTEMPTS[FailureCause.TRANSFER]:
                self._fail(job, error, {**claimed.attempts, FailureCause.TRANSFER: tries - 1})
                return None
            self._counters.attempt_failed(FailureCause.TRANSFER)
            assert job.end is not None
            job.end = msgspec.structs.replace(job.end, transfers=end.transfers + 1)
            await self._spool.spill(job)
            # Half of the rest is certain: what is tried again and again from memory must not come in a burst.
            return rest_bound(self._options.retry_backoff, tries - 1) * (0.5 + 0.5 * self._draw())
        except TransferRejected as error:
            self._fail(job, error)
            return None
        hit("after_upload")
        self._end(job, AttemptEnd(job.hold, JobState.SUCCEEDED, content_type=media))
        return None

    # -- the end of an attempt ----------------------------------------------------------------------------------------

    def _fail(
        self, job: HeldWork, error: RequestError | TransferError, attempts: Mapping[str, int] | None = None
    ) -> None:
        """End the attempt because of `error`: once more later, or for good.

        `attempts` are those before this failure by cause, where there were more than the store knows of.
        """
        if job.unwanted:
            self._leave(job)
            return
        cause = cause_of(error)
        if cause is None:
            self._end(job, AttemptEnd(job.hold, JobState.EXPIRED, problem=_problem(error)))
            return
        if cause is FailureCause.RELEASED:
            self._release(job)
            return
        alone = not isinstance(error, WorkerLost) or error.alone
        before = job.claimed.attempts if attempts is None else attempts
        judged = judge(before, cause, alone=alone, backoff=self._options.retry_backoff, draw=self._draw())
        if isinstance(error, RequestError):
            self._faults.report(error, [job.claimed.id])
        again = JobState.SCHEDULED if judged.rest else JobState.QUEUED
        self._end(
            job,
            AttemptEnd(
                job.hold,
                JobState.DEAD if judged.dead else again,
                cause=cause,
                counts=judged.counts,
                alone=judged.alone,
                rest=judged.rest,
                problem=_problem(error),
            ),
        )

    def _leave(self, job: HeldWork) -> None:
        """End the attempt of a job that is not wanted here."""
        if job.lost:
            self._dropped(job)
        elif job.cancelled:
            self._end(job, AttemptEnd(job.hold, JobState.CANCELLED))
        else:
            self._release(job)

    def _release(self, job: HeldWork) -> None:
        self._end(job, AttemptEnd(job.hold, JobState.QUEUED, cause=FailureCause.RELEASED))

    def _end(self, job: HeldWork, end: AttemptEnd) -> None:
        if job.step is not None:
            self._counters.step_ended(job.step, self._clock.now() - job.step_began)
        if job.end is not None:
            end = msgspec.structs.replace(end, transfers=job.end.transfers)
        job.end = end
        if not end.result:
            self._holding.resize(job, 0)
            self.gave_back()
        self._commit(job)

    # -- how ----------------------------------------------------------------------------------------------------------

    def _target(self, job: HeldWork) -> JobTarget:
        if job.service:
            return self._targets[job.service]
        raise InvalidItem(
            f"the job names no service, and this consumer has several: {', '.join(sorted(self._targets))}"
        )

    def _enter(self, job: HeldWork, step: JobStep, limit: float = float("inf")) -> None:
        now = self._clock.now()
        if job.step is not None:
            self._counters.step_ended(job.step, now - job.step_began)
        job.enter(step, now, limit)

    async def _lease(self, job: HeldWork) -> bool:
        """Wait until the lease of `job` can be relied on.  False: it is not wanted here, and its attempt was ended."""
        while not job.unwanted and not self.may_begin(job):
            renewed = asyncio.get_running_loop().create_future()
            job.resume = partial(_resolve, renewed)
            await renewed
        wanted = not (job.useless or (job.released and job.end is None))
        if not wanted:
            self._leave(job)
        return wanted

    async def _until_turn(self, job: HeldWork, turn: asyncio.Future[None]) -> None:
        """Wait for a place, or until nobody wants the result of `job`."""
        while not turn.done() and not job.useless:
            woken = asyncio.get_running_loop().create_future()
            job.resume = partial(_resolve, woken)
            await asyncio.wait((turn, woken), return_when=asyncio.FIRST_COMPLETED)
            job.resume = None

    async def _rest(self, job: HeldWork, seconds: float) -> None:
        """Wait so long, or until `job` is withdrawn or its lease was renewed late."""
        over = asyncio.get_running_loop().create_future()
        job.resume = partial(_resolve, over)
        timer = self._clock.call_later(seconds, job.resume)
        try:
            await over
        finally:
            timer.cancel()
            job.resume = None

    def _spawn(self, job: HeldWork, steps: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(steps)
        self._tasks.add(task)
        task.add_done_callback(partial(self._task_ended, job))

    def _task_ended(self, job: HeldWork, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            job.released = True
            self._leave(job)
        elif (error := task.exception()) is not None:
            self._broke(error)


def cause_of(error: RequestError | TransferError) -> FailureCause | None:
    """The cause that an attempt's error stands for; None where the job's own deadline has passed."""
    match error:
        case InvalidItem() | TransferRejected():
            return FailureCause.INVALID_INPUT
        case StageFailed():
            return FailureCause.APPLICATION
        case WorkerLost():
            return FailureCause.WORKER_LOST
        case TransferFailed():
            return FailureCause.TRANSFER
        case DeadlineExceeded():
            return None
        case _:
            # Cancelled, TransferCancelled: this process ends.  NotReady: the service stopped or failed under the job.
            return FailureCause.RELEASED


def _problem(error: Exception) -> AttemptError:
    if isinstance(error, StageFailed):
        return AttemptError(error.type_name, error.message, error.traceback)
    kind = type(error)
    return AttemptError(f"{kind.__module__}.{kind.__qualname__}", str(error))


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
