"""Embedding rows in files: processes that are killed in an update, stopped, forked, and a disk that is full."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import file_programs
import numpy as np
import pytest
from file_programs import LIMIT, FilePrograms, mounting_alone

from night import examples
from penstock.embeddings import held_file
from penstock.embeddings.row_optimizers import SGD, Adagrad
from penstock.embeddings.rules import init, zeros
from penstock.embeddings.shared_store import SharedTrainingStore
from penstock.embeddings.training_store import TableSpec
from penstock.errors import RowsUnavailable

PROGRAMS = FilePrograms("""
    import os, signal, threading
    from pathlib import Path
    import numpy as np
    from penstock.embeddings.shared_store import SharedTrainingStore
    from penstock.errors import RowsUnavailable

    def grads(ids, width):
        return -((ids % 89)[:, None] + 1 + np.arange(width)).astype(np.float32)

    store = SharedTrainingStore(Path(path))
""")
program, run = PROGRAMS.program, PROGRAMS.run
SPEC = TableSpec("t", 8, ids="any", missing=init(3), optimizer=Adagrad(lr=0.5))
ADDED = TableSpec("sum", 8, ids="any", missing=zeros(), optimizer=SGD(lr=1.0))
IDS = np.arange(2000) * 7919 - 10**6


def grads(ids, width):
    return -((ids % 89)[:, None] + 1 + np.arange(width)).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "rows")


@pytest.fixture
def store(path):
    store = SharedTrainingStore(Path(path))
    yield store
    store.close()


def after(updates):
    """The rows of all ids after so many updates of each, one array for each number."""
    rows = SPEC.missing.rows(IDS, SPEC.width, SPEC.name)
    state = SPEC.optimizer.first_state(len(IDS), SPEC.width)
    found = [rows.copy()]
    for step in range(1, updates + 1):
        SPEC.optimizer.update(rows, state, grads(IDS, SPEC.width), 0.5, step)
        found.append(rows.copy())
    return np.array(found)


def numbers_of_updates(rows, found):
    """How many updates each row has had; a row that is no whole number of them fails the test."""
    expected = after(4)
    matches = (expected == rows).all(axis=2)
    assert matches.any(axis=0).all(), "a row is the result of half an update"
    numbers = matches.argmax(axis=0)
    assert ((numbers > 0) == found).all()
    return numbers


UPDATE = """
    ids = np.arange(2000) * 7919 - 10**6
    store.apply("t", ids, grads(ids, 8))
    say("done")
