"""What callers may send and get, and the schema that tells them."""

import contextlib
import datetime as dt
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypedDict

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder
from penstock.codec.formats import MEDIA_TYPES, Codec
from penstock.codec.schema import accepts, json_schema, offers
from penstock.errors import ConfigError, InvalidItem
from rows import each

TEXTUAL = {Codec.JSON, Codec.MSGPACK}


class Tag(msgspec.Struct):
    name: str


class Query(msgspec.Struct):
    """A question."""

    vector: NDArray[np.float32]
    tags: list[Tag] = []


class Movie(TypedDict):
    title: str


@dataclass
class Box:
    width: int


class Part(BaseModel):
    weight: float


class Order(BaseModel):
    parts: list[Part]


class Mixed(msgspec.Struct):
    order: Order
    scalar: np.float32
    other: set[np.int8]


class Tree(BaseModel):
    children: "list[Tree]"


@pytest.mark.parametrize(
    ("type_", "more"),
    [
        (Any, set()),
        (float, set()),
        (Query, set()),
        (Order, set()),
        (list[Order] | None, set()),
        (bytes, {Codec.RAW}),
        (memoryview, {Codec.RAW}),
        (Annotated[bytes, msgspec.Meta(max_length=3)] | None, {Codec.RAW}),
        (np.ndarray, {Codec.NPY}),
        (NDArray[np.float32] | None, {Codec.NPY}),
        (list[bytes], set()),
    ],
)
def test_a_caller_may_send_json_messagepack_and_what_the_type_allows(type_, more):
    assert accepts(type_) == TEXTUAL | more


def test_a_type_that_cannot_be_read_is_refused_before_anybody_sends_it():
    with pytest.raises(ConfigError, match=r"`list\[int\] \| list\[str\]` cannot be the input type of a service"):
        accepts(list[int] | list[str])


class Strange: ...


class Silent(Protocol):
    x: int


class Holds(msgspec.Struct):
    width: int
    maker: Callable[[int], int]


class MayHold(msgspec.Struct):
    width: int
    maker: Callable[[int], int] | None
    other: complex = 1j


@dataclass
class Holder:
    parts: list[Holds]


class Wants(TypedDict):
    strange: Strange


class Pair(NamedTuple):
    one: int
    two: complex


class Ring(msgspec.Struct):
    rings: "list[Ring]"
    strange: Strange


@each(
    ("type_", "strange"),
    [
        (complex, "complex"),
        (Callable, "Callable"),
        (Callable[[int], int], "Callable"),
        (type[int], "type"),
        (Iterator[int], "Iterator"),
        (Strange, "Strange"),
        (Silent, "Silent"),
        (Annotated[complex, "volts"], "complex"),
        (list[complex], "complex"),
        (set[Strange], "Strange"),
        (dict[str, Strange], "Strange"),
        (tuple[int, Strange], "Strange"),
        (tuple[Strange, ...], "Strange"),
        (list[Strange] | int, None),
        (Holds | list[Strange], "Callable"),
        (Holds, "Callable"),
        (Holds | None, None),
        (Holder, "Callable"),
        (Wants, "Strange"),
        (Pair, "complex"),
        (Ring, "Strange"),
        (MayHold, None),
        (Strange | None, None),
        (Iterable[int], None),
        (Hashable, None),
        (object, None),
    ],
)
def test_a_type_that_no_request_can_bring_is_refused(type_, strange):
    if strange is None:
        assert accepts(type_) == TEXTUAL
        return
    with pytest.raises(ConfigError) as refused:
        accepts(type_)
    assert str(refused.value).endswith(
        f"cannot be the input type of a service: a request cannot contain `{strange}`; "
        "accept a JSON type, and create the object in `preprocess`"
    )


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (Any, (Codec.JSON, Codec.MSGPACK)),
        (str, (Codec.JSON, Codec.MSGPACK)),
        (bytes, (Codec.RAW, Codec.JSON, Codec.MSGPACK)),
        (memoryview, (Codec.RAW, Codec.JSON, Codec.MSGPACK)),
        (bytes | bytearray, (Codec.RAW, Codec.JSON, Codec.MSGPACK)),
        (bytes | None, (Codec.JSON, Codec.MSGPACK)),
        (np.ndarray, (Codec.JSON, Codec.MSGPACK, Codec.NPY)),
        (NDArray[np.float32], (Codec.JSON, Codec.MSGPACK, Codec.NPY)),
        (NDArray[np.float32] | None, (Codec.JSON, Codec.MSGPACK)),
    ],
)
def test_a_caller_is_offered_the_results_own_format_first(type_, expected):
    assert offers(type_) == expected


