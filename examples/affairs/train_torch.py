"""Train with PyTorch, then export: `python train_torch.py out/affairs`."""

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import penstock as ps
from data import survey
from penstock import features as f

SPEC = ps.Features(
    {
        "age": f.Numeric(scale="standard", fill_value=f.MEAN),
        "educ": f.Hashed(buckets=4, one_hot=True, fill_value=f.EMPTY),
        "occupation": f.Vocabulary(max_size=50, fill_value="none"),
    },
    concat_into="x",
)


class Affairs(nn.Module):
    def __init__(self, occupations: int) -> None:
        super().__init__()
        self.occupation = nn.Embedding(occupations, 8)
        self.layers = nn.Sequential(nn.Linear(5 + 8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, occupation: torch.Tensor) -> dict[str, torch.Tensor]:
        together = torch.cat([x, self.occupation(occupation)], dim=1)
        return {"probability": self.layers(together).squeeze(1).sigmoid()}


def train() -> dict[str, Any]:
    """The arguments of `save`."""
    torch.manual_seed(0)
    rows, held_out = survey()
    features = SPEC.fit(rows)
    model = Affairs(features.sizes["occupation"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    batches = DataLoader(features.torch_dataset(rows, label="affair"), batch_size=64, shuffle=True)
    for _ in range(5):
        for inputs, affair in batches:
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy(model(**inputs)["probability"], affair).backward()
            optimizer.step()
    return {
        "model": model,
        "features": features,
        "name": "affairs",
        "reference_rows": held_out[:16],
        "validation_data": held_out[16:],
    }


if __name__ == "__main__":
    report = ps.export.save(path=sys.argv[1], **train())
    print(f"{report.path}: {report.rows} rows answered alike, digest {report.digest}")