"""
POINTS = [
    f"{name}=kill:{visit}"
    for name in ("rows_noted", "rows_marked", "rows_half_written", "rows_written", "rows_unmarked")
    for visit in (1, 3)
]
GROWTH = [*(f"rows_growing=kill:{visit}" for visit in (1, 2, 5)), *(f"rows_grown=kill:{visit}" for visit in (1, 4))]


def killed(path, fault, monkeypatch, body=UPDATE):
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", fault)
    with program(path, body) as process:
        said, complaints = process.communicate(timeout=LIMIT)
    monkeypatch.delenv("PENSTOCK_FAILPOINTS")
    assert (process.returncode, said) == (-signal.SIGKILL, ""), complaints


@pytest.mark.parametrize("repairer", [False, True], ids=["", "repairer killed too"])
@pytest.mark.parametrize("fault", POINTS)
def test_a_kill_in_an_update_leaves_each_row_with_its_state_before_or_after(store, path, fault, repairer, monkeypatch):
    """Half of the rows are new.  Further updates tell that the state is that of its row."""
    store.create(SPEC)
    old = IDS[::2]
    store.apply("t", old, grads(old, 8))
    killed(path, fault, monkeypatch)
    marked = not fault.startswith(("rows_noted", "rows_unmarked"))
    if repairer and marked:
        killed(path, "rows_put_back=kill", monkeypatch)
    numbers = numbers_of_updates(*store.fetch("t", IDS))
    assert set(numbers[::2]) <= {1, 2}
    assert set(numbers[1::2]) <= {0, 1}
    first_partition_done = fault.endswith(":3") or fault == "rows_unmarked=kill:1"
    assert (2 in numbers) is first_partition_done
    assert store.count("t") == np.count_nonzero(numbers)
    for more in (1, 2):
        store.apply("t", IDS, grads(IDS, 8))
        assert (numbers_of_updates(*store.fetch("t", IDS)) == numbers + more).all()


@pytest.mark.parametrize("fault", GROWTH)
def test_a_kill_in_a_growth_loses_nothing(store, path, fault, monkeypatch):
    store.create(SPEC)
    old = IDS[:40]
    store.apply("t", old, grads(old, 8))
    killed(path, fault, monkeypatch)
    numbers = numbers_of_updates(*store.fetch("t", IDS))
    assert (numbers[:40] == 1).all()
    assert not numbers[40:].any()
    store.apply("t", IDS, grads(IDS, 8))
    assert (numbers_of_updates(*store.fetch("t", IDS)) == numbers + 1).all()


WIDE = TableSpec("wide", 192, size=8192, missing=zeros(), optimizer=SGD(lr=1.0))
"""6.3 MB; smaller updates are hardly ever met half done."""
UPDATES = 8


def test_kills_at_random_moments_leave_whole_updates_and_all_that_were_told(store, path):
    """Three processes add 1, 64 and 4096 to every number; two of them are killed."""
    store.create(WIDE)
    ids = np.arange(WIDE.size)
    chance = random.Random(5)
    body = f"""
        ids = np.arange({WIDE.size})
        gradient = np.full((len(ids), 192), -(64 ** int(sys.argv[2])), np.float32)
        for _ in range({UPDATES}):
            say("begun")
            store.apply("wide", ids, gradient)
            say("done")
    """
    for _ in range(examples(4)):
        store.load("wide", ids, np.zeros((WIDE.size, WIDE.width), np.float32))
        with ExitStack() as stack:
            three = [stack.enter_context(program(path, body, str(which))) for which in range(3)]
            said = [process.stdout.readline() for process in three]
            for which in (0, 1):
                for _ in range(chance.randrange(UPDATES)):
                    said[which] += three[which].stdout.readline()
                time.sleep(chance.uniform(0, 0.03))  # whenever it is, the outcome is the same
                three[which].kill()
            said = [told + process.stdout.read() for told, process in zip(said, three, strict=True)]
        assert said[2].count("done") == UPDATES
        rows = store.fetch("wide", ids).rows
        assert (rows == rows[:, :1]).all(), "half a row was written"
        for which, told in enumerate(said):
            times = rows[:, 0] // 64**which % 64
            assert (times >= told.count("done")).all()
            assert (times <= told.count("begun")).all()


def test_three_processes_lose_no_update(store, path):
    """They meet the same ids for the first time, while the table grows."""
    store.create(ADDED)
    body = """
        order = np.random.default_rng(int(sys.argv[2]))
        say("ready")
        sys.stdin.readline()
        for n in range(1, 41):
            ids = order.permutation(np.arange(50 * n) * 7919)
            store.apply("sum", ids, grads(ids, 8))
            rows, found = store.fetch("sum", ids)
            assert found.all()
            times = rows / -grads(ids, 8)
            assert (times == times[:, :1].round()).all(), "half a row was read"
    """
    with ExitStack() as stack:
        three = [stack.enter_context(program(path, body, str(which))) for which in range(3)]
        for process in three:
            assert process.stdout.readline() == "ready\n"
        for process in three:
            process.stdin.write("go\n")
            process.stdin.flush()
        ends = [process.communicate(timeout=2 * LIMIT)[1] for process in three]
    assert ends == [""] * 3
    ids = np.arange(2000) * 7919
    times = 3 * (40 - np.arange(2000) // 50)
    assert (store.fetch("sum", ids).rows == -grads(ids, 8) * times[:, None]).all()
    assert store.count("sum") == 2000


def test_who_waits_for_a_stopped_process_is_told_its_id_and_nothing_is_lost(store, path, monkeypatch):
    store.create(SPEC)
    store.apply("t", IDS, grads(IDS, 8))
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", "rows_half_written=stop")
    monkeypatch.setattr(held_file, "LONGEST_WAIT", 0.2)
    with program(path, UPDATE) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        with pytest.raises(RowsUnavailable, match=f"locked for 0.2 s by process {process.pid}; "):
            store.fetch("t", IDS)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=LIMIT)[0] == "done\n"
    monkeypatch.undo()
    assert (numbers_of_updates(*store.fetch("t", IDS)) == 2).all()


def test_a_fork_opens_its_own_and_keeps_nothing_of_what_its_parent_held(store, path):
    """The parent is killed while a thread of it holds a partition, and its fork lives on."""
    store.create(ADDED)
    body = """
        partition = store._table("sum").partitions[0]
        held, ever = threading.Event(), threading.Event()

        def hold():
            with partition._held():
                held.set()
                ever.wait()

        ids = np.arange(500)
        store.apply("sum", ids, grads(ids, 8))
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        if os.fork() == 0:
            say("forked")
            sys.stdin.readline()
            store.apply("sum", ids, grads(ids, 8))
            say("done")
            os._exit(0)
        ever.wait()
    """
    ids = np.arange(500)
    with program(path, body) as process:
        assert process.stdout.readline() == "forked\n"
        process.kill()
        process.wait(LIMIT)
        store.apply("sum", ids, grads(ids, 8))
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
    assert (store.fetch("sum", ids).rows == -3 * grads(ids, 8)).all()


def test_a_fork_made_while_its_parent_waits_keeps_nothing_either(store, path):
    """The parent gets the partition after the fork, is killed, and its fork lives on."""
    store.create(ADDED)
    body = """
        from types import SimpleNamespace
        from penstock.embeddings import held_file

        time = held_file.time

        def fork(_):
            held_file.time = time
            if os.fork() == 0:
                say("forked")
                sys.stdin.readline()
                os._exit(0)

        say("open")
        sys.stdin.readline()
        held_file.time = SimpleNamespace(monotonic=time.monotonic, sleep=fork)
        with store._table("sum").partitions[0]._held():
            say("held")
            threading.Event().wait()
    """
    with program(path, body) as process:
        assert process.stdout.readline() == "open\n"
        with store._table("sum").partitions[0]._held():
            process.stdin.write("begin\n")
            process.stdin.flush()
            assert process.stdout.readline() == "forked\n"
        assert process.stdout.readline() == "held\n"
        process.kill()
        process.wait(LIMIT)
        assert store.count("sum") == 0


def test_a_filling_that_died_is_done_by_who_waits(store, path):
    store.create(ADDED)
    body = """
        with store.filling("sum") as fill:
            say(fill)
            sys.stdin.readline()
    """
    filled = []

    def wait():
        with store.filling("sum") as fill:
            filled.append(fill)

    with program(path, body) as process:
        assert process.stdout.readline() == "True\n"
        waiting = threading.Thread(target=wait)
        waiting.start()
        process.kill()
        waiting.join(LIMIT)
    assert filled == [True]
    assert run(path, body.replace("sys.stdin.readline()", "pass")) == ["False"]


FULL = """
    def check(fail, mend):
        '''An update that finds no room changes nothing; one that needs none is done meanwhile.'''
        ids, many = np.arange(300), np.arange(100_000)
        store.apply("sum", ids, grads(ids, 8))
        fail()
        try:
            store.apply("sum", many, grads(many, 8))
        except RowsUnavailable as error:
            assert "table 'sum'" in str(error) and error.retryable, error
            say("refused")
        store.apply("sum", ids, grads(ids, 8))
        rows, found = store.fetch("sum", many)
        assert (found == (many < 300)).all()
        assert (rows[:300] == -2 * grads(ids, 8)).all()
        mend()
        store.apply("sum", many, grads(many, 8))
        rows = store.fetch("sum", many).rows
        assert (rows == -grads(many, 8) * np.where(many < 300, 3, 1)[:, None]).all()
        say("done")
