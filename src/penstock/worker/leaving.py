"""Whether a worker from outside was told to leave, and what that asks for at this moment.  No I/O and no signals.

Contract
--------
* The first request lets go of the connection as it is: one that serves is detached, one that is not READY is shut, and
  a wait is over.  While user code runs before READY nothing can be let go of: the process has to end.
* The second request always asks for the end of the process.
* After a request nothing begins any more: `enter` and `serve` refuse.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Protocol


class Detachable(Protocol):
    """What a worker has to its server."""

    def detach(self) -> None:
        """Ask the server to send nothing more; may wait until a frame in hand is sent."""

    def shut(self) -> None:
        """End it in both directions; who reads it reads end-of-stream."""


class AttachedPhase(Enum):
    """What a worker from outside is doing."""

    PREPARING = "preparing"
    """It runs user code before READY: the import, the setup, the examples."""
    WAITING = "waiting"
    """It waits for a server, or for the server's LAUNCH."""
    SERVING = "serving"


class Leaving:
    """Asked from any thread; everything else belongs to the worker's own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._phase = AttachedPhase.PREPARING
        self._connection: Detachable | None = None
        self._asked = False

    @property
    def asked(self) -> bool:
        """Whether the worker was told to leave."""
        return self._asked

    @property
    def serves(self) -> bool:
        """Whether the worker is READY, and at work or waiting for work."""
        return self._phase is AttachedPhase.SERVING

    def ask(self) -> bool:
        """Tell the worker to leave; whether the process has to end at once instead."""
        with self._lock:
            if self._asked or self._phase is AttachedPhase.PREPARING:
                self._asked = True
                return True
            self._asked = True
            serving, connection = self._phase is AttachedPhase.SERVING, self._connection
        self._woken.set()
        if connection is not None and serving:
            # In a thread: the one that asks must hear of the next request while an answer is being sent.
            threading.Thread(target=connection.detach, name="penstock-detach", daemon=True).start()
        elif connection is not None:
            connection.shut()
        return False

    def enter(self, phase: AttachedPhase, connection: Detachable | None = None) -> bool:
        """Begin `phase`, with `connection` if there is one; False if the worker has to leave."""
        with self._lock:
            if not self._asked:
                self._phase, self._connection = phase, connection
            return not self._asked

    def serve(self, connection: Detachable, begin: Callable[[], None]) -> bool:
        """Call `begin` and serve, with nobody asking in between; False if the worker has to leave."""
        with self._lock:
            if not self._asked:
                begin()
                self._phase, self._connection = AttachedPhase.SERVING, connection
            return not self._asked

    def wait(self, seconds: float) -> None:
        """Wait so long, or until the worker is told to leave."""
        self._woken.wait(seconds)
