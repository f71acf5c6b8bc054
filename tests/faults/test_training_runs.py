"""Training runs whose processes are killed, stopped, interrupted, forked, or out of disk; models are tiny artifacts."""

from __future__ import annotations

import os
import resource
import signal
import sys
import textwrap
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from served import Program
from served import run as run_penstock

import penstock as ps
from penstock.artifact.publishing import list_versions, publish_artifact
from penstock.training.rules.task_states import TaskState
from penstock.training.run_status import RunState, read_status
from penstock.training.sqlite_tasks import SqliteTasks
from tiny_artifacts import write_artifact

PREAMBLE = """
    import os, signal, sys, time
    from pathlib import Path
    import penstock as ps
    from penstock.training import save_task
    from tiny_artifacts import write_artifact

    save_task.save_for_run = lambda path, run, arguments: write_artifact(path, name=f"model-{run}")
    folder = Path.cwd()

    def make(**options):
        return ps.training.Run("run", publish_to="models", **{"lease": 0.5, **options})

    def gate(name):
        say("at", name)
        while not (folder / name).exists():
            time.sleep(0.01)

    def say(*words):
        print(*words, flush=True)

    def save():
        return {"model": 1}
"""


@contextmanager
def worker(folder, body):
    """A process that runs `body`; it is killed in the end, if it still runs."""
    text = textwrap.dedent(PREAMBLE) + textwrap.dedent(body)
    places = [Path(ps.__file__).parents[1], Path(__file__).parents[1]]
    program = Program(folder, sys.executable, "-c", text, env={"PYTHONPATH": os.pathsep.join(map(str, places))})
    try:
        yield program
    finally:
        program.destroy()


def ended(program, status=0):
    assert program.process.wait(40) == status, program.output
    program.read_to_end()
    return program.output


def entries(folder):
    with closing(SqliteTasks.existing(folder / "run" / "run.db")) as store:
        return store.tasks()


def stages(folder):
    return [path.name for path in (folder / "models" / "versions").iterdir() if not path.name.isdigit()]


def test_the_task_of_a_killed_worker_is_done_by_another(tmp_path):
    body = """
        run = make()
        run.plan(train=["a", "b"])
        def train(payload):
            gate("open")
            return [payload, os.getpid()]
        say("version", run.work(train=train, save=save))
    """
    with worker(tmp_path, body) as first:
        first.wait_for("at open")
        with worker(tmp_path, body) as second:
            second.wait_for("at open")
            os.kill(first.pid, signal.SIGKILL)
            (tmp_path / "open").touch()
            assert "version 1\n" in ended(second)
            assert [result[0] for result in ps.training.Run(tmp_path / "run").results("train")] == ["a", "b"]
            assert {result[1] for result in ps.training.Run(tmp_path / "run").results("train")} == {second.pid}
    troubles = [entry.trouble for entry in entries(tmp_path) if entry.trouble]
    assert len(troubles) == 1
    assert troubles[0].startswith(f"lease expired: process {first.pid} on ")


def test_a_task_whose_worker_died_behind_its_step_applies_its_gradient_again(tmp_path):
    body = """
        import numpy as np
        from penstock import embeddings as emb

        run = make()
        run.plan(train=[0, 1, 2])
        rows = emb.open_training_store("shared:run/rows")
        rows.create(emb.TableSpec("clicks", 1, size=3, missing=emb.zeros(), optimizer=emb.SGD(lr=1.0)))
        def train(task):
            rows.apply("clicks", np.array([task]), np.array([[-1.0]], np.float32))
            if task == 1 and "DIES" in os.environ:
                os.kill(os.getpid(), signal.SIGKILL)
        say("version", run.work(train=train, save=save), rows.fetch("clicks", np.arange(3)).rows[:, 0].tolist())
    """
    with worker(tmp_path, "os.environ['DIES'] = 'behind a step'\n" + textwrap.dedent(body)) as first:
        ended(first, -signal.SIGKILL)
    with worker(tmp_path, body) as second:
        assert "version 1 [1.0, 2.0, 1.0]\n" in ended(second)


