"""A table as a data set of PyTorch: each row encoded, and ready for a `DataLoader`."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from penstock.errors import ConfigError
from penstock.features.fitted import FittedFeatures, training_arrays


class EncodedTable(Dataset[Any]):  # type: ignore[misc]  # types are checked where torch may not be installed
    """The encoded rows of a table, by their place: (inputs, label), or the inputs where no label was named.

    A `DataLoader` stacks them into batches, and a `DistributedSampler` shares them out.  The table is encoded once.
    """

    def __init__(self, inputs: dict[str, torch.Tensor], labels: torch.Tensor | None) -> None:
        self.inputs = inputs
        self.labels = labels

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def __getitem__(self, place: int) -> Any:
        row = {name: tensor[place] for name, tensor in self.inputs.items()}
        return row if self.labels is None else (row, self.labels[place])


def torch_dataset(features: FittedFeatures, table: Any, label: str | None) -> EncodedTable:
    """The encoded table, with the column `label` as the labels.

    Raises:
        ConfigError: a feature is a `Text`, which PyTorch has no tensor for; or there is no such label.
        InvalidItem: a row is refused.
    """
    texts = [tensor.name for tensor in features.inputs if tensor.dtype == "str"]
    if texts:
        raise ConfigError(f"{', '.join(map(repr, texts))} is Text, but PyTorch has no tensors of text: use ids instead")
    inputs, labels = training_arrays(features, table, label)
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    return EncodedTable(tensors, None if labels is None else torch.from_numpy(labels))
