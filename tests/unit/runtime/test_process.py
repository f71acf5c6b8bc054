"""A worker process, seen from its parent: how it is started, how its end is noticed, what is left of it.

No process is started: the system's calls are replaced by ones that note what was asked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import open_files

import penstock
from penstock.runtime import process
from penstock.runtime.process import THREAD_VARIABLES, WorkerProcess, describe_exit, is_exiting, worker_environment
from penstock.testing.virtual_clock import rest
from penstock.worker import PYTHONPATH_OF_STAGE

PID = 4_000_000_000  # no system has it: a call that was not replaced harms nobody
PACKAGE_ROOT = str(Path(penstock.__file__).resolve().parents[1])


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit status 0"),
        (3, "exit status 3"),
        (-signal.SIGKILL, "signal SIGKILL"),
        (-signal.SIGSEGV, "signal SIGSEGV"),
        (-40, "signal 40"),  # a real-time signal has no name
    ],
)
def test_an_end_is_told_by_its_status_or_by_its_signal(status, words):
    assert describe_exit(status) == words


@pytest.mark.parametrize(("flags", "exits"), [("4194560", False), ("4228108", True), ("4", True), ("0", False)])
@pytest.mark.parametrize("name", ["python", "a) Z 4 4 (b"])
def test_a_process_exits_where_the_kernel_has_marked_it(name, flags, exits):
    assert is_exiting(f"71 ({name}) S 1 71 71 0 -1 {flags} 1000 0 3") is exits


def test_this_process_does_not_exit():
    assert not is_exiting(Path(f"/proc/{os.getpid()}/stat").read_text())


# -- its environment ------------------------------------------------------------------------------------------------


def test_libraries_start_as_many_threads_as_a_worker_has_cores_unless_the_user_chose(monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BLIS_NUM_THREADS", "7")
    env = worker_environment(2, {"MKL_NUM_THREADS": "9"})
    chosen = {"BLIS_NUM_THREADS": "7", "MKL_NUM_THREADS": "9"}
    assert {name: env[name] for name in THREAD_VARIABLES} == dict.fromkeys(THREAD_VARIABLES, "2") | chosen


@pytest.mark.parametrize(("given", "count"), [("1", "1"), ("3,2", "3"), ("", "2")])
@pytest.mark.parametrize("of_stage", [False, True])
def test_a_count_for_openmp_is_the_default_of_every_library(monkeypatch, given, count, of_stage):
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if not of_stage:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    env = worker_environment(2, {"OMP_NUM_THREADS": given} if of_stage else {})
    assert env["OMP_NUM_THREADS"] == given
    assert {env[name] for name in THREAD_VARIABLES[1:]} == {count}


def test_what_a_stage_sets_is_on_top_of_ours(monkeypatch):
    monkeypatch.setenv("OURS", "1")
    monkeypatch.setenv("BOTH", "1")
    env = worker_environment(1, {"BOTH": "2", "THEIRS": "2"})
    assert (env["OURS"], env["BOTH"], env["THEIRS"]) == ("1", "2", "2")


@pytest.mark.parametrize(("ours", "path"), [(None, [PACKAGE_ROOT]), ("/a:/b", [PACKAGE_ROOT, "/a", "/b"])])
@pytest.mark.parametrize("of_stage", [None, "/of/stage"])
def test_a_worker_finds_this_package_first_and_its_stage_the_path_that_was_meant(monkeypatch, ours, path, of_stage):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv(PYTHONPATH_OF_STAGE, "left over from the process above")
    if ours is not None:
        monkeypatch.setenv("PYTHONPATH", ours)
    env = worker_environment(1, {"PYTHONPATH": of_stage} if of_stage else {})
    assert env["PYTHONPATH"].split(os.pathsep) == path
    assert env.get(PYTHONPATH_OF_STAGE) == (of_stage or ours)


# -- its life -------------------------------------------------------------------------------------------------------


class Reaper:
    def __init__(self, asked: list[tuple]) -> None:
        self.asked = asked
        self.there = True
        self.was_killed = False

    def ready(self) -> bool:
        return self.there

    def begin(self, group: int) -> None:
        assert group == PID

    def end(self, group: int) -> bool:
        assert group == PID
        self.asked.append(("end the group",))
        return not self.was_killed

    def forget(self, group: int) -> None:
        assert group == PID
        self.asked.append(("forget the group",))


class System:
    """The calls of the system that a worker process needs, and what was asked of them, in order."""

    def __init__(self, monkeypatch) -> None:
        self.asked: list[tuple] = []
        self.refuses: OSError | None = None
        self.answer: type[OSError] = ProcessLookupError
        self.command: list[str] = []
        self.options: dict = {}
        self.open_in_child: list[int] = []
        self.blocked: set[int] = set()
        self.exited = 0
        self.end = (os.CLD_KILLED, signal.SIGKILL)
        self.status_taken = False
        self.group_left = False
        """Whether others of its group are there when it has ended."""
        self._pidfd = -1
        self._pidfd_writer: int | None = None
        self._leader_left_group = False
        self.reaper = Reaper(self.asked)
        monkeypatch.setattr(process, "reaper", self.reaper)
        monkeypatch.setattr(process.subprocess, "Popen", self._popen)
        monkeypatch.setattr(os, "pidfd_open", self._pidfd_open, raising=False)
        monkeypatch.setattr(os, "waitid", self._waitid)
        monkeypatch.setattr(os, "killpg", lambda pid, number: self._signal("killpg", pid, number))
        monkeypatch.setattr(os, "kill", lambda pid, number: self._signal("kill", pid, number))

    def _popen(self, command, **options):
        if self.refuses is not None:
            raise self.refuses
        self.command, self.options = command, options
        self.open_in_child = [os.dup(fd) for fd in options["pass_fds"]]
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        return self

    # what is asked of a Popen
    pid = PID

    def wait(self) -> int:
        self.asked.append(("wait",))
        return -signal.SIGKILL

    def kill(self) -> None:
        self.asked.append(("kill the child",))

    def _pidfd_open(self, pid: int) -> int:
        assert pid == PID
        self._pidfd, self._pidfd_writer = os.pipe()
        return self._pidfd

    def _waitid(self, kind: int, number: int, options: int) -> SimpleNamespace | None:
        assert (kind, number) == (os.P_PID, PID) or (kind == os.P_PIDFD and number == self._pidfd)
        assert options & os.WNOWAIT, "it is waited for only once it was killed"
        if self.status_taken:
            raise ChildProcessError
        if options & os.WNOHANG and self._pidfd_writer is not None:
            return None
        code, status = self.end
        return SimpleNamespace(si_code=code, si_status=status)

    def _signal(self, call: str, pid: int, number: int) -> None:
        if (call, pid, number) == ("killpg", PID, 0) and self.group_left:
            return
        if number == 0:
            raise self.answer
        assert (pid, number) == (PID, signal.SIGKILL)
        self.asked.append((call,))
        raise self.answer  # by default as if it were gone: never an error

    def end_process(self) -> None:
        """The process ends: its descriptor becomes readable, and what it had open is closed."""
        if self._pidfd_writer is not None:
            os.close(self._pidfd_writer)
            self._pidfd_writer = None
        self.close_child()

    def close_child(self) -> None:
        for fd in self.open_in_child[:1]:
            os.close(fd)
        self.open_in_child = self.open_in_child[1:]

    @property
    def lifeline_open(self) -> bool:
        """Whether the worker's coordinator still holds the other end of its lifeline."""
        lifeline = self.open_in_child[-2]
        os.set_blocking(lifeline, False)
        try:
            return os.read(lifeline, 1) != b""
        except BlockingIOError:
            return True

    def exit_seen(self) -> None:
        self.exited += 1

    def clean_up(self) -> None:
        for fd in [*self.open_in_child, self._pidfd_writer]:
            if fd is not None:
                os.close(fd)