def test_a_worker_that_stood_still_past_its_lease_changes_nothing(tmp_path):
    body = """
        run = make()
        run.plan(train=["a"])
        def train(payload):
            gate(f"open-{os.environ['NAME']}")
            return os.environ["NAME"]
        try:
            say("version", run.work(train=train, save=save))
        except ps.LeaseLost as lost:
            say("lost", lost)
    """
    with worker(tmp_path, "os.environ['NAME'] = 'first'\n" + textwrap.dedent(body)) as first:
        first.wait_for("at open-first")
        os.kill(first.pid, signal.SIGSTOP)
        with worker(tmp_path, "os.environ['NAME'] = 'second'\n" + textwrap.dedent(body)) as second:
            second.wait_for("at open-second")
            (tmp_path / "open-second").touch()
            assert "version 1\n" in ended(second)
        (tmp_path / "open-first").touch()
        os.kill(first.pid, signal.SIGCONT)
        assert "lost lease of task train 0 expired: another worker has the task" in ended(first)
    assert ps.training.Run(tmp_path / "run").results("train") == ["second"]


def test_a_worker_that_is_interrupted_gives_its_task_back_at_once(tmp_path):
    body = """
        run = make(lease=3600.0, max_attempts=1)
        run.plan(train=["a"])
        run.work(train=lambda payload: gate("open"))
    """
    with worker(tmp_path, body) as first:
        first.wait_for("at open")
        os.kill(first.pid, signal.SIGINT)
        assert "KeyboardInterrupt" in ended(first, -signal.SIGINT)
    assert [(entry.state, entry.attempts) for entry in entries(tmp_path)] == [
        (TaskState.QUEUED, 0),
        (TaskState.QUEUED, 0),
    ]


@pytest.mark.night
def test_a_worker_that_is_interrupted_between_its_tasks_leaves_none_leased(tmp_path):
    """The signal comes while it claims, starts to renew, or tells of what is done: its functions take no time."""
    body = """
        import random
        from contextlib import closing
        from penstock.training.run_status import read_status

        signal.signal(signal.SIGALRM, signal.default_int_handler)
        run = make(lease=3600.0, max_attempts=1)
        run.plan(train=list(range(5000)))
        def train(number):
            if not armed:
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.05))
        for _ in range(20):
            armed = []
            try:
                run.work(train=train)
            except KeyboardInterrupt:
                say("held", read_status(run.folder).workers)
    """
    with worker(tmp_path, body) as one:
        assert ended(one).count("held ()\n") == 20
    assert {entry.attempts for entry in entries(tmp_path)} == {0}


def test_a_plan_whose_process_was_killed_is_no_plan_and_can_be_made_again(tmp_path):
    body = "make().plan(train=list(range(1000)))"
    run = ps.training.Run(tmp_path / "run")
    for statement in ("PRAGMA journal_mode", "BEGIN IMMEDIATE", "CREATE TABLE tasks", "INSERT INTO payloads", "COMMIT"):
        killed = f"""
            import sqlite3
            from penstock.hosting import sqlite_file

            def look(text):
                if text.startswith({statement!r}):
                    os.kill(os.getpid(), signal.SIGKILL)

            class Traced(sqlite_file._Connection):
                def __init__(self, *args, **more):
                    super().__init__(*args, **more)
                    self.set_trace_callback(look)
            sqlite_file._Connection = Traced
        """
        with worker(tmp_path, textwrap.dedent(killed) + body) as one:
            ended(one, -signal.SIGKILL)
        assert run.id is None
        assert read_status(run.folder).state is RunState.UNPLANNED
        for path in run.folder.iterdir():
            path.unlink()
    with worker(tmp_path, body) as one:
        ended(one)
    assert run.results("train") == [None] * 1000


@pytest.mark.night
def test_a_worker_that_stood_still_in_the_last_attempt_hears_that_the_run_has_failed(tmp_path):
    body = """
        run = make(max_attempts=1)
        run.plan(train=["a"])
        def train(payload):
            gate("open")
        try:
            run.work(train=train)
        except ps.RunFailed as failed:
            say("failed by", failed.task)
    """
    with worker(tmp_path, body) as first:
        first.wait_for("at open")
        os.kill(first.pid, signal.SIGSTOP)
        with worker(tmp_path, body) as second:
            assert "failed by train 0\n" in ended(second)
        (tmp_path / "open").touch()
        os.kill(first.pid, signal.SIGCONT)
        assert "failed by train 0\n" in ended(first)


