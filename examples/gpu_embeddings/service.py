"""Sentence embeddings on GPUs: text to token ids beside them, token ids to a vector of 384 numbers on each."""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import penstock as ps

DRIVER = Path("/proc/driver/nvidia/gpus")


class Tokenize(ps.Stage):
    """Cuts a text into word pieces: at most 256 of them, the rest of a longer text is dropped."""

    batch = ps.Batch(max_size=64)
    examples = ["The gate lets the water in."]

    def setup(self) -> None:
        from model_files import MAX_TOKENS, model_folder
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
        from model_files import model_folder

        self.model = SentenceModel(model_folder(), "cuda" if self.worker.gpus else None)

    def predict(self, texts: list[list[int]]) -> NDArray[np.float32]:
        return self.model.encode(texts).numpy()


def gpus() -> list[int] | None:
    """Numbers of the GPUs that this process sees; None if it knows of none.  Neither torch nor CUDA is loaded."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [path.name for path in DRIVER.glob("*")] if visible is None else visible.split(",")
    # As CUDA reads the variable: what follows an empty entry, or -1, is not seen.
    seen = list(takewhile(lambda name: name.strip() not in ("", "-1"), names))
    return list(range(len(seen))) or None


tokenize = ps.stage(Tokenize, workers=4, env={"CUDA_VISIBLE_DEVICES": ""})
service = ps.Service(tokenize, ps.stage(Embed, gpus=gpus()), name="gpu-embeddings")
