"""Encoders of the shape of well-known ones, with random weights by a fixed seed: token ids in, vectors out.

The speed of a matrix product does not depend on its numbers, so it is that of real weights.  With PyTorch they are
plain modules, in fp16 on a GPU and in float32 on a CPU.  Without PyTorch a stand-in in numpy, or in plain Python, has
the parts tried, and its speed says nothing.

A text of `Shape.tokens` ids is one item.  Vectors have length 1.
"""

from __future__ import annotations

import importlib.util
import math
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

VOCABULARY = 8192
SEED = 7
WHY_NO_TORCH = os.environ.get("PART_NO_TORCH", "") or (
    "" if importlib.util.find_spec("torch") is not None else "PyTorch is not installed"
)
"""The reason why PyTorch is not used; an install may be there and broken, which the driver has tried once for all."""
HAS_TORCH = not WHY_NO_TORCH
HAS_NUMPY = importlib.util.find_spec("numpy") is not None
DEVICE = os.environ.get("PART_DEVICE", "cpu")
"""`cuda`, or `cpu` where there is no GPU: shapes are small then."""
ON_GPU = DEVICE == "cuda"

Ids = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of an encoder."""

    name: str
    layers: int
    width: int
    heads: int
    inner: int
    tokens: int
    """Ids of one text."""

    @property
    def weights(self) -> int:
        """About how many weights it has."""
        return self.layers * (4 * self.width**2 + 2 * self.width * self.inner) + (VOCABULARY + self.tokens) * self.width


MINILM = Shape("MiniLM", 6, 384, 12, 1536, 128)
BERT_BASE = Shape("BERT-base", 12, 768, 12, 3072, 128)
BERT_LARGE = Shape("BERT-large", 24, 1024, 16, 4096, 256)
SMALL = {
    "MiniLM": Shape("MiniLM", 1, 32, 2, 64, 16),
    "BERT-base": Shape("BERT-base", 2, 64, 2, 128, 16),
    "BERT-large": Shape("BERT-large", 2, 96, 2, 192, 32),
}
"""The shapes where there is no GPU, by the name of the one that they stand for."""


def shape_of(name: str, *, small: bool) -> Shape:
    """The shape of the name, or the small one that stands for it."""
    return SMALL[name] if small else {shape.name: shape for shape in (MINILM, BERT_BASE, BERT_LARGE)}[name]


def served_shape() -> Shape:
    """The shape of the encoder that `$GPU_MODEL` names for a server and its workers."""
    return shape_of(os.environ.get("GPU_MODEL", "MiniLM"), small=not ON_GPU)


class Encoder(Protocol):
    """What the three kinds have in common."""

    device_seconds: float
    """For how long the GPU has computed so far, by its own events; elsewhere for how long `encode` ran."""
    copy_seconds: float
    """For how long ids were copied there, and vectors back, by events too; 0 elsewhere."""

    def encode(self, texts: Ids) -> Any:
        """A row for each text, on the host: a float32 array, or lists of floats without numpy."""
        ...


def make_encoder(shape: Shape, device: str) -> Encoder:
    """The best encoder that can be had here."""
    if HAS_TORCH:
        return TorchEncoder(shape, device)
    return NumpyEncoder(shape) if HAS_NUMPY else PlainEncoder(shape)


def kind_here() -> str:
    """The kind of encoder that `make_encoder` makes."""
    return "PyTorch" if HAS_TORCH else "numpy, a stand-in" if HAS_NUMPY else "plain Python, a stand-in"


class TorchEncoder:
    """Plain PyTorch modules."""

    def __init__(self, shape: Shape, device: str) -> None:
        import torch

        torch.manual_seed(SEED)
        self.shape = shape
        self.device = device
        with torch.device(device):
            self.model = _network(shape).eval()
        if device == "cuda":
            self.model = self.model.half()
            # cuDNN's attention, which newer versions prefer on some cards, makes a plan for each new size of a batch:
            # tens of ms, again and again where sizes vary, and nothing where they do not.
            if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
                torch.backends.cuda.enable_cudnn_sdp(False)
        self.device_seconds = self.copy_seconds = 0.0
        self._torch = torch

    def encode(self, texts: Ids) -> Any:
        """Copy the ids there, compute, and copy the vectors back, which waits for them."""
        torch = self._torch
        with torch.inference_mode():
            ids = _as_tensor(texts)
            if self.device == "cpu":
                started = time.perf_counter()
                vectors = self.model(ids)
                self.device_seconds += time.perf_counter() - started
                return _on_host(vectors)
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
            marks[0].record()
            ids = ids.pin_memory().to(self.device, non_blocking=True)
            marks[1].record()
            vectors = self.model(ids).float()
            marks[2].record()
            vectors = vectors.cpu()
            marks[3].record()
            marks[3].synchronize()
            self.device_seconds += marks[1].elapsed_time(marks[2]) / 1000
            self.copy_seconds += (marks[0].elapsed_time(marks[1]) + marks[2].elapsed_time(marks[3])) / 1000
            return _on_host(vectors)


def _as_tensor(texts: Ids) -> Any:
    import torch

    if not HAS_NUMPY:
        return torch.tensor(texts, dtype=torch.int32)
    import numpy as np

    return torch.from_numpy(np.asarray(texts, dtype=np.int32))


def _on_host(vectors: Any) -> Any:
    return vectors.numpy() if HAS_NUMPY else vectors.tolist()


def _network(shape: Shape) -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(shape.width, 3 * shape.width)
            self.mix = nn.Linear(shape.width, shape.width)
            self.up = nn.Linear(shape.width, shape.inner)
            self.down = nn.Linear(shape.inner, shape.width)
            self.mix_norm = nn.LayerNorm(shape.width)
            self.down_norm = nn.LayerNorm(shape.width)

        def forward(self, x: Any) -> Any:
            rows, tokens, width = x.shape
            q, k, v = self.qkv(x).view(rows, tokens, 3, shape.heads, -1).permute(2, 0, 3, 1, 4)
            found = nn.functional.scaled_dot_product_attention(q, k, v)
            x = self.mix_norm(x + self.mix(found.transpose(1, 2).reshape(rows, tokens, width)))
            return self.down_norm(x + self.down(nn.functional.gelu(self.up(x))))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(VOCABULARY, shape.width)
            self.places = nn.Embedding(shape.tokens, shape.width)
            self.norm = nn.LayerNorm(shape.width)
            self.blocks = nn.Sequential(*(Block() for _ in range(shape.layers)))

        def forward(self, ids: Any) -> Any:
            x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
            x = self.blocks(self.norm(x))
            return nn.functional.normalize(x.mean(dim=1), dim=-1)

    return Network()


class NumpyEncoder:
    """Layers of matrix products and nothing more: a stand-in."""

    def __init__(self, shape: Shape) -> None:
        import numpy as np

        numbers = np.random.default_rng(SEED)
        self.shape = shape
        self.words = numbers.standard_normal((VOCABULARY, shape.width), dtype=np.float32)
        self.layers = [
            numbers.standard_normal((shape.width, shape.width), dtype=np.float32) / np.float32(math.sqrt(shape.width))
            for _ in range(shape.layers)
        ]
        self.device_seconds = self.copy_seconds = 0.0

    def encode(self, texts: Ids) -> Any:
        import numpy as np

        started = time.perf_counter()
        x = self.words[np.asarray(texts)].mean(axis=1)
        for layer in self.layers:
            x = np.tanh(x @ layer)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        self.device_seconds += time.perf_counter() - started
        return x


class PlainEncoder:
    """A mean of random vectors, without any library: a stand-in of eight numbers."""

    width = 8

    def __init__(self, shape: Shape) -> None:
        numbers = random.Random(SEED)
        self.shape = shape
        self.words = [[numbers.gauss(0, 1) for _ in range(self.width)] for _ in range(VOCABULARY)]
        self.device_seconds = self.copy_seconds = 0.0

    def encode(self, texts: Ids) -> list[list[float]]:
        started = time.perf_counter()
        rows = []
        for ids in texts:
            row = [sum(column) for column in zip(*(self.words[token] for token in ids), strict=True)]
            length = math.sqrt(sum(x * x for x in row)) or 1.0
            rows.append([x / length for x in row])
        self.device_seconds += time.perf_counter() - started
        return rows


def some_ids(shape: Shape, count: int) -> list[list[int]]:
    """Texts of random ids, by a fixed seed."""
    numbers = random.Random(SEED)
    return [[numbers.randrange(VOCABULARY) for _ in range(shape.tokens)] for _ in range(count)]


def as_ids(ids: Sequence[int]) -> Any:
    """The ids of a text as they go to a worker: an array, or a list without numpy."""
    if not HAS_NUMPY:
        return list(ids)
    import numpy as np

    return np.array(ids, np.int32)


def alike(one: Any, other: Any) -> bool:
    """Whether two vectors are the same up to what another batch size changes: fp16 keeps three digits."""
    return all(abs(float(a) - float(b)) < 1e-2 for a, b in zip(one, other, strict=True))
