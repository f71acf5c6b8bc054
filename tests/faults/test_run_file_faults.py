"""The file of a training run, with real processes: killed, claiming at once, out of disk, locked, gone and forked."""

from __future__ import annotations

import signal
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from file_programs import LIMIT, FilePrograms

from penstock.errors import ConfigError, RunUnavailable
from penstock.hosting import sqlite_file
from penstock.jobs.stores.sqlite_store import SqliteStore
from penstock.training.rules.task_states import Phase, TaskState
from penstock.training.sqlite_tasks import SqliteTasks
from penstock.training.task_store import Blocked, ClaimedTask, RunPlan

ALL = tuple(Phase)
PROGRAMS = FilePrograms("""
    import os, signal
    from penstock.errors import ConfigError, RunUnavailable
    from penstock.training.rules.task_states import Phase
    from penstock.training.sqlite_tasks import SqliteTasks
    from penstock.training.task_store import Blocked, ClaimedTask, Ready, RunPlan

    def claim(store, lease=3600.0, attempts=3):
        return store.claim(tuple(Phase), lease=lease, attempts=attempts)
""")
program, run = PROGRAMS.program, PROGRAMS.run


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "run.db")


@pytest.fixture
def opened():
    """Opens stores, and closes them in the end."""
    stores = []

    def open_(path, open_store=SqliteTasks):
        stores.append(open_store(path))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def plan(*train, publish_to=None):
    return RunPlan({Phase.TRAIN: train}, publish_to)


def claim(store, lease=3600.0):
    return store.claim(ALL, lease=lease, attempts=3)


# -- processes --------------------------------------------------------------------------------------------------------


def test_of_processes_that_work_at_once_each_task_is_done_by_one(path, opened):
    body = """
        store = SqliteTasks(path)
        store.plan(RunPlan({Phase.TRAIN: list(range(100))}, "/m"))
        say("open")
        sys.stdin.readline()
        while not isinstance(found := claim(store), Ready):
            if isinstance(found, ClaimedTask):
                assert store.finish(found.hold, os.getpid())
                say(found.hold.kind, found.hold.place)
        say("version", found.version)
        store.close()
    """
    with program(path, body) as one, program(path, body) as two, program(path, body) as three:
        everybody = (one, two, three)
        for process in everybody:
            assert process.stdout.readline() == "open\n"
        for process in everybody:
            process.stdin.write("go\n")
            process.stdin.flush()
        said = [process.communicate(timeout=LIMIT) for process in everybody]
        assert [process.returncode for process in everybody] == [0, 0, 0], said
    lines = [line for out, _ in said for line in out.splitlines()]
    store = opened(path)
    (saver,) = store.results(Phase.SAVE)
    done = Counter(line for line in lines if not line.startswith("version"))
    assert done == Counter([f"train {n}" for n in range(100)] + ["save 0"])
    assert [line for line in lines if line.startswith("version")] == [f"version {saver}"] * 3
    assert {saver, *store.results(Phase.TRAIN)} <= {process.pid for process in everybody}


def test_what_a_killed_process_was_told_is_there_and_its_lease_runs_out(path, opened):
    body = """
        store = SqliteTasks(path)
        store.plan(RunPlan({Phase.TRAIN: list(range(10_000))}, None))
        while True:
            found = claim(store, lease=1.5)
            say("claimed", found.hold.place)
            store.finish(found.hold, {"n": found.payload})
            say("finished", found.hold.place)
    """
    with program(path, body) as process:
        said = [process.stdout.readline().split() for _ in range(41)]
        process.send_signal(signal.SIGKILL)
        said += [line.split() for line in process.stdout if line.endswith("\n")]
        process.wait(LIMIT)
    store = opened(path)
    results = store.results(Phase.TRAIN)
    finished = [int(place) for word, place in said if word == "finished"]
    assert len(finished) >= 20
    assert all(results[place] == {"n": place} for place in finished)
    leased = [task for task in store.tasks() if task.state is TaskState.RUNNING]
    assert [task.pid for task in leased] in ([process.pid], [])
    done = sum(task.state is TaskState.DONE for task in store.tasks())
    assert done - len(finished) in (0, 1)  # it may have been killed before it said so
    (last,) = [task.place for task in leased] or [done]
    while (found := claim(store)).hold.place != last:  # until its lease has run out, the next ones are claimed
        assert found.hold.place > last
    assert found.attempt == (2 if leased else 1)


def test_a_fork_is_refused_and_its_end_harms_nobody(path, opened):
    body = """
        store = SqliteTasks(path)
        store.plan(RunPlan({Phase.TRAIN: ["a"]}, None))
        hold = claim(store).hold
        store._turn.acquire()  # as if another thread was in a call
        pid = os.fork()
        if pid == 0:
            for call in (store.tasks, lambda: claim(store), lambda: SqliteTasks(path)):
                try:
                    call()
                except ConfigError as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(5)
            store.close()
            sys.exit(0)
        store._turn.release()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert store.finish(hold, 1)
        store.close()
        pid = os.fork()
        if pid == 0:
            store = SqliteTasks(path)
            assert store.results(Phase.TRAIN) == [1]
            store.close()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    """
    assert run(path, body) == []


