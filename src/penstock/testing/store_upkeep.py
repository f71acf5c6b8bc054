"""What a store promises to those who look after it: lists, purges, figures and deliveries.  A part of `StoreSuite`."""

from __future__ import annotations

from penstock.errors import JobConflict, JobNotFound
from penstock.jobs.job import Stats
from penstock.jobs.rules.attempts import FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import Answer, AttemptEnd, Delivery, Hold, NewJob, Store
from penstock.testing.store_case import (
    LONG,
    SHORT,
    StoreCase,
    failure,
    handed_back,
    ids,
    put,
    refused,
    success,
    take,
    take_one,
    wall_of,
)

PLACE = "file:///out/a"


def tended(
    store: Store, *, keep: float = LONG, keep_dead: float = LONG, seconds_per_job: float | None = None
) -> set[str]:
    """The ids of what is left in `store` once it was tended; by default nothing is forgotten."""
    store.tend(keep=keep, keep_dead=keep_dead, seconds_per_job=seconds_per_job)
    return set(ids(store.list_jobs(None, 100, None)))


def one_in_each_state(store: Store) -> None:
    """Put a job named after each state into it."""
    store.submit([NewJob(job_id) for job_id in ("succeeded", "dead", "cancelled", "running")])
    store.submit([NewJob("expired", deadline=1.0), NewJob("scheduled", delay=LONG)])
    holds = {job.id: job.hold for job in take(store)}
    store.end_attempts([success(holds["succeeded"]), failure(holds["dead"]), handed_back(holds["cancelled"])])
    store.cancel("cancelled")
    put(store, "queued")
    tended(store)


