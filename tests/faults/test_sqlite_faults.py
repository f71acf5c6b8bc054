"""A queue in a file, with real processes: killed while they write, claiming at once, out of disk, and forked."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from file_programs import LIMIT, FilePrograms, fill, mounting_alone

from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, NewJob, Room
from penstock.jobs.stores.sqlite_store import SqliteStore

PROGRAMS = FilePrograms("""
    import os, signal
    from penstock.errors import ConfigError, StoreUnavailable
    from penstock.jobs.rules.job_states import JobState
    from penstock.jobs.store import AttemptEnd, NewJob, Room
    from penstock.jobs.stores.sqlite_store import SqliteStore

    def claim(store, limit=100, lease=3600.0):
        return store.claim(str(os.getpid()), lease=lease, rooms=[Room(("",), limit, 1 << 20)])

    def succeed(store, jobs):
        return store.end_attempts([AttemptEnd(job.hold, JobState.SUCCEEDED, result=job.id.encode()) for job in jobs])
""")
program, run = PROGRAMS.program, PROGRAMS.run


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "q.db")


def claim_all(store):
    return store.claim("test", lease=3600.0, rooms=[Room(("",), 10_000, 1 << 30)])


@pytest.mark.parametrize("lines", [1, 7, 40])
def test_what_a_killed_process_was_told_is_there(path, lines):
    """It is killed in the middle of a write, and leaves its log behind."""
    body = """
        store = SqliteStore(path)
        for n in range(1_000_000):
            store.submit([NewJob(f"{n}-{m}", b"x" * 200) for m in range(10)])
            say("submitted", n)
            jobs = claim(store, 4)
            succeed(store, jobs[:2])
            say("ended", *(job.id for job in jobs[:2]), "held", *(job.id for job in jobs[2:]))
    """
    with program(path, body) as process:
        said = [process.stdout.readline().split() for _ in range(2 * lines)]
        process.send_signal(signal.SIGKILL)
        said += [line.split() for line in process.stdout if line.endswith("\n")]
        process.wait(LIMIT)
    assert Path(f"{path}-wal").stat().st_size
    store = SqliteStore(path)
    try:
        rounds = [int(words[1]) for words in said if words[0] == "submitted"]
        jobs = store.get([f"{n}-{m}" for n in rounds for m in range(10)])
        assert None not in jobs
        for words in said:
            if words[0] == "ended":
                held = words.index("held")
                assert {job.state for job in store.get(words[1:held])} == {JobState.SUCCEEDED}
                assert [store.result(id_).body for id_ in words[1:held]] == [id_.encode() for id_ in words[1:held]]
                assert {job.state for job in store.get(words[held + 1 :])} == {JobState.RUNNING}
        for job in store.list_jobs(JobState.RUNNING, 10_000, None):  # another claim is lost to nobody while it is held
            assert job.attempts[-1].consumer_id == str(process.pid)
        whole = store.list_jobs(None, 1_000_000, None)
        assert len(whole) % 10 == 0  # each submission is there whole, or not at all
        assert store._read(lambda connection, _: connection.execute("PRAGMA integrity_check").fetchone()) == ("ok",)
    finally:
        store.close()


def test_two_processes_that_claim_at_once_get_each_job_once(path):
    store = SqliteStore(path)
    try:
        store.submit([NewJob(f"{n}") for n in range(1000)])
        body = """
            store = SqliteStore(path)
            say("open")
            sys.stdin.readline()
            while jobs := claim(store, 7):
                assert set(succeed(store, jobs)) == {"ok"}
                say(*(job.id for job in jobs))
            store.close()
        """
        with program(path, body) as one, program(path, body) as two:
            for process in (one, two):
                assert process.stdout.readline() == "open\n"
            for process in (one, two):
                process.stdin.write("go\n")
                process.stdin.flush()
            claimed = [process.communicate(timeout=LIMIT)[0].split() for process in (one, two)]
            assert (one.returncode, two.returncode) == (0, 0)
        assert Counter(claimed[0] + claimed[1]) == Counter({f"{n}": 1 for n in range(1000)})
        assert store.stats().succeeded == 1000
    finally:
        store.close()


def test_processes_that_make_the_file_at_once_make_one(path):
    body = """
        sys.stdin.readline()
        store = SqliteStore(path, sys.argv[2])
        store.submit([NewJob("a")])
        store.close()
    """
    with program(path, body, "one") as one, program(path, body, "two") as two, program(path, body, "two") as three:
        everybody = (one, two, three)
        for process in everybody:
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=LIMIT) for process in everybody]
        assert [process.returncode for process in everybody] == [0, 0, 0], said
    for queue in ("one", "two"):
        store = SqliteStore(path, queue)
        assert store.stats().queued == 1
        store.close()


def test_a_disk_that_takes_no_more_loses_nothing(path):
    """The limit of a file's size stands for the disk; beyond it the system refuses to write."""
    body = """
        import resource
        store = SqliteStore(path)
        kept = 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
        try:
            while True:
                store.submit([NewJob(f"{kept}", b"x" * 5000)])
                kept += 1
        except StoreUnavailable as error:
            assert path in str(error) and "disk" in str(error), error
        assert [job.id for job in store.list_jobs(None, 1000, None)] == [f"{n}" for n in range(kept)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.submit([NewJob(f"{kept}", b"x" * 5000)])
        assert len(succeed(store, claim(store, 1000))) == kept + 1
        store.close()
        say(kept + 1)
    """
    (kept,) = run(path, body)
    store = SqliteStore(path)
    assert store.stats().succeeded == int(kept) > 10
    store.close()