# -- a disk, a lock, a file that is not there -------------------------------------------------------------------------


def test_a_disk_that_takes_no_more_is_told_and_loses_nothing(path, opened):
    """The limit of a file's size stands for the disk; beyond it the system refuses to write."""
    body = """
        import resource
        store = SqliteTasks(path)
        store.plan(RunPlan({Phase.TRAIN: list(range(1000))}, None))
        done = 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
        try:
            while True:
                hold = claim(store).hold
                assert store.finish(hold, "x" * 5000)
                done += 1
        except RunUnavailable as error:
            assert error.retryable and path in str(error) and "disk" in str(error), error
        assert len([each for each in store.results(Phase.TRAIN) if each]) == done
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert store.holds(hold) or store.results(Phase.TRAIN)[hold.place]
        assert store.finish(claim(store).hold, "y")
        say(done)
        store.close()
    """
    (done,) = run(path, body)
    results = opened(path).results(Phase.TRAIN)
    assert len([each for each in results if each]) == int(done) + 1 > 5


def test_a_disk_that_takes_no_plan_keeps_none(path, opened):
    body = """
        import resource
        store = SqliteTasks(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            store.plan(RunPlan({Phase.TRAIN: ["x" * 100] * 5000}, None))
        except RunUnavailable as error:
            assert "disk" in str(error), error
        else:
            raise AssertionError("it was kept")
        assert store.run_id() is None
        store.close()
    """
    assert run(path, body) == []
    store = opened(path)
    assert store.run_id() is None
    store.plan(plan("a"))


def test_a_lock_of_another_is_waited_for_and_then_told(path, opened, monkeypatch):
    store = opened(path)
    store.plan(plan("a"))
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.0)
    plain = sqlite3.connect(path, isolation_level=None)
    plain.execute("BEGIN IMMEDIATE")
    with pytest.raises(RunUnavailable, match=f"{path}: other processes held its lock"):
        claim(store)
    assert store.progress()[0].left == 1  # to read waits for no writer
    assert isinstance(store.claim([], lease=9.0, attempts=3), Blocked)
    plain.execute("COMMIT")
    plain.close()
    assert isinstance(claim(store), ClaimedTask)


def test_a_process_that_may_open_no_more_files_is_told_that(path):
    body = """
        import resource
        from penstock.hosting.host_clock import HostClock

        SqliteTasks(path).close()
        clock = HostClock.of_this_host()
        most = len(os.listdir("/proc/self/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            SqliteTasks(path, clock=clock)
        except RunUnavailable as error:
            say(str(error).removeprefix(path))
    """
    assert " ".join(run(path, body)) == ": this process has reached its limit of open files (ulimit -n)"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_taken_away_is_told_at_once(path, opened, replaced):
    store = opened(path)
    store.plan(plan("a"))
    hold = claim(store).hold
    file = Path(path)
    file.rename(file.with_suffix(".away"))
    if replaced:
        file.touch()
    reason = "was replaced by another file .* open the training run again" if replaced else "does not exist any more"
    for call in (lambda: claim(store), lambda: store.holds(hold), lambda: store.finish(hold, 1), store.tasks):
        with pytest.raises(RunUnavailable, match=reason):
            call()
    file.with_suffix(".away").rename(file)
    assert store.finish(hold, 1)


def test_a_store_that_was_closed_says_so(path, opened):
    store = opened(path)
    store.close()
    with pytest.raises(RunUnavailable, match="the training run is closed"):
        store.tasks()


def test_a_file_of_another_kind_is_refused_and_left_alone(path):
    SqliteStore(path).close()
    before = Path(path).read_bytes()
    with pytest.raises(ConfigError, match="of another program or purpose; use another file for the training run"):
        SqliteTasks(path)
    assert Path(path).read_bytes() == before


def test_a_run_is_no_queue(path):
    SqliteTasks(path).close()
    with pytest.raises(ConfigError, match="of another program or purpose; use another file for the queue"):
        SqliteStore(path)


@pytest.mark.parametrize("content", [b"{}", b"no database at all" * 500])
def test_what_is_no_database_is_refused_and_left_alone(path, content):
    Path(path).write_bytes(content)
    with pytest.raises(ConfigError, match="is damaged or not an SQLite file"):
        SqliteTasks(path)
    assert Path(path).read_bytes() == content


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="does not exist; make it, or use another file for the training"):
        SqliteTasks(tmp_path / "none" / "run.db")


# -- forks and signals beside another thread, or while a file is opened -----------------------------------------------


