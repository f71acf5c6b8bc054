"""The entry of a worker process: ``python -m penstock.worker ... -- SERVICE STAGE INDEX``, started by the coordinator.

Three things are done before any user code runs.  Signals that a terminal or a supervisor sends to all processes do
nothing, because the coordinator decides when a worker ends.  Cores are pinned.  A watch for the coordinator's death is
set up.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial

from penstock.errors import ProtocolError
from penstock.hosting.breakpoints import refuse_breakpoints
from penstock.hosting.tied_process import leads_group, tie_to_lifeline
from penstock.worker import GENTLE_SIGNALS, PYTHONPATH_OF_STAGE
from penstock.worker.stacks import answer_with_stacks

CLOSED = (OSError, ValueError, AttributeError)
"""What a write to a standard stream raises if user code has closed or replaced the stream."""
LAST_THREADS_SECONDS = 1.0
"""How long threads of the stage may go on after its `teardown`; the coordinator waits 5 s for all of the end."""


def main() -> None:
    """Read what the coordinator passed and be a worker."""
    parser = argparse.ArgumentParser(prog="penstock.worker", allow_abbrev=False)
    for name in ("service", "stage", "index"):
        parser.add_argument(name)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--cpus", default="")
    parser.add_argument("--lifeline", type=int, default=None)
    parser.add_argument("--stacks", type=int, default=None)
    parser.add_argument("--erase", action="store_true")
    parser.add_argument("--reaped", action="store_true")
    parser.add_argument("--inputs", type=int, default=-1)
    parser.add_argument("--results", type=int, default=-1)
    arguments = parser.parse_args()
    _ignore_signals()
    if arguments.stacks is not None:
        answer_with_stacks(arguments.stacks)
    restore_python_path()
    refuse_breakpoints()
    if arguments.cpus and hasattr(os, "sched_setaffinity"):  # a system that cannot pin names all cores
        os.sched_setaffinity(0, {int(core) for core in arguments.cpus.split(",")})
    sock = socket.socket(fileno=arguments.fd)
    sock.set_inheritable(False)
    sock.setblocking(True)  # the coordinator's module may have set a default timeout, by which it came without blocking
    # A child that the stage forks must not keep the channel open after the death of this process.
    os.register_at_fork(after_in_child=sock.close)
    if arguments.lifeline is not None:
        # The watch of the parent is a thread, and needs the interpreter.
        tie_to_lifeline(arguments.lifeline, with_group=not arguments.reaped)
    end_all = _end_process if arguments.reaped else _end_group
    _watch_parent(arguments.parent, end_all)
    name = f"worker {arguments.index} of stage {arguments.stage!r}"
    _work(sock, name, (arguments.inputs, arguments.results), end_all, erases=arguments.erase)


def _work(
    sock: socket.socket, name: str, slab_descriptors: tuple[int, int], end_all: Callable[[], None], *, erases: bool
) -> None:
    # Imported late: libraries read the environment, which is complete only now.
    from penstock.hosting.handing_over import begin_handing_over
    from penstock.hosting.malloc_thresholds import keep_large_blocks
    from penstock.transport.worker_socket import SocketWorkerEnd
    from penstock.worker.loop import counting_over, work
    from penstock.worker.stage_life import freeze_model
    from penstock.worker.stage_logs import StageLogs

    keep_large_blocks(os.environ)
    logs = StageLogs(name)
    # No gathering: what a stage prints is most wanted when its worker crashes right after.
    lines = begin_handing_over(logs.dropped_notice, gather=0.0, erases=erases)
    end = SocketWorkerEnd(sock, slabs=True)
    status = 0
    try:
        with counting_over(end, whole_process=True):
            work(
                end,
                on_launch=partial(logs.begin, lines),
                on_loaded=logs.loaded,
                on_ready=freeze_model,
                slab_descriptors=slab_descriptors,
                examines=True,
            )
    except (BrokenPipeError, ConnectionResetError, ProtocolError):
        # The coordinator has gone, perhaps in the middle of a frame.
        status = 1
    except BaseException:  # noqa: BLE001  # whatever it is, the process ends: a worker without its loop is no worker
        status = 1
        with contextlib.suppress(*CLOSED):
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(*CLOSED):
            stream.flush()
    lines.end(last=True)
    if _hung_up(sock):
        # The coordinator cannot end what the stage started, and this process may end before its watch notices.
        end_all()
    if status:
        # Not `sys.exit`: it waits for the threads that the stage started, and the coordinator waits for this process.
        os._exit(status)
    end.close()
    with contextlib.suppress(RuntimeError):  # there can be no more threads
        threading.Thread(target=_end_in_time, args=(logs.line,), name="penstock-end", daemon=True).start()


def _end_in_time(line: Callable[[str], str]) -> None:
    """End this process although Python waits for threads that the stage has left; `atexit` functions run before.

    `line` makes a line about this worker.
    """
    time.sleep(LAST_THREADS_SECONDS)
    main_thread = threading.main_thread()
    left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main_thread]
    if not left:
        return  # what is registered with `atexit` runs, for as long as the coordinator waits for this process
    with contextlib.suppress(*CLOSED):
        sys.stderr.write(line(f"exiting with non-daemon threads still running: {', '.join(left[:10])}") + "\n")
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(*CLOSED):
            stream.flush()
    os._exit(0)


def _hung_up(sock: socket.socket) -> bool:
    """Whether the coordinator's end is closed in both directions; one direction alone asks the worker to end."""
    if sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock, 0)  # poll tells of a hang-up whether asked to or not
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def write_in_background() -> None:
    """Let this process, and what it starts, write to a terminal that stops who does so in the background.

    Its group is not the terminal's, so after `stty tostop` a line to it would stop the whole group.  A handler would
    not help: the write is tried again for ever.  Forks and programs inherit this, since they are in the same group.
    """
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)


