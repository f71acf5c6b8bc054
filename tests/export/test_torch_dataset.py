"""`torch_dataset` feeds a `DataLoader` with what `encode` gives, in one process and in several."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from penstock import features as f
from penstock.errors import ConfigError, InvalidItem

TABLE = {
    "age": [20.0, 30.0, 40.0, 50.0, None],
    "word": ["a", "b", "c", "a", "9"],
    "tags": [["a"], [], ["b", "c"], ["c"], ["a", "a"]],
    "affairs": [0, 1, 0, 1, 1],
    "rate": [0.5, 1.5, 2.5, 0.0, -1.0],
}
FEATURES = f.Features(
    {
        "age": f.Numeric(scale="standard", fill_value=f.MEAN),
        "word": f.Vocabulary(max_size=2),
        "bucket": f.Hashed(4, one_hot=True, column="word"),
        "tags": f.Hashed(9, max_length=2),
    },
    concat_into="x",
).fit(TABLE)


def test_a_loader_gives_batches_of_what_encode_gives():
    dataset = FEATURES.torch_dataset(TABLE, "affairs")
    assert isinstance(dataset, Dataset)
    assert len(dataset) == 5
    batches = list(DataLoader(dataset, batch_size=2))
    assert [len(labels) for _, labels in batches] == [2, 2, 1]
    expected = FEATURES.encode(TABLE)
    assert [*batches[0][0]] == [*expected]
    for name, array in expected.items():
        found = torch.cat([inputs[name] for inputs, _ in batches]).numpy()
        assert (found.dtype, found.tobytes()) == (array.dtype, array.tobytes())
    labels = torch.cat([labels for _, labels in batches])
    assert labels.dtype == torch.int64
    assert labels.tolist() == TABLE["affairs"]
    assert FEATURES.torch_dataset(TABLE, "rate")[0][1].dtype == torch.float32


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_narrow_column_counts_as_its_decimals(dtype):
    table = {"a": np.array([0.1, 0.3, 0.5, 0.7], dtype=dtype)}
    dataset = f.Features({"a": f.Bucketized([0.3, 0.7])}).torch_dataset(table)
    assert [int(row["a"]) for row in dataset] == [0, 1, 1, 2]


def test_without_a_label_a_row_is_its_inputs():
    row = FEATURES.torch_dataset(TABLE)[4]
    assert row["x"].numpy().tobytes() == FEATURES.encode(TABLE)["x"][4].tobytes()
    with pytest.raises(IndexError):
        FEATURES.torch_dataset(TABLE)[5]


def test_text_is_refused_by_name():
    with pytest.raises(ConfigError, match="'note' is Text, but PyTorch has no tensors of text"):
        f.Features({"n": f.Ids(), "note": f.Text()}).torch_dataset({"n": [1], "note": ["a"]})


def test_a_row_that_encode_refuses_and_a_label_that_is_none_are_refused():
    with pytest.raises(InvalidItem, match=r"\$\[1\].word"):
        FEATURES.torch_dataset(TABLE | {"word": ["a", None, "c", "a", "9"]})
    with pytest.raises(ConfigError, match="the table has no column 'z' for the labels"):
        FEATURES.torch_dataset(TABLE, "z")


def test_the_arrays_of_the_table_are_not_copied_for_each_row():
    dataset = FEATURES.torch_dataset(TABLE)
    assert dataset[0]["x"].untyped_storage().data_ptr() == dataset[1]["x"].untyped_storage().data_ptr()
    assert np.shares_memory(dataset[0]["x"].numpy(), dataset.inputs["x"].numpy())
