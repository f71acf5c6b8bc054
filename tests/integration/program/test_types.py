"""Items of every declared type, checked in the worker; an error says what was expected, what came, and where."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from served import serving

SOURCE = """
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

import msgspec
import numpy as np
import pydantic
import penstock as ps

class Point(msgspec.Struct):
    x: list[float]
    label: Annotated[str, msgspec.Meta(max_length=5)] = ""

@dataclass
class Pair:
    left: int
    right: int = 2

class Named(TypedDict):
    name: str
    age: int

class Order(pydantic.BaseModel):
    amount: pydantic.PositiveInt
    kind: Literal["a", "b"] = "a"

class Structs(ps.Stage):
    def predict(self, p: Point) -> Point:
        assert isinstance(p, Point)
        return Point([v * 2 for v in p.x], p.label)

class Dataclasses(ps.Stage):
    def predict(self, p: Pair) -> Pair:
        assert isinstance(p, Pair)
        return Pair(p.right, p.left)

class TypedDicts(ps.Stage):
    def predict(self, p: Named) -> Named:
        return {"name": p["name"].upper(), "age": p["age"] + 1}

class Models(ps.Stage):
    def predict(self, o: Order) -> Order:
        assert isinstance(o, Order)
        return Order(amount=o.amount + 1, kind=o.kind)

class Arrays(ps.Stage):
    def predict(self, a: np.ndarray) -> dict[str, float]:
        return {"sum": a.sum(), "max": np.float32(a.max())}

class Lists(ps.Stage):
    batch = ps.Batch(max_size=4)
    def predict(self, xs: list[list[int]]) -> list[int]:
        return [sum(x) for x in xs]

class Untyped(ps.Stage):
    def predict(self, x):
        return x

class Prepared(ps.Stage):
    batch = ps.Batch(max_size=4)
    def preprocess(self, text: str) -> float:
        return float(len(text))
    def predict(self, xs: list[float]) -> list[float]:
        return [x * 2 for x in xs]
    def postprocess(self, y: float, pre: float) -> tuple[float, float]:
        return (y, pre)

class Nans(ps.Stage):
    def predict(self, what: str) -> list[float]:
        return [1.0, {"nan": float("nan"), "inf": float("inf"), "np": np.float32("nan")}.get(what, 0.0)]

class Liar(ps.Stage):
    def predict(self, x: int) -> int:
        return x if x > 0 else str(x)

structs, dataclasses, typeddicts, models = (ps.Service(s, name=s.__name__.lower())
    for s in (Structs, Dataclasses, TypedDicts, Models))