def _ignore_signals() -> None:
    write_in_background()
    # These are handlers and no SIG_IGN, which a program that the stage starts would inherit.  Forks get the defaults.
    # What was ignored when the coordinator started (`nohup`) stays ignored, here and in what the stage starts.
    for number in GENTLE_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GENTLE_SIGNALS)
    os.register_at_fork(after_in_child=_restore_signals)


def _do_nothing(_number: int, _frame: object) -> None:
    return


def _restore_signals() -> None:
    for number in GENTLE_SIGNALS:
        # What is not our handler is the stage's own, or was ignored at the start.  For SIGUSR1 ours stays: a stage may
        # have put `faulthandler` on it, which `getsignal` does not see, and nobody ends a process by it.
        if signal.getsignal(number) is _do_nothing and number != signal.SIGUSR1:
            signal.signal(number, signal.SIG_DFL)


def restore_python_path() -> None:
    """Have programs that the stage starts inherit the PYTHONPATH that is meant for them.

    The coordinator put its own package first, so that Python found this module.
    """
    value = os.environ.pop(PYTHONPATH_OF_STAGE, None)
    if value is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = value


def _watch_parent(parent: int, end_all: Callable[[], None]) -> None:
    """Call `end_all`, which ends this process and what it started, when process `parent` ends, even amid `predict`."""
    if not hasattr(os, "pidfd_open"):
        return  # not Linux: the worker then sees the end of the stream, between two frames
    try:
        fd = os.pidfd_open(parent)
    except ProcessLookupError:
        end_all()
        return
    if os.getppid() != parent:
        end_all()
    watch = threading.Thread(target=_wait_for_end, args=(fd, end_all), name="penstock-parent-watch", daemon=True)
    watch.start()


def _wait_for_end(fd: int, end_all: Callable[[], None]) -> None:
    select.select([fd], [], [])
    end_all()


def _end_group() -> None:
    if leads_group():
        os.killpg(0, signal.SIGKILL)
    _end_process()


def _end_process() -> None:
    """End this process; the reaper ends what it started."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