@pytest.fixture
def system(monkeypatch):
    made = System(monkeypatch)
    yield made
    made.clean_up()


@pytest.fixture
def channel():
    ours, theirs = process.socket.socketpair()
    with ours, theirs:
        yield theirs


def start(system: System, channel) -> WorkerProcess:
    return WorkerProcess.start(
        ("a service", "-x", 3),
        child_socket=channel,
        cores=frozenset({2, 0}),
        env={"ONE": "1"},
        on_exit=system.exit_seen,
    )


KILLED = [("kill",)]
GROUP_KILLED = [("killpg",), ("kill",)]
WAITED_FOR = [("wait",), ("end the group",)]


async def test_a_worker_leads_a_group_and_gets_its_channel_and_lifeline_and_no_terminal(system, channel):
    worker = start(system, channel)
    assert worker.pid == PID
    fd, lifeline, stacks = system.options["pass_fds"]
    assert fd == channel.fileno()
    assert stacks == worker.stack_memory.fd
    interpreter, *words = system.command
    assert interpreter == sys.executable
    assert words[:7] == ["-P", "-m", "penstock.worker", "--fd", str(fd), "--lifeline", str(lifeline)]
    assert words[7:] == [
        "--parent",
        str(os.getpid()),
        "--cpus",
        "0,2",
        "--stacks",
        str(stacks),
        "--reaped",
        "--",
        "a service",
        "-x",
        "3",
    ]
    assert system.options["process_group"] == 0
    assert system.options["stdin"] == subprocess.DEVNULL
    assert system.options["env"] == {"ONE": "1"}
    assert system.asked == []
    worker.abandon()


