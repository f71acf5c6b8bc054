"""Bodies that lie in shared memory, stages that take them, and what a service holds of that memory.

Worker processes import this module, so it needs nothing of the tests.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from notes_and_gates import note, wait_for

import penstock as ps
from penstock.codec.formats import Codec
from penstock.core.outcome import Outcome, Result

LARGE = 100_000
"""A size, in bytes, from which on all that these tests send lies in shared memory."""


def body(number: int, nbytes: int = LARGE) -> np.ndarray:
    """A body that no other number has: each of its pages differs from any of another body."""
    words = np.arange((nbytes + 7) // 8, dtype=np.uint64) // 16 + np.uint64(number << 32)
    return words.view(np.uint8)[:nbytes]


def digest(data: Any) -> str:
    """What tells these bytes from any other."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


async def held(service: ps.Service) -> list[tuple[str, int, int]]:
    """The slabs of which something is held: the bytes in use, and those that stages keep views of.

    It lets the event loop turn first: what a task was woken with is held until it waits again.
    """
    await asyncio.sleep(0)
    slabs = service.engine.slabs
    assert slabs, "this service has no shared memory"
    return [(slab.name, slab.used_bytes, slab.kept_bytes) for slab in slabs if slab.used_bytes or slab.kept_bytes]


async def ask(
    service: ps.Service, data: Any, codec_in: Codec = Codec.RAW, codec_out: Codec = Codec.RAW, **how: Any
) -> Outcome:
    """The outcome of one item as HTTP would submit it: its bytes, and a result in the format that was asked for."""
    outcomes: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
    payload: Any = data if (piece := service.engine.piece(len(data))) is None else piece
    if piece is not None:
        piece[:] = data
    payloads = [payload]
    del payload, piece
    service.engine.submit(payloads, codec_in, codec_out, math.inf, outcomes.set_result, wait=True, **how)
    return (await outcomes)[0]


async def answer(service: ps.Service, data: Any, **how: Any) -> bytes:
    """The result of one item, copied."""
    outcome = await ask(service, data, **how)
    assert isinstance(outcome, Result), outcome.error
    return bytes(outcome.payload)


# -- plain stages -----------------------------------------------------------------------------------------------------


class TellBatch(ps.Stage):
    batch = ps.Batch(max_size=8)

    def predict(self, xs: list[np.ndarray]) -> list[Any]:
        return [digest(x) for x in xs]


def back(x: Any) -> Any:
    return x


class Around(ps.Stage):
    """Looks at each item before and after `predict`."""

    batch = ps.Batch(max_size=4)

    def preprocess(self, x: np.ndarray) -> np.ndarray:
        return x[1:]

    def predict(self, xs: list[np.ndarray]) -> list[np.ndarray]:
        return [x ^ 255 for x in xs]

    def postprocess(self, result: np.ndarray, pre: np.ndarray) -> tuple[str, np.ndarray]:
        return digest(pre), result


class Picky(ps.Stage):
    """Fails for a batch that has an item which begins with 13."""

    batch = ps.Batch(max_size=8, max_wait=0.05)

    def predict(self, xs: list[np.ndarray]) -> list[np.ndarray]:
        if any(x[0] == 13 for x in xs):
            raise ValueError("thirteen")
        return [x + 1 for x in xs]


class Gated(ps.Stage):
    """Notes in `folder`/ran that it runs, and waits for `folder`/open with its view of the item."""

    def setup(self, folder: str) -> None:
        self.folder = Path(folder)

    def predict(self, x: np.ndarray) -> str:
        note(self.folder / "ran", int(x[0]))
        wait_for(self.folder / "open")
        return digest(x)


# -- stages that do what the docs tell them not to --------------------------------------------------------------------


PARTS = ("view", "slice", "array", "row", "view of array")
"""What a stage may keep of an item."""


class Keeper(ps.Stage):
    """Keeps a part of an item that begins with `k`, drops all for `d`, and answers with what it had kept before.

    The second byte of an item says which of `PARTS` it is.
    """

    def setup(self) -> None:
        self.kept: list[Any] = []

    def predict(self, x: memoryview) -> list[str]:
        told = [digest(part) for part in self.kept]
        if x[0] == ord("k"):
            self.kept.append(part_of(x))
        elif x[0] == ord("d"):
            self.kept.clear()
        return told


def part_of(x: memoryview) -> Any:
    """The part of an item that `Keeper` keeps."""
    array = np.frombuffer(x, np.uint8)
    match PARTS[x[1]]:
        case "view":
            return x
        case "slice":
            return x[1000:2000]
        case "array":
            return array
        case "row":
            return array[:4000].reshape(4, 1000)[2]
        case _:
            return memoryview(array)[5:]


def scribble(x: np.ndarray) -> str:
    """Write to an item that begins with `w`, past numpy's guard."""
    if x[0] == ord("w"):
        ctypes.memset(x.ctypes.data, 0, 1)
    return digest(x)


# -- stages that die --------------------------------------------------------------------------------------------------

STEPS = ("preprocess", "predict", "encode", "next")
"""When a worker dies: before it has run an item, while it does, while it writes the result, and after it has answered:
when it is given the next batch."""


class Dying(ps.Stage):
    """Answers with the digest and a changed copy of each item, and dies once at the step that an item names.

    An item has a step's place in `STEPS` in its second byte, or 255, and its number in the first.
    """

    batch = ps.Batch(max_size=4)

    def setup(self, folder: str) -> None:
        self.folder = Path(folder)
        self.last = False

    def preprocess(self, x: np.ndarray) -> np.ndarray:
        if self.last:
            kill_self()
        self.die_once(x, "preprocess")
        return x

    def predict(self, xs: list[np.ndarray]) -> list[Any]:
        for x in xs:
            self.die_once(x, "predict")
        return [Told(self, x) for x in xs]

    def die_once(self, x: np.ndarray, step: str) -> bool:
        if x[1] == STEPS.index(step):
            mark = self.folder / f"{step} {x[0]}"
            if not mark.exists():
                mark.touch()
                if step != "next":
                    kill_self()
                return True
        return False


class Told:
    """What `Dying` gives for an item: written as the digest of the item and a copy of it with each bit turned."""

    def __init__(self, stage: Dying, x: np.ndarray) -> None:
        self.stage = stage
        self.x = x

    def __reduce__(self) -> tuple[Any, ...]:
        self.stage.die_once(self.x, "encode")
        self.stage.last = self.stage.die_once(self.x, "next")
        return (pair, (digest(self.x), self.x ^ 255))


def pair(told: str, turned: np.ndarray) -> tuple[str, np.ndarray]:
    return told, turned


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