def test_a_save_that_hangs_is_replaced_and_publishes_nothing(tmp_path):
    body = """
        run = make(save_timeout=0.5)
        run.plan()
        def saving():
            gate("open")
            return save()
        try:
            say("version", run.work(save=FUNCTION))
        except ps.LeaseLost as lost:
            say("lost", lost)
    """
    write_artifact(tmp_path / "before")
    publish_artifact(tmp_path / "before", tmp_path / "models")
    with worker(tmp_path, textwrap.dedent(body).replace("FUNCTION", "saving")) as hung:
        hung.wait_for("at open")
        with worker(tmp_path, textwrap.dedent(body).replace("FUNCTION", "save")) as other:
            assert "version 2\n" in ended(other)
        hung.wait_for("save has run for 0.5 s, and its lease is no longer renewed")
        (tmp_path / "open").touch()
        assert "lost lease of task save expired: another worker has the task" in ended(hung)
    versions = list_versions(tmp_path / "models")
    assert (versions.current, [entry.version for entry in versions.history]) == (2, [1, 2])
    assert versions.versions[1].run == ps.training.Run(tmp_path / "run").id
    assert stages(tmp_path) == []


@pytest.mark.night
def test_a_save_that_raises_after_it_was_replaced_is_a_lost_lease(tmp_path):
    body = """
        run = make(save_timeout=0.5, max_attempts=2)
        run.plan()
        def saving():
            gate("open")
            raise ValueError("late")
        try:
            say("version", run.work(save=FUNCTION))
        except ps.LeaseLost as lost:
            say("lost", repr(lost.__cause__ or lost.__context__))
    """
    with worker(tmp_path, textwrap.dedent(body).replace("FUNCTION", "saving")) as hung:
        hung.wait_for("at open")
        with worker(tmp_path, textwrap.dedent(body).replace("FUNCTION", "save")) as other:
            assert "version 1\n" in ended(other)
        (tmp_path / "open").touch()
        assert "lost ValueError('late')" in ended(hung)


def test_a_save_that_raises_fails_the_run_in_every_process_and_leaves_the_old_version(tmp_path):
    body = """
        run = make(max_attempts=2)
        run.plan()
        def saving():
            raise ValueError("no model")
        try:
            run.work(FUNCTION)
        except ps.RunFailed as failed:
            say("failed", failed.task, "Traceback" in failed.traceback, failed.traceback.splitlines()[-1])
    """
    write_artifact(tmp_path / "before")
    publish_artifact(tmp_path / "before", tmp_path / "models")
    before = (tmp_path / "models" / "CURRENT").read_bytes()
    waiting, saving = (textwrap.dedent(body).replace("FUNCTION", words) for words in ("", "save=saving"))
    with worker(tmp_path, waiting) as first:
        first.wait_for("no function for save")
        with worker(tmp_path, saving) as second:
            assert "failed save True ValueError: no model\n" in ended(second)
        assert "failed save True ValueError: no model\n" in ended(first)
    with worker(tmp_path, saving) as later:
        assert "failed save True ValueError: no model\n" in ended(later)
    assert (tmp_path / "models" / "CURRENT").read_bytes() == before
    assert stages(tmp_path) == []


@pytest.mark.night
def test_processes_that_are_forked_after_the_plan_share_the_run(tmp_path):
    body = """
        run = make()
        run.plan(train=list(range(20)))
        run.results("train")
        children = []
        for number in range(3):
            child = os.fork()
            if not child:
                version = run.work(train=lambda payload: payload, save=save)
                os._exit(10 + version)
            children.append(child)
        version = run.work(save=save)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        say("versions", version, statuses, run.results("train") == list(range(20)))
    """
    with worker(tmp_path, body) as program:
        assert "versions 1 [11, 11, 11] True\n" in ended(program)
    assert len(list_versions(tmp_path / "models").history) == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.night
def test_a_function_may_start_processes_of_its_own(tmp_path, method):
    body = f"""
        import multiprocessing
        run = make()
        run.plan(train=[3])
        def train(payload):
            context = multiprocessing.get_context({method!r})
            child = context.Process(target=os.getpid)
            child.start()
            child.join()
            return child.exitcode
        say("version", run.work(train=train, save=save), run.results("train"))
    """
    with worker(tmp_path, body) as program:
        assert "version 1 [0]\n" in ended(program)


@pytest.mark.night
def test_a_process_that_was_forked_by_a_function_keeps_a_checkpoint(tmp_path):
    body = """
        import multiprocessing
        run = make()
        run.plan(train=[3])
        def write(folder):
            (folder / "step").write_text("1")
        def train(payload):
            child = multiprocessing.get_context("fork").Process(target=run.checkpoint, args=(write,))
            child.start()
            child.join()
            return child.exitcode
        version = run.work(train=train, save=save)
        say("version", version, run.results("train"), (run.latest_checkpoint() / "step").read_text())
    """
    with worker(tmp_path, body) as program:
        assert "version 1 [0] 1\n" in ended(program)


