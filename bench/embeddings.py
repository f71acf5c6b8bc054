"""Measure what rows outside the model cost: training steps against native layers, and files against memory.

    python bench/embeddings.py                     # five rounds of everything
    python bench/embeddings.py --only store --rounds 3

It runs in the environment that `make frameworks` makes; `store` alone needs no PyTorch.  All rows are there before a
step is measured, so no table grows.  In each round both sides of a scene take the same ids in turns, now one first and
now the other, so that what else the machine does hits both alike.

The exit status is 1 when a limit is missed.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from against import in_turns
from pair_figures import PairRound, PairRun, Scene, summarise
from penstock import embeddings as emb
from procfs import machine_busy
from report import Limit, keep
from run import machine
from scene_arguments import scene_arguments

SCENES = {
    scene.name: scene
    for scene in (
        Scene("memory", "ms a step", "memory:", "native", Limit(1.2, at_least=False), 1e3),
        Scene("shared", "ms a step", "shared:", "native", Limit(2.0, at_least=False), 1e3),
        Scene("store", "rows/s", "shared:", "memory:", Limit(0.5)),
    )
}
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


Side = Callable[[np.ndarray], np.ndarray]
"""Does a step with these ids, and gives what both sides must agree on."""


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
        yield lambda ids: train(rows.model, rows, ids), lambda ids: train(native, optimizer, ids)


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
        yield lambda ids: step(ours, ids), lambda ids: step(theirs, ids)


def sides_of(scene: str, folder: str | Path, sizes: Sizes) -> AbstractContextManager[tuple[Side, Side]]:
    """Both sides of a scene, with all rows; files lie in `folder`."""
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
        for ids in batches:
            sides[turn](ids)
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


def main() -> int:
    chosen = scene_arguments("Measure embedding tables outside the model.", SCENES, rounds="ratios taken of each scene")
    sizes, taken = Sizes(), []
    begin, busy = time.monotonic(), machine_busy() - time.process_time()
    for name in chosen.only:
        print(f"{name}: {sizes.rows:,} rows, and a warm-up", file=sys.stderr, flush=True)
        for one in measure(name, chosen.rounds, sizes):
            print(f"round {one.number + 1}/{chosen.rounds}  {one.line()}", file=sys.stderr, flush=True)
            taken.append(one)
    others = (machine_busy() - time.process_time() - busy) / (time.monotonic() - begin)
    where = machine("torch", "numpy") | {"others": f"{max(0.0, others):.2f} cores"}
    settings = {"rounds": chosen.rounds, "rows": sizes.rows, "numbers a row": sizes.width, "ids a step": sizes.ids}
    if "torch" in sys.modules:
        settings["threads of torch"] = sys.modules["torch"].get_num_threads()
    scenes = [SCENES[name] for name in chosen.only]
    run = PairRun(datetime.now(UTC), where, settings, scenes, taken)
    met = summarise(run)
    print(f"Everything that was measured: {keep(run, f'embeddings-{run.when:%Y%m%d-%H%M%S}')}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
