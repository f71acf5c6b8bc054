"""Submit jobs to a queue, and ask what became of them.

Contract
--------
* A job that `submit` returns is durable.
* Every method may be called from any thread, and blocks until the store has answered.
* A fork of the process that connected has a copy of the connection that it must not use: every call there is a
  ConfigError.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec

from penstock.config import checked_keywords
from penstock.errors import ConfigError, InputTooLarge, InvalidItem, JobConflict
from penstock.hosting.one_process import OfOneProcess
from penstock.jobs.endings import no_such_job, refuse_without_result
from penstock.jobs.inputs import JobInput, encode_job_input
from penstock.jobs.job import Job, Stats, StoredResult
from penstock.jobs.job_options import JobOptions, read_job_options
from penstock.jobs.new_jobs import MAX_INLINE, is_same_job, new_job
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import NewJob, Store
from penstock.jobs.stores.opening import open_store
from penstock.jobs.stores.urls import masked
from penstock.jobs.waiting_for import ResultWatch, Watch
from penstock.spelling import nearest

Jobs: TypeAlias = list[Job]
"""In a class with a method `list` that name is the method's."""

Found: TypeAlias = list[Job | None]
"""Likewise."""

Submission: TypeAlias = tuple[NewJob, Any]
"""A job, and what its input was written from."""

MOST_LISTED = 10_000
"""The most jobs that one call of `list` gives."""


@checked_keywords("penstock.jobs.connect")
def connect(url: str, *, max_inline_bytes: int = MAX_INLINE) -> JobQueue:
    """A connection to the queue that `url` names; close it, or use it in a ``with``.

    Args:
        url: ``sqlite:///q.db``, ``redis://HOST``, ``memory://``, each with ``?queue=NAME``.
        max_inline_bytes: the largest input that is kept in the store, in bytes; 0 takes only inputs at a URL.

    Raises:
        ConfigError: `url` names no queue, or its library is not installed.
        StoreUnavailable: the store cannot be reached.
    """
    check_max_inline(max_inline_bytes)
    return JobQueue(open_store(url), shown=masked(url), max_inline_bytes=max_inline_bytes)


def check_max_inline(max_inline: object) -> None:
    """Raise ConfigError where `max_inline_bytes` is no number of bytes."""
    if not isinstance(max_inline, int) or isinstance(max_inline, bool) or max_inline < 0:
        raise ConfigError(f"max_inline_bytes must be a number of bytes of at least 0, got {max_inline!r}")


