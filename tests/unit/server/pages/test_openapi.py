"""`/openapi.json` and `/docs`: what a client and a person can read about a service."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import msgspec
import pytest

from penstock.codec.example import Example
from penstock.config import Batch
from penstock.hosting.service_health import version
from penstock.runtime.spec import stage
from penstock.server.pages import docs
from penstock.server.pages.docs import ASSETS, OWN
from penstock.server.pages.openapi import docstring
from penstock.server.request_terms import read_envoy_timeout, read_grpc_timeout, read_timeout
from penstock.worker.declaration import Declaration
from penstock.worker.stage import Stage


class Point(msgspec.Struct):
    x: float
    tags: list[str] = []


class Length:
    def predict(self, points: list[Point]) -> list[float]:
        return [p.x for p in points]


class Raw:
    def predict(self, image: bytes) -> bytes:
        return image


def other_point() -> type:
    class Point(msgspec.Struct):
        y: int

    return Point


def document(fakes, *services, **options):
    call = fakes.call(fakes.app(*services, **options), "GET", "/openapi.json")
    assert (call.status, call.response.content_type) == (200, b"application/json")
    return call.json


def check(doc):
    """What 3.1 asks of a document's structure, as far as ours goes; every $ref must lead somewhere."""
    assert re.fullmatch(r"3\.1\.\d+", doc["openapi"])
    assert {"title", "version"} <= set(doc["info"])
    operations = [op for path in doc["paths"].values() for op in path.values()]
    ids = [op["operationId"] for op in operations]
    assert len(ids) == len(set(ids))
    for path in doc["paths"]:
        assert path.startswith("/")
    for op in operations:
        assert op["responses"]
        for status, response in op["responses"].items():
            assert re.fullmatch(r"[2-5]\d\d", status)
            response = resolve(doc, response)
            assert response["description"]
            for media, content in response.get("content", {}).items():
                assert "/" in media
                check_schema(doc, content.get("schema", {}))
        for parameter in op.get("parameters", []):
            parameter = resolve(doc, parameter)
            assert {"name", "in", "schema"} <= set(parameter)
        if "requestBody" in op:
            assert op["requestBody"]["content"]
            for content in op["requestBody"]["content"].values():
                check_schema(doc, content.get("schema", {}))
    for section in doc["components"].values():
        for name in section:
            assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
    for schema in doc["components"]["schemas"].values():
        check_schema(doc, schema)


