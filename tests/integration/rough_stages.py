"""Stages that are rough with what they are given: their items, their buffers, their process.

Worker processes import this module, so it needs nothing of the tests.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import penstock as ps


class AddsInPlace(ps.Stage):
    """Writes into the arrays it was sent."""

    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[Any]) -> list[Any]:
        for x in xs:
            x += 1
        return xs


class LeavesAThread(ps.Stage):
    """Starts a thread that never ends; with its second item it breaks the worker around itself, which cannot answer."""

    def setup(self) -> None:
        self.calls = 0

    def predict(self, x: Any) -> Any:
        from penstock.transport.worker_socket import SocketWorkerEnd

        def broken(*_: Any) -> None:
            raise RuntimeError("the worker cannot answer")

        self.calls += 1
        if self.calls == 1:
            threading.Thread(target=time.sleep, args=(1000,)).start()
        else:
            SocketWorkerEnd.send = broken  # type: ignore[method-assign]
        return x


class LeavesItsGroup(ps.Stage):
    """Joins its coordinator's process group, and runs for ever."""

    def predict(self, x: Any) -> Any:
        os.setpgid(0, os.getpgid(os.getppid()))
        while x == "spin":
            pass
        return os.getpid()