@pytest.mark.parametrize("end", ["return", "sys.exit(0)", "os._exit(0)", "store.close()", "del store; gc.collect()"])
def test_a_fork_is_refused_and_its_end_harms_nobody(path, end):
    """What is left of the parent's connections in the fork never reaches the file."""
    body = f"""
        import gc
        store = SqliteStore(path)
        store.submit([NewJob("a"), NewJob("b")])
        held = claim(store, 1)
        store._reader.execute("PRAGMA query_only = OFF").execute("PRAGMA wal_checkpoint")  # a close has nothing to do

        def child(store):
            for call in (lambda: store.get(["a"]), lambda: store.submit([NewJob("c")]), lambda: claim(store)):
                try:
                    call()
                except ConfigError as error:
                    assert f"was opened in process {{os.getppid()}}; open it after the fork" in str(error), error
                else:
                    raise AssertionError("not refused")
            {end}

        pid = os.fork()
        if pid == 0:
            child(store)
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert succeed(store, held) == ["ok"]
        store.submit([NewJob("d")])
        other = SqliteStore(path)
        assert other.stats().succeeded == 1 and other.stats().queued == 2
        assert os.path.getsize(path + "-wal")
        other.close()
        store.close()
    """
    assert run(path, body) == []


def test_a_fork_whose_parent_has_the_queue_open_cannot_open_it(path):
    """SQLite knows the locks of a process by itself, and would take the parent's for its own."""
    body = """
        store = SqliteStore(path)
        pid = os.fork()
        if pid == 0:
            try:
                SqliteStore(path, "another")
            except ConfigError as error:
                assert "open the queue only after the fork" in str(error), error
                sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        store.submit([NewJob("a")])
        store.close()
        pid = os.fork()
        if pid == 0:
            store = SqliteStore(path)
            assert len(claim(store)) == 1
            store.close()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    """
    assert run(path, body) == []


SMALL_DISK = """
    import resource
    from penstock.jobs.store import Renewed, StoreFull
    from penstock.jobs.stores.sqlite_store import SqliteStore

    def submit_until_full(store, nbytes):
        for n in range(100_000):
            try:
                store.submit([NewJob(f"{nbytes}-{n}-{m}", bytes(nbytes)) for m in range(10)])
            except StoreFull as error:
                return 10 * n

    def release(store, jobs):
        return store.end_attempts([AttemptEnd(job.hold, JobState.QUEUED) for job in jobs])

    os.mkdir(path)
    assert os.system(f"mount -t tmpfs -o size=24m none {path}") == 0
    file = f"{path}/q.db"
"""


