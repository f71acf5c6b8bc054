"""The contract of a store: it keeps the jobs of one queue, and hands them out.

Contract
--------
* Every method is one transaction: it is done whole, or not at all.  What it returns is durable.
* Every method blocks for a bounded time, may be called from any thread, and must not be called on an event loop.
* A method that cannot reach the store, or hears nothing of it in time, raises StoreUnavailable: whether it was done is
  not known.  Each may be called again then; what was done already is not done twice.
* **The fence decides, not the clock.**  A claim gives a job a fence that is larger than all before, those of a
  forgotten job with the same id included.  The fences of one job follow each other without a gap.  A holder's call
  names its fence, and is `LOST` where that is no longer the job's newest, or where that attempt has ended in another
  way.  A lease that has run out moves nothing by itself: until somebody claims or cancels the job, its holder may
  still renew, release and commit.
* An ending that is told once more, because its answer did not arrive, is `OK` once more until the job is claimed again.
  Any other call about an attempt that has ended is `LOST`.
* `running` is hidden: a job is claimed again only when its lease has run out.  That attempt then ends as
  `lease_expired`, which counts, and the job is alone from then on; the last one allowed ends the run as dead instead.
  Either way its error is `LEASE_RAN_OUT`.
* **A holder loses no job to itself.**  A claim by the holder whose lease has run out is a renewal: the job is handed
  out once more under the same fence, and nothing is counted.  The holder goes on with it, or begins with it where the
  answer to the claim was lost.  A deadline that has passed does not change that; a job to be cancelled ends.
* A claim says for which services there is room, and how much.  In each room higher priority is claimed first, then what
  was submitted earlier, also by a job that was released or retried.  Jobs whose lease ran out stand among the others.
  A job that rests stands behind what was submitted before its rest began.  No room holds up another.
* Jobs whose inputs are elsewhere have rooms of their own, in which a host is passed over that has its share already.
* Nobody is handed a job whose deadline has passed, or that is to be cancelled: that claim ends it.  The attempt whose
  lease ran out ends so too, and is not counted.
* A deadline binds until a claim.  Who holds the job may commit later.
* A scheduled job is queued from its moment on, and what is scheduled or queued has expired from its deadline on.
  `get`, `cancel`, `retry` and `claim` see that at once; `list_jobs`, `purge` and `stats` after the next `tend` at the
  latest.
* The end of a run leaves a `Delivery` where the job has an `output` and the run was claimed at all; so does a purge of
  such a job whose run has not ended.
* A store that is full refuses new jobs, as `StoreFull`, before there is no room left for what holders say and for what
  is removed.
* Leases and rests are measured on a clock that nobody sets, as far as the store has one.

A store is opened by `stores.opening.open_store`, and is a connection of its own: who must not wait behind others opens
the same URL once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

import msgspec

from penstock.errors import ConfigError, StoreUnavailable
from penstock.jobs.job import AttemptError, Job, Stats, StoredResult
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.transfer.places import host_of

LEASE_RAN_OUT = AttemptError(type="", message="lease expired: its consumer sent no renewal")
"""The error of a job whose lease ran out in its last attempt."""

STORE_TROUBLE = (StoreUnavailable, ConfigError)
"""What a store that worked before may raise at any call: it is gone, or its setup was changed, a password for one.

A holder goes on with what it has, and asks again.
"""


class StoreFull(StoreUnavailable):
    """The store has no room: nothing was done.  Jobs that are held and calls that remove jobs go on."""


class Hold(NamedTuple):
    """A holder's claim on a job."""

    job_id: str
    fence: int


class Room(NamedTuple):
    """How much a claim may take for some services together."""

    services: tuple[str, ...]
    """Their names; "" is for jobs that name no service.  No service is in two rooms of a kind."""
    jobs: int
    nbytes: int
    """The most bytes of their inputs together; the first job may have more."""
    of_host: int = 0
    """Most jobs whose input is at one host (`host_of`); 0 in a room for jobs whose input is in the store."""
    at_hosts: Mapping[str, int] = MappingProxyType({})
    """For a host how many of these are held already."""

    @property
    def full_hosts(self) -> list[str]:
        """The hosts that have their share already."""
        return [host for host, jobs in self.at_hosts.items() if jobs >= self.of_host]


