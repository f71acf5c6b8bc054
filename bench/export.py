"""Measure what an exported model costs: served, against a hand-written stage; encoding, against scikit-learn.

    python bench/export.py                     # five rounds of everything
    python bench/export.py --only served --rounds 3
    python bench/export.py --plain             # the sources, not what an install compiles

It runs in the environment that `make frameworks` makes.  In each round both sides of a scene are measured in turns,
now one first and now the other, so that what else the machine does hits both alike.  Servers and load generators share
one core, and each round starts the servers anew, for the reasons that against.py gives.

The exit status is 1 when a limit is missed, 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from against import STEADY, WARMUP_SLICES, in_turns, on_cores, side_by_side, slice_of
from builds import COMPILED, SOURCES, Build
from loadgen import LoadFailed
from pair_figures import PairRound, PairRun, Scene, summarise
from payload import Exchange
from report import Limit, keep
from run import machine
from scene_arguments import scene_arguments
from servers import ServerFailed, Subject, penstock_command

SCENES = {
    scene.name: scene
    for scene in (
        Scene("served", "requests/s", "artifact", "by hand", Limit(0.7)),
        Scene("encode-32", "us", "encode", "ColumnTransformer", Limit(0.1, at_least=False), 1e6),
        Scene("encode-100000", "ms", "encode", "ColumnTransformer", Limit(1.0, at_least=False), 1e3),
    )
}

CONNECTIONS = 256
SLICES = 32
"""How often each server is loaded in a round."""

LAPS = 16
"""How often each encoder is timed in a round."""

LAP_SECONDS = 0.02
"""How long a lap takes at least: long against the clock and against a turn of the scheduler."""

MOST_ROWS_OF_A_SERVER = 1024
"""A larger table is given as a DataFrame."""

ROW = {"age": 32, "educ": 17, "occupation": "job 2"}


def subjects(artifact: Path, features: Any, build: Build) -> tuple[Subject, Subject]:
    """The artifact, and the hand-written stage over the same file: each is asked about the same row."""
    import onnxruntime

    encoded = features.encode([ROW])
    session = onnxruntime.InferenceSession(artifact / "model.onnx")
    (probabilities,) = session.run(None, encoded)
    answer = msgspec.json.encode({"probability": probabilities[0].item()})
    numbers = {name: array[0].tolist() for name, array in encoded.items()}
    common = {"worker_mark": "penstock.worker", "build": build}
    return (
        Subject(
            "artifact", penstock_command(str(artifact)), exchange=Exchange(msgspec.json.encode(ROW), answer), **common
        ),
        Subject(
            "by-hand",
            penstock_command("export_by_hand:service"),
            exchange=Exchange(msgspec.json.encode(numbers), answer),
            **common,
        ),
    )


def measure_served(number: int, sides: tuple[Subject, Subject], *, compiled: bool, scene: str = "served") -> PairRound:
    """One round of both servers, in slices of an equal number of requests."""
    with on_cores(one_core=True), side_by_side(*sides, connections=CONNECTIONS, compiled=compiled) as loaded:
        requests = slice_of(loaded[1], CONNECTIONS)
        for turn in in_turns(number, WARMUP_SLICES):
            loaded[turn].load(requests)
        for turn in in_turns(number, SLICES):
            loaded[turn].measure(requests)
    ours, theirs = (side.seen["rate"] for side in loaded)
    return PairRound(scene, number, ours, theirs)


def encoders(count: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Calls that encode so many rows, ours and scikit-learn's: each from the table that it is usually given.

    A server has row dicts, which `encode` takes as they are; a `ColumnTransformer` needs a DataFrame.  A large table is
    a DataFrame for both.
    """
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    from export_model import fitted, rows

    table = rows(count)
    frame = pd.DataFrame(table)
    features = fitted(frame)
    theirs = ColumnTransformer(
        [
            ("age", StandardScaler(), ["age"]),
            ("educ", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["educ"]),
            ("occupation", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["occupation"]),
        ]
    ).fit(frame)
    given = table if count <= MOST_ROWS_OF_A_SERVER else frame
    return lambda: features.encode(given), lambda: theirs.transform(frame)


def measure_encoding(scene: str, number: int, sides: tuple[Callable[[], object], Callable[[], object]]) -> PairRound:
    """One round of both encoders: seconds a call, in each lap."""
    calls = [calls_of(side) for side in sides]
    seen: tuple[list[float], list[float]] = ([], [])
    for turn in in_turns(number, LAPS):
        begin = time.perf_counter()
        for _ in range(calls[turn]):
            sides[turn]()
        seen[turn].append((time.perf_counter() - begin) / calls[turn])
    return PairRound(scene, number, *seen)


def calls_of(side: Callable[[], object]) -> int:
    """How many calls take about LAP_SECONDS; one at least."""
    side()  # the first call may prepare something
    begin = time.perf_counter()
    side()
    return max(1, round(LAP_SECONDS / (time.perf_counter() - begin)))


def arguments() -> argparse.Namespace:
    return scene_arguments(
        "Measure a served artifact, and the encoding of features.",
        SCENES,
        rounds="ratios taken of each scene",
        plain="run the sources instead of the compiled build",
    )


def tell(taken: PairRound, rounds: int) -> PairRound:
    print(f"round {taken.number + 1}/{rounds}  {taken.line()}", file=sys.stderr, flush=True)
    return taken


def take_all(chosen: argparse.Namespace, folder: Path) -> list[PairRound]:
    """Every round of every scene asked for."""
    sides = {}
    if "served" in chosen.only:
        from export_model import save

        artifact = folder / "artifact"
        os.environ["BENCH_MODEL"] = str(artifact / "model.onnx")
        sides["served"] = subjects(artifact, save(artifact), SOURCES if chosen.plain else COMPILED)
    for name, count in (("encode-32", 32), ("encode-100000", 100_000)):
        if name in chosen.only:
            sides[name] = encoders(count)
    taken = []
    for number in range(chosen.rounds):
        for name, both in sides.items():
            one = (
                measure_served(number, both, compiled=not chosen.plain)
                if name == "served"
                else measure_encoding(name, number, both)
            )
            taken.append(tell(one, chosen.rounds))
    return taken


def main() -> int:
    chosen = arguments()
    os.environ.update(STEADY)
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            taken = take_all(chosen, Path(folder))
    except (LoadFailed, ServerFailed) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 2
    where = machine("msgspec", "numpy", "onnxruntime", "scikit-learn", "pandas")
    build = {"build": "plain" if chosen.plain else "compiled"}
    scenes = [SCENES[name] for name in chosen.only]
    run = PairRun(datetime.now(UTC), build | where, {"rounds": chosen.rounds}, scenes, taken)
    met = summarise(run)
    print(f"Everything that was measured: {keep(run, f'export-{run.when:%Y%m%d-%H%M%S}')}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