@pytest.fixture
def on_small_disk(tmp_path):
    """Runs a program that has a disk of 24 MiB to itself, where this user may mount one in a name space of his own."""
    alone = mounting_alone()

    def run_there(body):
        program = PROGRAMS.preamble + inspect.getsource(fill) + textwrap.dedent(SMALL_DISK) + textwrap.dedent(body)
        done = subprocess.run(
            [*alone, sys.executable, "-c", program, str(tmp_path / "disk")], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.split()

    return run_there


@pytest.mark.parametrize("nbytes", [100, 40_000])
def test_a_queue_on_a_disk_without_a_free_byte_can_be_worked_and_emptied(on_small_disk, nbytes):
    body = f"""
        store = SqliteStore(file, reserve=6 << 20)
        store.submit([NewJob(f"first-{{n}}", b"1") for n in range(20)])
        held = claim(store, 20, lease=3600.0)
        assert submit_until_full(store, {nbytes}) > 100
        found = os.statvfs(path)
        assert found.f_bavail * found.f_frsize >= 5 << 20
        assert store.submit([NewJob("first-0", b"1")])[0].id == "first-0"  # it is there, and takes nothing
        assert fill(path) < 4096
        assert os.path.exists(file + "-spare")
        for n in range(30):  # renewals for an hour
            assert set(store.renew([job.hold for job in held], 3600.0)) == {{Renewed("ok")}}
        assert set(succeed(store, held[:8])) == {{"ok"}}
        assert set(release(store, held[8:16])) == {{"ok"}}
        for n in range(10):
            jobs = claim(store, 8)
            assert len(jobs) == 8
            assert set(succeed(store, jobs)) == {{"ok"}}
            assert fill(path) < 4096
        try:
            store.submit([NewJob("late")])
        except StoreFull:
            say("refused")
        say(store.purge(JobState.SUCCEEDED, 0.0))
        waiting = store.stats().queued
        assert store.purge(JobState.QUEUED, 0.0) == waiting
        assert set(succeed(store, held[16:])) == {{"ok"}}
        os.unlink(f"{{path}}/hog")
        store.tend(keep=1e9, keep_dead=1e9, seconds_per_job=None)
        assert os.path.getsize(file + "-spare") == 2 << 20
        assert store.submit([NewJob("late")])
        assert store._read(lambda connection, _: connection.execute("PRAGMA integrity_check").fetchone()) == ("ok",)
        store.close()
    """
    assert on_small_disk(body) == ["refused", "88"]


def test_a_program_that_is_started_on_a_full_disk_can_empty_the_queue(on_small_disk):
    body = """
        store = SqliteStore(file)
        submitted = submit_until_full(store, 100)
        store.close()
        assert fill(path) < 4096
        store = SqliteStore(file)
        assert store.purge(JobState.QUEUED, 0.0) == submitted
        store.close()
    """
    assert on_small_disk(body) == []


def test_results_that_find_no_room_wait_and_what_is_small_goes_on(on_small_disk):
    body = """
        store = SqliteStore(file)
        store.submit([NewJob(f"{n}") for n in range(20)])
        held = claim(store)
        assert fill(path) < 4096
        results = [bytes(200_000 if n % 2 else 10) for n in range(20)]
        ends = [
            AttemptEnd(job.hold, JobState.SUCCEEDED, result=result) for job, result in zip(held, results, strict=True)
        ]
        answers = store.end_attempts(ends)
        assert answers[::2] == ["ok"] * 10
        assert answers.count("unknown") >= 7
        left = [end for end, answer in zip(ends, answers) if answer == "unknown"]
        assert store.end_attempts(left)[-1] == "unknown"
        assert set(store.renew([end.hold for end in left], 3600.0)) == {Renewed("ok")}
        assert store.purge(JobState.SUCCEEDED, 0.0) == 20 - len(left)
        os.unlink(f"{path}/hog")
        assert set(store.end_attempts(left)) == {"ok"}
        store.close()
    """
    assert on_small_disk(body) == []


def test_a_run_on_a_full_disk_says_so_and_has_all_its_tasks_when_there_is_room(on_small_disk):
    body = """
        import penstock as ps
        import penstock.training
        run = ps.training.Run(f"{path}/run")
        run.plan(train=[1, 2, 3])
        fill(path)
        try:
            ps.training.Run(f"{path}/run").results("train")
        except ps.RunUnavailable as error:
            assert "run.db: the disk is full" in str(error), error
            say("full")
        os.unlink(f"{path}/hog")
        run.work(train=lambda n: 2 * n)
        assert run.results("train") == [2, 4, 6]
    """
    assert on_small_disk(body) == ["full"]


def test_a_fork_that_outlives_its_parents_connection_removes_no_log(path):
    """Others have written to a log of the same name since."""
    body = """
        store = SqliteStore(path)
        store.submit([NewJob("a")])
        assert store.get(["a"])
        gate, opener = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(opener)
            os.read(gate, 1)
            store._writer._connection = None  # the thread that is not here any more would keep it
            del store
            sys.exit(0)
        store.close()
        other = os.fork()
        if other == 0:
            import subprocess
            os._exit(subprocess.run([sys.executable, "-c", sys.argv[2], path]).returncode)
        os.waitpid(other, 0)
        os.close(opener)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert os.path.getsize(path + "-wal")
    """
    writer = PROGRAMS.preamble + textwrap.dedent(
        """
        SqliteStore(path).submit([NewJob("b")])
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    run(path, body, writer)
    store = SqliteStore(path)
    assert None not in store.get(["a", "b"])
    store.close()


def test_a_program_that_never_closes_its_store_ends(path):
    assert run(path, "store = SqliteStore(path); store.submit([NewJob('a')]); say('done')") == ["done"]


def test_after_a_kill_the_lease_runs_out_and_the_job_is_claimed_again(path):
    body = """
        store = SqliteStore(path)
        store.submit([NewJob("a")])
        say(claim(store, lease=0.2))
        sys.stdin.read()
    """
    with program(path, body) as process:
        assert "ClaimedJob" in process.stdout.readline()
        process.kill()
    store = SqliteStore(path)
    try:
        jobs = []
        while not jobs:
            jobs = claim_all(store)
        assert (jobs[0].fence, jobs[0].attempts) == (2, {"lease_expired": 1})
        assert store.end_attempts([AttemptEnd(jobs[0].hold, JobState.SUCCEEDED)]) == ["ok"]
    finally:
        store.close()
