"""Measure what rows outside the model cost: training steps against native layers, and files against memory.

    python bench/embeddings.py                     # five rounds of everything
    python bench/embeddings.py --only store --rounds 3

It runs in the environment that `make frameworks` makes; `store` and the scenes of `rows` need neither PyTorch nor
Keras.  All rows are there before a step is measured, so no table grows.  In each round both sides of a scene take the
same ids in turns, now one first and now the other, so that what else the machine does hits both alike.

The exit status is 1 when a limit is missed.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from against import STEADY, in_turns
from builds import COMPILED
from export import measure_served
from pair_figures import PairRound, PairRun, Scene, summarise
from penstock import embeddings as emb
from penstock.embeddings.memory_store import MemoryTrainingStore
from penstock.embeddings.training_store import Fetched
from procfs import machine_busy
from report import Limit, keep
from run import machine
from scene_arguments import scene_arguments
from served_rows import costs, subjects
from stored_rows import draw_ids, ids_of, make_cold, readers, rows_beside

SCENES = {
    scene.name: scene
    for scene in (
        Scene("memory", "ms a step", "memory:", "native", Limit(1.2, at_least=False), 1e3),
        Scene("shared", "ms a step", "shared:", "native", Limit(2.0, at_least=False), 1e3),
        Scene("store", "rows/s", "shared:", "memory:", Limit(0.5)),
        Scene("keras", "ms a step", "memory:", "native", Limit(0.5, at_least=False), 1e3),
        Scene("rows", "rows/s", "shards", "take", Limit(0.7)),
        Scene("rows-any", "rows/s", "shards", "searchsorted", Limit(1.2)),
        Scene("rows-cold", "rows/s", "shards", "one thread", Limit(2.0)),
        Scene("served", "requests/s", "outside", "inlined", Limit(0.8)),
    )
}
READS = ("rows", "rows-any", "rows-cold")
"""Scenes that read rows which are trained."""
OPTIMIZER = emb.Adagrad(lr=0.05)


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rows: int = 1_000_000
    width: int = 64
    ids: int = 4096
    """Ids of a step, drawn from all rows alike."""
    steps: int = 8
    """Steps of a turn."""
    laps: int = 32
    """Turns of each side in a round."""
    warmup: int = 16
    """Laps before the first round: in them steps have written to nearly every page of 4 KB."""
    cold_rows: int = 8_000_000
    """Rows of the table that is read from the disk, so that a call touches few of its pages."""
    cold_laps: int = 4
    """Turns of each side there; a turn has one step."""


Side = Callable[[np.ndarray], Any]
"""Does a step with each of these rows of ids, and gives what both sides must agree on."""


def train(model: Any, optimizer: Any, ids: np.ndarray) -> np.ndarray:
    """Have the model learn which ids are odd; its loss."""
    import torch

    given = torch.from_numpy(ids)
    optimizer.zero_grad()
    answer = model(given).squeeze(1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(answer, (given % 2).float())
    loss.backward()
    optimizer.step()
    return loss.detach().numpy()


@contextmanager
def models(url: str, sizes: Sizes) -> Iterator[tuple[Side, Side]]:
    """Steps of two models that are equal, but that one has its rows in the store at `url`."""
    import torch
    from torch import nn

    torch.sparse.check_sparse_tensor_invariants.disable()  # which is so by default, but with a warning
    torch.manual_seed(0)
    native = nn.Sequential(nn.Embedding(sizes.rows, sizes.width, sparse=True), nn.Linear(sizes.width, 1))
    # The step of other parameters would be the same on both sides.
    native[1].requires_grad_(False)
    optimizer = torch.optim.Adagrad(native[0].parameters(), lr=OPTIMIZER.lr)
    rows = emb.offload(copy.deepcopy(native), url, optimizer=OPTIMIZER)
    with closing(rows.store):
        yield (
            lambda batches: [train(rows.model, rows, ids) for ids in batches],
            lambda batches: [train(native, optimizer, ids) for ids in batches],
        )


@contextmanager
def fits(sizes: Sizes, store: emb.TrainingStore | None = None) -> Iterator[tuple[Side, Side]]:
    """Steps of `fit` of two models of Keras that are equal, but that one has its rows in memory, or in `store`."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    def new_model() -> Any:
        given = keras.Input((), dtype="int64")
        model = keras.Model(given, keras.layers.Dense(1)(keras.layers.Embedding(sizes.rows, sizes.width)(given)))
        model.layers[-1].trainable = False
        return model

    def fit(model: Any, batches: np.ndarray) -> list[float]:
        ids = batches.reshape(-1)
        seen = model.fit(ids, (ids % 2).astype(np.float32), batch_size=batches.shape[1], shuffle=False, verbose=0)
        return seen.history["loss"]  # type: ignore[no-any-return]  # Keras may not be there where types are checked

    keras.utils.set_random_seed(0)
    native, ours = new_model(), new_model()
    ours.set_weights(native.get_weights())
    # The accumulator of Keras begins with this value.
    optimizer = emb.Adagrad(lr=OPTIMIZER.lr, initial_accumulator_value=0.1)
    rows = emb.offload(ours, "memory:" if store is None else store, optimizer=optimizer)
    for model in (native, ours):
        model.compile(keras.optimizers.Adagrad(OPTIMIZER.lr), keras.losses.BinaryCrossentropy(from_logits=True))
    with closing(rows.store):
        yield lambda batches: fit(ours, batches), lambda batches: fit(native, batches)


