"""What is particular to jobs in a file: its clocks, its queues, its threads, and what it does not write."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import ConfigError, JobConflict, StoreUnavailable
from penstock.jobs.rules.attempts import Cause
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import LEASE_RAN_OUT, Answer, AttemptEnd, Delivery, NewJob, Renewed
from penstock.jobs.stores import sqlite_writer
from penstock.jobs.stores.sqlite_rows import CHUNK

HOUR = 3600.0


def claim(store, holder="me", *, lease=30.0, limit=100, max_bytes=1 << 20, services=()):
    return store.claim(holder, lease=lease, limit=limit, max_bytes=max_bytes, services=services)


def submit(store, *ids, **fields):
    return store.submit([NewJob(id_, b"1", **fields) for id_ in ids])


def succeed(store, jobs):
    return store.end_attempts(
        [AttemptEnd(job.hold, JobState.SUCCEEDED, result=b"2", content_type="t/t") for job in jobs]
    )


def ids(jobs):
    return [job.id for job in jobs]


def states(store, *job_ids):
    return [job.state.value for job in store.get(job_ids)]


# -- the life of a job ------------------------------------------------------------------------------------------------


def test_a_job_is_submitted_claimed_and_ended(store, clocks):
    (submitted,) = submit(store, "a", service="s", priority=3, content_type="text/plain")
    assert (submitted.state, submitted.created, submitted.priority) == (JobState.WAITING, clocks.wall, 3)
    assert claim(store, services=["other"]) == []
    (job,) = claim(store, services=["s"])
    assert (job.body, job.content_type, job.service, job.run, job.alone) == (b"1", "text/plain", "s", 1, False)
    clocks.pass_(5)
    assert succeed(store, [job]) == [Answer.OK]
    (ended,) = store.get(["a"])
    assert (ended.state, ended.ended, ended.error) == (JobState.SUCCEEDED, clocks.wall, None)
    (attempt,) = ended.history
    assert (attempt.fence, attempt.holder, attempt.ended, attempt.cause) == (job.fence, "me", clocks.wall, "succeeded")
    result = store.result("a")
    assert (result.body, result.content_type, result.output) == (b"2", "t/t", None)


def test_more_jobs_than_one_statement_looks_up_keep_their_order(store):
    names = [f"job-{n}" for n in range(2 * CHUNK + 7)]
    assert ids(submit(store, *names)) == names
    claimed = claim(store, limit=1000)
    assert ids(claimed) == names
    assert store.renew([job.hold for job in claimed], 30) == [Renewed(Answer.OK)] * len(names)
    assert succeed(store, claimed) == [Answer.OK] * len(names)
    assert ids(store.get(names[::-1])) == names[::-1]
    assert store.purge(None, 0) == len(names)


def test_jobs_of_several_services_are_claimed_in_one_order(store):
    for n, service in enumerate(("b", "", "a", "other", "b")):
        submit(store, f"{n}", service=service, priority=1 if n == 4 else 0)
    assert ids(claim(store, services=["a", "b"])) == ["4", "0", "1", "2"]


def test_a_claim_ends_before_the_first_job_that_does_not_fit(store):
    store.submit([NewJob("large", b"x" * 100), NewJob("small", b"x" * 10), NewJob("last", b"x" * 10)])
    assert ids(claim(store, max_bytes=50)) == ["large"]
    assert ids(claim(store, max_bytes=15)) == ["small"]


def test_a_zombie_neither_renews_nor_commits_what_another_has_claimed(store, clocks):
    submit(store, "a")
    (old,) = claim(store, "old")
    clocks.pass_(31)
    (new,) = claim(store, "new")
    assert (new.fence, new.alone, new.attempts) == (old.fence + 1, True, {"lost": 1})
    assert store.get(["a"])[0].error == LEASE_RAN_OUT
    clocks.pass_(20)
    assert store.renew([old.hold], 30) == [Renewed(Answer.LOST)]
    assert succeed(store, [old]) == [Answer.LOST]
    clocks.pass_(10)  # the zombie's renewal has not kept the job for the new holder
    assert ids(claim(store, "third")) == ["a"]


def test_the_fifth_lost_lease_ends_the_run(store, clocks):
    submit(store, "a", output="file:///out")
    for _ in range(5):
        assert ids(claim(store)) == ["a"]
        clocks.pass_(31)
    assert claim(store) == []
    (job,) = store.get(["a"])
    assert (job.state, job.attempts, job.error) == (JobState.DEAD, {"lost": 5}, LEASE_RAN_OUT)
    assert [attempt.cause for attempt in job.history] == ["lost"] * 4 + ["dead"]
    assert store.deliveries(limit=9, lease=9) == [Delivery("a", "file:///out", 0, 1, 5)]


def test_an_ending_may_be_told_once_more(store):
    submit(store, "a", "b", "c")
    first, second, third = claim(store)
    failed = AttemptEnd(second.hold, JobState.SCHEDULED, Cause.APPLICATION, counts=True, rest=5)
    store.cancel("c")
    released = AttemptEnd(third.hold, JobState.WAITING, Cause.RELEASED)
    for _ in range(2):
        assert succeed(store, [first]) == [Answer.OK]
        assert store.end_attempts([failed, failed, released]) == [Answer.OK] * 3
    assert store.get(["b"])[0].attempts == {"application": 1}
    assert states(store, "a", "b", "c") == ["succeeded", "scheduled", "cancelled"]
    assert store.end_attempts([AttemptEnd(first.hold, JobState.DEAD)]) == [Answer.LOST]


def test_fences_of_a_forgotten_job_never_come_again(store):
    submit(store, "a")
    (old,) = claim(store)
    succeed(store, [old])
    store.purge(JobState.SUCCEEDED, 0)
    submit(store, "a")
    assert succeed(store, [old]) == [Answer.LOST]
    (new,) = claim(store)
    assert new.fence > old.fence
    assert store.renew([old.hold], 30) == [Renewed(Answer.LOST)]


def test_each_run_leaves_a_delivery_of_its_own(store):
    submit(store, "a", output="file:///out")
    (first,) = claim(store)
    store.end_attempts([AttemptEnd(first.hold, JobState.DEAD, Cause.APPLICATION)])
    store.retry("a")
    (second,) = claim(store)
    succeed(store, [second])
    dead, done = store.deliveries(limit=9, lease=9)
    assert (dead.fence, dead.first_fence, dead.last_fence) == (0, 1, 1)
    assert (done.fence, done.first_fence, done.last_fence) == (2, 2, 2)
    store.delivered([dead])
    assert store.deliveries(limit=9, lease=9) == []
    assert store.result("a").output == "file:///out"


def test_only_the_last_hundred_claims_stay_in_the_history(store):
    submit(store, "a")
    for _ in range(103):
        (job,) = claim(store)
        store.end_attempts([AttemptEnd(job.hold, JobState.WAITING, Cause.RELEASED)])
    fences = [attempt.fence for attempt in store.get(["a"])[0].history]
    assert fences == list(range(4, 104))


def test_of_a_submission_that_conflicts_nothing_is_kept(store):
    submit(store, "a", key="k", digest="one")
    for wrong in (NewJob("a", digest="two"), NewJob("b", key="k", digest="two"), NewJob("c", key="k", digest="two")):
        with pytest.raises(JobConflict, match="another job"):
            store.submit([NewJob("new"), wrong])
    assert ids(store.submit([NewJob("b", key="k", digest="one")])) == ["a"]
    assert ids(store.list_jobs(None, 10, None)) == ["a"]


def test_a_deadline_ends_what_nobody_holds_and_a_retry_drops_it(store, clocks):
    submit(store, "held", "idle", deadline=clocks.wall + 10)
    (held, _) = claim(store)
    store.end_attempts([AttemptEnd(_.hold, JobState.WAITING, Cause.RELEASED)])
    clocks.pass_(10)
    assert states(store, "held", "idle") == ["leased", "expired"]
    assert succeed(store, [held]) == [Answer.OK]
    assert store.retry("idle").deadline is None


def test_counts_are_those_of_the_states(store, clocks):
    submit(store, "a", "b", "c", "d")
    submit(store, "later", delay=10)
    succeed(store, claim(store, limit=1))
    claim(store, limit=1)
    store.cancel("d")
    store.tend(keep=100, keep_dead=100, seconds_per_job=0.5)
    store.pause()
    clocks.pass_(4)
    stats = store.stats()
    assert (stats.scheduled, stats.waiting, stats.leased, stats.succeeded, stats.cancelled) == (1, 1, 1, 1, 1)
    assert (stats.oldest_waiting, stats.backlog_seconds, stats.paused) == (4.0, 0.5, True)
    assert claim(store) == []
    store.resume()
    assert ids(claim(store)) == ["c"]


def test_what_ended_is_kept_as_long_as_tend_says(store, clocks):
    submit(store, "ok", "dead")
    first, second = claim(store)
    succeed(store, [first])
    store.end_attempts([AttemptEnd(second.hold, JobState.DEAD, Cause.INPUT)])
    clocks.pass_(100)
    store.tend(keep=101, keep_dead=300, seconds_per_job=None)
    assert len(store.list_jobs(None, 10, None)) == 2
    clocks.pass_(100)
    store.tend(keep=101, keep_dead=300, seconds_per_job=None)
    assert ids(store.list_jobs(None, 10, None)) == ["dead"]


# -- clocks -----------------------------------------------------------------------------------------------------------


def test_a_wall_clock_an_hour_back_moves_neither_leases_nor_rests(store, clocks):
    submit(store, "held")
    (held,) = claim(store, lease=30)
    submit(store, "later", delay=20)
    clocks.wall -= HOUR
    clocks.boottime += 19
    assert claim(store) == []
    clocks.boottime += 1
    assert ids(claim(store, "other")) == ["later"]
    clocks.boottime += 10
    assert ids(claim(store, "other")) == ["held"]
    assert store.renew([held.hold], 30) == [Renewed(Answer.LOST)]


def test_a_wall_clock_an_hour_ahead_moves_neither_leases_nor_rests(store, clocks):
    submit(store, "held")
    claim(store, lease=30)
    submit(store, "later", delay=20)
    clocks.wall += HOUR
    assert claim(store, "other") == []
    assert states(store, "held", "later") == ["leased", "scheduled"]


def test_after_a_wall_clock_was_set_back_all_can_be_purged(store, clocks):
    submit(store, "a", "b")
    succeed(store, claim(store, limit=1))
    clocks.wall -= HOUR
    assert store.purge(None, 1) == 0
    assert store.stats().oldest_waiting == 0
    assert store.purge(None, 0) == 2


def test_after_another_boot_no_lease_is_left(open_store, clocks):
    store = open_store(boot="one")
    submit(store, "a", output="file:///out")
    submit(store, "b")
    (a, _) = claim(store, lease=HOUR)
    succeed(store, [a])
    store.deliveries(limit=1, lease=HOUR)
    store.close()
    clocks.boottime = 3.0
    again = open_store(boot="two")
    (b,) = claim(again)
    assert (b.id, b.attempts) == ("b", {"lost": 1})
    assert [each.job_id for each in again.deliveries(limit=9, lease=9)] == ["a"]
    same = open_store(boot="two")
    assert claim(same) == []


def test_after_another_boot_a_rest_goes_on_by_the_wall_clock(open_store, clocks):
    store = open_store(boot="one")
    submit(store, "a", delay=100)
    store.close()
    clocks.boottime = 10_000.0
    clocks.wall += 99
    again = open_store(boot="two")
    assert states(again, "a") == ["scheduled"]
    clocks.wall += 1
    assert ids(claim(again)) == ["a"]


# -- queues, connections, threads -------------------------------------------------------------------------------------


def test_queues_in_one_file_know_nothing_of_each_other(open_store):
    one, two = open_store("one"), open_store("two")
    submit(one, "same", key="k", digest="1")
    submit(two, "same", key="k", digest="2")
    two.pause()
    (job,) = claim(one)
    assert two.renew([job.hold], 30) == [Renewed(Answer.LOST)]
    assert succeed(two, [job]) == [Answer.LOST]
    assert (one.stats().leased, two.stats().waiting, two.stats().leased) == (1, 1, 0)
    assert two.purge(None, 0) == 1
    assert states(one, "same") == ["leased"]


def test_two_connections_hand_out_each_job_once(open_store):
    stores = [open_store() for _ in range(2)]
    submit(stores[0], *[f"{n}" for n in range(300)])
    with ThreadPoolExecutor(8) as pool:
        claimed = [job for jobs in pool.map(lambda n: claim(stores[n % 2], limit=10), range(40)) for job in jobs]
    assert sorted(ids(claimed), key=int) == [f"{n}" for n in range(300)]


def test_what_waits_together_is_committed_together_and_fails_apart(store):
    commits, statements = [], []
    gate, entered = threading.Event(), threading.Event()

    def block(connection):
        connection.set_trace_callback(statements.append)
        entered.set()
        assert gate.wait(20)

    with ThreadPoolExecutor(12) as pool:
        first = pool.submit(store._writer.run, block)
        assert entered.wait(20)
        good = [pool.submit(submit, store, f"{n}", digest="d") for n in range(10)]
        while store._writer._units.qsize() < 10:
            pass
        bad = pool.submit(submit, store, "3", digest="other")
        while store._writer._units.qsize() < 11:
            pass
        gate.set()
        first.result()
        assert [future.result()[0].id for future in good] == [f"{n}" for n in range(10)]
        with pytest.raises(JobConflict):
            bad.result()
    commits = [each for each in statements if each == "COMMIT"]
    assert len(commits) == 2  # that of `block`, and one for the eleven
    assert store.stats().waiting == 10


def test_an_idle_consumer_writes_nothing(store, file):
    submit(store, "later", delay=10)
    claimed_by_another = submit(store, "held") and claim(store, lease=100)
    assert len(claimed_by_another) == 1
    store.tend(keep=10, keep_dead=10, seconds_per_job=1.0)
    changed = store._writer.run(lambda connection: connection.total_changes)
    before = file.wal.stat().st_size, file.wal.read_bytes()[:32]
    statements = []
    store._writer.run(lambda connection: connection.set_trace_callback(statements.append))
    del statements[:]
    for _ in range(5):
        assert claim(store) == []
        assert store.deliveries(limit=1, lease=1) == []
        store.tend(keep=10, keep_dead=10, seconds_per_job=1.01)
        store.get(["held"])
        store.stats()
        store.list_jobs(None, 10, None)
        store.result("held")
    assert statements == []
    assert (file.wal.stat().st_size, file.wal.read_bytes()[:32]) == before
    assert store._writer.run(lambda connection: connection.total_changes) == changed


def test_a_claim_reads_its_jobs_from_an_index(store):
    plan = store._read(
        lambda connection, _: connection.execute(
            "EXPLAIN QUERY PLAN SELECT id FROM jobs WHERE queue = 1 AND state = 1 AND service = '' ORDER BY rank, seq "
            "LIMIT 64"
        ).fetchall()
    )
    assert [row[3] for row in plan] == ["SEARCH jobs USING INDEX waiting (queue=? AND service=?)"]


def test_pages_of_forgotten_jobs_are_used_again(store, file):
    def round_():
        for part in range(4):
            store.submit([NewJob(f"{part}-{n}", b"x" * 2000) for n in range(250)])
        while jobs := claim(store, limit=100):
            succeed(store, jobs)
        assert store.purge(None, 0) == 1000

    round_()
    round_()
    pages, log = (store._read(lambda c, _: c.execute("PRAGMA page_count").fetchone()), file.wal.stat().st_size)
    for _ in range(3):
        round_()
    assert store._read(lambda c, _: c.execute("PRAGMA page_count").fetchone())[0] <= pages[0] * 1.1
    assert file.wal.stat().st_size <= 2 * log


def test_a_unit_whose_caller_gave_up_never_begins(store, monkeypatch):
    gate, entered = threading.Event(), threading.Event()

    def block(_):
        entered.set()
        assert gate.wait(20)

    blocker = threading.Thread(target=store._writer.run, args=(block,))
    blocker.start()
    assert entered.wait(20)
    monkeypatch.setattr(sqlite_writer, "ANSWER_SECONDS", 0.0)
    with pytest.raises(StoreUnavailable, match="nothing was written"):
        submit(store, "a")
    monkeypatch.undo()
    gate.set()
    blocker.join()
    assert store.get(["a"]) == [None]


def test_closing_ends_the_thread_and_may_be_done_again(open_store, file):
    before = threading.active_count()
    store = open_store()
    submit(store, "a")
    assert threading.active_count() == before + 1
    store.close()
    store.close()
    assert threading.active_count() == before
    assert not file.wal.exists()
    for call in (lambda: submit(store, "b"), lambda: store.get(["a"])):
        with pytest.raises(StoreUnavailable, match="the store was closed"):
            call()


def test_in_a_fork_the_store_is_refused(store, monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: store._process + 1)
    for call in (lambda: submit(store, "a"), lambda: store.get(["a"]), lambda: claim(store)):
        with pytest.raises(ConfigError, match=f"was opened in process {store._process}; open it after the fork"):
            call()
    store.close()
    monkeypatch.undo()
    assert submit(store, "a")


def test_what_sqlite_cannot_keep_is_raised_to_its_caller(store):
    with pytest.raises(UnicodeEncodeError):
        submit(store, "\ud800")
    with pytest.raises(OverflowError):
        submit(store, "a", priority=1 << 70)
    assert submit(store, "a")


def test_wrong_statements_are_not_told_as_a_store_that_is_gone(store):
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        store._write(lambda connection, _: connection.execute("SELECT * FROM missing"))
    assert submit(store, "a")