def test_a_full_disk_costs_no_task_that_is_done(tmp_path):
    """The limit of a file's size stands for the disk; beyond it the system refuses to write."""
    body = """
        run = make(lease=30.0)
        run.plan(train=["a"])
        def train(payload):
            gate("open")
            return "x" * 300_000
        say("version", run.work(train=train, save=save))
    """
    with worker(tmp_path, body) as program:
        program.wait_for("at open")
        resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        (tmp_path / "open").touch()
        program.wait_for("cannot use the file of the run, trying again for 60 s")
        resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert "version 1\n" in ended(program)
    assert [len(result) for result in ps.training.Run(tmp_path / "run").results("train")] == [300_000]


@pytest.mark.night
def test_a_disk_that_fills_up_while_a_model_is_saved_fails_the_run_and_leaves_the_old_version(tmp_path):
    body = """
        import resource
        run = make(max_attempts=2)
        run.plan()
        def full():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
            return save()
        def write(path, run, arguments):
            try:
                write_artifact(path)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        save_task.save_for_run = write
        try:
            run.work(save=full)
        except ps.RunFailed as failed:
            say("failed", failed.traceback.splitlines()[-1])
        say("version", ps.training.Run("run").id and True)
    """
    write_artifact(tmp_path / "before")
    publish_artifact(tmp_path / "before", tmp_path / "models")
    before = (tmp_path / "models" / "CURRENT").read_bytes()
    with worker(tmp_path, body) as program:
        assert "failed OSError: [Errno 27] File too large" in ended(program)
    assert (tmp_path / "models" / "CURRENT").read_bytes() == before
    assert stages(tmp_path) == []


@pytest.mark.night
def test_a_terminal_that_is_closed_ends_no_work(tmp_path):
    """As that of a program which ignores SIGHUP: every write to it fails from then on."""
    body = """
        import pty
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        window, terminal = pty.openpty()
        os.dup2(terminal, 2)
        os.environ["TERM"] = "xterm"
        run = make(max_attempts=2)
        run.plan(train=[0, 1, 2])
        tried = []
        def train(payload):
            tried.append(payload)
            if tried == [0]:
                seen = b""
                while b"train" not in seen:  # a terminal hands on what was written piece by piece
                    seen += os.read(window, 10_000)
                os.close(window)
                say("bar seen")
            if tried.count(payload) == 1:
                raise ValueError("another attempt")
            print("trained", payload, flush=True)
            return payload
        say("version", run.work(train=train, save=save), sorted(tried))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    """
    with worker(tmp_path, body) as program:
        output = ended(program)
    assert "bar seen\n" in output
    assert "trained 2\n" in output
    assert "version 1 [0, 0, 1, 1, 2, 2]\n" in output


def test_a_run_that_failed_goes_on_after_a_retry_and_keeps_what_was_done(tmp_path):
    body = """
        run = make(max_attempts=1)
        run.plan(train=["a", "b"])
        def train(payload):
            if payload == "b" and not Path("fixed").exists():
                raise ValueError("broken")
            return payload
        try:
            say("version", run.work(train=train, save=save))
        except ps.RunFailed as failed:
            say("failed", failed.task)
    """
    with worker(tmp_path, body) as program:
        assert "failed train 1\n" in ended(program)
    (tmp_path / "fixed").touch()
    status, output = run_penstock(tmp_path, "training", "retry", "run")
    assert status == 0, output
    with worker(tmp_path, body) as program:
        assert "version 1\n" in ended(program)
    assert ps.training.Run(tmp_path / "run").results("train") == ["a", "b"]


@pytest.mark.night
def test_a_checkpoint_of_a_killed_process_is_absent_and_its_stage_goes(tmp_path):
    body = """
        run = make()
        def write(path):
            (path / "weights").write_text("half")
            gate("open")
        run.checkpoint(lambda path: (path / "weights").write_text("whole"))
        run.checkpoint(write)
    """
    run = ps.training.Run(tmp_path / "run")
    with worker(tmp_path, body) as program:
        program.wait_for("at open")
        os.kill(program.pid, signal.SIGKILL)
        program.process.wait(20)
    assert run.latest_checkpoint().name == "1"
    assert len(list((tmp_path / "run" / "checkpoints").glob(".stage-*"))) == 1
    run.checkpoint(lambda path: (path / "weights").write_text("next"))
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == [".lock", "1", "2"]