class UpkeepTests(StoreCase):
    """List, purge, pause, stats, tend and the outbox."""

    # -- lists ------------------------------------------------------------------------------------------------------

    def test_jobs_are_listed_in_the_order_in_which_they_were_submitted(self) -> None:
        """Whatever their ids and priorities are, page by page."""
        with self.opened() as store:
            store.submit([NewJob("c"), NewJob("a", priority=9), NewJob("b", delay=LONG)])
            put(store, "0")
            store.end_attempts([handed_back(job.hold) for job in take(store)])
            assert ids(store.list_jobs(None, 10, None)) == ["c", "a", "b", "0"]
            assert ids(store.list_jobs(None, 2, None)) == ["c", "a"]
            assert ids(store.list_jobs(None, 2, "a")) == ["b", "0"]
            assert store.list_jobs(None, 2, "0") == []
            assert store.list_jobs(None, 10, None) == store.get(["c", "a", "b", "0"])

    def test_jobs_are_listed_by_their_state(self) -> None:
        """`after` may name a job in another state; one that is not there is not found."""
        with self.opened() as store:
            one_in_each_state(store)
            assert [ids(store.list_jobs(state, 10, None)) for state in JobState] == [[state] for state in JobState]
            assert ids(store.list_jobs(JobState.EXPIRED, 10, "running")) == ["expired"]
            assert store.list_jobs(JobState.RUNNING, 10, "expired") == []
            assert refused(JobNotFound, lambda: store.list_jobs(None, 10, "x"))

    # -- purges -----------------------------------------------------------------------------------------------------

    def test_a_purge_forgets_the_jobs_in_a_state_with_their_keys_and_results(self) -> None:
        """Others stay; what was forgotten may be submitted as something else."""
        with self.opened() as store:
            store.submit([NewJob("a", key="k", digest="d"), NewJob("b")])
            store.end_attempts([success(job.hold) for job in take(store, limit=1)])
            assert store.purge(JobState.SUCCEEDED, 0.0) == 1
            assert store.purge(JobState.SUCCEEDED, 0.0) == 0
            assert store.get(["a"]) == [None]
            assert store.result("a") is None
            assert refused(JobNotFound, lambda: store.cancel("a"))
            assert put(store, "c", key="k", digest="e").id == "c"
            assert put(store, "a", digest="e").state is JobState.QUEUED
            assert ids(take(store)) == ["b", "c", "a"]

    def test_a_purge_of_everything_spares_what_is_leased(self) -> None:
        """To ask for the leased ones is refused."""
        with self.opened() as store:
            one_in_each_state(store)
            assert refused(JobConflict, lambda: store.purge(JobState.RUNNING, 0.0))
            assert store.purge(None, LONG) == 0
            assert store.purge(None, 0.0) == len(JobState) - 1
            assert ids(store.list_jobs(None, 10, None)) == ["running"]
            assert store.end_attempts([success(Hold("running", 1))]) == [Answer.OK]

    def test_a_purge_of_one_state_spares_the_others(self) -> None:
        """Whatever the state."""
        for state in set(JobState) - {JobState.RUNNING}:
            with self.opened() as store:
                one_in_each_state(store)
                assert store.purge(state, 0.0) == 1
                assert set(ids(store.list_jobs(None, 10, None))) == set(JobState) - {state}

    def test_a_fence_never_comes_again_for_an_id(self) -> None:
        """The holder of a forgotten job may not commit to the job that has its id now."""
        with self.opened() as store:
            put(store)
            stale = self.lose(store).hold
            store.end_attempts([success(take_one(store).hold)])
            store.purge(None, 0.0)
            put(store)
            owner = take_one(store).hold
            assert owner.fence > stale.fence + 1
            assert store.renew([stale], LONG)[0].answer is Answer.LOST
            assert store.end_attempts([success(stale)]) == [Answer.LOST]
            assert store.end_attempts([success(owner)]) == [Answer.OK]

    # -- pauses and figures -----------------------------------------------------------------------------------------

    def test_nothing_is_claimed_from_a_paused_queue(self) -> None:
        """What is held goes on, jobs may be submitted, and every connection is meant."""
        with self.opened() as store, self.opened_again(store) as other:
            put(store, "a")
            hold = take_one(store).hold
            store.pause()
            store.pause()
            put(store, "b")
            assert (other.stats().paused, take(other), take(store)) == (True, [], [])
            assert store.renew([hold], LONG) == [(Answer.OK, False)]
            assert store.end_attempts([success(hold)]) == [Answer.OK]
            other.resume()
            other.resume()
            assert (store.stats().paused, ids(take(store))) == (False, ["b"])

    def test_the_figures_tell_how_many_jobs_are_in_each_state(self) -> None:
        """And nothing else of an empty queue."""
        with self.opened() as store:
            assert store.stats() == Stats()
            one_in_each_state(store)
            stats = store.stats()
            assert [getattr(stats, state) for state in JobState] == [1] * len(JobState)

    def test_the_figures_tell_how_long_the_oldest_job_has_waited(self) -> None:
        """From its submission, or from when it fell due; 0 where none waits."""
        with self.opened() as store:
            store.submit([NewJob("a"), NewJob("b", delay=LONG)])
            self.until(lambda: store.stats().oldest_queued_seconds >= 4 * SHORT)
            store.cancel("a")
            assert store.stats().oldest_queued_seconds == 0.0

    def test_the_backlog_is_told_in_seconds_of_the_model(self) -> None:
        """By the last who knew how long a job takes; any connection tells it."""
        with self.opened() as store, self.opened_again(store) as other:
            store.submit([NewJob(job_id) for job_id in "abc"])
            assert store.stats().estimated_backlog_seconds == 0.0
            tended(store, seconds_per_job=0.5)
            tended(store)
            assert other.stats().estimated_backlog_seconds == 1.5
            take(store, limit=1)
            assert other.stats().estimated_backlog_seconds == 1.0

    # -- upkeep -----------------------------------------------------------------------------------------------------

    def test_what_ended_long_ago_is_forgotten(self) -> None:
        """Dead jobs have a time of their own; what has not ended stays."""
        with self.opened() as store:
            one_in_each_state(store)
            assert tended(store) == set(JobState)
            living = {"scheduled", "queued", "running"}
            self.until(lambda: tended(store, keep=SHORT) == living | {"dead"})
            self.until(lambda: tended(store, keep_dead=SHORT) == living)

    def test_keys_are_kept_as_long_as_their_jobs(self) -> None:
        """And no longer."""
        with self.opened() as store:
            put(store, "a", key="k", digest="d")
            store.end_attempts([success(take_one(store).hold)])
            tended(store)
            assert put(store, "b", key="k", digest="d").id == "a"
            self.until(lambda: not tended(store, keep=SHORT))
            assert put(store, "b", key="k", digest="e").id == "b"

    def test_upkeep_expires_what_waits_beyond_its_deadline(self) -> None:
        """Every view of the queue says so then."""
        with self.opened() as store:
            soon = wall_of(store) + 4 * SHORT
            store.submit([NewJob("a", deadline=soon), NewJob("b", deadline=soon, delay=LONG), NewJob("c", delay=SHORT)])
            self.until(lambda: tended(store) and store.stats().expired == 2)
            assert ids(store.list_jobs(JobState.EXPIRED, 10, None)) == ["a", "b"]
            assert ids(store.list_jobs(JobState.QUEUED, 10, None)) == ["c"]

    # -- the outbox -------------------------------------------------------------------------------------------------

    def test_a_committed_output_is_to_be_delivered(self) -> None:
        """The attempt that committed wrote it; those before it in this run may have left something."""
        with self.opened() as store:
            store.submit([NewJob("a", output=PLACE), NewJob("b")])
            first, _ = take(store, lease=SHORT)
            second, other = self.until(lambda: take(store))
            assert store.deliveries(limit=10, lease=LONG) == []
            store.end_attempts([success(second.hold, b""), success(other.hold)])
            assert store.deliveries(limit=10, lease=LONG) == [
                Delivery("a", PLACE, second.fence, first.fence, second.fence)
            ]

    def test_a_run_without_a_result_leaves_only_what_is_to_be_removed(self) -> None:
        """However it ended, if it was claimed at all."""
        with self.opened() as store:
            store.submit([NewJob(job_id, output=PLACE) for job_id in "abc"])
            store.submit([NewJob("unclaimed", output=PLACE, delay=LONG)])
            holds = {job.id: job.hold for job in take(store)}
            store.end_attempts([failure(holds["a"]), handed_back(holds["b"]), handed_back(holds["c"])])
            store.cancel("b")
            store.cancel("unclaimed")
            assert store.purge(JobState.QUEUED, 0.0) == 1
            left = {delivery.job_id: delivery for delivery in store.deliveries(limit=10, lease=LONG)}
            assert left == {job_id: Delivery(job_id, PLACE, 0, 1, 1) for job_id in "abc"}

    def test_a_run_that_was_at_fault_from_the_beginning_leaves_nothing(self) -> None:
        """Its first attempt wrote nothing; a later one comes after others that may have."""
        with self.opened() as store:
            store.submit([NewJob(job_id, output=PLACE) for job_id in "ab"])
            holds = {job.id: job.hold for job in take(store)}
            refused = AttemptEnd(holds["a"], JobState.DEAD, cause=FailureCause.INVALID_INPUT, counts=True)
            store.end_attempts([refused, handed_back(holds["b"])])
            again = AttemptEnd(take_one(store).hold, JobState.DEAD, cause=FailureCause.INVALID_INPUT, counts=True)
            store.end_attempts([again])
            assert store.deliveries(limit=10, lease=LONG) == [Delivery("b", PLACE, 0, 1, 2)]
            store.retry("a")
            store.end_attempts([success(take_one(store).hold, b"")])
            assert store.deliveries(limit=10, lease=LONG) == [Delivery("a", PLACE, 2, 2, 2)]

    def test_each_delivery_is_one_callers_until_its_lease_runs_out(self) -> None:
        """It is given again, and counted, until it was made; a job's purge does not forget it."""
        with self.opened() as store, self.opened_again(store) as other:
            store.submit([NewJob(job_id, output=PLACE) for job_id in "abc"])
            store.end_attempts([success(job.hold, b"") for job in take(store)])
            store.purge(None, 0.0)
            first = store.deliveries(limit=2, lease=LONG)
            second = other.deliveries(limit=2, lease=SHORT)
            assert (len(first), len(second)) == (2, 1)
            assert {delivery.job_id for delivery in first + second} == {"a", "b", "c"}
            assert self.until(lambda: store.deliveries(limit=2, lease=SHORT)) == second
            assert store.stats().pending_outputs == 3
            store.delivered(second)
            store.delivered(second + first[:1])
            self.pass_time(2 * SHORT)
            assert store.deliveries(limit=2, lease=SHORT) == []
            assert other.stats().pending_outputs == 1

    def test_a_job_has_a_delivery_for_each_of_its_runs(self) -> None:
        """Who has made the first one late does not forget the second."""
        with self.opened() as store:
            put(store, output=PLACE)
            store.end_attempts([failure(take_one(store).hold)])
            cleaning = store.deliveries(limit=10, lease=LONG)
            store.retry("a")
            store.end_attempts([success(take_one(store).hold, b"")])
            store.delivered(cleaning)
            assert cleaning == [Delivery("a", PLACE, 0, 1, 1)]
            assert store.deliveries(limit=10, lease=LONG) == [Delivery("a", PLACE, 2, 2, 2)]