async def test_a_worker_is_born_with_the_signals_that_everybody_gets_blocked(system, channel):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    worker = start(system, channel)
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1} <= system.blocked
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    worker.abandon()


async def test_the_end_is_told_once_after_the_process_was_waited_for_and_its_group_left_to_the_reaper(system, channel):
    worker = start(system, channel)
    fd = worker._pidfd
    assert system.lifeline_open
    system.end_process()
    await rest()
    assert system.asked == [*KILLED, *WAITED_FOR]
    assert system.exited == 1
    assert not system.lifeline_open
    assert worker.exit_reason == "signal SIGKILL"
    assert not asyncio.get_running_loop().remove_reader(fd), "the loop watches no descriptor that another may get"
    for order in (worker.kill, worker.reap, worker.abandon):
        order()
    await rest()
    assert system.exited == 1
    assert system.asked == [*KILLED, *WAITED_FOR], "its id may belong to another by now"


async def test_without_a_reaper_a_group_is_killed_with_its_leader(system, channel):
    system.reaper.there = False
    worker = start(system, channel)
    assert "--reaped" not in system.command
    worker.kill()
    assert system.asked == GROUP_KILLED
    system.end_process()
    await rest()
    assert system.asked == [*GROUP_KILLED, *GROUP_KILLED, ("wait",)]


async def test_where_the_reaper_was_killed_the_group_is_killed_after_its_leader(system, channel):
    system.reaper.was_killed = True
    start(system, channel)
    system.end_process()
    await rest()
    assert system.asked == [*KILLED, *WAITED_FOR, ("killpg",)]


async def test_a_process_of_which_the_system_knows_nothing_is_taken_to_exit(system, channel):
    worker = start(system, channel)
    assert worker.exiting
    worker.abandon()


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ((os.CLD_EXITED, 0), "exit status 0"),
        ((os.CLD_EXITED, 9), "exit status 9"),
        ((os.CLD_KILLED, signal.SIGTERM), "signal SIGTERM"),
        ((os.CLD_DUMPED, signal.SIGSEGV), "signal SIGSEGV"),
    ],
)
async def test_an_end_is_told_as_the_system_has_it(system, channel, end, words):
    worker = start(system, channel)
    system.end = end
    system.end_process()
    await rest()
    assert worker.exit_reason == words


async def test_without_a_call_that_looks_at_the_status_the_end_is_told_by_the_wait(system, channel, monkeypatch):
    monkeypatch.delattr(os, "waitid")
    worker = start(system, channel)
    assert worker.kill()
    system.end_process()
    await rest()
    assert system.asked == [*KILLED, *KILLED, *WAITED_FOR]
    assert worker.exit_reason == "signal SIGKILL"


