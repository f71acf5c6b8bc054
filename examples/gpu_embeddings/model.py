"""all-MiniLM-L6-v2 in PyTorch: token ids in, sentence vectors out, on a GPU in fp16 or on the CPU in float32.

Contract
--------
* `SentenceModel.encode` gives, for each list of ids, the vector the published model gives: mean over the tokens of
  the last layer, scaled to length 1, float32.  In float32 it is within 1e-5 of that, in fp16 within 1e-2.
* What else is in the batch does not matter: the vectors of a mixed batch and of single texts agree as closely.

A batch is padded to its longest text, and that to a multiple of 8, the tiles in which a GPU multiplies fp16.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Embedding, LayerNorm, Linear, Module, ModuleDict, ModuleList
from torch.nn.functional import gelu, normalize, scaled_dot_product_attention

UNUSED = ("pooler.", "embeddings.position_ids")  # for other tasks than sentence vectors


class Layer(Module):
    """One transformer block: attention, then the feed-forward network.  Its parts have their names in the file."""

    def __init__(self, width: int, inner: int, heads: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        projections = ModuleDict({name: Linear(width, width) for name in ("query", "key", "value")})
        self.attention = ModuleDict({"self": projections, "output": added_to_input(width, width, eps)})
        self.intermediate = ModuleDict({"dense": Linear(width, inner)})
        self.output = added_to_input(inner, width, eps)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        projected = [project(x) for project in self.attention["self"].values()]
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in projected)
        found = scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None, :])
        x = normalized_sum(self.attention["output"], found.transpose(1, 2).flatten(2), x)
        return normalized_sum(self.output, gelu(self.intermediate["dense"](x)), x)


def added_to_input(inner: int, width: int, eps: float) -> ModuleDict:
    return ModuleDict({"dense": Linear(inner, width), "LayerNorm": LayerNorm(width, eps)})


def normalized_sum(part: ModuleDict, inner: Tensor, x: Tensor) -> Tensor:
    return part["LayerNorm"](part["dense"](inner) + x)


class Encoder(Module):
    """The whole network, of the size that config.json says."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        rows = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
        tables = {f"{name}_embeddings": Embedding(config[size], width) for name, size in rows.items()}
        self.embeddings = ModuleDict({**tables, "LayerNorm": LayerNorm(width, eps)})
        sizes = width, config["intermediate_size"], config["num_attention_heads"], eps
        self.encoder = ModuleDict({"layer": ModuleList(Layer(*sizes) for _ in range(config["num_hidden_layers"]))})

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """A vector for each row of `ids`, of which so many belong to the text as `lengths` has."""
        places = torch.arange(ids.shape[1], device=ids.device)
        real = places < lengths[:, None]
        words, positions, types, norm = self.embeddings.values()
        x = norm(words(ids) + positions(places) + types.weight[0])  # every token is of type 0 here
        for layer in self.encoder["layer"]:
            x = layer(x, real)
        return normalize((x.float() * real[:, :, None]).sum(dim=1))  # the sum has the mean's direction


class SentenceModel:
    """The network with the weights of `folder`: on a GPU if there is one, where no device is named."""

    def __init__(self, folder: Path, device: str | None = None, dtype: torch.dtype | None = None) -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.on_gpu = self.device != "cpu"
        torch.empty(0, device=self.device)  # where torch cannot use it, this says why
        if self.on_gpu:
            torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for each new size and length of a batch
        with torch.device("meta"):  # its memory comes with the weights
            network = Encoder(json.loads((folder / "config.json").read_text()))
        weights = load_file(folder / "model.safetensors", device=self.device)
        used = {name: weight for name, weight in weights.items() if not name.startswith(UNUSED)}
        network.load_state_dict(used, assign=True)
        self.network = network.to(dtype or (torch.half if self.on_gpu else torch.float)).eval()

    @torch.inference_mode()
    def encode(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """One row per text, on the CPU.  A text is its token ids, [CLS] and [SEP] included: at least 1, at most 512."""
        lengths = [len(ids) for ids in texts]
        width = -(-max(lengths) // 8) * 8
        padded = [[*ids, *[0] * (width - len(ids))] for ids in texts]
        return self.network(self._to_device(padded), self._to_device(lengths)).cpu()

    def _to_device(self, numbers: list[Any]) -> Tensor:
        """Through pinned memory, from where the GPU copies by itself.  torch reuses it when that is done."""
        return torch.tensor(numbers, dtype=torch.int32, pin_memory=self.on_gpu).to(self.device, non_blocking=True)