"""


def test_a_disk_that_takes_no_more_fails_the_update_alone(store, path):
    """The limit of a file's size stands for the disk; beyond it the system refuses to write."""
    store.create(ADDED)
    body = (
        FULL
        + """
    import resource
    limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    check(lambda: limit(100_000), lambda: limit(resource.RLIM_INFINITY))
    """
    )
    assert run(path, body) == ["refused", "done"]


def test_a_full_disk_fails_the_update_alone(tmp_path):
    alone = mounting_alone()
    body = """
        assert os.system(f"mount -t tmpfs -o size=24m none {path}") == 0
        from file_programs import fill
        from penstock.embeddings.row_optimizers import SGD
        from penstock.embeddings.rules import zeros
        from penstock.embeddings.training_store import TableSpec
        store = SharedTrainingStore(Path(path) / "rows")
        store.create(TableSpec("sum", 8, ids="any", missing=zeros(), optimizer=SGD(lr=1.0)))
    """
    lines = PROGRAMS.preamble.replace("store = SharedTrainingStore(Path(path))", "sys.path.append(sys.argv[2])")
    rest = "check(lambda: fill(path), lambda: os.unlink(f'{path}/hog'))"
    folder = str(Path(file_programs.__file__).parent)
    whole = "\n".join([lines, *(textwrap.dedent(part) for part in (body, FULL)), rest])
    command = [*alone, sys.executable, "-c", whole, str(tmp_path), folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout.split()) == (0, ["refused", "done"]), done.stderr
