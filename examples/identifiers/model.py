"""The package of a file, from the bag of its identifiers: a row for each, added up, and a small network."""

import torch
from torch import nn

from data import PACKAGES

BUCKETS = 2**17


class Packages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(BUCKETS, 16, mode="sum")
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, len(PACKAGES)))

    def forward(self, identifiers: torch.Tensor, identifiers_weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Scores of PACKAGES; both inputs have a row for each file, and weight 0 where a shorter one is padded."""
        many = identifiers_weight.sum(dim=1, keepdim=True).clamp(min=1)
        return {"scores": self.layers(self.bag(identifiers, per_sample_weights=identifiers_weight) / many.sqrt())}