class Timed(MemoryTrainingStore):
    """A store in memory that measures itself; or, `idle`, one whose steps change nothing and whose rows are given."""

    idle = False

    def __init__(self) -> None:
        super().__init__()
        self.seconds = {"fetch": 0.0, "apply": 0.0}
        self._last: Fetched | None = None

    def fetch(self, table: str, ids: np.ndarray) -> Fetched:
        begin = time.perf_counter()
        if not self.idle or self._last is None or len(self._last.rows) < len(ids):
            self._last = super().fetch(table, ids)
        self.seconds["fetch"] += time.perf_counter() - begin
        return Fetched(self._last.rows[: len(ids)], self._last.found[: len(ids)])

    def apply(self, table: str, ids: np.ndarray, grads: np.ndarray, lr: float | None = None) -> None:
        begin = time.perf_counter()
        if not self.idle:
            super().apply(table, ids, grads, lr)
        self.seconds["apply"] += time.perf_counter() - begin


def parts_of_fit(sizes: Sizes) -> dict[str, float]:
    """Milliseconds of a step of `fit`, and of what is in it; a call of `fit` has as many steps as a round has turns."""
    import keras

    draw, store, steps = np.random.default_rng(0), Timed(), sizes.laps * 2

    def milliseconds(step: Side) -> float:
        taken = []
        for _ in range(5):
            batches = draw.integers(sizes.rows, size=(steps, sizes.ids))
            store.seconds = dict.fromkeys(store.seconds, 0.0)
            begin = time.perf_counter()
            step(batches)
            taken.append((time.perf_counter() - begin) / steps * 1e3)
        return median(taken[1:])

    with fits(sizes, store) as (ours, _):
        parts = {"ms a step of fit": milliseconds(ours)}
        parts |= {f"ms of {name} in it": 1e3 * spent / steps for name, spent in store.seconds.items()}
        store.idle = True
        parts["ms where the store does nothing"] = milliseconds(ours)
    given = keras.Input((sizes.width,))
    alone = keras.Model(given, keras.layers.Dense(1)(given))
    alone.compile(keras.optimizers.Adagrad(OPTIMIZER.lr), keras.losses.BinaryCrossentropy(from_logits=True))
    numbers = draw.standard_normal((steps * sizes.ids, sizes.width), np.float32)

    def dense(batches: np.ndarray) -> None:
        labels = (batches.reshape(-1) % 2).astype(np.float32)
        alone.fit(numbers, labels, batch_size=sizes.ids, shuffle=False, verbose=0)

    return parts | {"ms of the dense layer alone": milliseconds(dense)}


@contextmanager
def stores(url: str, sizes: Sizes) -> Iterator[tuple[Side, Side]]:
    """`fetch` and `apply` of the store at `url`, and of one in memory."""
    spec = emb.TableSpec("rows", sizes.width, size=sizes.rows, optimizer=OPTIMIZER)
    grads = np.random.default_rng(0).standard_normal((sizes.ids, sizes.width), np.float32)

    def step(store: emb.TrainingStore, ids: np.ndarray) -> np.ndarray:
        rows = store.fetch("rows", ids).rows
        store.apply("rows", ids, grads)
        return rows

    with closing(emb.open_training_store(url)) as ours, closing(emb.open_training_store("memory:")) as theirs:
        for store in (ours, theirs):
            store.create(spec)
            for ids in np.array_split(np.arange(sizes.rows), 16):
                store.load("rows", ids, spec.missing.rows(ids, sizes.width))
        yield (
            lambda batches: [step(ours, ids) for ids in batches],
            lambda batches: [step(theirs, ids) for ids in batches],
        )


def sides_of(scene: str, folder: str | Path, sizes: Sizes) -> AbstractContextManager[tuple[Side, Side]]:
    """Both sides of a scene, with all rows; files lie in `folder`."""
    if scene == "keras":
        return fits(sizes)
    url = "memory:" if scene == "memory" else f"shared:{folder}/rows"
    return stores(url, sizes) if scene == "store" else models(url, sizes)


