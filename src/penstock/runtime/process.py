"""Start a worker process, notice its end, and leave nothing of it behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.hosting.moving_line import line_is_shown
from penstock.runtime.group_reaper import reaper
from penstock.runtime.stack_memory import StackMemory
from penstock.transport.forks import keep_from_forks
from penstock.worker import GENTLE_SIGNALS, PYTHONPATH_OF_STAGE

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)

LAST_READ_SECONDS = 0.5
"""How long the channel of a dead worker is still read.

That is enough for what the worker wrote last.  A process that it has started, and that has the channel open all the
same, is not waited for.
"""


STATUS_TAKEN = "its exit status is unknown, because other code waited for the process"
PF_EXITING = 0x4
"""The kernel's flag of a thread that exits.  Each has it before it closes its files."""


def worker_environment(threads: int, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: this process's, thread counts that fit its cores, and `extra` on top.

    Where there is an OMP_NUM_THREADS, every library gets that count: most read it where their own variable is not set.
    A PYTHONPATH in `extra` is for the stage and what it starts; the worker itself finds this package first.
    """
    given = {**os.environ, **extra}
    # A list has a count for each level of nesting, and its first is that of the outermost.
    count = given.get("OMP_NUM_THREADS", "").partition(",")[0].strip() or str(threads)
    defaults = dict.fromkeys(THREAD_VARIABLES, count)
    # A PYTHONPATH that leads to this very package: the worker takes it out again as soon as it runs.
    package_root = str(Path(__file__).resolve().parents[2])
    before = os.environ.get("PYTHONPATH")
    path = package_root if not before else os.pathsep.join((package_root, before))
    merged = {**defaults, **given}
    merged.pop(PYTHONPATH_OF_STAGE, None)
    if "PYTHONPATH" in merged:
        merged[PYTHONPATH_OF_STAGE] = merged["PYTHONPATH"]
    return {**merged, "PYTHONPATH": path}


def is_exiting(stat: str) -> bool:
    """Whether `stat`, which is `/proc/PID/stat`, is of a process that exits; its name may have anything in it."""
    flags = int(stat.rpartition(")")[2].split()[6])
    return bool(flags & PF_EXITING)


def describe_exit(status: int) -> str:
    """How a process ended, in words; `status` is negative where a signal ended it, as `subprocess` has it."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"signal {-status}"


class WorkerProcess:
    """A worker process, leader of a process group of its own.

    `on_exit` is called once, on the event loop, when the process has ended.  The `reaper` ends the rest of its group,
    within five seconds; where there is none, the group ends with its leader.  Only the process that made this object
    ends the worker: after a fork, the child's copy of it does nothing.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        lifeline: int,
        on_exit: Callable[[], None],
        stack_memory: StackMemory | None = None,
        *,
        reaped: bool,
    ) -> None:
        self._reaped = reaped
        """Whether its group is left to the reaper."""
        self.stack_memory = stack_memory
        """Where it writes its stacks; None on a system where it cannot."""
        self._popen = popen
        self._maker = os.getpid()
        self._lifeline: int | None = lifeline
        """Our end of the pipe whose closing ends the worker; None once it is closed."""
        self._on_exit = on_exit
        self._status: int | None = None
        """How the process ended, as `subprocess` has it; None before that, and where somebody else took its status."""
        self._loop = asyncio.get_running_loop()
        self._pidfd: int | None = None
        self._ended = False
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(popen.pid)
            self._loop.add_reader(self._pidfd, self._exited)
        keep_from_forks(self)
        if reaped:
            reaper.begin(popen.pid)

    @classmethod
    def start(
        cls,
        label: tuple[str, str, int],
        *,
        child_socket: socket.socket,
        cores: frozenset[int],
        env: Mapping[str, str],
        on_exit: Callable[[], None],
        slabs: tuple[int, int] = (-1, -1),
    ) -> WorkerProcess:
        """Start the worker `label` (service, stage, index); OSError if the system refuses.

        `slabs` are the descriptors of its inputs and of its results.
        """
        # The worker ends when the last process that has `ours` open closes it.  If that is killed, the kernel does so.
        theirs, ours = os.pipe()
        memory = None
        reaped = reaper.ready()
        try:
            memory = StackMemory.make()
            popen = _spawn(label, child_socket.fileno(), theirs, memory, cores, env, slabs, reaped=reaped)
        except (OSError, ValueError):
            os.close(ours)
            _close(memory)
            raise
        finally:
            os.close(theirs)
        try:
            return cls(popen, ours, on_exit, memory, reaped=reaped)
        except OSError:
            os.close(ours)
            _close(memory)
            popen.kill()
            popen.wait()
            raise

    def own_descriptors(self) -> list[int]:
        """What a fork must not keep open: it would hold the worker's lifeline, and its loop could forget the pidfd."""
        return [fd for fd in (self._lifeline, self._pidfd) if fd is not None and not self._ended]

    @property
    def pid(self) -> int:
        """The worker's process id; also its group's."""
        return self._popen.pid

    @property
    def exit_reason(self) -> str:
        """How the process ended, in words; only after its end."""
        return describe_exit(self._status) if self._status is not None else STATUS_TAKEN

    @property
    def exiting(self) -> bool:
        """Whether the process has ended or is about to; True also where the system does not tell."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(errors="replace")
        except OSError:
            return True
        return is_exiting(stat)

    def kill(self) -> bool:
        """End the worker now, and then its group; safe at any time, any number of times, without an event loop.

        False says that the system does not let this process kill the worker, whose stage has changed its user.  Then
        the lifeline is cut, which has the kernel kill it.
        """
        if self._ended or not self._made_here or not self._is_ours() or self._kill():
            return True
        self._cut_lifeline()
        return False

    def _kill(self) -> bool:
        """Send SIGKILL to the worker, which is not waited for yet; no error if it has ended.

        Returns whether this process may send it to the worker.
        """
        if not self._reaped:
            _kill_group(self.pid)
        try:
            os.kill(self.pid, signal.SIGKILL)
        except PermissionError:
            return False
        except ProcessLookupError:
            pass
        return True

    def _wait(self, *, ours: bool) -> int:
        """The exit status of the process, which has ended or will at once; then its group is ended too.

        `ours` says whether it is still to be waited for.  Where it is not, its number may be that of another, or of
        another's group, unless others of its own group are left.
        """
        status = self._popen.wait()
        if not ours and not self._group_is_left():
            reaper.forget(self.pid)
        elif self._reaped:
            if not reaper.end(self.pid):  # somebody has killed it
                _kill_group(self.pid)
        elif not ours:  # else it was killed with its leader
            _kill_group(self.pid)
        return status

    def _group_is_left(self) -> bool:
        """Whether the group with the number of this process, which has ended, has processes and no leader.

        The system gives the number to no other process while it is that of a group.
        """
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return sys.platform == "linux" and self.exiting  # elsewhere nothing says whether there is a leader

    def _cut_lifeline(self) -> None:
        fd, self._lifeline = self._lifeline, None
        if fd is not None:
            os.close(fd)

    @property
    def _made_here(self) -> bool:
        return os.getpid() == self._maker

    def reap(self) -> None:
        """Wait for the killed process, on a system that has no descriptor to tell of its end."""
        if self._pidfd is None:
            self._exited()

    def _exited(self) -> None:
        """The process has ended: wait for it, which frees its id, and have its group ended."""
        if self._ended or not self._made_here:
            return
        self._ended = True
        ours = False
        with contextlib.suppress(ChildProcessError):
            self._status = self._look_at_status(block=True)
            ours = True
            # Until the leader is waited for, no other process and no other group can have its id.
            self._kill()
        self._close_pidfd()
        status = self._wait(ours=ours)
        if not hasattr(os, "waitid"):
            self._status = status
        self._cut_lifeline()
        _close(self.stack_memory)
        self._on_exit()

    def _is_ours(self) -> bool:
        """Whether the process lives or is still to be waited for.  Else its id may be that of any other."""
        try:
            self._look_at_status(block=False)
        except ChildProcessError:
            return False
        return True

    def _look_at_status(self, *, block: bool) -> int | None:
        """How the process ended, which stays to be waited for; None while it lives, and where no system call tells.

        Raises:
            ChildProcessError: somebody else has waited for it, or this process ignores SIGCHLD, so nobody has to.
        """
        if not hasattr(os, "waitid"):  # macOS, before Python 3.13
            return None
        kind, number = (os.P_PID, self.pid) if self._pidfd is None else (os.P_PIDFD, self._pidfd)
        found = os.waitid(kind, number, os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG))
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _close_pidfd(self, *, watched: bool = True) -> None:
        fd, self._pidfd = self._pidfd, None
        if fd is not None:
            if watched:
                self._loop.remove_reader(fd)
            os.close(fd)

    def abandon(self) -> None:
        """End everything without an event loop: for a service that was never stopped."""
        if not self._ended and self._made_here:
            self._ended = True
            ours = self._is_ours()
            if ours:
                self._kill()
            self._cut_lifeline()  # first: it may be all that ends the worker
            self._wait(ours=ours)
            _close(self.stack_memory)
            try:
                # The loop must forget the descriptor before it is closed: another file may get its number.
                self._loop.call_soon_threadsafe(self._close_pidfd)
            except RuntimeError:  # it is closed
                self._close_pidfd(watched=False)


def _close(memory: StackMemory | None) -> None:
    if memory is not None:
        memory.close()


def _spawn(
    label: tuple[str, str, int],
    channel: int,
    lifeline: int,
    memory: StackMemory | None,
    cores: frozenset[int],
    env: Mapping[str, str],
    slabs: tuple[int, int],
    *,
    reaped: bool,
) -> subprocess.Popen[bytes]:
    """The process of worker `label`, with these descriptors; OSError or ValueError if the system refuses."""
    service, stage, index = label
    command = [sys.executable, "-P", "-m", "penstock.worker", "--fd", str(channel), "--lifeline", str(lifeline)]
    command += ["--parent", str(os.getpid()), "--cpus", ",".join(map(str, sorted(cores)))]
    inherited = [channel, lifeline]
    if memory is not None:
        command += ["--stacks", str(memory.fd)]
        inherited.append(memory.fd)
    for name, descriptor in zip(("--inputs", "--results"), slabs, strict=True):
        if descriptor >= 0:
            command += [name, str(descriptor)]
            inherited.append(descriptor)
    if line_is_shown():
        command.append("--erase")
    if reaped:
        command.append("--reaped")
    # The names come last, behind the end of the options: a user may choose a name that looks like an option.
    command += ["--", service, stage, str(index)]
    # The worker inherits these signals blocked: one that is sent to everybody cannot end it before it has handlers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GENTLE_SIGNALS)
    try:
        # Our own interpreter and module; the names are an argument each, never read by a shell.
        return subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, pass_fds=inherited, env=dict(env), process_group=0
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _kill_group(pid: int) -> None:
    """Send SIGKILL to the group `pid`; no error if none is left of it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