def test_a_fork_waits_until_a_thread_of_its_parent_has_left_sqlite(path):
    """SQLite's own locks in memory would never be let go in the child: it could open no file."""
    body = """
        import threading

        store = SqliteTasks(path)
        store.plan(RunPlan({Phase.TRAIN: ["a"]}, None))
        hold = claim(store).hold
        inside, forking, never = threading.Event(), threading.Event(), threading.Event()
        os.register_at_fork(before=forking.set)  # called before the hook that waits

        def stay(*_):
            if store._writer.in_transaction and not inside.is_set():
                inside.set()
                forking.wait()
                never.wait(0.2)  # a fork that does not wait is over by then

        store._writer.set_progress_handler(stay, 1)
        renewing = threading.Thread(target=store.renew, args=(hold, 9.0))
        renewing.start()
        inside.wait()
        child = os.fork()
        if not child:
            os._exit(store._writer.in_transaction)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        renewing.join()
        store.close()
    """
    assert run(path, body) == ["0"]


def test_a_fork_opens_another_run_while_a_thread_of_its_parent_opens_one(path):
    body = """
        import threading
        from penstock.hosting import sqlite_file

        SqliteTasks(path).close()
        opening = threading.Event()
        sqlite_file.FORK_SECONDS = 0.5  # the disk hangs
        sqlite_file._examine = lambda *_: opening.set() or threading.Event().wait()
        threading.Thread(target=SqliteTasks, args=(path,), daemon=True).start()
        opening.wait()
        child = os.fork()
        if not child:
            signal.alarm(10)  # where it waits for the thread, which it does not have
            SqliteTasks(path + "-other").close()
            os._exit(0)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    """
    assert run(path, body) == ["0"]


def test_a_signal_that_comes_while_a_large_file_is_examined_is_raised(path):
    body = """
        import threading

        signal.signal(signal.SIGALRM, signal.default_int_handler)
        store = SqliteTasks(path)
        store.plan(RunPlan({Phase.TRAIN: list(range(50_000))}, None))
        store.close()
        for _ in range(3):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            try:
                SqliteTasks(path).close()
                threading.Event().wait(3)
                say("lost")
            except KeyboardInterrupt:
                say("raised")
    """
    assert run(path, body) == ["raised"] * 3


class Interrupted:
    """A connection, and somebody who presses Ctrl-C when the statement `at` begins or has ended."""

    def __init__(self, connection, at, *, before):
        self._connection = connection
        self._at = at
        self._before = before
        self.count = 0

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, *args):
        self.count += 1
        if self.count == self._at and self._before:
            raise KeyboardInterrupt
        found = self._connection.execute(*args)
        if self.count == self._at:
            raise KeyboardInterrupt
        return found


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("name", ["_writer", "_reader"])
def test_a_claim_may_be_interrupted_at_each_statement_and_is_given_back(path, opened, name, before):
    store, other = opened(path), opened(path)
    store.plan(plan("a", "b"))
    connection = getattr(store, name)
    for at in range(1, 100):
        interrupted = Interrupted(connection, at, before=before)
        setattr(store, name, interrupted)
        try:
            claim(store)
        except KeyboardInterrupt:
            setattr(store, name, connection)
            assert {entry.attempts for entry in store.tasks()} == {0}
            theirs = claim(other).hold  # which has the fence of a claim that was rolled back
            store.release_all()
            assert other.holds(theirs)
            assert other.release(theirs)
            assert {entry.state for entry in other.tasks()} == {TaskState.QUEUED}
        else:
            break
    assert at > 3
    assert interrupted.count < at


# -- looking at a run -------------------------------------------------------------------------------------------------


def test_an_existing_run_can_be_looked_at(path, opened):
    opened(path).plan(plan("a", "b"))
    store = opened(path, SqliteTasks.existing)
    assert [task.state for task in store.tasks()] == [TaskState.QUEUED] * 2
    assert not store.retry()


@pytest.mark.parametrize("there", ["nothing", "not a directory"])
def test_to_look_where_there_is_no_run_makes_nothing(tmp_path, there):
    folder = tmp_path / "none" if there == "not a directory" else tmp_path
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=f"{folder} is not a training run: run.db is missing in it; give"):
        SqliteTasks.existing(folder / "run.db")
    assert sorted(tmp_path.iterdir()) == before


def test_an_empty_file_is_a_run_without_a_plan(path, opened):
    """Whoever made it was killed before there was anything in it."""
    Path(path).touch()
    store = opened(path, SqliteTasks.existing)
    assert (store.run_id(), store.publishes_to(), store.tasks()) == (None, None, [])
    store.plan(plan("a"))
    assert claim(opened(path, SqliteTasks.existing)).payload == "a"


def test_what_has_nothing_to_change_writes_nothing(path, opened):
    """Waiting workers ask often: another's lock does not stop them, and the file's log does not grow."""
    store, other = opened(path), opened(path)
    run_id = store.plan(plan("a"))
    hold = claim(store).hold
    log = Path(f"{path}-wal")
    before = log.read_bytes()
    plain = sqlite3.connect(path, isolation_level=None)
    plain.execute("BEGIN IMMEDIATE")
    assert other.plan(plan("a")) == other.run_id() == run_id
    assert isinstance(claim(other), Blocked)
    assert other.holds(hold)
    assert other.results(Phase.TRAIN) == [None]
    assert len(other.tasks()) == 1
    plain.execute("ROLLBACK")
    plain.close()
    assert log.read_bytes() == before
