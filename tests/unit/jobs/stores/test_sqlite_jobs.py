"""What is particular to jobs in a file: its clocks, its queues, its threads, and what it does not write.

That it keeps the contract of every store is in `tests/conformance/test_sqlite_store.py`.
"""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import ConfigError, JobConflict, StoreUnavailable
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import LEASE_RAN_OUT, Answer, AttemptEnd, NewJob, Renewed, Room
from penstock.jobs.stores import sqlite_writer
from penstock.jobs.stores.sqlite_rows import CHUNK

HOUR = 3600.0


def claim(store, holder="me", *, lease=30.0, limit=100, max_bytes=1 << 20, services=()):
    return store.claim(holder, lease=lease, rooms=[Room(("", *services), limit, max_bytes)])


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


# -- many jobs, and several services ----------------------------------------------------------------------------------


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
    assert store.get(["held"])[0].error == LEASE_RAN_OUT
    assert store.renew([held.hold], 30) == [Renewed(Answer.LOST)]


def test_a_wall_clock_an_hour_ahead_moves_neither_leases_nor_rests(store, clocks):
    submit(store, "held")
    claim(store, lease=30)
    submit(store, "later", delay=20)
    clocks.wall += HOUR
    assert claim(store, "other") == []
    assert states(store, "held", "later") == ["running", "scheduled"]


def test_after_a_wall_clock_was_set_back_all_can_be_purged(store, clocks):
    submit(store, "a", "b")
    succeed(store, claim(store, limit=1))
    clocks.wall -= HOUR
    assert store.purge(None, 1) == 0
    assert store.stats().oldest_queued_seconds == 0
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
    (b,) = claim(again, "another")
    assert (b.id, b.attempts) == ("b", {"lease_expired": 1})
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
    assert (one.stats().running, two.stats().queued, two.stats().running) == (1, 1, 0)
    assert two.purge(None, 0) == 1
    assert states(one, "same") == ["running"]


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
    assert store.stats().queued == 10


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
            "EXPLAIN QUERY PLAN SELECT id FROM jobs WHERE queue = 1 AND state = 1 AND service = '' "
            "AND elsewhere = 0 AND (rank, turn) > (-9, 0) ORDER BY rank, turn LIMIT 64"
        ).fetchall()
    )
    assert [row[3] for row in plan] == [
        "SEARCH jobs USING INDEX waiting (queue=? AND service=? AND elsewhere=? AND (rank,turn)>(?,?))"
    ]


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
    with pytest.raises(StoreUnavailable, match="no write finished"):
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
        with pytest.raises(StoreUnavailable, match="the store is closed"):
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