class Answer(StrEnum):
    """What a store says to a holder's call, for each job."""

    OK = "ok"
    LOST = "lost"
    """Another holds the job, or its run has ended: drop the work."""
    UNKNOWN = "unknown"
    """It may have been done or not.  Go on until the lease's local deadline, and ask again."""


class NewJob(msgspec.Struct, frozen=True):
    """A job to be kept.  Its id is proper as a request's id: 1 to 128 of ``A-Z a-z 0-9 . _ -``."""

    id: str
    body: bytes = b""
    """The input, or b"" where `input_url` names it."""
    content_type: str = "application/json"
    accept: str = "application/json"
    """The media type of the result."""
    service: str = ""
    key: str | None = None
    """Two jobs of one queue never have the same key."""
    digest: str = ""
    """A hash of what makes a job the same job: the value of its input, and its options but `delay` and `deadline`,
    which each submission computes anew."""
    priority: int = 0
    delay: float = 0.0
    deadline: float | None = None
    """A moment in Unix seconds."""
    input_url: str | None = None
    output: str | None = None

    @property
    def host(self) -> str:
        """Where its input is; "" in the store."""
        return "" if self.input_url is None else host_of(self.input_url)


class KeptInput(NamedTuple):
    """A job's input as a store has it."""

    digest: str
    body: bytes | None
    """The input, or None where the store has it no more."""


class ClaimedJob(msgspec.Struct, frozen=True):
    """A job as it is handed to its holder."""

    id: str
    fence: int
    run: int
    body: bytes
    content_type: str
    accept: str
    service: str
    alone: bool
    """Whether it must run in batches of its own."""
    attempts: dict[str, int]
    """The attempts of this run that count, by cause, a lost one that this claim has found included."""
    deadline: float | None
    input_url: str | None
    output: str | None

    @property
    def hold(self) -> Hold:
        """The claim."""
        return Hold(self.id, self.fence)

    @property
    def host(self) -> str:
        """Where its input is; "" in the store."""
        return "" if self.input_url is None else host_of(self.input_url)


class Renewed(NamedTuple):
    """The answer to the renewal of one job."""

    answer: Answer
    cancel: bool = False
    """Whether the job is to be cancelled: its holder ends it so, and drops its result."""


class AttemptEnd(msgspec.Struct, frozen=True):
    """How a holder ends its attempt, and so perhaps the run.

    `to` is SUCCEEDED, DEAD, CANCELLED or EXPIRED, which end the run, or QUEUED or SCHEDULED.  A job that is to be
    cancelled and would go back ends as cancelled instead.
    """

    hold: Hold
    to: JobState
    cause: FailureCause | None = None
    """Why the attempt failed, where `to` is DEAD, QUEUED or SCHEDULED."""
    counts: bool = False
    """Whether the attempt is counted under its cause."""
    alone: bool = False
    """Whether the job runs alone from now on."""
    rest: float = 0.0
    """The seconds until it may be claimed, where `to` is SCHEDULED."""
    problem: AttemptError | None = None
    result: bytes = b""
    """The result, where `to` is SUCCEEDED and the job has no `output`."""
    content_type: str = ""
    """The media type of the result."""
    transfers: int = 0
    """How many tries to store the output failed before this end: each is counted as `TRANSFER`, however it ends."""


def wrote_nothing(end: AttemptEnd, first_fence: int | None) -> bool:
    """Whether no attempt of a run that ends as `end` says has left anything at its output.

    A job whose input or output is refused dies at its first attempt, and nothing is left to deliver: its output may be
    a place that no consumer may ever write to.
    """
    return end.to is JobState.DEAD and end.cause is FailureCause.INVALID_INPUT and end.hold.fence == first_fence


class Delivery(msgspec.Struct, frozen=True):
    """What is left to do for the outputs of a job whose run has ended.

    The attempt `fence` wrote the output under a name of its own beside `output`, and it is to be moved there; 0: none
    did.  What attempts from `first_fence` to `last_fence`, the run's first and last, left there besides is to be
    removed.
    """

    job_id: str
    output: str
    fence: int
    first_fence: int
    last_fence: int


