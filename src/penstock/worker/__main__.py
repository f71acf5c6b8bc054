"""The entry of a worker process: ``python -m penstock.worker SERVICE STAGE INDEX``, started by the coordinator.

Before any user code: signals that a terminal or a supervisor sends to everybody are ignored (the coordinator decides
when a worker ends), cores are pinned, and the coordinator's death is watched for.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading

from penstock.errors import ProtocolError

GENTLE_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Read what the coordinator passed and be a worker."""
    parser = argparse.ArgumentParser(prog="penstock.worker")
    for name in ("service", "stage", "index"):
        parser.add_argument(name)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--cpus", default="")
    parser.add_argument("--pythonpath", default=None)
    arguments = parser.parse_args()
    _ignore_signals()
    _restore_python_path(arguments.pythonpath)
    if arguments.cpus and hasattr(os, "sched_setaffinity"):  # where cores cannot be pinned, every one is named
        os.sched_setaffinity(0, {int(core) for core in arguments.cpus.split(",")})
    sock = socket.socket(fileno=arguments.fd)
    # A child the stage forks must not hold the channel open after this process has died.
    os.register_at_fork(after_in_child=sock.close)
    _watch_parent(arguments.parent)
    _work(sock)


def _work(sock: socket.socket) -> None:
    # Imported late: user code may rely on the environment that was set up above.
    from penstock.transport.sockets import SocketWorkerEnd
    from penstock.worker.loop import serve

    end = SocketWorkerEnd(sock)
    status = 0
    try:
        serve(end, on_ready=_freeze)
    except (BrokenPipeError, ConnectionResetError, ProtocolError):
        # The coordinator has gone, perhaps in the middle of a frame: there is nobody left to work for.
        status = 1
    if _hung_up(sock):
        # Nobody is left to end what the stage started, and this process may be gone before its watch has looked.
        with contextlib.suppress(OSError, ValueError, AttributeError):  # user code may have closed or replaced it
            sys.stdout.flush()
        _end_group()
    end.close()
    sys.exit(status)


def _hung_up(sock: socket.socket) -> bool:
    """Whether the coordinator's end is closed in both directions: to ask a worker to end, it closes only one."""
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


def _restore_python_path(value: str | None) -> None:
    # The coordinator put its own package first so that this module could be found; what the stage starts must not
    # inherit that.
    if value is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = value


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
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
