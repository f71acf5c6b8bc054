"""The sides of the scene `served`, a model with its table in shards and with it in the graph; and what each step costs.

Each request asks for a user of its own, so a batch has as many distinct ids as requests.  The answer is the same for
all, since the load generator compares answers byte by byte, and takes the whole row all the same.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import penstock as ps
from builds import Build
from payload import NUMBER, Exchange
from penstock import embeddings as emb
from penstock import features as f
from penstock.artifact.opened_artifact import open_artifact
from penstock.artifact.served_model import open_model
from servers import Subject, penstock_command

BODY = b'{"user":"%s"}' % NUMBER
ANSWER = b'{"score":0.0}'
GIGABYTE_ROWS = 4_000_000
"""Rows of 64 numbers that take 1.02 GB."""
BATCH = 256
LAPS = 200


def save(path: Path, rows: int, width: int, *, outside: bool) -> float:
    """Save a model with a table of so many rows; seconds that `save` took."""
    import torch
    from torch import nn

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user = nn.Embedding(rows, width)

        def forward(self, user: Any) -> Any:
            return {"score": (self.user(user).sum(dim=1) > 1e9).float()}

    with emb.placeholders():
        model = Scored()
    offloaded = emb.offload(model, "memory:", optimizer=emb.SGD(lr=0.1))
    table = next(iter(offloaded.tables.values()))
    for start in range(0, rows, 65536):
        ids = np.arange(start, min(start + 65536, rows))
        offloaded.store.load(table.name, ids, table.missing.rows(ids, width, table.name))
    features = ps.Features({"user": f.Hashed(buckets=rows)})
    probes = [{"user": f"{number:010}"} for number in range(32)]
    begin = time.perf_counter()
    torch.set_num_threads(1)
    ps.export.save(
        offloaded,
        path,
        features=features,
        reference_rows=probes,
        batch=ps.Batch(max_size=BATCH),
        outside=["user"] if outside else (),
        inline_limit=2**31,
    )
    return time.perf_counter() - begin


def subjects(folder: Path, rows: int, width: int, build: Build) -> tuple[Subject, Subject]:
    """The model with its table outside, and with it in the graph."""
    exchange = Exchange(BODY, ANSWER, number_at=BODY.index(NUMBER))
    for name in ("outside", "inlined"):
        save(folder / name, rows, width, outside=name == "outside")
    outside, inlined = (
        Subject(
            name, penstock_command(str(folder / name)), exchange=exchange, worker_mark="penstock.worker", build=build
        )
        for name in ("outside", "inlined")
    )
    return outside, inlined


def costs(folder: Path, width: int) -> dict[str, float]:
    """Costs of single steps, with a table of a gigabyte outside."""
    saved = save(folder / "saved", GIGABYTE_ROWS, width, outside=True)
    begin = time.perf_counter()
    ps.export.publish(folder / "saved", folder / "models")
    published = time.perf_counter()
    open_model(open_artifact(folder / "saved")).close()
    opened = time.perf_counter()
    gigabytes = GIGABYTE_ROWS * width * 4 / 1e9
    return lookups_share(folder / "saved") | {
        "seconds of save by GB": round(saved / gigabytes, 2),
        "seconds of publish by GB": round((published - begin) / gigabytes, 2),
        "seconds of opening a model of 1 GB": round(opened - published, 3),
    }


def lookups_share(artifact: Path) -> dict[str, float]:
    """Milliseconds of a batch of `BATCH` rows, and of the lookups in it."""
    model = open_model(open_artifact(artifact))
    assert model.lookups is not None
    draw, whole, lookups = np.random.default_rng(5), [], []
    for _ in range(LAPS):
        rows = [{"user": f"{number:010}"} for number in draw.integers(10**9, size=BATCH)]
        inputs = model.features.encode_rows(rows).inputs
        begin = time.perf_counter()
        model.lookups.look_up(inputs)
        between = time.perf_counter()
        model.predict_rows(rows)
        whole.append(time.perf_counter() - between)
        lookups.append(between - begin)
    model.close()
    return {
        f"ms of a batch of {BATCH}": round(1e3 * median(whole), 3),
        "ms of the lookups in it": round(1e3 * median(lookups), 3),
    }
