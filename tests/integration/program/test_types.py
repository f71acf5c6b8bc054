"""Items of every declared type, checked in the worker; an error says what was expected, what came, and where."""

from __future__ import annotations

import msgspec
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

@dataclass
class Word:
    text: str

    def __post_init__(self):
        open("/srv/secret/" + self.text)

@dataclass
class House:
    rooms: int
    garden: float = 10.0

class Houses(ps.Stage):
    def predict(self, h: House) -> dict[str, float]:
        return vars(h)

class Words(ps.Stage):
    def predict(self, w: Word) -> int:
        return 1

structs, dataclasses, typeddicts, models = (ps.Service(s, name=s.__name__.lower())
    for s in (Structs, Dataclasses, TypedDicts, Models))
arrays, lists, untyped, prepared = (ps.Service(s, name=s.__name__.lower()) for s in (Arrays, Lists, Untyped, Prepared))
nans = ps.Service(Nans, name="nans")
nulls = ps.Service(Nans, name="nulls", nan_as_null=True)
words, houses = ps.Service(Words, name="words"), ps.Service(Houses, name="houses")
"""
SERVICES = (
    "structs", "dataclasses", "typeddicts", "models", "arrays", "lists", "untyped", "prepared", "nans", "nulls",
    "words", "houses",
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
        ("houses", {"rooms": 1}, {"rooms": 1, "garden": 10.0}),
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
        ("structs", [], "expected `object`, got `array`; send a list of items to /structs/batch", ""),
        ("typeddicts", {"name": "x"}, "object missing required field `age`", ""),
    ],
)
def test_an_error_says_what_was_expected_and_where(http, service, item, reason, path):
    problem = http.post(f"/{service}/predict", json=item)
    assert problem.status_code == 422, problem.text
    assert problem.json()["detail"].lower() == reason
    assert problem.json()["path"].removeprefix("$") == path.removeprefix("$")


def test_a_fault_in_a_check_of_a_type_is_logged_and_its_text_is_not_sent(server, http):
    answer = http.post("/words/predict", json={"text": "vocab.txt"})
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (500, "urn:penstock:problem:stage-failed")
    assert "secret" not in answer.text
    server.wait_for(rf"{problem['id']}: stage 'Words' raised builtins.FileNotFoundError at ")
    server.wait_for("No such file or directory: '/srv/secret/vocab.txt'")


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
