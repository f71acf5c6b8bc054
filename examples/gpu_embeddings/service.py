"""Sentence embeddings on GPUs: text to token ids beside them, token ids to a vector of 384 numbers on each."""

from __future__ import annotations

import numpy as np
from host import MAX_TOKENS, gpus, model_folder
from numpy.typing import NDArray

import penstock as ps


class Tokenize(ps.Stage):
    """Cuts a text into word pieces: at most 256 of them, the rest of a longer text is dropped."""

    batch = ps.Batch(max_size=64)
    examples = ["The gate lets the water in."]

    def setup(self) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
        # The file says: cut at 128, and fill up to 128.  The model was made for 256, and fills up by itself.
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.no_padding()

    def predict(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]


class Embed(ps.Stage):
    """Runs the model on the GPU that this worker is given.  One that is given none takes what there is."""

    batch = ps.Batch(max_size=64)
    # A short text, a middling one and the longest: a worker is ready when it has run each, and a full batch of them.
    examples = [[101, *[1996] * (length - 2), 102] for length in (8, 64, 256)]

    def setup(self) -> None:
        from model import SentenceModel

        self.model = SentenceModel(model_folder(), "cuda" if self.worker.gpus else None)

    def predict(self, texts: list[list[int]]) -> NDArray[np.float32]:
        return self.model.encode(texts).numpy()


tokenize = ps.stage(Tokenize, workers=4, env={"CUDA_VISIBLE_DEVICES": ""})
service = ps.Service(tokenize, ps.stage(Embed, gpus=gpus()), name="gpu-embeddings")
