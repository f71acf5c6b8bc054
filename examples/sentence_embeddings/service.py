"""Sentence embeddings as a service of two stages: text to token ids, token ids to a vector of 384 numbers."""

from __future__ import annotations

import os

import numpy as np
from model import MAX_TOKENS, SentenceModel, model_folder
from numpy.typing import NDArray

import penstock as ps

EXAMPLE = "The gate lets the water in."


class Tokenize(ps.Stage):
    """Cuts a text into word pieces: at most 256 of them, the rest of a longer text is dropped."""

    batch = ps.Batch(max_size=64)
    examples = [EXAMPLE]

    def setup(self) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
        # The file says: cut at 128, and fill up to 128.  The model was made for 256 and needs no filling.
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.no_padding()

    def predict(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]


class Embed(ps.Stage):
    """Runs the model over the texts that are there; alike or not in length, they share its matrix products."""

    batch = ps.Batch(max_size=32)
    examples = [[101, 1996, 4796, 11082, 1996, 2300, 1999, 1012, 102]]  # EXAMPLE, tokenized

    def setup(self) -> None:
        self.model = SentenceModel(model_folder())

    def predict(self, texts: list[list[int]]) -> NDArray[np.float32]:
        return self.model.encode(texts)


# Several workers with few threads each: threads that share one matrix product wait for each other at every step, and
# where the cores have other work too that costs more than it gains.  A worker holds the whole model, 130 MB.
cores = len(os.sched_getaffinity(0))
service = ps.Service(
    ps.stage(Tokenize, workers=1),
    ps.stage(Embed, workers=min(cores, 4)),
    name="sentence-embeddings",
)
