"""What a store promises to holders: claims, leases, fences and endings.  A part of `StoreSuite`."""

from __future__ import annotations

from penstock.jobs.job import MOST_HISTORY
from penstock.jobs.rules.attempts import MOST_ATTEMPTS, FailureCause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import LEASE_RAN_OUT, Answer, AttemptEnd, Hold, NewJob, Renewed, Room
from penstock.testing.store_case import (
    LONG,
    MUCH,
    SHORT,
    StoreCase,
    failure,
    handed_back,
    ids,
    put,
    see,
    success,
    take,
    take_one,
    wall_of,
)

LOST = Renewed(Answer.LOST)


class HolderTests(StoreCase):
    """Claim, renew and end."""

    # -- claims -----------------------------------------------------------------------------------------------------

    def test_a_job_is_handed_over_as_it_was_submitted(self) -> None:
        """Its bytes, and what is said of them."""
        with self.opened() as store:
            body = bytes(range(256)) * 1024
            put(store, "a", body=body, content_type="audio/wav", accept="text/plain", service="s", output="file:///o")
            put(store, "b", input_url="s3://b/in", deadline=9e9, service="s")
            first, second = take(store, "me", services=["s"])
            assert (first.body, first.content_type, first.accept) == (body, "audio/wav", "text/plain")
            assert (first.run, first.service, first.alone, first.attempts) == (1, "s", False, {})
            assert (first.deadline, first.input_url, first.output) == (None, None, "file:///o")
            assert (second.body, second.deadline, second.input_url, second.output) == (b"", 9e9, "s3://b/in", None)
            job = see(store)
            assert job.state is JobState.RUNNING
            (attempt,) = job.attempts
            assert (attempt.generation, attempt.fencing_token, attempt.consumer_id) == (1, first.fence, "me")
            assert (attempt.finished_at, attempt.cause) == (None, "")

    def test_what_is_leased_is_hidden(self) -> None:
        """From every connection, also from its own holder."""
        with self.opened() as store, self.opened_again(store) as other:
            put(store)
            take_one(store, "h")
            assert [take(store, "h"), take(store, "i"), take(other, "i")] == [[], [], []]

    def test_higher_priority_is_claimed_first_and_then_the_oldest(self) -> None:
        """Also of jobs that were handed back, retried, or whose lease ran out."""
        with self.opened() as store:
            store.submit([NewJob("a"), NewJob("b", priority=-1), NewJob("c"), NewJob("d", priority=7), NewJob("e")])
            claimed = take(store, lease=SHORT)
            assert ids(claimed) == ["d", "a", "c", "e", "b"]
            holds = {job.id: job.hold for job in claimed}
            store.end_attempts([handed_back(holds["a"]), failure(holds["c"])])
            store.retry("c")
            self.pass_time(2 * SHORT)
            assert ids(take(store)) == ["d", "a", "c", "e", "b"]

    def test_a_claim_takes_no_more_than_its_limit(self) -> None:
        """Nor anything where that is 0."""
        with self.opened() as store:
            store.submit([NewJob(job_id) for job_id in "abc"])
            assert take(store, limit=0) == []
            assert ids(take(store, limit=2)) == ["a", "b"]
            assert ids(take(store, limit=2)) == ["c"]

    def test_a_claim_takes_no_more_bytes_than_it_may_but_for_the_first_job(self) -> None:
        """It ends before the first job that does not fit, and passes over none."""
        with self.opened() as store:
            sizes = {"a": 10, "b": 10, "c": 100, "d": 5}
            store.submit([NewJob(job_id, body=b"x" * size) for job_id, size in sizes.items()])
            assert [ids(take(store, max_bytes=25)) for _ in range(4)] == [["a", "b"], ["c"], ["d"], []]

    def test_a_claim_takes_what_is_for_its_services_or_for_any(self) -> None:
        """And leaves the rest waiting."""
        with self.opened() as store:
            store.submit([NewJob("a", service="s"), NewJob("b"), NewJob("c", service="t")])
            assert ids(take(store, services=["u", "s"], limit=1)) == ["a"]
            assert ids(take(store, services=["u", "s"])) == ["b"]
            assert ids(take(store, services=["t"])) == ["c"]

    def test_each_room_is_filled_by_itself(self) -> None:
        """By its own jobs and its own bytes; one that is full, or whose first job does not fit, holds up no other."""
        with self.opened() as store:
            for name, service in zip("abcdefg", "sstuutu", strict=True):
                put(store, name, service=service, body=b"x" * 10, priority=int(name == "e"))
            rooms = [Room(("s",), 9, 15), Room(("t", "u"), 3, 100), Room(("v",), 9, 9), Room(("",), 0, 9)]
            assert ids(store.claim("h", lease=LONG, rooms=rooms)) == ["a", "e", "c", "d"]
            assert ids(store.claim("h", lease=LONG, rooms=rooms)) == ["b", "f", "g"]
            assert store.claim("h", lease=LONG, rooms=[]) == []

    def test_a_rest_puts_a_job_behind_what_was_submitted_before_it(self) -> None:
        """At its priority; the order of submission stays."""
        with self.opened() as store:
            store.submit([NewJob("a"), NewJob("b"), NewJob("c", priority=-1), NewJob("d")])
            first, second = (job.hold for job in take(store, limit=2))
            store.end_attempts([failure(second, JobState.SCHEDULED, rest=SHORT)])
            store.end_attempts([failure(first, JobState.SCHEDULED, rest=SHORT)])
            put(store, "e")
            self.until(lambda: [see(store, name).state for name in "ab"] == [JobState.QUEUED] * 2)
            claimed = take(store, limit=1)
            assert ids(claimed) == ["d"]
            store.end_attempts([handed_back(claimed[0].hold)])
            assert ids(take(store)) == ["d", "b", "a", "e", "c"]
            assert ids(store.list_jobs(None, 9, None)) == ["a", "b", "c", "d", "e"]

    def test_jobs_whose_input_is_elsewhere_have_rooms_of_their_own(self) -> None:
        """Where they have none, the others are claimed all the same."""
        with self.opened() as store:
            for name in "abcd":
                put(store, name, input_url=f"https://in/{name}" if name < "c" else None)
            assert ids(store.claim("h", lease=LONG, rooms=[Room(("",), 9, MUCH)])) == ["c", "d"]
            assert ids(store.claim("h", lease=LONG, rooms=[Room(("",), 1, MUCH, of_host=9)])) == ["a"]
            assert ids(store.claim("h", lease=LONG, rooms=[Room(("",), 9, 0, of_host=9)])) == ["b"]

    def test_a_host_that_has_its_share_is_passed_over(self) -> None:
        """Its jobs that are held count, and those that the claim takes; the others come in their order."""
        with self.opened() as store:
            for number in range(40):
                put(store, f"x{number:02}", input_url=f"https://x/{number}")
            for name, host in zip("abcd", ("y", "z", "y", "z"), strict=True):
                put(store, name, input_url=f"HTTPS://{host}?{name}", priority=int(name == "d"))

            def claim(jobs: int, held: int) -> list[str]:
                room = Room(("",), jobs, MUCH, of_host=3, at_hosts={"https://x": held})
                return ids(store.claim("h", lease=LONG, rooms=[room]))

            assert claim(3, held=2) == ["d", "x00", "a"]
            assert claim(9, held=3) == ["b", "c"]
            assert claim(9, held=4) == []
            assert claim(9, held=0) == ["x01", "x02", "x03"]

    def test_a_lost_job_whose_input_is_elsewhere_stands_among_those_of_its_host(self) -> None:
        """It is passed over, too."""
        with self.opened() as store:
            put(store, "a", input_url="https://x/1")
            take_one(store, lease=SHORT)
            self.pass_time(2 * SHORT)
            full = Room(("",), 9, MUCH, of_host=1, at_hosts={"https://x": 1})
            assert store.claim("h", lease=LONG, rooms=[Room(("",), 9, MUCH), full]) == []
            assert ids(self.until(lambda: take(store))) == ["a"]

    def test_lost_jobs_take_the_room_of_their_own_service(self) -> None:
        """Others stay where they are."""
        with self.opened() as store:
            for name, service in zip("abcd", "stst", strict=True):
                put(store, name, service=service)
            take(store, services="st", lease=SHORT)
            self.pass_time(2 * SHORT)
            rooms = [Room(("s",), 1, MUCH), Room(("t",), 0, MUCH)]
            assert [ids(self.until(lambda: store.claim("h", lease=LONG, rooms=rooms))) for _ in "ac"] == [["a"], ["c"]]
            assert ids(take(store, services="st")) == ["b", "d"]

    # -- leases -----------------------------------------------------------------------------------------------------

    def test_a_lease_that_ran_out_is_claimed_by_another(self) -> None:
        """Then the first holder may neither renew nor commit, and what it says changes nothing."""
        with self.opened() as store:
            put(store)
            stale = take_one(store, "stale", lease=SHORT)
            owner = self.until(lambda: take(store, "owner"))[0]
            assert owner.fence > stale.fence
            assert store.renew([stale.hold], LONG) == [LOST]
            before = see(store)
            for end in (success(stale.hold, b"stale"), handed_back(stale.hold), failure(stale.hold)):
                assert store.end_attempts([end]) == [Answer.LOST]
            assert (see(store), store.result("a")) == (before, None)
            assert store.end_attempts([success(owner.hold, b"owner")]) == [Answer.OK]
            assert store.end_attempts([success(stale.hold, b"stale")]) == [Answer.LOST]
            result = store.result("a")
            assert result is not None
            assert result.body == b"owner"

    def test_a_holder_whose_lease_ran_out_may_commit_until_another_claims(self) -> None:
        """The fence decides, not the clock."""
        with self.opened() as store:
            put(store)
            hold = self.lose(store).hold
            assert see(store).state is JobState.RUNNING
            assert store.end_attempts([success(hold)]) == [Answer.OK]
            job = see(store)
            assert (job.state, job.failures, job.attempts[0].cause) == (JobState.SUCCEEDED, {}, "succeeded")

    def test_a_holder_whose_lease_ran_out_may_renew_until_another_claims(self) -> None:
        """It is hidden again then."""
        with self.opened() as store:
            put(store)
            hold = self.lose(store).hold
            assert store.renew([hold], LONG) == [(Answer.OK, False)]
            assert take(store) == []

    def test_a_renewed_lease_runs_from_the_renewal(self) -> None:
        """A longer one hides the job beyond the claim's, and a shorter one gives it up earlier."""
        with self.opened() as store:
            put(store, "longer")
            store.renew([take_one(store, lease=SHORT).hold], LONG)
            put(store, "shorter")
            self.pass_time(2 * SHORT)
            store.renew([take_one(store, lease=LONG).hold], SHORT)
            assert ids(self.until(lambda: take(store))) == ["shorter"]

    def test_renewals_are_answered_one_by_one_in_their_order(self) -> None:
        """Held, handed back, held again by another, ended, and not there."""
        with self.opened() as store:
            store.submit([NewJob(job_id) for job_id in "abcd"])
            holds = {job.id: job.hold for job in take(store)}
            store.end_attempts([handed_back(holds["b"]), handed_back(holds["c"]), success(holds["d"])])
            take(store, limit=1)
            asked = [holds["d"], holds["a"], Hold("x", 1), holds["c"], holds["b"], holds["a"]]
            held = Renewed(Answer.OK)
            assert store.renew(asked, LONG) == [LOST, held, LOST, LOST, LOST, held]
            assert store.renew([], LONG) == []

    def test_a_claim_by_the_holder_whose_lease_ran_out_is_a_renewal(self) -> None:
        """It gets the same jobs under the same fences, and nothing has happened to them; they are hidden again."""
        with self.opened() as store, self.opened_again(store) as other:
            store.submit([NewJob("a", b"[1]", output="file:///o"), NewJob("b", priority=1)])
            claimed = take(store, "me", lease=SHORT)
            before = store.get(["a", "b"])
            self.pass_time(2 * SHORT)
            assert take(store, "me") == claimed
            assert store.get(["a", "b"]) == before
            assert take(other, "other") == []
            assert store.end_attempts([success(job.hold) for job in claimed]) == [Answer.OK] * 2

    def test_what_a_holder_claims_once_more_takes_its_places_and_bytes(self) -> None:
        """It stands among the others."""
        with self.opened() as store:
            store.submit([NewJob("a", b"x" * 10), NewJob("b", b"x" * 10)])
            take(store, "me", lease=SHORT, limit=1)
            put(store, "c", priority=1)
            self.pass_time(2 * SHORT)
            assert ids(take(store, "me", lease=SHORT, limit=2)) == ["c", "a"]
            self.pass_time(2 * SHORT)
            assert ids(take(store, "me", max_bytes=19)) == ["c", "a"]
            assert ids(take(store, "me")) == ["b"]

    def test_what_a_holder_has_given_up_is_lost_as_another_s_would_be(self) -> None:
        """Only that attempt: a hold of an older one gives up nothing."""
        with self.opened() as store:
            put(store)
            first = take_one(store, "me", lease=SHORT)
            self.pass_time(2 * SHORT)
            second = take_one(store, "me", lease=SHORT, given_up=[first.hold])
            assert (second.fence, second.alone, second.attempts) == (first.fence + 1, True, {"lease_expired": 1})
            self.pass_time(2 * SHORT)
            assert take(store, "me", given_up=[first.hold]) == [second]
            assert take(store, "me", given_up=[second.hold]) == []

    def test_a_holder_may_claim_once_more_what_has_expired_meanwhile(self) -> None:
        """A deadline binds until the first claim."""
        with self.opened() as store:
            put(store, deadline=wall_of(store) + 1.0)
            claimed = take_one(store, "me", lease=SHORT)
            self.pass_time(1.1)
            assert take(store, "me") == [claimed]
            assert store.end_attempts([success(claimed.hold)]) == [Answer.OK]

    def test_lost_attempts_are_counted_and_the_last_one_allowed_ends_the_run(self) -> None:
        """After the first the job runs alone; each claim is told what was lost before it."""
        with self.opened() as store:
            put(store)
            most = MOST_ATTEMPTS[FailureCause.LEASE_EXPIRED]
            for lost in range(most):
                claimed = self.until(lambda lost=lost: take(store, f"h{lost}", lease=SHORT))[0]  # type: ignore[misc]
                assert (claimed.attempts, claimed.alone) == ({"lease_expired": lost} if lost else {}, lost > 0)
            self.until(lambda: not take(store) and see(store).state is JobState.DEAD)
            job = see(store)
            assert (job.failures, job.error) == ({"lease_expired": most}, LEASE_RAN_OUT)
            assert [attempt.cause for attempt in job.attempts] == ["lease_expired"] * (most - 1) + ["dead"]
            assert None not in [attempt.finished_at for attempt in job.attempts]
            assert job.finished_at is not None

    def test_a_claim_ends_what_was_to_be_cancelled_and_lost(self) -> None:
        """The attempt is not counted, and nobody is handed the job, its own holder neither."""
        with self.opened() as store:
            put(store)
            claimed = take_one(store)
            store.cancel("a")
            assert store.renew([claimed.hold], SHORT) == [(Answer.OK, True)]
            self.until(lambda: not take(store) and see(store).state is JobState.CANCELLED)
            assert (see(store).failures, see(store).attempts[-1].cause) == ({}, "cancelled")
            assert store.end_attempts([success(claimed.hold)]) == [Answer.LOST]

    def test_a_claim_ends_what_was_lost_and_has_expired(self) -> None:
        """The attempt is not counted, and nobody is handed the job."""
        with self.opened() as store:
            deadline = wall_of(store) + 1.0
            put(store, deadline=deadline)
            claimed = take_one(store, lease=LONG)
            self.pass_time(1.1)
            assert store.renew([claimed.hold], SHORT) == [(Answer.OK, False)]
            self.until(lambda: not take(store, "other") and see(store).state is JobState.EXPIRED)
            assert (see(store).failures, see(store).attempts[-1].cause) == ({}, "expired")

    # -- endings ----------------------------------------------------------------------------------------------------

    def test_an_ending_told_again_is_ok_again(self) -> None:
        """Also twice in one call; another ending of that attempt is lost, and so is a renewal."""
        with self.opened() as store:
            store.submit([NewJob(job_id) for job_id in "abc"])
            done, dead, back = (job.hold for job in take(store))
            ends = [success(done), failure(dead), handed_back(back)]
            assert store.end_attempts([*ends, *ends]) == [Answer.OK] * 6
            seen = store.get(["a", "b", "c"])
            assert store.end_attempts(ends) == [Answer.OK] * 3
            assert store.end_attempts([failure(done), success(dead), success(back)]) == [Answer.LOST] * 3
            assert store.renew([done, dead, back], LONG) == [LOST] * 3
            assert store.get(["a", "b", "c"]) == seen
            assert store.end_attempts([success(Hold("x", 1)), success(done)]) == [Answer.LOST, Answer.OK]

    def test_a_released_job_may_be_claimed_at_once_and_nothing_is_counted(self) -> None:
        """Its holder is told LOST once another holds it."""
        with self.opened() as store:
            put(store)
            first = take_one(store).hold
            store.end_attempts([handed_back(first)])
            job = see(store)
            assert (job.state, job.failures, job.attempts[0].cause) == (JobState.QUEUED, {}, "released")
            second = take_one(store)
            assert (second.fence, second.alone, second.attempts) == (first.fence + 1, False, {})
            assert store.end_attempts([handed_back(first)]) == [Answer.LOST]

    def test_tries_to_store_an_output_are_counted_however_the_attempt_ends(self) -> None:
        """Also where a later one succeeded, and where the job goes back."""
        with self.opened() as store:
            put(store, "a", output="file:///out/a")
            first = AttemptEnd(take_one(store).hold, JobState.QUEUED, FailureCause.RELEASED, transfers=2)
            assert store.end_attempts([first]) == store.end_attempts([first]) == [Answer.OK]
            claimed = take_one(store)
            assert claimed.attempts == {FailureCause.TRANSFER: 2}
            store.end_attempts([AttemptEnd(claimed.hold, JobState.SUCCEEDED, transfers=3)])
            assert see(store, "a").failures == {FailureCause.TRANSFER: 5}
            put(store, "b")
            last = AttemptEnd(take_one(store).hold, JobState.DEAD, FailureCause.TRANSFER, counts=True, transfers=9)
            store.end_attempts([last])
            assert see(store, "b").failures == {FailureCause.TRANSFER: 10}

    def test_a_failed_attempt_is_counted_and_rests(self) -> None:
        """The job is scheduled with its error until then, and runs alone where the holder says so."""
        with self.opened() as store:
            store.submit([NewJob("a"), NewJob("b")])
            first, second = (job.hold for job in take(store))
            ends = [
                failure(first, JobState.SCHEDULED, rest=SHORT, alone=True),
                failure(second, JobState.SCHEDULED, rest=LONG),
            ]
            assert store.end_attempts(ends) == [Answer.OK] * 2
            resting = see(store, "b")
            assert (resting.state, resting.failures) == (JobState.SCHEDULED, {"application": 1})
            assert resting.error == failure(second).problem
            assert resting.scheduled_at is not None
            (again,) = self.until(lambda: take(store))
            assert (again.id, again.alone, again.attempts) == ("a", True, {"application": 1})

    def test_an_attempt_that_does_not_count_is_only_told_in_the_history(self) -> None:
        """As when a worker died under several jobs."""
        with self.opened() as store:
            put(store)
            crash = AttemptEnd(take_one(store).hold, JobState.QUEUED, FailureCause.WORKER_LOST, alone=True)
            assert store.end_attempts([crash]) == [Answer.OK]
            job = see(store)
            assert (job.failures, [attempt.cause for attempt in job.attempts]) == ({}, ["worker_lost"])
            assert take_one(store).alone

    def test_a_dead_job_keeps_its_error_and_one_that_succeeds_has_none(self) -> None:
        """The error is that of the last attempt that failed."""
        with self.opened() as store:
            store.submit([NewJob("a"), NewJob("b")])
            first, second = (job.hold for job in take(store))
            store.end_attempts([failure(first), failure(second, JobState.QUEUED)])
            dead = see(store, "a")
            assert (dead.state, dead.error, dead.failures) == (
                JobState.DEAD,
                failure(first).problem,
                {"application": 1},
            )
            store.end_attempts([success(take_one(store).hold)])
            done = see(store, "b")
            assert (done.state, done.error, done.failures) == (JobState.SUCCEEDED, None, {"application": 1})

    def test_a_job_to_be_cancelled_does_not_go_back(self) -> None:
        """It ends as cancelled instead, and the holder is told OK as often as it asks."""
        with self.opened() as store:
            store.submit([NewJob("a"), NewJob("b")])
            first, second = (job.hold for job in take(store))
            store.cancel("a")
            store.cancel("b")
            ends = [handed_back(first), failure(second, JobState.SCHEDULED, rest=LONG)]
            assert store.end_attempts(ends) == [Answer.OK] * 2
            assert store.end_attempts(ends) == [Answer.OK] * 2
            jobs = [see(store, job_id) for job_id in "ab"]
            assert [job.state for job in jobs] == [JobState.CANCELLED] * 2
            assert [job.attempts[-1].cause for job in jobs] == ["cancelled"] * 2

    def test_a_commit_that_comes_before_the_holder_knows_of_a_cancel_wins(self) -> None:
        """The first transition wins."""
        with self.opened() as store:
            put(store)
            hold = take_one(store).hold
            store.cancel("a")
            assert store.end_attempts([success(hold)]) == [Answer.OK]
            assert see(store).state is JobState.SUCCEEDED

    def test_the_history_keeps_the_last_claims(self) -> None:
        """Older ones are dropped."""
        with self.opened() as store:
            put(store)
            for _ in range(MOST_HISTORY + 2):
                store.end_attempts([handed_back(take_one(store).hold)])
            assert [attempt.fencing_token for attempt in see(store).attempts] == list(range(3, MOST_HISTORY + 3))
