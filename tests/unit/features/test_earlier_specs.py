"""A spec that an earlier Penstock has written as text: each earlier schema of features.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock import features as f
from penstock.errors import ConfigError

EARLIER = Path(__file__).parents[2] / "data" / "earlier"
TEXT = (EARLIER / "features-1.json").read_text(encoding="utf-8")


def test_it_is_read_with_every_option():
    found = f.Features.from_json(TEXT)
    assert found.concat_into == "x"
    assert found.features["age"] == f.Numeric(scale="standard", fill_value=f.MEAN, missing_values=[-1, float("inf")])
    assert found.features["tags"] == f.Hashed(16, max_length=3, weights="w", fill_value=f.EMPTY, missing_values=["", 9])
    assert found.features["city"] == f.Vocabulary(["a", "b"], num_oov_indices=2, fill_value="a")
    assert found.features["known"].unknown is f.EMPTY
    assert found.features["key"] == f.Ids(cross_only=True, fill_value=f.EMPTY, column="user")
    assert found.features["name"] == f.Text(fill_value="nobody", missing_values=["-"])
    assert found.statistics["known"].values == ("a", "q")


def test_it_encodes_as_the_one_that_was_written():
    told = json.loads((EARLIER / "features-1-encoded.json").read_text(encoding="utf-8"))
    inputs = f.Features.from_json(TEXT).encode(told["rows"])
    assert {name: array.tolist() for name, array in inputs.items()} == told["inputs"]


def test_it_is_written_in_the_schema_of_today():
    found = f.Features.from_json(TEXT)
    text = found.to_json()
    assert json.loads(text)["schema"] == 2
    assert f.Features.from_json(text) == found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"join"', '"concat_into"', "the text has an unknown key 'concat_into'"),
        ('"missing": 40.0', '"fill_value": 40.0', "the feature 'hours' has an unknown key 'fill_value'"),
        ('{"stand_in": "mean"}', '{"fill_value": "mean"}', "the feature 'age': {'fill_value': 'mean'} is not a known"),
        ('"join": "x"', '"join": 3', "join must be a name or null, got 3"),
    ],
)
def test_it_has_no_word_of_a_later_schema(old, new, said):
    with pytest.raises(ConfigError) as caught:
        f.Features.from_json(TEXT.replace(old, new, 1))
    assert said in str(caught.value)
