"""Keep jobs in the memory of this process: for tests, and for `penstock consume` with its own HTTP server.

It is the plainest store that keeps the contract of `jobs.store`: one lock, dicts, and a look at every job for most
questions that people ask.  A claim looks at no more jobs than it takes, however many wait.  Other stores are compared
with this one.  The jobs are gone with the process.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from penstock.errors import JobConflict, JobNotFound
from penstock.hosting.host_clock import boot_seconds
from penstock.jobs.advice import Advice
from penstock.jobs.job import Job, Stats, StoredResult
from penstock.jobs.rules.job_states import ENDED, JobState
from penstock.jobs.rules.waiting_bounds import NO_BOUNDS, WaitingBounds
from penstock.jobs.store import Answer, AttemptEnd, ClaimedJob, Delivery, Hold, KeptInput, NewJob, Renewed, Room
from penstock.jobs.stores.memory_job import MemoryJob, Moment
from penstock.jobs.stores.urls import StoreUrl

WAITS: Final = frozenset((JobState.SCHEDULED, JobState.QUEUED))
MOST_LEFT_OVER: Final = 64


class JobHeap:
    """Jobs in the order of a key, and then of their submission; keys are compared with each other only.

    A job's key may change while it stands here, and be None where it belongs here no more.  That is noticed when it
    comes first, or where a job is put here again.
    """

    def __init__(self, key: Callable[[MemoryJob], Any]) -> None:
        self._key = key
        self._heap: list[tuple[Any, int, MemoryJob]] = []
        self._keys: dict[int, Any] = {}
        """For each job, the key by which it stands here; an entry with another one is left over."""

    def put(self, job: MemoryJob) -> None:
        """Have `job` stand here, if its key says so."""
        key = self._key(job)
        if key is not None and (job.seq not in self._keys or key < self._keys[job.seq]):
            self._keys[job.seq] = key
            heapq.heappush(self._heap, (key, job.seq, job))

    def first(self) -> tuple[Any, int, MemoryJob] | None:
        """The first job, behind its key and its place; None where there is none."""
        while self._heap:
            key, seq, job = self._heap[0]
            if self._keys.get(seq) == key and self._key(job) == key:
                return self._heap[0]
            heapq.heappop(self._heap)
            if self._keys.get(seq) == key:
                del self._keys[seq]
                self.put(job)
        return None

    def take(self, until: Any = None) -> MemoryJob | None:
        """The first job, which stands here no more; None where there is none whose key is at most `until`, if given."""
        first = self.first()
        if first is None or (until is not None and first[0] > until):
            return None
        heapq.heappop(self._heap)
        del self._keys[first[1]]
        return first[2]

    def forget(self, job: MemoryJob) -> None:
        """Hold `job` no more; what is left over of those that were forgotten is bounded by those that are here."""
        self._keys.pop(job.seq, None)
        if len(self._heap) > 2 * len(self._keys) + MOST_LEFT_OVER:
            self._heap = [entry for entry in self._heap if self._keys.get(entry[1]) == entry[0]]
            heapq.heapify(self._heap)


def _rank(job: MemoryJob) -> tuple[int, int] | None:
    """The key of what may be claimed: the smallest comes first."""
    open_ = job.state is JobState.QUEUED or (job.state is JobState.RUNNING and job.lapsed)
    return (-job.new.priority, job.turn) if open_ and not job.forgotten else None


def _due(job: MemoryJob) -> float | None:
    there = job.state is JobState.SCHEDULED and not job.forgotten
    return job.due.now if there and job.due is not None else None


def _deadline(job: MemoryJob) -> float | None:
    return job.deadline if job.state in WAITS and not job.forgotten else None


def _lease_end(job: MemoryJob) -> float | None:
    return job.lease_ends if job.state is JobState.RUNNING and not job.lapsed and not job.forgotten else None


class MemoryStore:
    """A store in memory.  To close it changes nothing: it may be used again.

    Args:
        queue: the name of the queue.
        now: the seconds on a clock that nobody sets; by default those since the machine was started.
        wall: the time in Unix seconds; by default the system's.
        bounds: how much may wait.
    """

    def __init__(
        self,
        queue: str = "default",
        *,
        now: Callable[[], float] = boot_seconds,
        wall: Callable[[], float] = time.time,
        bounds: WaitingBounds = NO_BOUNDS,
    ) -> None:
        self.queue = queue
        self._now = now
        self._wall = wall
        self._lock = threading.Lock()
        self._jobs: dict[str, MemoryJob] = {}
        """By id, in the order in which they were submitted."""
        self._ids: dict[str, str] = {}
        """The ids of the jobs by their keys."""
        self._numbers = itertools.count()
        self._waiting: dict[str, dict[str, JobHeap]] = {}
        """For each service and host, the jobs that may be claimed."""
        self._scheduled = JobHeap(_due)
        self._deadlines = JobHeap(_deadline)
        self._leases = JobHeap(_lease_end)
        self._waits: dict[int, int] = {}
        """For each job that is scheduled or queued, the bytes of its input."""
        self._waiting_bytes = 0
        self._highest_forgotten_fence = 0
        self._outbox: list[Delivery] = []
        self._lent: dict[Delivery, float] = {}
        """Until when a delivery is somebody's to make."""
        self._paused = False
        self._seconds_per_job = 0.0
        self.bounds = bounds
        """How much may wait here, whoever submits it."""

    @staticmethod
    def named(name: str, queue: str = "default") -> MemoryStore:
        """The store of this process for ``memory://NAME?queue=QUEUE``: the same one each time."""
        with _naming:
            return _stores.setdefault((name, queue), MemoryStore(queue))

    def _at(self) -> Moment:
        return Moment(self._now(), self._wall())

    def _find(self, job_id: str, at: Moment) -> MemoryJob:
        """The job as it is now."""
        job = self._jobs.get(job_id)
        if job is None:
            raise JobNotFound(f"queue {self.queue} has no job {job_id}")
        job.see_time(at)
        self._place(job)
        return job

    def _place(self, job: MemoryJob) -> None:
        """Have a job that has changed stand where it is looked for."""
        if job.state in WAITS and not job.forgotten:
            if job.seq not in self._waits:
                self._waits[job.seq] = len(job.new.body)
                self._waiting_bytes += len(job.new.body)
            if job.deadline is not None:
                self._deadlines.put(job)
        elif job.seq in self._waits:
            self._waiting_bytes -= self._waits.pop(job.seq)
        if job.state is JobState.SCHEDULED:
            self._scheduled.put(job)
        elif job.state is JobState.QUEUED or (job.state is JobState.RUNNING and job.lapsed):
            self._waiting.setdefault(job.new.service, {}).setdefault(job.host, JobHeap(_rank)).put(job)
        elif job.state is JobState.RUNNING:
            self._leases.put(job)

    # -- submitters -------------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> list[Job]:
        """See `Store`."""
        with self._lock:
            at = self._at()
            added: dict[str, MemoryJob] = {}
            added_ids: dict[str, str] = {}
            found = []
            for new in jobs:
                job = self._same_job(new, ChainMap(added_ids, self._ids), ChainMap(added, self._jobs))
                if job is None:
                    fence, seq = self._highest_forgotten_fence, next(self._numbers)
                    job = MemoryJob(self.queue, new, at, fence, self._outbox, seq)
                    added[new.id] = job
                    if new.key is not None:
                        added_ids[new.key] = new.id
                found.append(job)
            if added and self.bounds.any:
                self._check_bounds(at, added.values())
            self._jobs |= added
            self._ids |= added_ids
            for job in found:
                job.see_time(at)
                self._place(job)
            return [job.shown() for job in found]

    def _check_bounds(self, at: Moment, added: Collection[MemoryJob]) -> None:
        self._see_time(at)
        self.bounds.check(
            self.queue,
            waiting=len(self._waits),
            waiting_bytes=self._waiting_bytes,
            new=len(added),
            new_bytes=sum([len(job.new.body) for job in added]),
        )

    def _same_job(self, new: NewJob, ids: Mapping[str, str], jobs: Mapping[str, MemoryJob]) -> MemoryJob | None:
        by_key = jobs[ids[new.key]] if new.key is not None and new.key in ids else None
        by_id = jobs.get(new.id)
        found = by_key or by_id
        if found is None:
            return None
        if found.new.digest != new.digest or by_id not in (None, found):
            same = f"the key {new.key}" if by_key is not None else f"the id {new.id}"
            raise JobConflict(f"another job of queue {self.queue} has {same}, with another input or other options")
        return found

    def kept_inputs(self, jobs: Sequence[NewJob]) -> list[KeptInput | None]:
        """See `Store`."""
        with self._lock:
            ids = [self._ids.get(new.key or "", new.id) for new in jobs]
            found = [self._jobs.get(job_id) for job_id in ids]
            return [None if job is None else KeptInput(job.new.digest, job.new.body) for job in found]

    def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """See `Store`."""
        with self._lock:
            at = self._at()
            return [self._find(job_id, at).shown() if job_id in self._jobs else None for job_id in job_ids]

    def result(self, job_id: str) -> StoredResult | None:
        """See `Store`."""
        with self._lock:
            job = self._jobs.get(job_id)
            return None if job is None else job.result

    def cancel(self, job_id: str) -> Job:
        """See `Store`."""
        with self._lock:
            at = self._at()
            job = self._find(job_id, at)
            job.cancel(at)
            self._place(job)
            return job.shown()

    def retry(self, job_id: str) -> Job:
        """See `Store`."""
        with self._lock:
            at = self._at()
            job = self._find(job_id, at)
            job.retry(at)
            self._place(job)
            return job.shown()

    def list_jobs(self, state: JobState | None, limit: int, after: str | None) -> list[Job]:
        """See `Store`."""
        with self._lock:
            at = self._at()
            if after is not None:
                self._find(after, at)
            ids = list(self._jobs)
            behind = ids if after is None else ids[ids.index(after) + 1 :]
            jobs = [self._find(job_id, at) for job_id in behind]
            return [job.shown() for job in jobs if state in (None, job.state)][:limit]

    def purge(self, state: JobState | None, older_than: float) -> int:
        """See `Store`."""
        if state is JobState.RUNNING:
            raise JobConflict("running jobs cannot be purged: cancel them first")
        with self._lock:
            at = self._at()
            self._see_time(at)
            jobs = [job for job in self._jobs.values() if job.state is not JobState.RUNNING]
            old = [job for job in jobs if state in (None, job.state) and _age(job, at) >= older_than]
            self._forget(old)
            return len(old)

    def _forget(self, jobs: Collection[MemoryJob]) -> None:
        for job in jobs:
            job.forget()
            self._place(job)
            lane = self._waiting.get(job.new.service, {}).get(job.host)
            for heap in (self._scheduled, self._deadlines, self._leases, *([] if lane is None else [lane])):
                heap.forget(job)
            del self._jobs[job.new.id]
            if job.new.key is not None:
                self._ids.pop(job.new.key, None)
            self._highest_forgotten_fence = max(self._highest_forgotten_fence, job.fence)

    def pause(self) -> None:
        """See `Store`."""
        with self._lock:
            self._paused = True

    def resume(self) -> None:
        """See `Store`."""
        with self._lock:
            self._paused = False

    def stats(self) -> Stats:
        """See `Store`."""
        with self._lock:
            at = self._at()
            self._see_time(at)
            states = Counter([job.state for job in self._jobs.values()])
            waits = [at.now - job.waits_since for job in self._jobs.values() if job.state is JobState.QUEUED]
            return Stats(
                **{str(state): states[state] for state in JobState},
                oldest_queued_seconds=max(waits, default=0.0),
                estimated_backlog_seconds=len(waits) * self._seconds_per_job,
                pending_outputs=len(self._outbox),
                paused=self._paused,
            )

    def _see_time(self, at: Moment) -> None:
        """Move what time has moved."""
        for heap, moment in ((self._scheduled, at.now), (self._deadlines, at.wall)):
            while (job := heap.take(moment)) is not None:
                job.see_time(at)
                self._place(job)
        while (job := self._leases.take(at.now)) is not None:
            job.lapsed = True
            self._place(job)

    # -- holders ----------------------------------------------------------------------------------------------------

    def claim(
        self, holder: str, *, lease: float, rooms: Sequence[Room], given_up: Collection[Hold] = ()
    ) -> list[ClaimedJob]:
        """See `Store`."""
        with self._lock:
            at = self._at()
            self._see_time(at)
            if self._paused:
                return []
            claimed = []
            for room in rooms:
                for job, stays in self._take(room, holder, given_up, at):
                    claimed.append(job.claim_again(lease, at) if stays else job.claim(holder, lease, at))
                    self._place(job)
            return claimed

    def _take(self, room: Room, holder: str, given_up: Collection[Hold], at: Moment) -> list[tuple[MemoryJob, bool]]:
        """The jobs for one room, which stand nowhere any more, and of each whether it stays with its holder."""
        lanes = [lane for service in room.services for lane in self._lanes(service, elsewhere=room.of_host > 0)]
        at_hosts = Counter(room.at_hosts)
        firsts = [(*first, lane) for lane in lanes if (first := lane.first()) is not None]
        heapq.heapify(firsts)
        taken: list[tuple[MemoryJob, bool]] = []
        size = 0
        while firsts and len(taken) < room.jobs:
            _, _, job, lane = heapq.heappop(firsts)
            if job.host and at_hosts[job.host] >= room.of_host:
                continue
            if taken and size + len(job.new.body) > room.nbytes:
                break
            lane.take()
            stays = job.state is JobState.RUNNING and job.stays_with(holder, given_up)
            if job.state is JobState.RUNNING and not stays:
                job.lose(at)
            if job.state in ENDED:
                self._place(job)
            else:
                size += len(job.new.body)
                at_hosts[job.host] += 1
                taken.append((job, stays))
            if (first := lane.first()) is not None:
                heapq.heappush(firsts, (*first, lane))
        return taken

    def _lanes(self, service: str, *, elsewhere: bool) -> list[JobHeap]:
        """The jobs of a service that may be claimed, by host; a host that has none is forgotten."""
        by_host = self._waiting.get(service, {})
        hosts = [host for host in by_host if bool(host) is elsewhere]
        for host in hosts:
            if by_host[host].first() is None:
                del by_host[host]
        return [by_host[host] for host in hosts if host in by_host]

    def renew(self, holds: Sequence[Hold], lease: float) -> list[Renewed]:
        """See `Store`."""
        with self._lock:
            at = self._at()
            return [self._renew(hold, lease, at) for hold in holds]

    def _renew(self, hold: Hold, lease: float, at: Moment) -> Renewed:
        job = self._jobs.get(hold.job_id)
        if job is None:
            return Renewed(Answer.LOST)
        renewed = job.renew(hold.fence, lease, at)
        self._place(job)
        return renewed

    def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[Answer]:
        """See `Store`."""
        with self._lock:
            at = self._at()
            return [self._end(end, at) for end in ends]

    def _end(self, end: AttemptEnd, at: Moment) -> Answer:
        job = self._jobs.get(end.hold.job_id)
        if job is None:
            return Answer.LOST
        answer = job.end(end, at)
        if job.state is JobState.SCHEDULED and answer is Answer.OK:
            job.turn = next(self._numbers)
        self._place(job)
        return answer

    # -- whoever is there -------------------------------------------------------------------------------------------

    def tend(self, *, keep: float, keep_dead: float, seconds_per_job: float | None) -> None:
        """See `Store`."""
        with self._lock:
            at = self._at()
            self._see_time(at)
            if seconds_per_job is not None:
                self._seconds_per_job = seconds_per_job
            kept_for = dict.fromkeys(ENDED, keep) | {JobState.DEAD: keep_dead}
            ended = [job for job in self._jobs.values() if job.state in ENDED]
            self._forget([job for job in ended if _age(job, at) > kept_for[job.state]])

    def deliveries(self, *, limit: int, lease: float) -> list[Delivery]:
        """See `Store`."""
        with self._lock:
            now = self._now()
            free = [delivery for delivery in self._outbox if self._lent.get(delivery, now) <= now][:limit]
            self._lent |= dict.fromkeys(free, now + lease)
            return free

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """See `Store`."""
        made = {(delivery.job_id, delivery.last_fence) for delivery in deliveries}
        with self._lock:
            for delivery in [left for left in self._outbox if (left.job_id, left.last_fence) in made]:
                self._outbox.remove(delivery)
                self._lent.pop(delivery, None)

    def advice(self) -> list[Advice]:
        """See `penstock.jobs.advice.Advisable`."""
        remedy = "jobs are lost when the process ends: use sqlite:///q.db to keep them"
        return [Advice("durability", "in memory", wrong=True, remedy=remedy)]

    def close(self) -> None:
        """See `Store`."""


def open_memory_store(place: StoreUrl) -> MemoryStore:
    """The store of this process that `place` names."""
    store = MemoryStore.named(place.name, place.queue)
    if place.bounds.any:
        store.bounds = place.bounds
    return store


_naming = threading.Lock()
_stores: dict[tuple[str, str], MemoryStore] = {}
"""What `MemoryStore.named` has given, by name and queue."""


def _age(job: MemoryJob, at: Moment) -> float:
    """For how many seconds a job has ended, or, before its end, been there."""
    return at.now - (job.ended or job.created).now
