"""The model of the bench of exported models: three columns, an embedding, two layers.

Its answer is rounded to two decimals.  A matrix product may differ in its last bit with the size of the batch, and the
load generator compares answers byte by byte.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import nn

import penstock as ps
from penstock import features as f


class Rounded(nn.Module):
    """A network as that of examples/affairs, whose answer has two decimals."""

    def __init__(self, occupations: int) -> None:
        super().__init__()
        self.occupation = nn.Embedding(occupations, 8)
        self.layers = nn.Sequential(nn.Linear(5 + 8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, occupation: torch.Tensor) -> dict[str, torch.Tensor]:
        together = torch.cat([x, self.occupation(occupation)], dim=1)
        return {"probability": (self.layers(together).squeeze(1).sigmoid() * 100).round() / 100}


def rows(count: int) -> list[dict[str, Any]]:
    """Rows of three columns, as many: a number, an integer that is a category, and a category; the same in each run."""
    draw = random.Random(9)
    educations = (9, 12, 14, 16, 17, 20)
    return [
        {"age": draw.uniform(17, 42), "educ": draw.choice(educations), "occupation": f"job {draw.randrange(12)}"}
        for _ in range(count)
    ]


def fitted(table: Any) -> ps.Features:
    """The feature spec of the bench, fitted on a table of these columns."""
    return ps.Features(
        {
            "age": f.Numeric(scale="standard", fill_value=f.MEAN),
            "educ": f.Hashed(buckets=4, one_hot=True),
            "occupation": f.Vocabulary(max_size=50),
        },
        concat_into="x",
    ).fit(table)


def save(path: Path) -> ps.Features:
    """Write the artifact; the feature spec in it.  The weights are those a network begins with."""
    torch.manual_seed(0)
    table = rows(1000)
    features = fitted(table)
    ps.export.save(
        Rounded(features.sizes["occupation"]),
        path,
        features=features,
        reference_rows=table[:16],
        validation_data=table[16:],
    )
    return features