def test_every_format_but_pickle_has_a_media_type():
    assert set(MEDIA_TYPES) == set(Codec) - {Codec.PICKLE}


@pytest.mark.parametrize(
    ("type_", "schema"),
    [
        (Any, {}),
        (float, {"type": "number"}),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dt.date, {"type": "string", "format": "date"}),
        (np.float32, {"type": "number"}),
        (np.int64, {"type": "integer"}),
        (np.bool_, {"type": "boolean"}),
        (np.str_, {"type": "string"}),
        (list[int] | list[str], {}),
    ],
)
def test_plain_types_have_plain_schemas(type_, schema):
    assert json_schema(type_) == (schema, {})


def test_classes_are_components_that_are_referred_to():
    schema, components = json_schema(list[Query])
    assert schema == {"type": "array", "items": {"$ref": "#/components/schemas/Query"}}
    assert set(components) == {"Query", "Tag"}
    assert components["Query"]["description"] == "A question."
    assert components["Query"]["properties"]["vector"]["type"] == "array"


@pytest.mark.parametrize(("type_", "field"), [(Movie, "title"), (Box, "width")])
def test_typed_dicts_and_dataclasses_are_components(type_, field):
    schema, components = json_schema(type_, ref_template="#/$defs/{name}")
    assert schema == {"$ref": f"#/$defs/{type_.__name__}"}
    assert field in components[type_.__name__]["properties"]


def test_an_array_is_numbers_in_lists_and_names_its_dtype():
    schema, _ = json_schema(np.ndarray)
    assert schema["type"] == "array"
    assert "`" not in schema["description"]
    assert "`float32`" in json_schema(NDArray[np.float32])[0]["description"]


@pytest.mark.parametrize("template", ["#/components/schemas/{name}", "#/components/schemas/service.{name}"])
def test_pydantic_models_refer_to_components(template):
    schema, components = json_schema(list[Order], ref_template=template)
    assert schema["items"] == {"$ref": template.format(name="Order")}
    assert components["Order"]["properties"]["parts"]["items"] == {"$ref": template.format(name="Part")}
    assert "$defs" not in schema


def test_a_recursive_model_refers_to_itself():
    schema, components = json_schema(Tree)
    assert schema == {"$ref": "#/components/schemas/Tree"}
    assert set(components) == {"Tree"}


def test_models_and_scalars_inside_structs_are_described():
    schema, components = json_schema(Mixed)
    assert schema == {"$ref": "#/components/schemas/Mixed"}
    fields = components["Mixed"]["properties"]
    assert fields["order"]["properties"]["parts"]["items"] == {"$ref": "#/components/schemas/Part"}
    assert fields["scalar"] == {"type": "number"}
    assert "Part" in components


def test_a_class_without_a_form_in_json_is_named():
    class Image: ...

    assert json_schema(list[Image])[0]["items"] == {"description": "An object of type `Image`."}


@pytest.mark.parametrize("codec", Codec)
def test_every_format_can_be_read_and_written(codec):
    """Some refuse these values.  A format that is nowhere in the tables raises a KeyError."""
    with contextlib.suppress(InvalidItem):
        ItemDecoder(Any).decode(codec, b"")
    with contextlib.suppress(EncodeFailed):
        ItemEncoder(Any).encode(codec, None)


def test_nobody_can_send_a_file_that_is_fetched_for_an_item():
    assert accepts(Path) == frozenset()
