"""Have a worker write its stacks when it is asked to, whatever it is doing.

The coordinator asks by a signal.  `faulthandler` answers inside the signal's handler, in C: also where `predict` is in
a call that keeps the interpreter, or waits for a lock.  It writes into memory that the coordinator made, so it never
waits for a reader.
"""

from __future__ import annotations

import faulthandler
import os
import signal

ASKING_SIGNALS: tuple[int, ...] = (signal.SIGRTMAX - 4, signal.SIGRTMAX - 3) if hasattr(signal, "SIGRTMAX") else ()
"""What the coordinator sends: the first asks for the thread that takes it, the main one, the second for all threads.

The kernel gives a signal to the main thread, unless that has one pending or blocks it.

`faulthandler` writes at most 100 threads, the latest first, so it may leave out the main one.  Real-time signals leave
SIGUSR1 and SIGUSR2 to the stage.
"""


def answer_with_stacks(fd: int) -> None:
    """Write stacks to the descriptor `fd` whenever one of `ASKING_SIGNALS` comes, from now on."""
    os.set_inheritable(fd, False)
    for number, all_threads in zip(ASKING_SIGNALS, (False, True), strict=True):
        faulthandler.register(number, file=fd, all_threads=all_threads)
