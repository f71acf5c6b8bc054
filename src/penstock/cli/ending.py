"""End the process of a command, whatever the user's module has left running in it.

Python waits at its end for every thread that is no daemon, and runs what was registered with `atexit`.  Either may take
for ever, and nothing else would end the process by then: the command has its status, and signals do nothing any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence

from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.stdio import write_stderr_line

log = guarded_logger("penstock.server")

LAST_GRACE_SECONDS = 5.0
"""How long what the module has left may take: long enough for a library that sends its last metrics."""
LAST_LINE_SECONDS = 1.0
"""How long the line that says so may take to be written."""
NAMES_IN_LINE = 10


def end_in_time(status: int) -> None:
    """Have this process, which ends now, end with `status` within `LAST_GRACE_SECONDS`."""
    with contextlib.suppress(RuntimeError):  # there can be no more threads
        threading.Thread(target=_end, args=(status,), name="penstock-end", daemon=True).start()


def _end(status: int) -> None:
    time.sleep(LAST_GRACE_SECONDS)
    # In a thread: nobody may read what is written.
    telling = threading.Thread(target=_tell, name="penstock-last-line", daemon=True)
    with contextlib.suppress(RuntimeError):
        telling.start()
        telling.join(LAST_LINE_SECONDS)
    os._exit(status)


def _tell() -> None:
    left = [thread.name for thread in threading.enumerate() if not thread.daemon]
    words = what_goes_on([name for name in left if name != threading.main_thread().name])
    if logging.getLogger("penstock").handlers:
        log.warning("%s", words)
    else:
        write_stderr_line(words)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def what_goes_on(threads: Sequence[str]) -> str:
    """The line that says what is left where `threads` are those that are no daemons."""
    if not threads:
        return "exiting while functions registered with atexit are still running"
    named = ", ".join(threads[:NAMES_IN_LINE])
    if len(threads) > NAMES_IN_LINE:
        named += f" and {len(threads) - NAMES_IN_LINE} more"
    return f"exiting with non-daemon threads still running: {named}"
