"""The class of a row in a request: what it takes, what it refuses, and what OpenAPI says."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from penstock import features as f
from penstock.codec.decode import ItemDecoder
from penstock.codec.formats import Codec
from penstock.codec.schema import accepts, json_schema

FEATURES = f.Features(
    {
        "age": f.Numeric(fill_value=0, missing_values=["n/a"]),
        "decade": f.Bucketized([10, 20], column="age", fill_value=0),
        "job": f.Vocabulary(["a", "b"], num_oov_indices=0),
        "any": f.Vocabulary(["a"]),
        "city": f.Hashed(9),
        "user id": f.Ids(5),
        "other": f.Ids(),
        "class": f.Text(missing_values=[3]),
        "tags": f.Hashed(9, max_length=3, weights="w", fill_value=f.EMPTY),
        "_x": f.Hashed(4),
        "cross": f.Crossed(["job", "city"], 9),
    }
)
GOOD = {"age": 2**24, "job": "a", "any": "z", "city": 9, "user id": 3, "other": "-7", "class": "é", "_x": 1}


def read(row):
    return msgspec.json.decode(msgspec.json.encode(row), type=FEATURES.item_type())


def test_a_request_becomes_a_row_that_is_encoded_as_its_dict_is():
    row = GOOD | {"tags": ["a", 3, None], "w": [1, 0.5, 1]}
    by_class, by_dict = FEATURES.encode_rows([read(row)]), FEATURES.encode_rows([row])
    assert by_class.kept == by_dict.kept == [0]
    for name, array in by_class.inputs.items():
        assert array.tolist() == by_dict.inputs[name].tolist()
    assert FEATURES.encode([read(row)])["age"].tolist() == [2**24]


def test_a_boolean_is_a_category_and_no_id():
    assert FEATURES.encode([read(GOOD | {"any": True})])["any"] == FEATURES.encode([GOOD | {"any": "true"}])["any"]
    with pytest.raises(msgspec.ValidationError, match=r"got `bool` - at `\$.other`"):
        read(GOOD | {"other": True})


def test_an_integer_sent_for_a_number_stays_one():
    item = read(GOOD | {"age": 2**53 + 1})
    assert type(item.age) is int
    assert str(FEATURES.encode_rows([item]).invalid[0]) == (
        "9007199254740993 cannot be represented exactly as float64: write 9007199254740992.0 if it may be rounded, "
        "and give an id as text, to Ids or Vocabulary at `$.age`"
    )
    assert read(GOOD | {"other": 2**63 - 1}).other == 2**63 - 1
    assert read(GOOD | {"age": "n/a"}).age == "n/a"


@pytest.mark.parametrize("codec", [Codec.JSON, Codec.MSGPACK])
def test_a_whole_number_is_taken_as_the_float_that_another_client_writes_for_it(codec):
    features = f.Features({"price": f.Numeric(scale="minmax")}).fit({"price": np.array([25_000_000, 25_000_004])})
    decoder = ItemDecoder(features.item_type())
    write = msgspec.json.encode if codec is Codec.JSON else msgspec.msgpack.encode
    items = [decoder.decode(codec, write({"price": price})) for price in (25_000_001, 25_000_001.0, 25_000_001.5)]
    assert [type(item.price) for item in items] == [int, float, float]
    encoded = features.encode_rows(items)
    assert (encoded.invalid, encoded.inputs["price"].tolist()) == ({}, [0.25, 0.25, 0.375])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"agee": 1}, "unknown field `agee`"),
        ({"cross": 1}, "unknown field `cross`"),
        ({"age": True}, r"Expected `(int|str|float| \| |null)+`, got `bool` - at `\$.age`"),
        ({"job": None}, r"got `null` - at `\$.job`"),
        ({"job": 1, "class": 0.5}, r"got `float` - at `\$.class`"),
        ({"tags": [1] * 4}, r"Expected `array` of length <= 3 - at `\$.tags`"),
        ({"w": [None]}, r"got `null` - at `\$.w\[0\]`"),
    ],
)
def test_what_no_feature_takes_is_refused_when_it_is_read(change, why):
    with pytest.raises(msgspec.ValidationError, match=why):
        read(GOOD | change)


def test_a_column_without_a_fill_value_is_required():
    for name in GOOD:
        rest = {key: value for key, value in GOOD.items() if key != name}
        if name == "age":
            assert read(rest).age is None
        else:
            with pytest.raises(msgspec.ValidationError, match=f"missing required field `{name}`"):
                read(rest)


def test_the_class_is_made_once_and_frozen():
    item = read(GOOD)
    assert FEATURES.item_type() is FEATURES.item_type() is type(item)
    with pytest.raises(AttributeError):
        item.age = 3


def test_names_that_python_has_no_field_for_are_kept_in_requests():
    features = f.Features({"column_1": f.Numeric(), "a b": f.Numeric(), "column_2": f.Numeric()})
    row = {"column_1": 1, "a b": 2, "column_2": 3}
    item = msgspec.convert(row, features.item_type())
    assert features.encode([item])["a b"].tolist() == [2.0]
    assert msgspec.to_builtins(item) == row


def test_openapi_says_what_each_column_is():
    item = FEATURES.item_type()
    assert accepts(item)
    _, components = json_schema(item)
    (schema,) = components.values()
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == set(GOOD) - {"age"}
    age, job = schema["properties"]["age"], schema["properties"]["job"]
    assert age["description"] == ("age: a finite number; decade: a finite number, of which the bucket counts, one of 3")
    assert age["x-features"]["decade"] == {
        "kind": "Bucketized",
        "meaning": "a finite number, of which the bucket counts, one of 3",
        "boundaries": [10.0, 20.0],
    }
    assert job["x-features"]["job"]["vocabulary"] == ["a", "b"]
    said = {name: column["description"] for name, column in schema["properties"].items()}
    assert said["job"] == "job: a category, one of 2 known ones"
    assert said["any"] == "any: a category, one of 1 known ones or any other"
    assert said["city"] == "city: a category, hashed into 9 buckets"
    assert said["user id"] == "user id: an id, 0 to 4; send one beyond 2^53 as a decimal string"
    assert said["other"] == "other: an id, any int64; send one beyond 2^53 as a decimal string"
    assert said["class"] == "class: a string"
    assert said["w"] == "tags: the weight of each value of tags"


def test_what_was_learnt_is_said_too():
    spec = f.Features({"v": f.Vocabulary(max_size=5000), "b": f.Bucketized(quantiles=2)})
    features = spec.fit({"v": [f"{number:05}" for number in range(2000)], "b": [0, 2] * 1000})
    (schema,) = json_schema(features.item_type())[1].values()
    vocabulary = schema["properties"]["v"]["x-features"]["v"]["vocabulary"]
    assert (len(vocabulary), vocabulary[0]) == (1000, "00000")
    assert schema["properties"]["b"]["x-features"]["b"]["boundaries"] == [1.0]
