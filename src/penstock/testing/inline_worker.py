"""Our own worker loop under the suite of workers: in a thread, as that of `inline=True`, at the end of a socket.

Its handshake and its failures are MessagePack, it is no process, and it connects once.  The checks of the rest are left
out by name.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from penstock.codec.formats import Codec
from penstock.config import IN_A_PROGRAM, Batch, StageOptions
from penstock.testing.worker_case import Ability, Dialect
from penstock.transport.external_messages import ExternalHello, ExternalLaunch
from penstock.transport.messages import Hello, Launch, Problem, StageRef, pack, unpack
from penstock.transport.worker_socket import SocketWorkerEnd
from penstock.worker.loading import pack_setup
from penstock.worker.loop import work
from penstock.worker.stage import Stage

JOIN_SECONDS = 10.0
"""Seconds in which a thread ends whose connection is gone."""


class SquareStage(Stage):
    """The stage that the suite of workers knows."""

    batch = Batch(max_size=8)

    def predict(self, xs: list[int | float | list[int | float]]) -> list[Any]:
        """The squares; a RuntimeError in the place of each -1."""
        return [self._square(x) for x in xs]

    def health(self) -> None:
        """It is always well."""

    def _square(self, x: float | list[int | float]) -> Any:
        if isinstance(x, list):
            return [one * one for one in x]
        return RuntimeError("the model fails at -1") if x == -1 else x * x


class PackedDialect:
    """The handshake and the failures of our own workers."""

    def read_hello(self, payload: bytes) -> ExternalHello:  # `Dialect` documents it
        hello = unpack(payload, Hello)
        return ExternalHello(version=hello.version, pid=hello.pid)

    def write_launch(self, launch: ExternalLaunch) -> bytes:
        return pack(
            Launch(
                service=launch.service,
                stage=launch.stage,
                index=launch.index,
                count=launch.count,
                gpus=(),
                ref=StageRef("", ""),  # the thread has its target
                setup=pack_setup(launch.stage, {}),
                sys_path=[],
                batched=launch.batched,
                max_size=launch.max_size,
                options=StageOptions(),
                first=True,
                last=True,
                validate=True,
                validate_results=launch.validate_results,
                allow_nan=launch.allow_nan,
                behind="",
                crossing=Codec.PICKLE,
                logs=IN_A_PROGRAM,
                served=True,
            )
        )

    def read_failure(self, payload: bytes) -> Problem:
        return unpack(payload, Problem)


class InlineWorker:
    """Runs `penstock.worker.loop.work` over `target` in a thread."""

    def __init__(self, target: Any = SquareStage) -> None:
        self.dialect: Dialect = PackedDialect()
        self.abilities: frozenset[Ability] = frozenset()
        self._target = target
        self._thread: threading.Thread | None = None
        self._sock: socket.socket | None = None

    def start(self, path: str) -> None:
        """Connect, and work in a thread."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(path)
        self._sock = sock
        self._thread = threading.Thread(target=self._work, args=(sock,), daemon=True)
        self._thread.start()

    def _work(self, sock: socket.socket) -> None:
        # A check that fails closes the connection wherever the worker is, and says itself why.
        with sock, contextlib.suppress(OSError):
            work(SocketWorkerEnd(sock), target=self._target)

    def ask_to_leave(self) -> None:
        """A thread is not asked: the checks that do are left out."""
        raise NotImplementedError

    def wait(self, timeout: float) -> int | None:  # noqa: ARG002  # as in a process
        """A thread has no exit status."""
        return None

    def stop(self) -> None:
        """End the connection, and with it the thread."""
        if self._thread is not None and self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._thread.join(JOIN_SECONDS)
            self._thread = self._sock = None

    def last_words(self) -> str:
        """It has no output of its own."""
        return ""
