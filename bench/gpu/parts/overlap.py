"""Where a worker's time goes, and what prefetch, the place of the tokenizer and the format of results change."""

from __future__ import annotations

import itertools
import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from callers import START_SECONDS, load, request_bytes
from encoders import HAS_NUMPY, as_ids, kind_here, shape_of, some_ids
from meter import VARIABLE, Notes, meter_folder, read_notes
from part import Part
from serving import Server
from texts import some_texts, tokenizer_workers, train_tokenizer

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import ItemEncoder
from penstock.codec.formats import Codec

MODEL = "BERT-base"
CALLERS = 256
ROUNDS = 3
WARMUP = 0.2
NPY, JSON = "application/x-npy", "application/json"


@dataclass(frozen=True, slots=True)
class Way:
    """One arrangement of the same work."""

    name: str
    server: str
    """The name of its server in `SERVERS`."""
    accept: str = NPY


SERVERS = {
    "stage": ("text", "Encode", "1"),
    "hook": ("hooked", "EncodeText", "1"),
    "prefetch 0": ("hooked", "EncodeText", "0"),
    "prefetch 2": ("hooked", "EncodeText", "2"),
}
"""The service, its stage with the encoder, and the prefetch of that.

Prefetch is compared where the tokenizer is in the hook: the worker is the bottleneck there, whatever the coordinator
can do.
"""
WAYS = (
    Way("tokenizer in a stage", "stage"),
    Way("tokenizer in a stage, JSON results", "stage", JSON),
    Way("tokenizer in the hook", "hook"),
    Way("tokenizer in the hook, prefetch 0", "prefetch 0"),
    Way("tokenizer in the hook, prefetch 2", "prefetch 2"),
)


def run(part: Part) -> None:
    """Start a server for each, and load them in turns."""
    part.note(
        f"{MODEL}, {CALLERS} callers over HTTP, results as .npy and prefetch 1 where nothing else is said. "
        f"Encoder: {kind_here()}."
    )
    ways = [way for way in WAYS if HAS_NUMPY or way.accept == JSON]
    train_tokenizer(part.folder)
    _codecs(part)
    wire = [json.dumps(text).encode() for text in some_texts(64, shape_of(MODEL, small=not part.on_gpu).tokens)]
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_start(part, name)) for name in {way.server for way in ways}}
        for server in servers.values():
            server.ready(part.seconds_left() - 5)
        seen: dict[str, list[dict[str, float]]] = {way.name: [] for way in ways}
        most = 2.0 if part.on_gpu else 0.4
        around = WARMUP + START_SECONDS + 0.3
        seconds = max(0.3, min(most, (part.seconds_left() - 4) / (ROUNDS * len(ways)) - around))
        for number, way in itertools.product(range(ROUNDS), ways):
            if number and part.seconds_left() < seconds + around + 2:
                part.note("There was no time for all rounds.")
                break
            seen[way.name].append(_measure(part, servers[way.server], way, wire, seconds))
            for aspect, unit in ASPECTS.items():
                part.figure(f"{way.name}: {aspect}", unit, [one[aspect] for one in seen[way.name]])
        wrong = sum(one["wrong"] for found in seen.values() for one in found)
        part.check("every call was answered", wrong == 0, f"{wrong:.0f} were not")


ASPECTS = {
    "answered": "items/s",
    "worker at work": "share",
    "device computes": "share",
    "hook": "µs/item",
    "predict": "µs/item",
    "copies": "µs/item",
    "device": "µs/item",
    "decoding and encoding": "µs/item",
}


def _start(part: Part, name: str) -> Server:
    service, _, prefetch = SERVERS[name]
    env = {"GPU_MODEL": MODEL, "GPU_PREFETCH": prefetch, VARIABLE: str(meter_folder(part.folder, name))}
    env["GPU_TOKENIZERS"] = str(tokenizer_workers())
    return Server.penstock(f"encoding_services:{service}", part.folder / f"{name.replace(' ', '-')}.log", **env)


def _measure(part: Part, server: Server, way: Way, wire: list[bytes], seconds: float) -> dict[str, float]:
    stage = SERVERS[way.server][1]
    meter = meter_folder(part.folder, way.server)
    looks: list[tuple[float, float, Notes]] = []

    def look() -> None:
        looks.append((time.monotonic(), _computed(server, stage), read_notes(meter)))

    requests = [request_bytes(body, path="/predict", accept=way.accept) for body in wire]
    found = load(server.port, requests, callers=CALLERS, seconds=seconds, warmup=WARMUP, look=look)
    (began, busy, before), (ended, busy_after, after) = looks
    spent, notes, computed = ended - began, after - before, busy_after - busy
    micro = 1e6 / max(1.0, notes.items)
    return {
        "answered": found.rate,
        "worker at work": computed / spent,
        "device computes": notes.device_seconds / spent,
        "hook": micro * notes.hook_seconds,
        "predict": micro * notes.predict_seconds,
        "copies": micro * notes.copy_seconds,
        "device": micro * notes.device_seconds,
        "decoding and encoding": micro * (computed - notes.hook_seconds - notes.predict_seconds),
        "wrong": found.wrong,
    }


def _computed(server: Server, stage: str) -> float:
    return server.metric("penstock_stage_run_seconds_sum", stage)


def _codecs(part: Part) -> None:
    """Measure decoding of one item and encoding of one result by themselves, in this process."""
    from encoding_services import Ids

    from penstock.codec.pickle_ import dumps
    from penstock.core.payload import join_payload

    shape = shape_of(MODEL, small=not part.on_gpu)
    ids = as_ids(some_ids(shape, 1)[0])
    payload = join_payload(dumps(ids))
    decoder = ItemDecoder(Ids, validate=False)
    part.figure(
        "decoding one item's ids from the stage before", "µs", _micros(lambda: decoder.decode(Codec.PICKLE, payload))
    )
    vector: Any = [0.125] * shape.width
    formats = {".npy": Codec.NPY, "JSON": Codec.JSON} if HAS_NUMPY else {"JSON": Codec.JSON}
    result: Any = list[float]
    if HAS_NUMPY:
        import numpy as np
        from numpy.typing import NDArray

        vector, result = np.array(vector, np.float32), NDArray[np.float32]
    encoder = ItemEncoder(result)
    for name, codec in formats.items():
        part.figure(f"encoding one vector as {name}", "µs", _micros(lambda codec=codec: encoder.encode(codec, vector)))


def _micros(call: Any) -> list[float]:
    found = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(500):
            call()
        found.append((time.perf_counter() - started) / 500 * 1e6)
    return found
