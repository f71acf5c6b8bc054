"""The entry of a worker process: ``python -m penstock.worker ... -- SERVICE STAGE INDEX``, started by the coordinator.

Before any user code: signals that a terminal or a supervisor sends to everybody are ignored (the coordinator decides
when a worker ends), cores are pinned, and the coordinator's death is watched for.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import os
import select
import signal
import socket
import sys
import threading
import traceback

from penstock.errors import ProtocolError
from penstock.worker import PYTHONPATH_OF_STAGE

GENTLE_SIGNALS = (signal.SIGINT, signal.SIGTERM)
CLOSED = (OSError, ValueError, AttributeError)
"""What writing to a standard stream raises that user code has closed or replaced."""


def main() -> None:
    """Read what the coordinator passed and be a worker."""
    parser = argparse.ArgumentParser(prog="penstock.worker", allow_abbrev=False)
    for name in ("service", "stage", "index"):
        parser.add_argument(name)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--cpus", default="")
    parser.add_argument("--lifeline", type=int, default=None)
    arguments = parser.parse_args()
    _ignore_signals()
    _restore_python_path()
    if arguments.cpus and hasattr(os, "sched_setaffinity"):  # where cores cannot be pinned, every one is named
        os.sched_setaffinity(0, {int(core) for core in arguments.cpus.split(",")})
    sock = socket.socket(fileno=arguments.fd)
    sock.set_inheritable(False)
    # A child the stage forks must not hold the channel open after this process has died.
    os.register_at_fork(after_in_child=sock.close)
    if arguments.lifeline is not None:
        _hang_on(arguments.lifeline)
    _watch_parent(arguments.parent)
    _work(sock)


def _work(sock: socket.socket) -> None:
    # Imported late: user code may rely on the environment that was set up above.
    from penstock.transport.sockets import SocketWorkerEnd
    from penstock.worker.loop import work

    end = SocketWorkerEnd(sock)
    status = 0
    try:
        work(end, on_ready=_freeze)
    except (BrokenPipeError, ConnectionResetError, ProtocolError):
        # The coordinator has gone, perhaps in the middle of a frame: there is nobody left to work for.
        status = 1
    except BaseException:  # noqa: BLE001  # whatever it was, a worker that works no more must not seem alive
        status = 1
        with contextlib.suppress(*CLOSED):
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(*CLOSED):
            stream.flush()
    if _hung_up(sock):
        # Nobody is left to end what the stage started, and this process may be gone before its watch has looked.
        _end_group()
    if status:
        # At once: `sys.exit` would wait for the threads that the stage started, and the coordinator for this process.
        os._exit(status)
    end.close()


def _hung_up(sock: socket.socket) -> bool:
    """Whether the coordinator's end is closed in both directions: to ask a worker to end, it closes only one."""
    if sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock, 0)  # a hang-up is told unasked
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _freeze() -> None:
    """The model and its libraries stay for good: the cycle collector need not walk them between batches."""
    gc.collect()
    gc.freeze()


def _ignore_signals() -> None:
    # Handlers, not SIG_IGN: what a stage executes starts with the defaults again, and what it forks gets them back.
    for number in GENTLE_SIGNALS:
        signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GENTLE_SIGNALS)
    os.register_at_fork(after_in_child=_restore_signals)


def _do_nothing(_number: int, _frame: object) -> None:
    return


def _restore_signals() -> None:
    for number in GENTLE_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _restore_python_path() -> None:
    # The coordinator put its own package first so that this module could be found; what the stage starts must not
    # inherit that.
    value = os.environ.pop(PYTHONPATH_OF_STAGE, None)
    if value is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = value


def _hang_on(lifeline: int) -> None:
    """Have the kernel end this process and its group when the other end of the pipe `lifeline` is closed.

    The coordinator alone holds that end, and never writes.  The watch below is a thread and needs the interpreter:
    while a call in C holds it, only the kernel can act.  Not by PR_SET_PDEATHSIG: that ends this process alone, before
    the watch could end what the stage has started.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        return  # not Linux
    os.set_inheritable(lifeline, False)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid() if _leads_group() else os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _watch_parent(parent: int) -> None:
    """End this process and what it started when process `parent` ends, even in the middle of `predict`."""
    if not hasattr(os, "pidfd_open"):
        return  # not Linux: end-of-stream, seen between two frames, has to do
    try:
        fd = os.pidfd_open(parent)
    except ProcessLookupError:
        _end_group()
        return
    if os.getppid() != parent:
        _end_group()
    threading.Thread(target=_wait_for_end, args=(fd,), name="penstock-parent-watch", daemon=True).start()


def _wait_for_end(fd: int) -> None:
    select.select([fd], [], [])
    _end_group()


def _end_group() -> None:
    if _leads_group():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _leads_group() -> bool:
    """Whether this process's group is its own: one that the stage has joined is not ours to end."""
    return os.getpgrp() == os.getpid()


if __name__ == "__main__":
    main()