async def test_a_process_that_somebody_else_waited_for_gets_no_signal_and_has_no_status(system, channel):
    worker = start(system, channel)
    system.status_taken = True
    assert worker.kill()
    system.end_process()
    await rest()
    assert system.asked == [("wait",), ("forget the group",)], "its id may be another's, or that of another's group"
    assert system.exited == 1
    assert worker.exit_reason == "its exit status is unknown, because other code waited for the process"
    assert not system.lifeline_open


async def test_an_abandoned_process_that_somebody_else_waited_for_gets_no_signal(system, channel):
    worker = start(system, channel)
    system.status_taken = True
    worker.abandon()
    assert system.asked == [("wait",), ("forget the group",)]


@pytest.mark.parametrize("reaped", [True, False])
async def test_what_is_left_of_the_group_of_a_process_that_somebody_else_waited_for_is_ended(system, channel, reaped):
    system.reaper.there = reaped
    start(system, channel)
    system.status_taken = system.group_left = True
    system.end_process()
    await rest()
    assert system.asked == [("wait",), ("end the group",) if reaped else ("killpg",)]


async def test_a_group_that_has_a_leader_is_anothers_where_somebody_else_waited_for_its_process(
    system, channel, monkeypatch
):
    start(system, channel)
    system.status_taken = system.group_left = True
    monkeypatch.setattr(WorkerProcess, "exiting", False)
    system.end_process()
    await rest()
    assert system.asked == [("wait",), ("forget the group",)]


async def test_a_kill_waits_for_nothing(system, channel):
    worker = start(system, channel)
    worker.kill()
    worker.kill()
    worker.reap()  # the descriptor will tell
    assert system.asked == KILLED * 2
    assert system.exited == 0
    worker.abandon()


async def test_a_worker_that_may_not_be_killed_loses_its_lifeline(system, channel):
    worker = start(system, channel)
    assert worker.kill()
    assert system.lifeline_open
    system.answer = PermissionError
    assert not worker.kill()
    assert not system.lifeline_open
    assert not worker.kill()
    assert worker.own_descriptors() == [worker._pidfd]
    system.end_process()
    await rest()
    assert system.exited == 1


async def test_an_abandoned_worker_that_may_not_be_killed_is_waited_for_once_its_lifeline_is_cut(system, channel):
    worker = start(system, channel)
    system.answer = PermissionError
    open_at_wait = []
    system.wait = lambda: open_at_wait.append(system.lifeline_open)
    worker.abandon()
    assert open_at_wait == [False]


async def test_without_a_descriptor_that_tells_a_killed_process_is_waited_for(system, channel, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    worker = start(system, channel)
    worker.kill()
    worker.reap()
    assert system.asked == [*KILLED, *KILLED, *WAITED_FOR]
    assert system.exited == 1
    assert not system.lifeline_open


async def test_an_abandoned_worker_is_gone_at_once_and_nobody_is_told(system, channel):
    worker = start(system, channel)
    worker.abandon()
    assert system.asked == [*KILLED, *WAITED_FOR]
    assert not system.lifeline_open
    worker.abandon()
    worker.kill()
    system.end_process()
    await rest()
    assert system.asked == [*KILLED, *WAITED_FOR]
    assert system.exited == 0


def test_a_worker_is_abandoned_after_its_loop_was_closed(system, channel):
    async def make() -> WorkerProcess:
        return start(system, channel)

    worker = asyncio.run(make())
    fd = worker._pidfd
    worker.abandon()
    assert system.asked == [*KILLED, *WAITED_FOR]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


async def test_a_forked_child_ends_no_worker_of_its_parent(system, channel, monkeypatch):
    worker = start(system, channel)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        worker.kill()
        worker.abandon()
        worker.reap()
        worker._exited()
    assert system.asked == []
    assert system.exited == 0
    worker.abandon()


async def test_a_process_that_cannot_be_started_leaves_nothing_open(system, channel):
    system.refuses = OSError("no process left")
    before = open_files()
    with pytest.raises(OSError, match="no process left"):
        start(system, channel)
    assert open_files() == before
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


async def test_a_process_that_cannot_be_watched_is_ended(system, channel, monkeypatch):
    def refuse(_):
        raise OSError("too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="too many open files"):
        start(system, channel)
    assert system.asked == [("kill the child",), ("wait",)]
    assert not system.lifeline_open
