"""What every store must do: subclass `StoreSuite`, override `open` and `open_again`, and let pytest run it.

    class TestMyStore(StoreSuite):
        def open(self):
            return MyStore(new_place())

        def open_again(self, store):
            return MyStore(store.place)

A store whose clocks a test can move overrides `pass_time` too, and the suite takes no time.  The parts of the suite are
in files of their own; each test opens stores of its own, and closes them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

from penstock.errors import JobConflict
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import Answer, ClaimedJob, Hold, NewJob, Store
from penstock.testing.store_case import SHORT, WAIT_SECONDS, StoreCase, ids, put, refused, see, success, take
from penstock.testing.store_holders import HolderTests
from penstock.testing.store_submitters import SubmitterTests
from penstock.testing.store_upkeep import UpkeepTests

THREADS = 8
CROWD = 1000
RACES = 20


def at_once(works: list[Callable[[], None]]) -> None:
    """Do all of `works`, each in a thread of its own; raises what one of them raised."""
    barrier = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            barrier.wait(WAIT_SECONDS)
            work()
        except BaseException as error:  # noqa: BLE001  # whatever it is, the test is told
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_SECONDS)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a call does not return"


class CrowdTests(StoreCase):
    """Many threads, and several connections."""

    def test_of_a_thousand_jobs_each_is_claimed_and_committed_once(self) -> None:
        """By many threads, half of which have a connection of their own."""
        with self.opened() as store, self.opened_again(store) as other:
            store.submit([NewJob(f"{number}") for number in range(CROWD)])
            claims: list[ClaimedJob] = []
            answers: list[Answer] = []

            def work(place: Store, holder: str) -> None:
                while claimed := take(place, holder, limit=17):
                    claims.extend(claimed)
                    answers.extend(place.end_attempts([success(job.hold) for job in claimed]))

            at_once([partial(work, (store, other)[n % 2], f"{n}") for n in range(THREADS)])
            assert Counter(ids(claims)) == Counter({f"{number}": 1 for number in range(CROWD)})
            assert answers == [Answer.OK] * CROWD
            assert store.stats().succeeded == CROWD

    def test_a_lost_job_is_claimed_by_one_of_many(self) -> None:
        """Nor is its loss counted twice."""
        with self.opened() as store, self.opened_again(store) as other:
            put(store)
            self.lose(store)
            claims: list[ClaimedJob] = []

            def look(place: Store) -> None:
                claims.extend(take(place))

            at_once([partial(look, (store, other)[n % 2]) for n in range(THREADS)])
            assert [claimed.attempts for claimed in claims] == [{"lease_expired": 1}]

    def test_a_job_published_by_many_at_once_is_one_job(self) -> None:
        """By its key."""
        with self.opened() as store, self.opened_again(store) as other:
            given: list[str] = []

            def publish(place: Store, number: int) -> None:
                given.append(put(place, f"{number}", key="k").id)

            at_once([partial(publish, (store, other)[n % 2], n) for n in range(THREADS)])
            assert ids(store.list_jobs(None, 100, None)) == [given[0]]
            assert set(given) == {given[0]}

    def test_of_a_commit_and_a_cancel_at_once_one_wins(self) -> None:
        """Both are told which one."""
        with self.opened() as store, self.opened_again(store) as other:
            store.submit([NewJob(f"{number}") for number in range(RACES)])
            holds = [job.hold for job in take(store, lease=SHORT)]
            self.pass_time(2 * SHORT)
            for hold in holds:
                told: list[object] = []

                def commit(hold: Hold = hold, told: list[object] = told) -> None:
                    told.extend(store.end_attempts([success(hold)]))

                def cancel(job_id: str = hold.job_id, told: list[object] = told) -> None:
                    told.append(not refused(JobConflict, partial(other.cancel, job_id)))

                at_once([commit, cancel])
                state = see(store, hold.job_id).state
                assert state in (JobState.SUCCEEDED, JobState.CANCELLED)
                won = state is JobState.SUCCEEDED
                assert set(told) == {Answer.OK if won else Answer.LOST, not won}

    def test_a_store_may_be_closed_twice(self) -> None:
        """The other connections go on."""
        with self.opened() as store:
            put(store)
            other = self.open_again(store)
            other.close()
            other.close()
            assert ids(take(store)) == ["a"]


class StoreSuite(SubmitterTests, HolderTests, UpkeepTests, CrowdTests):
    """All the tests."""
