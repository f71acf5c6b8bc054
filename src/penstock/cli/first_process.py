"""Be process 1, as a container without an init has it: the command runs in a child, and process 1 looks after it.

Process 1 differs from any other in two ways.  The kernel drops a signal to it that has its default, so SIGTERM could
not end an import that takes long.  And it inherits each process whose parent has ended: what a dead worker had started
would stay a zombie for ever.  A process that has children of its own cannot wait for those alone without taking the
exit status of its own from whoever started them.  So process 1 has one child, and does nothing else.

For systemd, process 1 is the one that it started.  So what the child has to tell systemd, process 1 passes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from typing import NoReturn

from penstock.hosting.systemd import given_by_systemd

FIRST_PROCESS = 1
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that process 1 passes on.  The kernel drops the others, since they have their defaults."""
FROM_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the whole group by itself: the child must not get them twice."""


def leave_first_process() -> None:
    """Where this is process 1, go on in a child of it, and end as the child ends; otherwise do nothing."""
    if os.getpid() != FIRST_PROCESS:
        return
    waited_for = {signal.SIGCHLD, *PASSED_ON}
    # Blocked signals are not dropped.  What comes before there is a child waits for `_look_after`.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    child_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would keep the child's status from us
    given = given_by_systemd()
    relay = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) if given.notify_address else ()
    for end in relay:
        end.setblocking(True)  # whatever default timeout was set at Python's start
    try:
        child = os.fork()
    except OSError:  # it goes on as process 1, without what the child would gain
        child = 0
    if child:
        if relay:
            # Not before, and not for nothing: it takes Python's logging, and process 1 stays small.
            from penstock.hosting.notify_socket import NotifySocket, pass_on

            relay[1].close()
            pass_on(relay[0], NotifySocket.of(given))
        _look_after(child, waited_for)
    if relay:
        relay[0].close()
        if os.getpid() == FIRST_PROCESS:
            relay[1].close()
        else:
            given.relay = relay[1]
    signal.signal(signal.SIGCHLD, child_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _look_after(child: int, waited_for: set[signal.Signals]) -> NoReturn:
    """Pass signals on to `child` and reap whatever ends, until it is the child."""
    while True:
        came = signal.sigwaitinfo(waited_for)
        if came.si_signo == signal.SIGCHLD:
            status = _reap(child)
            if status is not None:
                os._exit(status)
        elif passed_on(came.si_signo, came.si_code):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, came.si_signo)


def passed_on(number: int, code: int) -> bool:
    """Whether the child needs signal `number` from us; `code` is positive where the kernel sent it by itself."""
    return code <= 0 or number not in FROM_KEYBOARD


def _reap(child: int) -> int | None:
    """Wait for everything that has ended; the exit status of `child` if it is among them, as a shell would give it."""
    found = None
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                found = code if code >= 0 else 128 - code
    return found
