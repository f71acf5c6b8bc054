"""The encoders as services: `text` has the tokenizer in a stage of its own, `hooked` in the hook, `ids` has none.

    GPU_MODEL=BERT-base PART_DEVICE=cuda penstock serve encoding_services:text

Each takes the encoder of `$GPU_MODEL`, and the tokenizer that lies at `$GPU_TOKENIZER`.
"""

from __future__ import annotations

import os
import time
from typing import Any

from encoders import DEVICE, HAS_NUMPY, as_ids, make_encoder, served_shape, some_ids
from meter import Meter
from texts import open_tokenizer

import penstock as ps

SHAPE = served_shape()
PREFETCH = int(os.environ.get("GPU_PREFETCH", "1"))
TOKENIZERS = int(os.environ.get("GPU_TOKENIZERS", "1"))
LARGEST = 64

# The annotations of the stages.  Without numpy there is no `.npy`, and vectors are lists.
if HAS_NUMPY:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.int32]
    Vectors = NDArray[np.float32]
else:
    Ids = list[int]
    Vectors = list[list[float]]


class Tokenize(ps.Stage):
    """Text to token ids."""

    batch = ps.Batch(max_size=LARGEST)
    examples = ["The gate lets the water in."]

    def setup(self) -> None:
        self.tokenizer = open_tokenizer(os.environ["GPU_TOKENIZER"], SHAPE.tokens)

    def predict(self, texts: list[str]) -> list[Ids]:
        return [as_ids(found.ids) for found in self.tokenizer.encode_batch(texts)]


class Encode(ps.Stage):
    """Token ids to vectors."""

    batch = ps.Batch(max_size=LARGEST)
    examples = [as_ids(some_ids(SHAPE, 1)[0])]

    def setup(self) -> None:
        self.encoder = make_encoder(SHAPE, DEVICE)
        self.meter = Meter()

    def predict(self, texts: list[Ids]) -> Vectors:
        return self.encode(texts)

    def encode(self, texts: list[Ids]) -> Any:
        """Compute, and note how long it took."""
        started = time.perf_counter()
        vectors = self.encoder.encode(texts)
        notes = self.meter.notes
        notes.items += len(texts)
        notes.device_seconds = self.encoder.device_seconds
        notes.copy_seconds = self.encoder.copy_seconds
        notes.predict_seconds += time.perf_counter() - started
        self.meter.write()
        return vectors


class EncodeText(Encode):
    """Text to vectors: the tokenizer runs in the hook."""

    examples = ["The gate lets the water in."]

    def setup(self) -> None:
        super().setup()
        self.tokenizer = open_tokenizer(os.environ["GPU_TOKENIZER"], SHAPE.tokens)

    def preprocess(self, text: str) -> Ids:
        started = time.perf_counter()
        ids = as_ids(self.tokenizer.encode(text).ids)
        self.meter.notes.hook_seconds += time.perf_counter() - started
        return ids


ids = ps.Service(ps.stage(Encode, prefetch=PREFETCH), name="ids")
text = ps.Service(ps.stage(Tokenize, workers=TOKENIZERS), ps.stage(Encode, prefetch=PREFETCH), name="text")
hooked = ps.Service(ps.stage(EncodeText, prefetch=PREFETCH), name="hooked")
