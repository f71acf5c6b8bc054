"""Which files are opened as a queue, which are refused and why, and what happens where a disk or a lock says no."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sqlite3
import stat

import pytest

from penstock.config import MIB
from penstock.errors import ConfigError, StoreUnavailable
from penstock.hosting import sqlite_file
from penstock.hosting.host_clock import HostClock
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, NewJob, Room, StoreFull
from penstock.jobs.stores import sqlite_submitters, sqlite_writer
from penstock.jobs.stores.opening import open_store as open_by_url
from penstock.jobs.stores.sqlite_schema import FIRST, QUEUE_FILE
from penstock.jobs.stores.sqlite_store import SqliteStore


@pytest.fixture
def plain(file):
    """The file as SQLite sees it, without a store."""
    connection = sqlite3.connect(file.db, isolation_level=None)
    yield connection
    connection.close()


def refused(open_store, reason, **options):
    with pytest.raises(ConfigError, match=reason) as raised:
        open_store(**options)
    return str(raised.value)


# -- what is opened ---------------------------------------------------------------------------------------------------


def test_a_new_file_and_what_lies_beside_it_are_the_owners_alone(open_store, file, umask):
    umask(0)
    open_store().submit([NewJob("a")])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file.db, file.wal, file.shm)] == [0o600] * 3


def test_an_empty_file_becomes_a_queue_of_its_owner_alone(open_store, file):
    file.db.touch(mode=0o644)
    open_store().submit([NewJob("a")])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file.db, file.wal)] == [0o600] * 2


@pytest.mark.parametrize(("synchronous", "number"), [("FULL", 2), ("NORMAL", 1)])
def test_the_file_is_written_as_durably_as_asked(open_store, synchronous, number):
    store = open_store(synchronous=synchronous)
    found = store._writer.run(
        lambda connection: [
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "journal_mode")
        ]
    )
    assert found == [number, "wal"]


def test_another_way_of_writing_is_refused(open_store):
    refused(open_store, "synchronous is FULL or NORMAL, got 'OFF'", synchronous="OFF")


def test_a_path_may_have_any_character(open_store):
    for path in ("a b.db", "q?.db", "q#%41.db", "é'\".db"):
        store = open_store(path=path)
        store.submit([NewJob("a")])
        store.close()
        assert open_store(path=path).get(["a"]) != [None]


def test_a_url_names_the_file_the_queue_and_the_durability(tmp_path):
    store = open_by_url(f"sqlite:///{tmp_path}/q.db?queue=night&synchronous=normal")
    store.submit([NewJob("a")])
    assert store.get(["a"])[0].queue == store.queue == "night"
    store.close()


def test_the_clocks_of_this_host_run(monkeypatch, tmp_path):
    clock = HostClock.of_this_host()
    first, second = clock.read(), clock.read()
    assert second.boottime >= first.boottime > 0
    assert len(clock.boot_id) == 36
    monkeypatch.setattr("penstock.hosting.host_clock.BOOT_ID", tmp_path / "missing")
    with pytest.raises(ConfigError, match="a queue or a training run in a file needs Linux"):
        HostClock.of_this_host()


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_folder_that_is_not_there_is_refused(open_store, tmp_path):
    refused(open_store, f"directory {tmp_path}/none does not exist; make it", path="none/q.db")


def test_a_folder_is_refused(open_store, tmp_path):
    refused(open_store, f"{tmp_path} is a directory; name a file in it", path="")


def test_what_is_no_regular_file_is_refused(open_store, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(open_store, "is not a regular file", path="pipe")


def test_a_network_file_system_is_refused(open_store, tmp_path, file):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 254:0 / / rw - ext4 /dev/vda rw\n2 1 0:40 / {tmp_path} rw - nfs4 server:/export rw\n")
    message = refused(open_store, r"is on a network file system \(nfs4\)", mountinfo=mounts)
    assert "put the queue on a disk of this host, or use redis://" in message
    assert not file.db.exists()
    mounts.write_text("1 0 254:0 / / rw - ext4 /dev/vda rw\n")
    assert open_store(mountinfo=mounts).submit([NewJob("a")])


def test_a_link_to_a_network_file_system_is_refused(open_store, tmp_path):
    mounts = tmp_path / "mountinfo"
    (tmp_path / "far").mkdir()
    mounts.write_text(f"2 1 0:40 / {tmp_path}/far rw - cifs //server/share rw\n")
    (tmp_path / "near.db").symlink_to(tmp_path / "far" / "q.db")
    refused(open_store, r"network file system \(cifs\)", path="near.db", mountinfo=mounts)


@pytest.mark.parametrize("content", [b"{}", b"no database at all" * 500])
def test_what_is_no_database_is_refused_and_left_alone(open_store, file, content):
    file.db.write_bytes(content)
    refused(open_store, "is damaged or not an SQLite file")
    assert file.db.read_bytes() == content


def test_a_database_of_another_program_is_refused_and_left_alone(open_store, file, plain):
    plain.execute("CREATE TABLE theirs (x)")
    plain.close()
    before = file.db.read_bytes()
    refused(open_store, "is an SQLite file of another program")
    assert file.db.read_bytes() == before


def test_a_database_with_the_mark_of_another_program_is_refused(open_store, plain):
    plain.execute("PRAGMA application_id = 7")
    refused(open_store, "is an SQLite file of another program")


@pytest.fixture
def filled(open_store, file):
    """The bytes of a good file of many pages."""
    store = open_store()
    store.submit([NewJob(f"{n}", b"x" * 500) for n in range(500)])
    store.close()
    return bytearray(file.db.read_bytes())


def test_a_damaged_page_is_refused(open_store, file, filled):
    for page in range(2, 12):
        filled[page * 4096 : page * 4096 + 200] = os.urandom(200)
    file.db.write_bytes(filled)
    refused(open_store, "damaged")


@pytest.mark.parametrize("kept", [100, 4096, 10 * 4096, 0.9])
def test_a_file_that_was_cut_off_is_refused(open_store, file, filled, kept):
    file.db.write_bytes(filled[: int(len(filled) * kept) if isinstance(kept, float) else kept])
    refused(open_store, "damaged")


def test_a_log_without_its_file_is_refused(open_store, file):
    file.wal.write_bytes(b"jobs that nobody has anywhere else")
    refused(open_store, "is missing or empty, but its log .* exists")
    assert file.wal.exists()
    file.db.touch()
    refused(open_store, "is missing or empty, but its log .* exists")


def test_a_large_file_is_examined_for_a_bounded_time(open_store, filled, monkeypatch):
    monkeypatch.setattr(sqlite_file, "CHECK_SECONDS", -1.0)
    assert open_store().stats().queued == 500


def test_a_file_without_the_right_to_it_is_refused(open_store, monkeypatch):
    def deny(*_):
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorname = "SQLITE_CANTOPEN"
        raise error

    monkeypatch.setattr(sqlite_file.SqliteFile, "_connect", deny)
    refused(open_store, "cannot read and write .*; this user needs both permissions for it and its directory")


def test_a_folder_that_takes_no_file_is_refused(open_store, monkeypatch):
    def deny(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", deny)
    refused(open_store, "cannot create .*: Permission denied")


# -- versions ---------------------------------------------------------------------------------------------------------

STEPS = (
    ("CREATE TABLE things (name TEXT)", "INSERT INTO things VALUES ('kept')"),
    ("ALTER TABLE things ADD COLUMN size INTEGER NOT NULL DEFAULT 7",),
    ("CREATE TABLE more (x)",),
)


def kind_of(*steps):
    """A kind of file that is through `steps`."""
    return dataclasses.replace(QUEUE_FILE, steps=steps)


def test_a_file_of_an_older_version_is_brought_forward(plain, file):
    older, newer = kind_of(*STEPS[:1]), kind_of(*STEPS)
    plain.execute("BEGIN")
    older.bring_forward(plain, str(file.db))
    plain.execute("COMMIT")
    assert older.is_newest(plain, str(file.db))
    assert not newer.is_newest(plain, str(file.db))
    plain.execute("BEGIN")
    newer.bring_forward(plain, str(file.db))
    plain.execute("COMMIT")
    assert newer.is_newest(plain, str(file.db))
    assert plain.execute("SELECT name, size FROM things").fetchall() == [("kept", 7)]


def test_a_step_that_fails_leaves_the_older_version(plain, file):
    older = kind_of(*STEPS[:1])
    plain.execute("BEGIN")
    older.bring_forward(plain, str(file.db))
    plain.execute("COMMIT")
    plain.execute("BEGIN")
    with pytest.raises(sqlite3.OperationalError):
        kind_of(*STEPS[:2], ("no SQL",)).bring_forward(plain, str(file.db))
    plain.execute("ROLLBACK")
    assert older.is_newest(plain, str(file.db))
    assert plain.execute("SELECT * FROM things").fetchall() == [("kept",)]


def test_a_file_of_a_newer_version_is_refused(open_store, plain, filled):
    plain.execute(f"PRAGMA user_version = {len(QUEUE_FILE.steps) + 1}")
    message = refused(open_store, "was written by a newer version of Penstock")
    assert (
        f"it has schema {len(QUEUE_FILE.steps) + 1}, and this version supports up to {len(QUEUE_FILE.steps)}"
    ) in message
    assert plain.execute("PRAGMA application_id").fetchone() == (QUEUE_FILE.application_id,)


# -- locks and disks --------------------------------------------------------------------------------------------------


def test_a_lock_of_another_is_waited_for_and_then_told(store, plain, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.0)
    plain.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="other processes held its lock for 5 s"):
        store.submit([NewJob("a")])
    assert store.get(["a"]) == [None]  # to read waits for no writer
    plain.execute("COMMIT")
    assert store.submit([NewJob("a")])


def limit_pages(store, extra):
    def limit(connection):
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + extra}")

    store._writer.run(limit)


def test_a_full_disk_is_told_and_costs_nothing_that_was_kept(store):
    store.submit([NewJob("kept", b"1")])
    (job,) = store.claim("me", lease=30, rooms=[Room(("",), 1, 9)])
    limit_pages(store, 1)
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        store.submit([NewJob("large", b"x" * 100_000)])
    assert store.get(["kept", "large"])[1] is None
    assert store.end_attempts([AttemptEnd(job.hold, JobState.SUCCEEDED, result=b"2")]) == ["ok"]
    limit_pages(store, 1000)
    assert store.submit([NewJob("large", b"x" * 100_000)])
    assert store.result("kept").body == b"2"


def test_new_jobs_leave_the_reserve_of_the_disk_and_what_is_there_goes_on(open_store):
    free = [8 * MIB + 600_000]
    store = open_store(free=lambda folder: free[0])
    (job,) = store.submit([NewJob("a", bytes(100_000), key="k")])
    with pytest.raises(StoreFull, match=r"the disk has 8.6 MiB free and 8 MiB are reserved \(reserve\)"):
        store.submit([NewJob(f"{n}", bytes(100_000)) for n in range(4)])
    free[0] = 0
    with pytest.raises(StoreFull):
        store.submit([NewJob("b")])
    assert store.submit([NewJob("c", key="k")])[0] == job  # it is there already
    (claimed,) = store.claim("me", lease=30, rooms=[Room(("",), 1, 9)])
    large = AttemptEnd(claimed.hold, JobState.SUCCEEDED, result=bytes(700_000))
    assert store.end_attempts([large]) == ["unknown"]
    assert store.end_attempts([AttemptEnd(claimed.hold, JobState.SUCCEEDED, result=b"2")]) == ["ok"]
    assert store.purge(None, 0.0) == 1
    unbounded = open_store(reserve=0, free=lambda folder: 0)
    assert unbounded.submit([NewJob("b")])


def test_what_several_submit_in_one_transaction_leaves_the_reserve_together(open_store):
    store = open_store(free=lambda folder: 8 * MIB + 150_000)
    writer = store._writer

    def submit(job_id):
        new = [NewJob(job_id, bytes(30_000))]
        return sqlite_writer._Unit(lambda connection: store._admit(connection, new), takes=True)

    units = [submit("a"), submit("b"), submit("c")]
    writer._units.put(None)  # ends the thread, so that this one may write
    writer._thread.join(20)
    writer._connection = store._file.open_for_writing()
    writer._write(units)
    assert [type(unit.error) for unit in units] == [type(None), type(None), StoreFull]
    writer._write([units[2]])
    writer._connection.close()
    assert [type(unit.error) for unit in units] == [type(None), type(None), StoreFull]


def test_many_jobs_are_forgotten_in_smaller_parts_where_the_disk_is_full(store, monkeypatch):
    store.submit([NewJob(f"{n}") for n in range(20)])
    asked = []
    forget = sqlite_submitters.forget_jobs

    def forget_few(connection, *, limit, **how):
        asked.append(limit)
        if limit > 20:
            raise StoreFull("the disk is full")
        return forget(connection, limit=limit, **how)

    monkeypatch.setattr(sqlite_submitters, "forget_jobs", forget_few)
    assert store.purge(JobState.QUEUED, 0.0) == 20
    assert asked == [1000, 125, 15, 15]


def test_what_waits_beside_a_unit_too_large_for_the_disk_is_kept(store):
    limit_pages(store, 1)
    writer = store._writer
    small = [sqlite_writer._Unit(lambda connection: connection.execute("UPDATE queues SET paused = 1").rowcount)]
    large = sqlite_writer._Unit(
        lambda connection: connection.execute("INSERT INTO bodies VALUES (1, zeroblob(100000))").rowcount
    )
    writer._units.put(None)  # ends the thread, so that this one may write
    writer._thread.join(20)
    writer._connection = store._file.open_for_writing()
    (pages,) = writer._connection.execute("PRAGMA page_count").fetchone()
    writer._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    writer._write([small[0], large])
    writer._connection.close()
    assert (small[0].result, small[0].error) == (1, None)
    assert isinstance(large.error, StoreUnavailable)
    assert store.stats().paused


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_taken_away_is_told_at_once(store, file, replaced):
    store.submit([NewJob("a")])
    file.db.rename(file.db.with_suffix(".away"))
    if replaced:
        file.db.touch()
    reason = "was replaced by another file" if replaced else "does not exist any more"
    for call in (lambda: store.submit([NewJob("b")]), lambda: store.get(["a"])):
        with pytest.raises(StoreUnavailable, match=reason):
            call()
    file.db.with_suffix(".away").rename(file.db)
    assert store.submit([NewJob("b")])


def test_damage_found_while_open_is_told(store, file):
    store.submit([NewJob(f"{n}", b"x" * 3000) for n in range(200)])
    store._writer.run(lambda connection: None)
    plain = sqlite3.connect(file.db)
    plain.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    plain.close()
    with file.db.open("r+b") as bytes_:  # other descriptors of this process drop SQLite's locks: fine at the end
        for page in range(1, file.db.stat().st_size // 4096):
            bytes_.seek(page * 4096)
            bytes_.write(b"\xff" * 4096)

    def use():
        for n in range(200):
            store.result(f"{n}")
            store.submit([NewJob(f"new-{n}", b"x" * 3000)])

    with pytest.raises(StoreUnavailable, match="the file is damaged"):
        use()


def test_the_jobs_of_a_file_of_the_first_version_are_claimed_as_before(tmp_path):
    path = tmp_path / "q.db"
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        for statement in FIRST:
            file.execute(statement)
        file.execute("INSERT INTO queues (name) VALUES ('default')")
        for seq, url in enumerate((None, "HTTPS://In:8080/a/b?c", "s3://bucket", None), 1):
            file.execute(
                "INSERT INTO jobs (seq, queue, state, service, rank, since, fence, size, created, id, digest, "
                "content_type, accept, input_url) VALUES (?, 1, 1, '', 0, 0, 0, 0, 0, ?, '', '', '', ?)",
                (seq, f"{seq}", url),
            )
        file.execute(f"PRAGMA application_id = {QUEUE_FILE.application_id}")
        file.execute("PRAGMA user_version = 1")
    with contextlib.closing(SqliteStore(str(path))) as store:
        here, there = Room(("",), 9, 9), Room(("",), 9, 9, of_host=9, at_hosts={"https://in:8080": 9})
        claimed = store.claim("me", lease=30.0, rooms=[here, there])
        assert [job.id for job in claimed] == ["1", "4", "3"]
        store.end_attempts([AttemptEnd(claimed[0].hold, JobState.SCHEDULED)])
        store.submit([NewJob("5")])
        assert [job.id for job in store.claim("me", lease=30.0, rooms=[here, there._replace(at_hosts={})])] == [
            "1",
            "5",
            "2",
        ]
