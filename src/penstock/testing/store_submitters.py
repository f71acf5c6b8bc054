"""What a store promises to those who submit jobs and look after them: a part of `StoreSuite`."""

from __future__ import annotations

from functools import partial

from penstock.errors import JobConflict, JobNotFound, QueueFull
from penstock.jobs.job import Job, StoredResult
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import Answer, KeptInput, NewJob
from penstock.testing.store_case import (
    LONG,
    SHORT,
    StoreCase,
    failure,
    handed_back,
    ids,
    put,
    refused,
    see,
    success,
    take,
    take_one,
    wall_of,
)


class SubmitterTests(StoreCase):
    """Submit, get, result, cancel and retry."""

    # -- submit -----------------------------------------------------------------------------------------------------

    def test_a_job_is_shown_as_it_was_submitted(self) -> None:
        """With all that its submitter said of it, and queued."""
        with self.opened() as store:
            fields = {"service": "s", "priority": -3, "input_url": "s3://b/in"}
            out = "s3://b/out"
            job = put(store, "a", key="k", deadline=9e9, output=out, **fields)
            shown = Job(
                "a",
                store.queue,
                JobState.QUEUED,
                job.created_at,
                expires_at=9e9,
                output_url=out,
                **fields,  # type: ignore[arg-type]
            )
            assert job == shown
            assert see(store) == shown

    def test_jobs_are_given_in_the_order_asked_and_none_for_what_is_not_there(self) -> None:
        """The same id may be asked for twice."""
        with self.opened() as store:
            jobs = store.submit([NewJob("a"), NewJob("b")])
            assert ids(jobs) == ["a", "b"]
            assert store.get(["b", "x", "a", "b"]) == [jobs[1], None, jobs[0], jobs[1]]
            assert store.get([]) == []
            assert store.submit([]) == []

    def test_a_job_published_twice_is_one_job(self) -> None:
        """By its id or by its key; the first one stays as it is, and another connection sees it."""
        with self.opened() as store, self.opened_again(store) as other:
            job = put(store, "a", key="k", digest="d")
            assert put(other, "a", digest="d", key="k") == job
            assert put(other, "b", digest="d", key="k") == job
            assert put(other, "a", digest="d", delay=LONG) == job
            assert ids(store.list_jobs(None, 10, None)) == ["a"]

    def test_an_input_is_given_with_its_digest_as_it_was_kept(self) -> None:
        """The key decides, then the id.  The input of a job that has succeeded may be gone."""
        with self.opened() as store:
            store.submit([NewJob("a", b"1", key="k", digest="d"), NewJob("b", b"", digest="e")])
            asked = [NewJob("a", digest="x"), NewJob("b", key="k"), NewJob("b", key="l"), NewJob("c", key="l")]
            kept = KeptInput("d", b"1")
            assert store.kept_inputs(asked) == [kept, kept, KeptInput("e", b""), None]
            store.end_attempts([success(take(store, limit=1)[0].hold, b"result")])
            assert store.kept_inputs(asked[:1])[0] in (kept, KeptInput("d", None))

    def test_a_job_published_again_after_its_end_does_not_run_again(self) -> None:
        """It is returned as it ended."""
        with self.opened() as store:
            put(store, key="k")
            store.end_attempts([success(take_one(store).hold)])
            assert put(store, "b", key="k").state is JobState.SUCCEEDED
            assert take(store) == []

    def test_another_job_with_a_known_id_or_key_is_refused(self) -> None:
        """Also where the key is one job's and the id another's."""
        with self.opened() as store:
            put(store, "a", key="k", digest="d")
            put(store, "b", digest="d")
            assert refused(JobConflict, lambda: put(store, "a", digest="e"))
            assert refused(JobConflict, lambda: put(store, "c", key="k", digest="e"))
            assert refused(JobConflict, lambda: put(store, "b", key="k", digest="d"))

    def test_all_or_none_are_kept(self) -> None:
        """One conflict refuses the whole list, also a conflict inside it."""
        with self.opened() as store:
            put(store, "a", digest="d")
            assert refused(JobConflict, lambda: store.submit([NewJob("b"), NewJob("a", digest="e")]))
            twins = [NewJob("b", key="k", digest="d"), NewJob("c", key="k", digest="e")]
            assert refused(JobConflict, lambda: store.submit(twins))
            assert ids(store.list_jobs(None, 10, None)) == ["a"]
            assert put(store, "c", key="k", digest="e").id == "c"

    def test_a_job_twice_in_one_list_is_one_job(self) -> None:
        """By its id or by its key."""
        with self.opened() as store:
            jobs = store.submit([NewJob("a", key="k"), NewJob("b", key="k"), NewJob("a")])
            assert ids(jobs) == ["a", "a", "a"]
            assert ids(store.list_jobs(None, 10, None)) == ["a"]

    def test_no_more_jobs_wait_than_may(self) -> None:
        """Waiting or scheduled; all or none is taken, and a job that is there already is no new one."""
        with self.opened() as store, self.bounded(store, jobs=3) as bounded:
            bounded.submit([NewJob("a"), NewJob("b", delay=LONG)])
            assert refused(QueueFull, lambda: bounded.submit([NewJob("c"), NewJob("d")]))
            assert ids(bounded.submit([NewJob("a"), NewJob("c"), NewJob("b")])) == ["a", "c", "b"]
            assert refused(QueueFull, lambda: put(bounded, "d"))
            assert ids(store.list_jobs(None, 10, None)) == ["a", "b", "c"]
            assert put(bounded, "a").id == "a"

    def test_no_more_bytes_of_inputs_wait_than_may(self) -> None:
        """They count from their submission until their job is claimed."""
        with self.opened() as store, self.bounded(store, nbytes=10) as bounded:
            put(bounded, "a", body=b"123456")
            assert refused(QueueFull, lambda: put(bounded, "b", body=b"12345"))
            put(bounded, "b", body=b"1234")
            assert refused(QueueFull, lambda: put(bounded, "c", body=b"1"))
            put(bounded, "c")
            take(store, limit=1)
            put(bounded, "d", body=b"123456")

    def test_there_is_room_for_a_job_once_another_waits_no_more(self) -> None:
        """It was claimed, cancelled, purged, or has expired.  Whatever goes back waits beyond the bound."""
        with self.opened() as store, self.bounded(store, jobs=2, nbytes=10) as bounded:
            wall = wall_of(store)
            bounded.submit([NewJob("a", b"12345"), NewJob("b", b"12345", deadline=wall + SHORT)])
            (held,) = take(store, limit=1)
            put(bounded, "c")
            self.pass_time(2 * SHORT)
            self.until(lambda: see(store, "b").state is JobState.EXPIRED)
            put(bounded, "d", body=b"12345")
            store.end_attempts([handed_back(held.hold)])
            assert refused(QueueFull, lambda: put(bounded, "e"))
            store.cancel("c")
            assert refused(QueueFull, lambda: put(bounded, "e"))
            store.purge(JobState.QUEUED, 0.0)
            bounded.submit([NewJob("e", b"12345"), NewJob("f", b"12345")])
            store.retry("b")
            assert store.stats().queued == 3

    # -- results ----------------------------------------------------------------------------------------------------

    def test_a_result_is_there_once_the_job_has_succeeded(self) -> None:
        """Byte by byte, also an empty one; there is none before, nor of a dead or unknown job."""
        with self.opened() as store:
            store.submit([NewJob("a"), NewJob("b"), NewJob("c")])
            everything = bytes(range(256)) * 1024
            assert store.result("a") is None
            first, second, third = (claimed.hold for claimed in take(store))
            assert store.result("a") is None
            store.end_attempts([success(first, everything), success(second, b""), failure(third)])
            assert store.result("a") == StoredResult(everything, "application/json")
            assert store.result("b") == StoredResult(b"", "application/json")
            assert [store.result("c"), store.result("x")] == [None, None]

    def test_the_result_of_a_job_with_an_output_names_the_place(self) -> None:
        """It has no bytes in the store."""
        with self.opened() as store:
            put(store, output="file:///out/a")
            store.end_attempts([success(take_one(store).hold, b"")])
            assert store.result("a") == StoredResult(b"", "application/json", "file:///out/a")

    # -- cancel -----------------------------------------------------------------------------------------------------

    def test_cancel_ends_a_job_that_nobody_holds(self) -> None:
        """Waiting or scheduled; it is never handed out, and to cancel it again changes nothing."""
        with self.opened() as store:
            store.submit([NewJob("a"), NewJob("b", delay=LONG)])
            for job_id in ("a", "b"):
                job = store.cancel(job_id)
                assert (job.state, job.finished_at is not None, job.scheduled_at) == (JobState.CANCELLED, True, None)
                assert store.cancel(job_id) == job
            assert take(store) == []

    def test_the_holder_of_a_cancelled_job_learns_it_at_its_renewal(self) -> None:
        """The job stays running until the holder ends it, and other jobs are not meant."""
        with self.opened() as store:
            store.submit([NewJob("a"), NewJob("b")])
            first, second = (claimed.hold for claimed in take(store))
            assert [renewed.cancel for renewed in store.renew([first, second], LONG)] == [False, False]
            assert store.cancel("a").state is JobState.RUNNING
            assert store.cancel("a").state is JobState.RUNNING
            renewed = store.renew([first, second], LONG)
            assert renewed == [(Answer.OK, True), (Answer.OK, False)]
            assert see(store).state is JobState.RUNNING

    def test_cancel_ends_a_running_job_whose_lease_ran_out(self) -> None:
        """Nobody is there to do it; the holder, if it comes back, has lost the job."""
        with self.opened() as store:
            put(store)
            hold = self.lose(store).hold
            job = store.cancel("a")
            assert job.state is JobState.CANCELLED
            assert [attempt.cause for attempt in job.attempts] == ["cancelled"]
            assert store.end_attempts([success(hold)]) == [Answer.LOST]
            assert store.renew([hold], LONG)[0].answer is Answer.LOST
            assert see(store) == job

    def test_what_has_ended_cannot_be_cancelled(self) -> None:
        """The first transition wins; a job that is not there is not found."""
        with self.opened() as store:
            store.submit([NewJob("a"), NewJob("b"), NewJob("c", deadline=1.0)])
            first, second = (claimed.hold for claimed in take(store))
            store.end_attempts([success(first), failure(second)])
            assert all(refused(JobConflict, partial(store.cancel, job_id)) for job_id in "abc")
            assert [see(store, job_id).state for job_id in "abc"] == ["succeeded", "dead", "expired"]
            assert refused(JobNotFound, lambda: store.cancel("x"))

    # -- retry ------------------------------------------------------------------------------------------------------

    def test_retry_begins_a_run_without_what_was_counted(self) -> None:
        """The fence goes on, and the history tells of both runs."""
        with self.opened() as store:
            put(store)
            first = self.lose(store)
            second = take_one(store)
            store.end_attempts([failure(second.hold)])
            dead = see(store)
            assert (dead.state, dead.failures) == (JobState.DEAD, {"lease_expired": 1, "application": 1})
            job = store.retry("a")
            assert (job.state, job.generation, job.failures, job.error, job.finished_at) == (
                JobState.QUEUED,
                2,
                {},
                None,
                None,
            )
            assert job.attempts == dead.attempts
            third = take_one(store)
            assert (third.run, third.attempts, third.alone) == (2, {}, False)
            assert first.fence < second.fence < third.fence
            assert [(claim.generation, claim.fencing_token) for claim in see(store).attempts] == [
                (1, first.fence),
                (1, second.fence),
                (2, third.fence),
            ]

    def test_a_cancelled_job_may_be_retried(self) -> None:
        """The next holder is not asked to cancel it."""
        with self.opened() as store:
            put(store)
            first = take_one(store).hold
            store.cancel("a")
            assert store.end_attempts([handed_back(first)]) == [Answer.OK]
            assert see(store).state is JobState.CANCELLED
            store.retry("a")
            assert store.renew([take_one(store).hold], LONG) == [(Answer.OK, False)]

    def test_a_deadline_that_has_passed_is_dropped_at_a_retry(self) -> None:
        """One that has not passed stays."""
        with self.opened() as store:
            later = wall_of(store) + LONG
            store.submit([NewJob("a", deadline=1.0), NewJob("b", deadline=later)])
            assert see(store).state is JobState.EXPIRED
            store.cancel("b")
            assert [store.retry(job_id).expires_at for job_id in "ab"] == [None, later]
            assert ids(take(store)) == ["a", "b"]

    def test_only_what_ended_without_a_result_is_retried(self) -> None:
        """What waits, is scheduled, is running or has succeeded is not; a job that is not there is not found."""
        with self.opened() as store:
            store.submit([NewJob("a"), NewJob("b")])
            first, _ = (claimed.hold for claimed in take(store))
            store.end_attempts([success(first)])
            store.submit([NewJob("c"), NewJob("d", delay=LONG)])
            assert all(refused(JobConflict, partial(store.retry, job_id)) for job_id in "abcd")
            assert refused(JobNotFound, lambda: store.retry("x"))

    # -- time -------------------------------------------------------------------------------------------------------

    def test_a_delayed_job_is_claimed_when_it_falls_due(self) -> None:
        """It is scheduled until then, and not lost."""
        with self.opened() as store:
            now = wall_of(store)
            store.submit([NewJob("a", delay=SHORT), NewJob("b", delay=LONG)])
            self.until(lambda: see(store).state is JobState.QUEUED)
            assert see(store).scheduled_at is None
            late = see(store, "b")
            assert (late.state, late.scheduled_at is not None and late.scheduled_at >= now + LONG) == (
                "scheduled",
                True,
            )
            assert ids(take(store)) == ["a"]

    def test_a_job_expires_at_its_deadline_unless_it_is_held(self) -> None:
        """Who claimed it in time may commit later."""
        with self.opened() as store:
            soon = wall_of(store) + 1.0
            put(store, "held", deadline=soon)
            hold = take_one(store).hold
            store.submit([NewJob("waits", deadline=soon), NewJob("rests", deadline=soon, delay=LONG)])
            self.until(lambda: see(store, "waits").state is JobState.EXPIRED)
            self.until(lambda: see(store, "rests").state is JobState.EXPIRED)
            assert see(store, "waits").finished_at is not None
            assert see(store, "held").state is JobState.RUNNING
            assert store.end_attempts([success(hold)]) == [Answer.OK]
            assert see(store, "held").state is JobState.SUCCEEDED
            assert take(store) == []
