"""Routes besides those of services: paths with variables, and several methods of one path."""

from __future__ import annotations

import pytest

from penstock.config import ServerOptions
from penstock.errors import ConfigError
from penstock.server.application import Response
from penstock.server.protocols.route import PageRoute
from penstock.server.protocols.route_table import RouteTable
from penstock.server.status import Problems

JSON = b"application/json"


def toy(method, path, *, guarded=True):
    """A route that answers with its method and the values of its variables."""
    # A page, because a test cannot make a class below the compiled `Route`.
    made = PageRoute(path, lambda request: said(made, request), Problems(ServerOptions(), None), method=method)
    made.guarded = guarded
    made.operation = {"operationId": f"{method.lower()}_{path}"} if guarded else None
    return made


def said(route, request):
    return Response(200, JSON, " ".join([route.method, *route.values(request)]).encode())


def toys():
    return [
        toy("POST", "/jobs"),
        toy("GET", "/jobs"),
        toy("GET", "/jobs/{id}"),
        toy("DELETE", "/jobs/{id}"),
        toy("GET", "/jobs/{id}/result"),
        toy("POST", "/jobs/{id}/retry"),
        toy("GET", "/jobs/all", guarded=False),
        toy("POST", "/v2/models/{name}/versions/{version}/infer"),
    ]


@pytest.fixture
def app(fakes):
    return fakes.app(others=toys())


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/jobs", b"POST"),
        ("GET", "/jobs?limit=3", b"GET"),
        ("HEAD", "/jobs", b"GET"),
        ("GET", "/jobs/a-1._B", b"GET a-1._B"),
        ("HEAD", "/jobs/a", b"GET a"),
        ("DELETE", "/jobs/a", b"DELETE a"),
        ("GET", "/jobs/a/result", b"GET a"),
        ("POST", "/jobs/result/retry", b"POST result"),
        ("POST", "/v2/models/m/versions/3/infer", b"POST m 3"),
        ("GET", "/jobs/all", b"GET"),
        ("GET", "/%6Aob%73/a%2d1%2E_%42", b"GET a-1._B"),
        ("GET", "/jobs/" + "x" * 128, b"GET " + b"x" * 128),
    ],
)
def test_a_route_is_found_by_path_and_method(fakes, app, method, path, said):
    call = fakes.call(app, method, path)
    assert (call.status, call.response.body) == (200, said)


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/", "/jobs//", "/jobs/a/b", "/jobs//result", "/jobs/a%2Fb", "/jobs/a b", "/jobs/\u00e4",
        "/jobs/a%4", "/jobs/a%C3%A4", "/jobs%2Fa", "/jobs/%7B",
        "/jobs/" + "x" * 129, "/job/a", "/jobs/a/result/b", "/JOBS/a", "jobs/a", "/" * 8000, "/jobs/a\n",
    ],
)  # fmt: skip
def test_a_path_that_fits_no_pattern_is_not_found(fakes, app, path):
    call = fakes.call(app, "GET", path)
    assert call.status in (404, 308)
    assert (call.status == 308) is (path == "/jobs/")


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/jobs", b"POST, GET, HEAD, OPTIONS"),
        ("/jobs/a", b"GET, HEAD, DELETE, OPTIONS"),
        ("/jobs/a/retry", b"POST, OPTIONS"),
        ("/predict", b"POST, OPTIONS"),
    ],
)
def test_another_method_is_405_with_every_method_of_the_path(fakes, app, path, allow):
    call = fakes.call(app, "PATCH", path)
    assert (call.status, call.headers[b"allow"]) == (405, allow)
    asked = fakes.call(app, "OPTIONS", path)
    assert (asked.status, asked.headers[b"allow"]) == (204, allow)


def test_a_slash_too_much_leads_to_the_path_that_is_meant(fakes, app):
    call = fakes.call(app, "GET", "/jobs/a/?wait=3")
    assert (call.status, call.headers[b"location"]) == (308, b"../a?wait=3")


def test_a_letter_that_is_escaped_is_that_letter(fakes, app):
    call = fakes.call(app, path="/%70redict")
    assert (call.refused, call.request.route.path, call.request.path) == (False, "/predict", b"/predict")
    moved = fakes.call(app, path="/predic%74/")
    assert (moved.status, moved.headers[b"location"]) == (308, b"../predict")


def test_paths_with_variables_ask_for_the_api_key(fakes, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    app = fakes.app(others=toys(), api_key_file=str(keys))
    for path in ("/jobs/a", "/jobs/a/", "/jobs/a/b", "/jobs"):
        assert fakes.call(app, "GET", path).status == 401
    assert fakes.call(app, "GET", "/jobs/a", x_api_key="k" * 32).response.body == b"GET a"
    assert fakes.call(app, "DELETE", "/jobs/a", x_api_key="k" * 32).response.body == b"DELETE a"
    assert fakes.call(app, "GET", "/jobs/all").status == 200


def test_traffic_is_counted_for_the_pattern_and_not_for_each_path(fakes, app):
    for name in "ab":
        call = fakes.call(app, "GET", f"/jobs/{name}")
        app.answered(call.request, 200, 0)
    assert call.request.route.traffic.route == "/jobs/{id}"
    assert call.request.route.traffic.statuses == {200: 2}


def test_the_document_has_what_other_routes_say_of_themselves(fakes, app):
    paths = fakes.call(app, "GET", "/openapi.json").json["paths"]
    assert paths["/jobs/{id}"] == {
        "get": {"operationId": "get_/jobs/{id}"},
        "delete": {"operationId": "delete_/jobs/{id}"},
    }
    assert "/jobs/all" not in paths
    assert "/predict" in paths


def test_a_route_without_a_service_judges_its_bodies_itself(fakes, app):
    call = fakes.call(app, "POST", "/jobs")
    assert app.overfull(call.request, 4096) is None
    assert app.overfull(call.request, 4097).status == 413


def test_a_service_cannot_have_the_name_of_another_route(fakes):
    service = fakes.Service(name="jobs")
    with pytest.raises(ConfigError, match="the server itself uses the path /jobs"):
        fakes.app(service, fakes.Service(name="other"), others=toys())


def test_a_path_has_one_route_for_each_method():
    with pytest.raises(AssertionError, match="two routes for one method"):
        RouteTable([toy("GET", "/jobs/{id}"), toy("GET", "/jobs/{id}")])
