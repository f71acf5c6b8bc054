"""pydantic models as items and as results."""

import datetime as dt
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass as model_dataclass

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder, ResultMismatch
from penstock.codec.formats import Codec
from penstock.codec.pickle_ import dumps
from penstock.errors import InvalidItem


class Part(BaseModel):
    b: int
    weight: float = 0.0


class Order(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    a: list[Part]
    when: dt.date | None = Field(default=None, alias="date")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    when: dt.date


class Broken(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def check(cls, value: int) -> int:
        if value == 1:
            raise KeyError("one")
        if value == 2:
            raise InvalidItem("two is out")
        if value == 3:
            raise TypeError("three is no kind")
        return value


class BrokenInside(msgspec.Struct):
    part: Broken


@model_dataclass
class Size:
    width: int


class Mixed(msgspec.Struct):
    order: Order | None = None


@dataclass
class Holder:
    parts: list[Part]


def refusal(type_: Any, codec: Codec, payload, **options) -> InvalidItem:
    with pytest.raises(InvalidItem) as caught:
        ItemDecoder(type_, **options).decode(codec, payload)
    return caught.value


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_models_are_read_from_json_and_messagepack(wrap):
    expected = Order(a=[Part(b=1)], date=dt.date(2024, 1, 2))
    plain = {"a": [{"b": 1}], "date": "2024-01-02"}
    for codec, encode in ((Codec.JSON, msgspec.json.encode), (Codec.MSGPACK, msgspec.msgpack.encode)):
        assert ItemDecoder(Order).decode(codec, wrap(encode(plain))) == expected


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (list[Part], b'[{"b": 1}]', [Part(b=1)]),
        (Part | Strict, b'{"when": "2024-01-02"}', Strict(when=dt.date(2024, 1, 2))),
        (Part | None, b"null", None),
        (Size, b'{"width": 2}', Size(2)),
        (Mixed, b'{"order": {"a": []}}', Mixed(Order(a=[]))),
        (Holder, b'{"parts": [{"b": 1}]}', Holder([Part(b=1)])),
        (tuple[Mixed, Part], b'[{}, {"b": 1}]', (Mixed(), Part(b=1))),
    ],
)
def test_models_may_stand_anywhere_in_the_annotation(type_, text, value):
    assert ItemDecoder(type_).decode(Codec.JSON, text) == value


def test_a_refusal_names_pydantics_reason_and_the_path():
    found = refusal(Order, Codec.JSON, b'{"a": [{"b": "x"}]}')
    assert found.reason.startswith("Input should be a valid integer")
    assert found.path == "$.a[0].b"
    found = refusal(Order, Codec.MSGPACK, msgspec.msgpack.encode({"a": [{}]}))
    assert str(found) == "Field required at `$.a[0].b`"


def test_the_path_goes_through_structs_into_models():
    found = refusal(list[Mixed], Codec.JSON, b'[{}, {"order": {"a": [{}]}}]')
    assert str(found) == "Field required at `$[1].order.a[0].b`"


def test_a_refusal_tells_all_that_is_wrong_and_where_up_to_twenty():
    found = refusal(list[Mixed], Codec.JSON, b'[{"order": {"a": [{"b": null}, {}], "date": "x"}}]')
    assert found.path == "$[0].order.a[0].b"
    told = found.reason.split("; ")
    assert told[:2] == [
        "Input should be a valid integer at `$[0].order.a[0].b`",
        "Field required at `$[0].order.a[1].b`",
    ]
    assert told[2].startswith("Input should be a valid date")
    assert told[2].endswith(" at `$[0].order.date`")
    assert str(found) == found.reason
    found = refusal(list[Part], Codec.JSON, b"[" + b",".join([b"{}"] * 20) + b"]")
    assert found.reason.endswith("; Field required at `$[19].b`")
    found = refusal(list[Part], Codec.MSGPACK, msgspec.msgpack.encode([{}] * 25))
    assert found.reason.count("Field required at") == 20
    assert found.reason.endswith("; Field required at `$[19].b`; and 5 more")


def test_the_whole_item_has_no_path():
    assert refusal(Part, Codec.JSON, b"5").path == ""


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"1e999"])
def test_nan_does_not_exist_in_json_for_models_either(literal):
    refusal(Part, Codec.JSON, b'{"b": 1, "weight": ' + literal + b"}")


@pytest.mark.parametrize("text", [b"", b"{", b'"\xff"', b"[" * 100_000])
def test_broken_json_for_models_is_refused(text):
    refusal(Part, Codec.JSON, text)


def test_a_fault_in_a_validator_is_raised_as_it_is():
    for type_, text in ((Broken, b'{"x": 1}'), (list[BrokenInside], b'[{"part": {"x": 1}}]')):
        with pytest.raises(KeyError, match="one"):
            ItemDecoder(type_).decode(Codec.JSON, text)
    assert refusal(Broken, Codec.JSON, b'{"x": 2}').reason == "two is out"
    assert refusal(Broken, Codec.JSON, b'{"x": 3}').reason == "three is no kind"


def test_models_are_written_under_the_names_of_their_schema():
    order = Order(a=[Part(b=1)], date=dt.date(2024, 1, 2))
    expected = {"a": [{"b": 1, "weight": 0.0}], "date": "2024-01-02"}
    assert msgspec.json.decode(ItemEncoder(Order).encode(Codec.JSON, order)) == expected
    assert msgspec.msgpack.decode(ItemEncoder(Any).encode(Codec.MSGPACK, [order])) == [expected]
    assert msgspec.json.decode(ItemEncoder(Size).encode(Codec.JSON, Size(1))) == {"width": 1}


def test_nan_in_a_model_fails_the_result_and_names_its_place():
    value = [Part(b=1), Part(b=2, weight=float("nan"))]
    with pytest.raises(EncodeFailed, match=r"at `\$\[1\]\.weight`"):
        ItemEncoder(list[Part]).encode(Codec.JSON, value)
    assert b'"weight":null' in ItemEncoder(list[Part], allow_nan=True).encode(Codec.JSON, value)


def test_a_model_that_cannot_be_dumped_fails_its_result():
    class Blob(BaseModel):
        data: bytes

    with pytest.raises(EncodeFailed, match="cannot be written as JSON"):
        ItemEncoder(Blob).encode(Codec.JSON, Blob(data=b"\xff"))


def test_pickled_items_are_checked_by_pydantic_when_asked():
    decoder = ItemDecoder(Part, validate=True)
    assert decoder.decode(Codec.PICKLE, dumps({"b": np.int64(2), "weight": np.float32(1)})) == Part(b=2, weight=1)
    assert decoder.decode(Codec.PICKLE, dumps(Part(b=3))) == Part(b=3)
    assert refusal(Part, Codec.PICKLE, dumps({"b": "x"}), validate=True).path == "$.b"
    decoder = ItemDecoder(Mixed, validate=True)
    assert decoder.decode(Codec.PICKLE, dumps(Mixed(Order(a=[])))) == Mixed(Order(a=[]))


def test_results_are_checked_by_pydantic_when_asked():
    encoder = ItemEncoder(list[Part], validate=True)
    assert encoder.encode(Codec.JSON, [Part(b=1)])
    with pytest.raises(ResultMismatch, match=r"is not `list\[Part\]`: Field required at `\$\[0\]\.b`") as caught:
        encoder.encode(Codec.JSON, [{}])
    assert caught.value.path == "$[0].b"