arrays, lists, untyped, prepared = (ps.Service(s, name=s.__name__.lower()) for s in (Arrays, Lists, Untyped, Prepared))
nans = ps.Service(Nans, name="nans")
nulls = ps.Service(Nans, name="nulls", allow_nan=True)
liar = ps.Service(Liar, name="liar", validate_results=True)
trusted = ps.Service(Liar, name="trusted")
"""
SERVICES = (
    "structs", "dataclasses", "typeddicts", "models", "arrays", "lists", "untyped", "prepared", "nans", "nulls",
    "liar", "trusted",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("types"), source=SOURCE, services=SERVICES) as server:
        yield server


@pytest.fixture(scope="module")
def http(server):
    return server.http


@pytest.mark.parametrize(
    ("service", "item", "result"),
    [
        ("structs", {"x": [1, 2.5]}, {"x": [2.0, 5.0], "label": ""}),
        ("dataclasses", {"left": 7}, {"left": 2, "right": 7}),
        ("typeddicts", {"name": "ann", "age": 3}, {"name": "ANN", "age": 4}),
        ("models", {"amount": 4, "kind": "b"}, {"amount": 5, "kind": "b"}),
        ("arrays", [[1, 2], [3, 4.5]], {"sum": 10.5, "max": 4.5}),
        ("lists", [1, 2, 3], 6),
        ("untyped", {"a": [None, True, "ü", 1e300]}, {"a": [None, True, "ü", 1e300]}),
        ("prepared", "four", [8.0, 4.0]),
    ],
)
def test_items_of_every_kind_are_decoded_and_answered(http, service, item, result):
    assert http.post(f"/{service}/predict", json=item).json() == result
    packed = http.post(
        f"/{service}/predict", content=msgspec.msgpack.encode(item), headers={"content-type": "application/msgpack"}
    )
    assert msgspec.msgpack.decode(packed.content) == result
    assert http.post(f"/{service}/batch", json=[item] * 3).json() == {"outcomes": [{"result": result}] * 3}


@pytest.mark.parametrize(
    ("service", "item", "reason", "path"),
    [
        ("structs", {"x": [0, 1, 2, "3"]}, "expected `float`, got `str`", "$.x[3]"),
        ("structs", {}, "object missing required field `x`", ""),
        ("structs", {"x": [], "label": "longer"}, "expected `str` of length <= 5", "$.label"),
        ("structs", [], "expected `object`, got `array`; a list of items goes to /structs/batch", ""),
        ("dataclasses", {"left": 1.5}, "expected `int`, got `float`", "$.left"),
        ("dataclasses", {"left": None}, "expected `int`, got `null`", "$.left"),
        ("typeddicts", {"name": "x"}, "object missing required field `age`", ""),
        ("typeddicts", {"name": 1, "age": 1}, "expected `str`, got `int`", "$.name"),
        ("lists", [1, "2"], "expected `int`, got `str`", "$[1]"),
        ("prepared", 4, "expected `str`, got `int`", ""),
    ],
)
def test_an_error_says_what_was_expected_and_where(http, service, item, reason, path):
    problem = http.post(f"/{service}/predict", json=item)
    assert problem.status_code == 422, problem.text
    assert problem.json()["detail"].lower() == reason
    assert problem.json()["path"].removeprefix("$") == path.removeprefix("$")


@pytest.mark.parametrize(
    ("item", "path"), [({"amount": 0}, "$.amount"), ({"amount": 1, "kind": "c"}, "$.kind"), ({}, "$.amount")]
)
def test_a_pydantic_model_says_where_it_does_not_hold(http, item, path):
    problem = http.post("/models/predict", json=item)
    assert (problem.status_code, problem.json()["path"]) == (422, path)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nope", b'{"x": [NaN]}', b'{"x": [Infinity]}', b'{"x": [-Infinity]}', b'{"x": [1e999]}',
        b"\xff\xfe", b'"\xff"', b'{"x": "\xed\xa0\x80"}', b'{"x": [1]} {"x": [2]}', b"[" * 100_000, b'{"x":' * 100_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("service", ["structs", "untyped"])
def test_what_is_no_json_is_422_with_a_reason(http, service, body):
    answer = http.post(f"/{service}/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 100_000]
)
@pytest.mark.parametrize("service", ["structs", "untyped"])
def test_what_is_no_messagepack_is_422_with_a_reason(http, service, body):
    answer = http.post(f"/{service}/predict", content=body, headers={"content-type": "application/msgpack"})
    assert answer.status_code == 422, answer.text


def npy_header(text):
    padded = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x93NUMPY",
        npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (137438953472,), }") + b"12345678",
        npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }") + b"12345678",
        npy_header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + b"\x80\x04N.",
        npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }") + b"12345678",
        npy_header("__import__('os').abort()"),
    ],
    ids=["empty", "cut", "a terabyte", "negative", "objects", "short", "code"],
)
def test_a_numpy_file_that_lies_is_422_and_costs_nothing(http, body):
    answer = http.post("/arrays/predict", content=body, headers={"content-type": "application/x-npy"})
    assert answer.status_code == 422, answer.text


def test_nan_fails_its_item_where_the_answer_is_json(server, http):
    for what in ("nan", "inf", "np"):
        assert http.post("/nans/predict", json=what).status_code == 500
    batch = http.post("/nans/batch", json=["fine", "nan", "fine"])
    outcomes = batch.json()["outcomes"]
    assert (outcomes[0], outcomes[2]) == ({"result": [1.0, 0.0]}, {"result": [1.0, 0.0]})
    assert outcomes[1]["error"]["status"] == 500


def test_nan_is_null_where_the_service_allows_it(http):
    for what in ("nan", "inf", "np"):
        assert http.post("/nulls/predict", json=what).json() == [1.0, None]


def test_nan_is_a_number_in_messagepack(http):
    answer = http.post("/nans/predict", json="nan", headers={"accept": "application/msgpack"})
    assert math.isnan(msgspec.msgpack.decode(answer.content)[1])


def test_a_result_of_the_wrong_type_fails_its_item_where_results_are_validated(server, http):
    assert http.post("/liar/predict", json=1).json() == 1
    answer = http.post("/liar/predict", json=-1)
    assert answer.status_code == 500
    server.wait_for(rf"ERROR .*{answer.json()['id']}(.*\n)*?.*[Ee]xpected `int`, got `str`")
    assert http.post("/trusted/predict", json=-1).json() == "-1"


def test_the_document_describes_every_type(http):
    document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert {"Point", "Pair", "Named"} <= {name.rpartition(".")[2] for name in document["components"]["schemas"]}
    body = document["paths"]["/models/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert (body["title"], body["properties"]["amount"]["exclusiveMinimum"]) == ("Order", 0)
    unresolved = [ref for ref in references(document) if not resolves(document, ref)]
    assert unresolved == []


def references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolves(document, ref):
    found = document
    for part in ref.removeprefix("#/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found is not None


def test_an_array_of_another_shape_than_numbers_is_422(http):
    assert http.post("/arrays/predict", json=[[1, 2], [3]]).status_code == 422
    assert http.post("/arrays/predict", json=["a"]).status_code == 422
    assert np.isfinite(http.post("/arrays/predict", json=[1, 2]).json()["sum"])