class Store(Protocol):
    """Keeps the jobs of one queue."""

    @property
    def queue(self) -> str:
        """The name of the queue."""

    # -- submitters -------------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[NewJob]) -> list[Job]:
        """Keep `jobs`; of a job that is there already, by its key or its id, return it as it is.

        All or none is kept.  The same holds inside `jobs`: the second of two that are the same is there already.

        Raises:
            JobConflict: a job with the same key or id has another digest, or the key is one job's and the id another's.
            StoreFull: there is no room for those that are new.
            QueueFull: more would wait than this store lets wait.
            ConfigError: they are more than the store takes at a time, which is 10 000 at least.
        """

    def kept_inputs(self, jobs: Sequence[NewJob]) -> list[KeptInput | None]:
        """The input of the job that is there by the key of each of `jobs`, or else by its id; None where there is none.

        It is for who was told JobConflict: an older digest may be of the same value.
        """

    def get(self, job_ids: Sequence[str]) -> list[Job | None]:
        """The jobs as they are now, None for each that is not there; one whose deadline has passed has expired."""

    def result(self, job_id: str) -> StoredResult | None:
        """The result of a job that has succeeded, else None."""

    def cancel(self, job_id: str) -> Job:
        """End a job as cancelled if nobody holds it; else have its holder do so.  Returns it as it is then.

        Who held it holds it no more once the lease has run out.  A job that was cancelled already stays as it is.

        Raises:
            JobNotFound: there is none.
            JobConflict: it has ended in another way.
        """

    def retry(self, job_id: str) -> Job:
        """Begin the next run of a job that is dead, cancelled or expired; a deadline that has passed is dropped.

        The run begins without failures, error or being alone; attempts and fence go on.

        Raises:
            JobNotFound: there is none.
            JobConflict: it has not ended, or it has succeeded.
        """

    def list_jobs(self, state: JobState | None, limit: int, after: str | None) -> list[Job]:
        """At most `limit` jobs in the order in which they were submitted, from the one behind job `after` on.

        Raises:
            JobNotFound: there is no job `after`.
        """

    def purge(self, state: JobState | None, older_than: float) -> int:
        """Forget the jobs in `state` that are at least so many seconds old, and return how many they were.

        Their keys and results are forgotten with them, their deliveries are not.
        The age of a job that has ended counts from its end, of another from its submission.  Without a state, jobs
        of every state but running are purged.

        Raises:
            JobConflict: `state` is running.
        """

    def pause(self) -> None:
        """Let nothing be claimed until `resume`; what is held may go on."""

    def resume(self) -> None:
        """Let jobs be claimed again."""

    def stats(self) -> Stats:
        """What lies in the queue."""

    # -- holders ----------------------------------------------------------------------------------------------------

    def claim(
        self, holder: str, *, lease: float, rooms: Sequence[Room], given_up: Collection[Hold] = ()
    ) -> list[ClaimedJob]:
        """Lease the first jobs that fit into each of `rooms`, for `lease` seconds.

        Jobs are passed over only for their host: a room takes nothing more from the first one on that does not fit.

        `given_up` are holds of this holder that it renews no longer: a claim takes them as it takes another's.
        """

    def renew(self, holds: Sequence[Hold], lease: float) -> list[Renewed]:
        """Have each lease end `lease` seconds from now.  The answers come in the order of `holds`."""

    def end_attempts(self, ends: Sequence[AttemptEnd]) -> list[Answer]:
        """End attempts, and tell for each, in the order of `ends`, whether it was still the holder's to end."""

    # -- whoever is there -------------------------------------------------------------------------------------------

    def tend(self, *, keep: float, keep_dead: float, seconds_per_job: float | None) -> None:
        """Expire what waits beyond its deadline, and forget what ended longer ago than it is kept.

        `keep` and `keep_dead` are in seconds; dead jobs are kept for `keep_dead`.  Keys are kept as long as their jobs.
        `seconds_per_job` is how long the model takes for a job, where the caller knows; `stats` needs it.
        """

    def deliveries(self, *, limit: int, lease: float) -> list[Delivery]:
        """Outputs to be moved to their places: each is given to one caller for `lease` seconds."""

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """Forget deliveries that were made, each by its `job_id` and `last_fence`: a job may have one for each run."""

    def close(self) -> None:
        """Give up the connection; may be called any number of times, and nothing else after it."""