class JobQueue(OfOneProcess):
    """The jobs of one queue, as a submitter sees them.  `connect` makes one.

    Args:
        store: keeps the jobs; `close` closes it.
        shown: the store's URL without its password.
        max_inline_bytes: the largest input that is kept in the store, in bytes.
        now: a clock that only goes forward, in seconds.
        wall: the moment, in Unix seconds.
        sleep: pauses a wait.
    """

    def __init__(
        self,
        store: Store,
        *,
        shown: str = "",
        max_inline_bytes: int = MAX_INLINE,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connected = store
        self._shown = shown
        self._max_inline = max_inline_bytes
        self._now = now
        self._wall = wall
        self._sleep = sleep
        self._process = os.getpid()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<JobQueue {self._shown}{', closed' if self._closed else ''}>"

    def close(self) -> None:
        """Give up the connection; may be called any number of times, and in a fork does nothing."""
        if os.getpid() == self._process and not self._closed:
            self._closed = True
            self._connected.close()

    # -- submit -----------------------------------------------------------------------------------------------------

    @checked_keywords("submit")
    def submit(
        self,
        input: Any = msgspec.UNSET,  # noqa: A002  # the word that entries of `submit_many` use, too
        *,
        priority: int = 0,
        delay: float = 0,
        deadline: float | None = None,
        key: str | None = None,
        id: str | None = None,  # noqa: A002  # the field of a job
        service: str = "",
        input_url: str | None = None,
        output_url: str | None = None,
        content_type: str | None = None,
        accept: str | None = None,
    ) -> Job:
        """Submit a job; it is durable when this returns.

        Args:
            input: what can be written as JSON, bytes, or a numpy array; left out where `input_url` says where it is.
            priority: higher is claimed first, then what was submitted earlier; a whole number within ±1 000 000 000.
            delay: seconds before which it is not claimed.
            deadline: the moment, in Unix seconds, from which on it is not begun any more; None is never.
            key: a second job with the same key and the same input is the first one; 1 to 256 characters.
            id: its id; None makes one.  A second job with the same id and the same input is the first one.
            service: the service that it is for; "" is any.
            input_url: where the input is.
            output_url: where the result is to be written; None keeps it in the store.
            content_type: the media type of the input; None is what it is written as.
            accept: the media type that the result should have; None is what the service prefers.

        Raises:
            ConfigError: an argument has a value that it cannot have; `input` and `input_url` are both there, or
                neither.
            InvalidItem: `input` cannot be written; `path` says where.
            InputTooLarge: `input` has more bytes than a store takes.
            JobConflict: another job has the same key or id, and another input or other options.
            QueueFull: as many jobs wait as may.
            StoreUnavailable: it is not known whether the job is kept.  With a `key` it may be submitted once more.
        """
        options = JobOptions(
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
        (job,) = _submit(self._store(), [(self._new(input, options), input)])
        return job

    def submit_many(self, entries: Iterable[Mapping[str, Any]]) -> Jobs:
        """Submit jobs: all are kept, or none.

        Args:
            entries: for each job a mapping with the arguments of `submit` by name.

        Raises:
            ConfigError, InvalidItem, InputTooLarge: as `submit`; the message says which entry, from 0 on.
            ConfigError: `entries` is no list of mappings.
            JobConflict, QueueFull, StoreUnavailable: as `submit`.
        """
        store = self._store()
        if not isinstance(entries, Iterable) or isinstance(entries, (str, bytes, Mapping)):
            raise ConfigError(f"submit_many takes a list of mappings such as [{{'input': 1}}], got {entries!r:.200}")
        return _submit(store, [self._entry(place, entry) for place, entry in enumerate(entries)])

    def _entry(self, place: int, entry: object) -> Submission:
        where = f"entry {place}: "
        if not isinstance(entry, Mapping):
            kind = type(entry).__name__
            raise ConfigError(f"{where}an entry must be a mapping such as {{'input': 1, 'priority': 5}}, got `{kind}`")
        try:
            value = entry.get("input", msgspec.UNSET)
            return self._new(value, read_job_options(entry, besides=("input",))), value
        except InvalidItem as error:
            raise InvalidItem(where + error.reason, path=error.path) from error.__cause__
        except ConfigError as error:
            raise ConfigError(where + str(error)) from None
        except InputTooLarge as error:
            raise InputTooLarge(where + str(error)) from None

    def _new(self, value: Any, options: JobOptions) -> NewJob:
        given: JobInput | None = None
        if value is not msgspec.UNSET and options.input_url is None:
            given = encode_job_input(value, options.content_type)
        elif value is not msgspec.UNSET:
            given = JobInput(b"", "", b"")  # an error, and the input need not be written to tell it
        return new_job(given, options, now=self._wall(), max_inline_bytes=self._max_inline)

    # -- ask --------------------------------------------------------------------------------------------------------

    def get(self, job: Job | str) -> Job:
        """The job as it is now.

        Raises:
            JobNotFound: there is none.
        """
        job_id = _id_of(job)
        (found,) = self._store().get([job_id])
        if found is None:
            raise no_such_job(job_id)
        return found

    def get_many(self, job_ids: Sequence[str]) -> Found:
        """The jobs of these ids as they are now, None for each that is not there: for a caller who asks for many."""
        return self._store().get(job_ids)

    def raw_result(self, job: Job | str) -> StoredResult | None:
        """The result as the store has it, for a caller who passes it on; None while the job has not ended.

        Raises:
            JobFailed, JobCancelled, JobExpired: it ended without one.
            JobNotFound: there is no such job.
        """
        found = self.get(job)
        if not found.is_finished:
            return None
        refuse_without_result(found)
        stored = self._store().result(found.id)
        if stored is None:
            raise no_such_job(found.id)  # somebody has purged it between the two questions
        return stored

    def result(self, job: Job | str, timeout: float | None = None) -> Any:
        """Wait until the job has ended, and give its result; of one with an `output_url`, the output's URL.

        A result in JSON or MessagePack is an object, one in `.npy` a numpy array, and any other is bytes.

        Args:
            job: the job, or its id.
            timeout: how many seconds to wait; 0 asks once, None waits for ever.

        Raises:
            JobFailed, JobCancelled, JobExpired: it ended without a result; with the message and the traceback.
            JobNotFound: there is none.
            TimeoutError: it has not ended in time, or the store could not be reached until then.
        """
        watch = self.result_poller(job, timeout)
        self.run_poller(watch)
        return watch.answer()

    def wait(self, jobs: Iterable[Job | str], timeout: float | None = None) -> Jobs:
        """Wait until all of `jobs` have ended, however they end, and give them in their order.

        Args:
            jobs: jobs, or their ids.
            timeout: how many seconds to wait; 0 asks once, None waits for ever.

        Raises:
            JobNotFound: one of them is not there.
            TimeoutError: one has not ended in time, or the store could not be reached until then.
        """
        watch = self.poller(jobs, timeout)
        self.run_poller(watch)
        return watch.jobs

    def poller(self, jobs: Iterable[Job | str], timeout: float | None) -> Watch:
        """A wait as `wait` makes it, for a caller who looks and pauses by himself, as on an event loop."""
        return Watch(self._store(), _ids_of(jobs), timeout, self._now)

    def result_poller(self, job: Job | str, timeout: float | None) -> ResultWatch:
        """A wait as `result` makes it, for a caller who looks and pauses by himself."""
        return ResultWatch(self._store(), _id_of(job), timeout, self._now)

    def run_poller(self, watch: Watch) -> None:
        """Look until `watch` is over; raises what its `look` raises."""
        while (pause := watch.look()) is not None:
            self._sleep(pause)
            self._store()  # somebody may have closed it meanwhile

    def list(self, state: JobState | str | None = None, limit: int = 100, after: Job | str | None = None) -> Jobs:
        """At most `limit` jobs in the order in which they were submitted.

        Args:
            state: only the jobs in this state, by its name.
            limit: from 1 to 10 000.
            after: the last job of the page before; None begins with the oldest.

        Raises:
            ConfigError: there is no such state, or `limit` is out of range.
            JobNotFound: there is no job `after`.
        """
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_LISTED:
            raise ConfigError(f"limit must be an integer from 1 to {MOST_LISTED}, got {limit!r}")
        return self._store().list_jobs(read_state(state), limit, None if after is None else _id_of(after))

    def stats(self) -> Stats:
        """How many jobs are in each state, and how long the backlog is."""
        return self._store().stats()

    # -- change -----------------------------------------------------------------------------------------------------

    def cancel(self, job: Job | str) -> Job:
        """End a job that nobody runs; have the holder of another one end it.  The job as it is then.

        Raises:
            JobNotFound: there is none.
            JobConflict: it has ended in another way.
        """
        return self._store().cancel(_id_of(job))

    def retry(self, job: Job | str) -> Job:
        """Begin the next run of a job that is dead, cancelled or expired.  The job as it is then.

        Raises:
            JobNotFound: there is none.
            JobConflict: it has not ended, or it has succeeded.
        """
        return self._store().retry(_id_of(job))

    def purge(self, state: JobState | str | None = None, older_than: float = 0) -> int:
        """Forget jobs, and give how many they were.

        Args:
            state: only the jobs in this state; without it, those in every state but running.
            older_than: how many seconds ago they must have ended, or have been submitted where they have not ended;
                0 is all.

        Raises:
            ConfigError: there is no such state, or `older_than` is no number of seconds.
            JobConflict: `state` is running.
        """
        number = isinstance(older_than, (int, float)) and not isinstance(older_than, bool)
        if not number or not 0 <= older_than <= 1e300:
            raise ConfigError(f"older_than must be at least 0 seconds, got {older_than!r}")
        return self._store().purge(read_state(state), float(older_than))

    def pause(self) -> None:
        """Have no job claimed until `resume`; what is held goes on."""
        self._store().pause()

    def resume(self) -> None:
        """End a pause."""
        self._store().resume()

    def _store(self) -> Store:
        """The store, for one call; takes no lock, for a fork has a copy of it that may be held for ever."""
        if os.getpid() != self._process:
            raise ConfigError(f"the queue {self._shown} was connected in process {self._process}; connect in the fork")
        if self._closed:
            raise ConfigError(f"the connection to the queue {self._shown} is closed")
        return self._connected


def _submit(store: Store, submissions: Sequence[Submission]) -> Jobs:
    """The jobs in `store`; its digests may be of an earlier version, so who conflicts is compared by its input."""
    new = [job for job, _ in submissions]
    if not new:
        return []
    try:
        return store.submit(new)
    except JobConflict:
        kept = store.kept_inputs(new)
        same = [
            msgspec.structs.replace(job, digest=there.digest) if there and is_same_job(job, value, there) else job
            for (job, value), there in zip(submissions, kept, strict=True)
        ]
        if same == new:
            raise
    return store.submit(same)


def read_state(state: JobState | str | None) -> JobState | None:
    """The state of this name; ConfigError where there is none."""
    if state is None or isinstance(state, JobState):
        return state
    names = [known.value for known in JobState]
    if state in names:
        return JobState(state)
    near = nearest(str(state), names, 0.6)
    hint = f": did you mean {near}?" if near else f"; states: {', '.join(names)}"
    raise ConfigError(f"there is no state {state!r}{hint}")


def _id_of(job: object) -> str:
    if isinstance(job, Job):
        return job.id
    if isinstance(job, str) and job:
        if not job.isprintable():  # no id has such characters, and half of a surrogate pair reaches no store
            raise no_such_job(job)
        return job
    raise ConfigError(f"expected a Job or the id of a job, got {job!r}")


def _ids_of(jobs: object) -> list[str]:
    if isinstance(jobs, (str, Job)):
        raise ConfigError(
            f"wait takes several jobs or ids, got one: write [{'job' if isinstance(jobs, Job) else jobs!r}]"
        )
    if not isinstance(jobs, Iterable):
        raise ConfigError(f"wait takes jobs or their ids, got {jobs!r}")
    return [_id_of(job) for job in jobs]