def resolve(doc, node):
    if "$ref" not in node:
        return node
    found: Any = doc
    for step in node["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return found


def check_schema(doc, schema, depth=0):
    assert depth < 30
    if "$ref" in schema:
        assert isinstance(resolve(doc, schema), dict)
        return
    kinds = schema.get("type", "object")
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        assert kind in {"object", "array", "string", "number", "integer", "boolean", "null"}
    for inner in [*schema.get("properties", {}).values(), *schema.get("oneOf", ()), *schema.get("anyOf", ())]:
        check_schema(doc, inner, depth + 1)
    if "items" in schema and isinstance(schema["items"], dict):
        check_schema(doc, schema["items"], depth + 1)


def test_a_second_path_of_a_service_is_a_call_with_a_name_of_its_own(fakes):
    doc = document(fakes, fakes.Service(predict_path="/inference"))
    check(doc)
    first, second = (doc["paths"][path]["post"] for path in ("/predict", "/inference"))
    assert second == {**first, "operationId": "predict_path"}


def test_the_document_is_sound_and_names_every_path_a_client_may_call(fakes):
    doc = document(fakes)
    check(doc)
    assert set(doc["paths"]) == {"/predict", "/batch", "/livez", "/readyz", "/health", "/metrics", "/scale"}
    assert doc["paths"]["/predict"]["post"]["operationId"] == "predict"


def test_every_page_of_the_server_is_in_the_document_but_the_document_and_what_shows_it(fakes):
    pages = {path.decode() for path in fakes.app()._routes}
    left_out = {path for path in pages if path == "/openapi.json" or path.startswith("/docs")}
    assert set(document(fakes)["paths"]) == pages - left_out


def test_items_and_results_have_the_schemas_of_their_types(fakes):
    doc = document(fakes, fakes.Service(Length, batch=Batch()))
    check(doc)
    predict, batch = (doc["paths"][path]["post"] for path in ("/predict", "/batch"))
    item = predict["requestBody"]["content"]["application/json"]["schema"]
    point = resolve(doc, item)
    assert point["required"] == ["x"]
    assert point["properties"]["x"] == {"type": "number"}
    assert batch["requestBody"]["content"]["application/json"]["schema"] == {"type": "array", "items": item}
    assert predict["responses"]["200"]["content"]["application/msgpack"]["schema"] == {"type": "number"}
    outcomes = batch["responses"]["207"]["content"]["application/json"]["schema"]["properties"]["outcomes"]
    assert [list(entry["properties"]) for entry in outcomes["items"]["oneOf"]] == [["result"], ["error"]]


def test_a_binary_format_stands_where_it_is_taken_and_given(fakes):
    doc = document(fakes, fakes.Service(Raw))
    check(doc)
    predict = doc["paths"]["/predict"]["post"]
    assert "application/octet-stream" in predict["requestBody"]["content"]
    assert "application/octet-stream" in predict["responses"]["200"]["content"]
    assert "application/octet-stream" not in doc["paths"]["/batch"]["post"]["requestBody"]["content"]


def test_the_examples_of_the_first_stage_are_its_examples(fakes):
    doc = document(fakes, fakes.Service(Length, batch=Batch(), examples=[Point(1.0), Point(2.0, ["a"]), object()]))
    content = doc["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    values = [example["value"] for example in content["examples"].values()]
    assert values == [{"x": 1.0, "tags": []}, {"x": 2.0, "tags": ["a"]}]
    content = doc["paths"]["/batch"]["post"]["requestBody"]["content"]["application/json"]
    assert [example["value"] for example in content["examples"].values()] == [values]


def test_the_answers_of_the_examples_stand_with_the_result(fakes):
    examples = [Example(Point(1.0), 3), Example(Point(2.0), 4)]
    doc = document(fakes, fakes.Service(Length, batch=Batch(), examples=examples))
    content = doc["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert [example["value"]["x"] for example in content["examples"].values()] == [1.0, 2.0]
    content = doc["paths"]["/predict"]["post"]["responses"]["200"]["content"]["application/json"]
    assert {name: example["value"] for name, example in content["examples"].items()} == {"example1": 3, "example2": 4}
    content = doc["paths"]["/batch"]["post"]["responses"]["200"]["content"]["application/json"]
    outcomes = [{"result": 3}, {"result": 4}]
    assert content["examples"] == {"example1": {"value": {"outcomes": outcomes}}}
    check(doc)


@pytest.mark.parametrize("others", [[Point(2.0)], [Example(Point(2.0), object())]], ids=["none", "no JSON"])
def test_where_an_example_has_no_answer_the_document_has_none(fakes, others):
    doc = document(fakes, fakes.Service(Length, examples=[Example(Point(1.0), 3), *others]))
    content = doc["paths"]["/predict"]["post"]["responses"]["200"]["content"]["application/json"]
    assert "examples" not in content


@pytest.mark.parametrize("path", ["/predict", "/batch"])
def test_every_status_a_call_can_end_with_is_a_response(fakes, path):
    doc = document(fakes, overload_status=429, queue_timeout_status=408)
    responses = doc["paths"][path]["post"]["responses"]
    expected = {"200", "400", "406", "408", "413", "414", "415", "417", "429", "431", "500", "501", "503", "504"}
    assert set(responses) == expected | ({"207"} if path == "/batch" else {"422"})
    for status in expected - {"200"}:
        assert resolve(doc, responses[status])["content"]["application/problem+json"]


@pytest.mark.parametrize(
    ("options", "retried", "not_retried"),
    [
        ({}, {"503"}, {"400", "408", "500", "504"}),
        (
            {"overload_status": 400, "queue_timeout_status": 500, "run_timeout_status": 500},
            {"400", "500", "503"},
            {"408"},
        ),
        (
            {"overload_status": 429, "queue_timeout_status": 408, "run_timeout_status": 408},
            {"408", "429", "503"},
            {"400", "500"},
        ),
    ],
)
def test_the_statuses_are_the_ones_that_the_options_choose_with_their_headers(fakes, options, retried, not_retried):
    responses = document(fakes, **options)["components"]["responses"]
    for status in retried | not_retried:
        headers = responses[f"Status{status}"]["headers"]
        assert "x-should-retry" in headers
        assert ("Retry-After" in headers) is ("retry-after-ms" in headers) is (status in retried), status
    assert ("Status504" in responses) is (not options)
    if options:
        late = responses[f"Status{options['run_timeout_status']}"]["description"]
        assert "while a stage ran the item" in late
        assert "before the item was started" in late


def test_where_there_are_tenants_a_quota_may_be_used_up(fakes, tmp_path):
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("[tenants.gold]\nrate = 5.0\n")
    assert "Status429" not in document(fakes)["components"]["responses"]
    found = document(fakes, fakes.Service(tenants_file=str(tenants)))["components"]["responses"]
    assert "tenant" in found["Status429"]["description"]


def test_a_security_scheme_is_there_if_a_key_is(fakes, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    app = fakes.app(api_key_file=str(keys))
    doc = fakes.call(app, "GET", "/openapi.json", x_api_key="secret").json
    check(doc)
    assert doc["security"] == [{"bearer": []}, {"api_key": []}]
    assert set(doc["components"]["securitySchemes"]) == {"bearer", "api_key"}
    assert "401" in doc["paths"]["/predict"]["post"]["responses"]
    assert doc["paths"]["/livez"]["get"]["security"] == []
    assert "security" not in document(fakes)


def test_types_of_one_name_do_not_mix(fakes):
    namesake = other_point()

    class Swap:
        def predict(self, x):
            return x

    Swap.predict.__annotations__ = {"x": Point, "return": namesake}
    doc = document(fakes, fakes.Service(Swap))
    check(doc)
    predict = doc["paths"]["/predict"]["post"]
    item = resolve(doc, predict["requestBody"]["content"]["application/json"]["schema"])
    result = resolve(doc, predict["responses"]["200"]["content"]["application/json"]["schema"])
    assert (list(item["properties"]), list(result["properties"])) == (["x", "tags"], ["y"])


def test_a_users_type_named_problem_does_not_replace_ours(fakes):
    class Problem(msgspec.Struct):
        mine: int

    class Odd:
        def predict(self, x):
            return x

    Odd.predict.__annotations__ = {"x": Problem, "return": Problem}
    doc = document(fakes, fakes.Service(Odd))
    check(doc)
    assert "request_id" in doc["components"]["schemas"]["Problem"]["properties"]


def test_every_call_lists_the_headers_that_name_a_time_limit(fakes):
    doc = document(fakes, fakes.Service(Length, batch=Batch()))
    for path in ("/predict", "/batch"):
        named = {resolve(doc, parameter)["name"] for parameter in doc["paths"][path]["post"]["parameters"]}
        assert {"X-Request-Timeout", "grpc-timeout", "x-envoy-expected-rq-timeout-ms"} <= named


def test_the_time_limits_that_are_documented_are_those_that_are_read(fakes):
    doc = document(fakes, fakes.Service(Length))
    parameters = [resolve(doc, each) for each in doc["paths"]["/predict"]["post"]["parameters"]]
    schemas = {each["name"]: each["schema"] for each in parameters}
    pattern = re.compile(schemas["grpc-timeout"]["pattern"])
    texts = ("1S", "00000001u", "12345678n", "5H", "7M", "20m", "123456789n", "S", "5", "5s", "1.5S", "-1S", " 1S", "")
    for text in texts:
        assert bool(pattern.search(text)) is not math.isnan(read_grpc_timeout(text.encode())), text
    assert schemas["X-Request-Timeout"] == {"type": "number", "exclusiveMinimum": 0}
    assert math.isnan(read_timeout(b"0"))
    least = schemas["x-envoy-expected-rq-timeout-ms"]["minimum"]
    assert not math.isnan(read_envoy_timeout(b"%d" % least))
    assert math.isnan(read_envoy_timeout(b"%d" % (least - 1)))


def test_several_services_are_told_apart(fakes):
    doc = document(fakes, fakes.Service(Length, name="a-b", batch=Batch()), fakes.Service(Raw, name="raw"))
    check(doc)
    assert {"/a-b/predict", "/a-b/batch", "/raw/predict", "/raw/batch"} <= set(doc["paths"])
    assert "a-b.Point" in doc["components"]["schemas"]


@pytest.mark.parametrize("found", [(), ("swagger-ui.css", "favicon-32x32.png")])
def test_a_build_without_the_assets_says_so_on_the_page_and_in_the_log(fakes, monkeypatch, tmp_path, caplog, found):
    for name in found:
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(docs, "ASSET_FOLDER", tmp_path)
    app = fakes.app()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "pip install" in caplog.text
    page = fakes.call(app, "GET", "/docs")
    assert page.status == 404
    assert "pip install" in page.json["detail"]
    assert fakes.call(app, "GET", "/docs/swagger-ui-bundle.js").status == 404
    assert fakes.call(app, "GET", "/openapi.json").status == 200


def test_an_asset_that_goes_while_the_server_runs_is_404(fakes, monkeypatch, tmp_path):
    for name in ASSETS:
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(docs, "ASSET_FOLDER", tmp_path)
    app = fakes.app()
    assert fakes.call(app, "GET", "/docs/swagger-ui.css").status == 200
    for name in ASSETS:
        (tmp_path / name).unlink()
    assert fakes.call(app, "GET", "/docs/swagger-ui.css").status == 200, "it was read before"
    assert fakes.call(app, "GET", "/docs/swagger-ui-bundle.js").status == 404


def test_the_docstrings_of_the_stages_describe_the_api(fakes):
    class Told:
        """Says a thing.

        And more:

            of it
        """

        def predict(self, x: int) -> int:
            """Not this."""
            return x

    class Untold(Stage):
        def predict(self, x: int) -> int:
            """Does a thing."""
            return x

    def function(x: int) -> int:
        """Is a thing."""
        return x

    assert docstring(Told) == "Says a thing.\n\nAnd more:\n\n    of it"
    assert docstring(Untold) == "Does a thing."
    assert docstring(function) == docstring(partial(function)) == "Is a thing."
    assert docstring(lambda x: x) == docstring(Length) == ""
    one = document(fakes, fakes.Service(function))
    assert (one["info"]["title"], one["info"]["description"]) == ("echo", "Is a thing.")
    two = document(fakes, fakes.Service(function, last=Untold))
    assert two["info"]["description"] == "### echo\n\nIs a thing.\n\n### last\n\nDoes a thing."
    several = document(fakes, fakes.Service(function, name="a"), fakes.Service(name="b"), fakes.Service(Told, name="c"))
    assert several["info"]["description"].startswith("## a\n\nIs a thing.\n\n## c\n\nSays a thing.")
    assert several["info"]["title"] == "a, b, c"


def test_the_assets_are_there_and_nothing_else_is(fakes):
    app = fakes.app()
    for name, media in ASSETS.items():
        call = fakes.call(app, "GET", f"/docs/{name}")
        assert (call.status, call.response.content_type) == (200, media)
        assert len(call.response.body) > 500
    for name in ("swagger-ui.js", "../__init__.py", "%2e%2e/__init__.py", "LICENSE"):
        assert fakes.call(app, "GET", f"/docs/{name}").status == 404


def test_the_style_sheet_fetches_nothing(fakes):
    style = fakes.call(fakes.app(), "GET", "/docs/swagger-ui.css").response.body.decode()
    assert "@import" not in style
    sources = re.findall(r"""url\(\s*["']?([^)]*)""", style)
    assert [source[:40] for source in sources if not source.startswith("data:")] == []


def test_the_page_is_made_of_files_that_this_server_has_and_asks_nobody_else(fakes):
    app = fakes.app()
    page = fakes.call(app, "GET", "/docs")
    assert page.response.content_type == b"text/html; charset=utf-8"
    fetched = re.findall(r"""(?:src|href|url|srcset|action|data)\s*=\s*["']([^"']+)["']""", page.response.body.decode())
    assert sorted(fetched) == sorted(f"docs/{name}" for name in (*ASSETS, *OWN))
    for path in ("/docs", *(f"/docs/{name}" for name in OWN)):
        text = fakes.call(app, "GET", path).response.body.decode()
        assert not re.search(r"https?:|(?:src|href|fetch\()\s*=?\s*[\"']/", text)
    policy = page.headers[b"content-security-policy"].decode()
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["form-action"] == "'none'"
    assert {source for value in rules.values() for source in value.split()} <= {
        "'none'", "'self'", "'unsafe-inline'", "data:",
    }  # fmt: skip


def test_the_bundle_is_one_that_reads_openapi_3_1(fakes):
    bundle = fakes.call(fakes.app(), "GET", "/docs/swagger-ui-bundle.js").response.body
    assert b"SwaggerUIBundle" in bundle
    assert b"jsonSchemaDialect" in bundle


class Declared(Stage):
    @classmethod
    def declare(cls):
        return Declaration(item=Point, result=int, examples=[{"x": 1.0}])

    def predict(self, point):
        return 1


def test_what_a_stage_declares_is_what_the_document_says(fakes):
    service = fakes.Service()
    service.stages = [stage(Declared)]
    doc = document(fakes, service)
    content = doc["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert content["schema"] == {"$ref": "#/components/schemas/Point"}
    assert content["examples"]["example1"]["value"] == {"x": 1.0}


def test_the_version_is_that_of_the_only_service(fakes):
    ours, other = fakes.Service(name="ours"), fakes.Service(name="other")
    assert document(fakes, ours)["info"]["version"] == version()
    ours.version = "of-today"
    assert document(fakes, ours)["info"]["version"] == "of-today"
    assert document(fakes, ours, other)["info"]["version"] == version()