def take_turns(number: int, laps: int, sides: tuple[Side, Side], sizes: Sizes) -> tuple[list[float], list[float]]:
    """Seconds a step of each side, in each lap; in a lap both have the same ids."""
    draw = np.random.default_rng(number)
    seen: tuple[list[float], list[float]] = ([], [])
    for at, turn in enumerate(in_turns(number, laps)):
        if at % 2 == 0:
            batches = draw.integers(sizes.rows, size=(sizes.steps, sizes.ids))
        begin = time.perf_counter()
        sides[turn](batches)
        seen[turn].append((time.perf_counter() - begin) / sizes.steps)
    return seen


def measure(scene: str, rounds: int, sizes: Sizes) -> Iterator[PairRound]:
    """Each round of a scene, after a warm-up of both sides."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        sides_of(scene, folder, sizes) as sides,
    ):
        take_turns(rounds, sizes.warmup, sides, sizes)
        for number in range(rounds):
            ours, theirs = take_turns(number, sizes.laps, sides, sizes)
            if scene == "store":
                ours, theirs = ([sizes.ids / seconds for seconds in side] for side in (ours, theirs))
            yield PairRound(scene, number, ours, theirs)


def measure_reads(scene: str, rounds: int, sizes: Sizes) -> Iterator[PairRound]:
    """Each round of a scene that reads rows which are trained; a cold side forgets its rows before each turn."""
    cold = scene == "rows-cold"
    rows, laps, steps = (sizes.cold_rows, sizes.cold_laps, 1) if cold else (sizes.rows, sizes.laps, sizes.steps)
    kind = "any" if scene == "rows-any" else "dense"
    known = ids_of(kind, rows)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        readers(Path(folder), kind, rows, sizes.width, cold=cold) as sides,
    ):
        for number in range(rounds):
            draw = np.random.default_rng(number)
            seen: tuple[list[float], list[float]] = ([], [])
            for at, turn in enumerate(in_turns(number, laps)):
                if at % 2 == 0:
                    batches = [draw_ids(draw, known, sizes.ids) for _ in range(steps)]
                if cold:
                    make_cold(sides[turn])
                begin = time.perf_counter()
                for ids in batches:
                    sides[turn](ids)
                seen[turn].append(steps * sizes.ids / (time.perf_counter() - begin))
            yield PairRound(scene, number, *seen)


def measure_service(scene: str, rounds: int, sizes: Sizes) -> Iterator[PairRound]:
    """Each round of two servers of one model."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        sides = subjects(Path(place), sizes.rows, sizes.width, COMPILED)
        for number in range(rounds):
            yield measure_served(number, sides, compiled=True, scene=scene)


def main() -> int:
    chosen = scene_arguments("Measure embedding tables outside the model.", SCENES, rounds="ratios taken of each scene")
    os.environ.update(STEADY)
    sizes, taken = Sizes(), []
    begin, busy = time.monotonic(), machine_busy() - time.process_time()
    for name in chosen.only:
        rows = sizes.cold_rows if name == "rows-cold" else sizes.rows
        print(f"{name}: {rows:,} rows, and a warm-up", file=sys.stderr, flush=True)
        rounds = measure_reads if name in READS else measure_service if name == "served" else measure
        for one in rounds(name, chosen.rounds, sizes):
            print(f"round {one.number + 1}/{chosen.rounds}  {one.line()}", file=sys.stderr, flush=True)
            taken.append(one)
    parts = parts_of_fit(sizes) if "keras" in chosen.only else {}
    if "served" in chosen.only:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            parts |= costs(Path(folder), sizes.width)
    if "rows" in chosen.only:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            parts |= rows_beside(Path(folder), sizes.rows, sizes.width, sizes.ids)
    others = (machine_busy() - time.process_time() - busy) / (time.monotonic() - begin)
    where = machine("torch", "keras", "numpy") | {"others": f"{max(0.0, others):.2f} cores"}
    settings = {
        "rounds": chosen.rounds,
        "rows": sizes.rows,
        "numbers a row": sizes.width,
        "ids a step": sizes.ids,
    } | parts
    if "torch" in sys.modules:
        settings["threads of torch"] = sys.modules["torch"].get_num_threads()
    scenes = [SCENES[name] for name in chosen.only]
    run = PairRun(datetime.now(UTC), where, settings, scenes, taken)
    met = summarise(run)
    print(f"Everything that was measured: {keep(run, f'embeddings-{run.when:%Y%m%d-%H%M%S}')}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
