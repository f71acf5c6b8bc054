"""The stage of tests with real consumers: it does what a job says, and writes each call into the history of the test.

Worker processes import this module, so it needs nothing of the tests but what lies beside it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

from notes_and_gates import wait_for

import penstock as ps
from penstock.testing.history import record_call

HISTORY = os.environ["JOBS_HISTORY"]


class Told(ps.Stage):
    """Takes ``{"x": 3}``, and whatever else is to be done, each by its name in `_act` and `_act_on_batch`."""

    batch = ps.Batch(max_size=4)

    def setup(self) -> None:
        self.model = f"model of {os.getppid()}"

    def predict(self, xs: list[dict[str, Any]]) -> list[Any]:
        with record_call(HISTORY, ps.current_requests(), stage=self.model):
            results = [_act(**x) for x in xs]
            _act_on_batch(xs, results)
            return results


def _act(
    x: int = 0,
    seconds: float = 0.0,
    gate: str = "",
    size: int = 0,
    signal_once: tuple[str, int] | None = None,
    fault: str = "",
    **_: Any,
) -> Any:
    """Twice `x`, after what else a job asks for."""
    time.sleep(seconds)
    if gate:
        wait_for(Path(gate))
    if signal_once is not None and not Path(signal_once[0]).exists():
        Path(signal_once[0]).touch()
        os.kill(os.getpid(), signal_once[1])
        time.sleep(60)
    match fault:
        case "raise":
            raise ValueError("a bad job")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        case "segfault":
            ctypes.string_at(0)
        case "hang":
            time.sleep(600)
        case "nan":
            return float("nan")
        case "unwritable":
            return object()
    return "x" * size if size else 2 * x


def _act_on_batch(xs: list[dict[str, Any]], results: list[Any]) -> None:
    """What goes wrong only in company, or with a whole batch."""
    faults = {x.get("in_batch", "") for x in xs}
    if "too large together" in faults and len(xs) > 1:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs out
        time.sleep(60)
    if "raises with company" in faults and len(xs) > 1:
        raise RuntimeError("too much company")
    if "raises" in faults:
        raise RuntimeError("a bad job in the batch")
    if "drops a result" in faults:
        results.pop()


service = ps.Service(Told, name="told")
without_bisection = ps.Service(ps.stage(Told, bisect=False), name="told")
