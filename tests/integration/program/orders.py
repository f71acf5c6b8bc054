"""Services that do as each item says: one module that serves many tests.  `penstock serve` imports it, as workers do.

Notes of what ran go to files in the current folder; an item that holds waits until the file `open` is there.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Literal

import msgspec
from notes_and_gates import note, wait_for

import penstock as ps


class Order(msgspec.Struct):
    """What to do with this item, and what to answer."""

    do: Literal["answer", "hold", "raise", "raise elsewhere", "refuse", "die", "die once", "burn", "spin", "nap"] = (
        "answer"
    )
    value: float = 0.0
    seconds: float = 0.0


def obey(order: Order) -> float:
    """Do it."""
    note("ran", order.value)
    match order.do:
        case "hold":
            wait_for(Path("open"))
        case "raise":
            raise RuntimeError("the secret of row 7")
        case "raise elsewhere":  # of another kind: the log of a shared server has not told of it yet
            raise RuntimeError("the secret of row 8")
        case "refuse":
            raise ps.InvalidItem("not today")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die once" if not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        case "burn":  # one long call that does not give the interpreter's lock away
            end = time.monotonic() + order.seconds
            while time.monotonic() < end:
                sum(range(10_000))
        case "spin":  # the same until the gate opens
            while not Path("open").exists():
                sum(range(10_000))
        case "nap":
            time.sleep(order.seconds)
    return order.value


class Obey(ps.Stage):
    """One item at a time."""

    def predict(self, order: Order) -> float:
        return obey(order)


class ObeyTogether(ps.Stage):
    """A batch raises as a whole."""

    batch = ps.Batch(max_size=4)

    def predict(self, orders: list[Order]) -> list[float]:
        note("batches", len(orders))
        return [obey(order) for order in orders]


class AddHundred(ps.Stage):
    """A stage behind another; it notes what it ran."""

    def predict(self, x: float) -> float:
        note("second", x)
        return x + 100.0


service = ps.Service(ps.stage(Obey, workers=1), name="orders")
two_workers = ps.Service(ps.stage(Obey, workers=2), name="pairs")
batched = ps.Service(ps.stage(ObeyTogether, workers=1), name="batched")
two_stages = ps.Service(ps.stage(Obey, workers=1), ps.stage(AddHundred, workers=1), name="chain")
