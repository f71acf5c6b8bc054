"""A worker from outside that the suite of workers starts by a command, in whatever language it is written."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.codec.text import printable_lines
from penstock.testing.worker_case import Ability, Dialect
from penstock.transport.external_messages import (
    ExternalHello,
    ExternalLaunch,
    pack_json,
    read_external_failure,
    unpack_json,
)
from penstock.transport.messages import Problem

PLACE: Final = "{path}"
"""The word of a command that stands for the path of the socket."""
LAST_BYTES: Final = 2000
"""So many bytes of what a worker has written are shown."""


class JsonDialect:
    """The handshake and the failures of workers from outside."""

    def read_hello(self, payload: bytes) -> ExternalHello:  # `Dialect` documents it
        return unpack_json(payload, ExternalHello)

    def write_launch(self, launch: ExternalLaunch) -> bytes:
        return pack_json(launch)

    def read_failure(self, payload: bytes) -> Problem:
        return read_external_failure(payload)


class CommandWorker:
    """Starts `command` with the path of the socket behind it, or in the place of ``{path}``.

    The command leads a process group of its own, all of which `stop` kills.
    """

    def __init__(self, command: Sequence[str], environ: dict[str, str] | None = None) -> None:
        self.dialect: Dialect = JsonDialect()
        self.abilities = frozenset(Ability)
        self._command = list(command)
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._output = -1
        self._words = ""

    def start(self, path: str) -> None:
        """Start the command; OSError if it cannot be started."""
        words = [word.replace(PLACE, path) for word in self._command]
        if words == self._command:
            words.append(path)
        self._words = ""
        with tempfile.TemporaryFile() as output, _signals_later():
            # What the user has written is run, and no shell reads it.
            self._process = subprocess.Popen(  # noqa: S603
                words,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
            self._output = os.dup(output.fileno())

    def ask_to_leave(self) -> None:
        """Send SIGTERM to the command's process."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGTERM)  # a method of `Popen` might reap it: see `wait`

    def wait(self, timeout: float) -> int | None:
        """The exit status; the number of a signal that ended it is negative."""
        assert self._process is not None
        pidfd = os.pidfd_open(self._process.pid)
        try:
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            if not ended.poll(timeout * 1000):
                return None
        finally:
            os.close(pidfd)
        # Its process stays a zombie until `stop`: until then no other group can have its id.
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def stop(self) -> None:
        """Kill the whole group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            size = os.fstat(self._output).st_size
            text = os.pread(self._output, LAST_BYTES, max(size - LAST_BYTES, 0)).decode(errors="replace").rstrip()
            os.close(self._output)
            self._words = f"It wrote:\n{printable_lines(text)}" if text else ""

    def last_words(self) -> str:
        """The last lines of its standard output and error, once it was stopped."""
        return self._words


@contextmanager
def _signals_later() -> Iterator[None]:
    """Have what SIGINT and SIGTERM do happen at the end.

    Their handlers may raise, and would leave a process that was started and that nobody knows.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)
