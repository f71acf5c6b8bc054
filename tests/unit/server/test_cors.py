"""Which answers the page of another origin may read, and for what a browser is given leave."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import penstock.server
from penstock.config import ServerOptions
from penstock.core.token_bucket import Allowance
from penstock.errors import NotReady, Overloaded
from penstock.hosting.fault_log import FaultLog
from penstock.hosting.loop_clock import LoopClock
from penstock.server.application import DROPPED, Response
from penstock.server.cors import METHODS, REQUEST_HEADERS, RESPONSE_HEADERS, Cors
from penstock.server.protocols.route import PageRoute
from penstock.server.status import Problems

PAGE = "https://app.example"
OTHER = "http://localhost:3000"
STRANGER = "https://evil.example"
ALLOWED, EXPOSED, VARY = b"access-control-allow-origin", b"access-control-expose-headers", b"vary"
KEY = "k" * 32


def named(fakes, *services, **options):
    return fakes.app(*services, **{"cors_allow_origin": [PAGE, OTHER], **options})


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n")
    return str(path)


def readable(call, origin=PAGE):
    """Whether the answer lets the page of `origin` read it and its headers, and does so once."""
    fields = call.response.headers
    names = [name for name, _ in fields]
    found = dict(fields)
    assert names.count(ALLOWED) == names.count(EXPOSED) == names.count(VARY) <= 1
    if ALLOWED not in found:
        return False
    assert found[VARY] == b"origin"
    assert found[EXPOSED].split(b", ") == [name.encode() for name in RESPONSE_HEADERS]
    return found[ALLOWED] == origin.encode()


def asks_leave(fakes, app, path="/predict", origin=PAGE, wants="POST", **headers):
    return fakes.call(app, "OPTIONS", path, b"", origin=origin, access_control_request_method=wants, **headers)


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [PAGE, OTHER])
def test_a_result_may_be_read_by_the_page_of_a_named_origin(fakes, origin):
    service = fakes.Service()
    call = fakes.call(named(fakes, service), origin=origin)
    service.engine.submissions[0].settle(b"[1.0]")
    assert (call.status, call.response.body, call.response.content_type) == (200, b"[1.0]", b"application/json")
    assert readable(call, origin)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics", "/openapi.json", "/docs/start.js"])
def test_pages_may_be_read(fakes, method, path):
    assert readable(fakes.call(named(fakes), method, path, b"", origin=PAGE))


@pytest.mark.parametrize(
    ("call", "status"),
    [
        ({"path": "/nowhere"}, 404),
        ({"path": "/predict/"}, 308),
        ({"method": "GET"}, 405),
        ({"method": "OPTIONS"}, 204),
        ({"method": "OPTIONS", "path": "*"}, 204),
        ({"x_tenant": "no name"}, 400),
        ({"content_type": "image/png"}, 415),
        ({"accept": "image/png"}, 406),
        ({"x_request_timeout": "soon"}, 400),
        ({"method": "GET", "path": "/livez", "content_length": "5000"}, 413),
    ],
)
def test_every_refusal_by_the_head_may_be_read(fakes, call, status):
    app = named(fakes, tenant_header="X-Tenant")
    found = fakes.call(app, **call, origin=PAGE)
    assert (found.status, found.refused) == (status, True)
    assert readable(found)
    assert not readable(fakes.call(app, **call, origin=STRANGER))
    assert not readable(fakes.call(app, **call))


def test_a_refusal_for_want_of_a_key_may_be_read(fakes, keys):
    app = named(fakes, api_key_file=keys)
    for path in ("/predict", "/nowhere"):
        call = fakes.call(app, path=path, origin=PAGE)
        assert (call.status, call.headers[b"www-authenticate"]) == (401, b"Bearer")
        assert readable(call)


@pytest.mark.parametrize("status", [400, 408, 413, 415, 503])
def test_what_the_carrier_refuses_may_be_read_as_far_as_the_head_is_known(fakes, status):
    app = named(fakes)
    request = fakes.call(app, origin=PAGE).request
    fields = dict(app.refuse(status, "no", request).headers)
    assert (fields[ALLOWED], fields[VARY]) == (PAGE.encode(), b"origin")
    assert ALLOWED not in dict(app.refuse(status, "no").headers)


def test_a_body_that_finds_no_room_is_refused_so_that_it_may_be_read(fakes):
    service = fakes.Service(max_queued_bytes=10)
    app = named(fakes, service)
    request = fakes.call(app, origin=PAGE).request
    service.engine.held_bytes = 100
    service.engine.refused = Overloaded(reason="memory_budget")
    assert dict(app.overfull(request, 1).headers)[ALLOWED] == PAGE.encode()
    page = fakes.call(app, "GET", "/livez", b"", origin=PAGE).request
    assert app.overfull(page, 10) is None
    assert dict(app.overfull(page, 5000).headers)[ALLOWED] == PAGE.encode()
    app.hold(None, 100)
    assert dict(app.overfull(page, 10).headers)[ALLOWED] == PAGE.encode()


def test_what_the_carrier_learns_first_may_be_read(fakes):
    app = named(fakes)
    request = fakes.call(app, origin=PAGE).request
    assert dict(app.answer_error(NotReady(), request).headers)[ALLOWED] == PAGE.encode()


def test_the_limits_of_a_tenant_stand_beside(fakes, tmp_path):
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    (tmp_path / "t.toml").write_text(f'[tenants.gold]\nkey_sha256 = ["{digest}"]\nrate = 5.0\n')
    service = fakes.Service(tenants_file=str(tmp_path / "t.toml"))
    service.engine.allowances["gold"] = Allowance(quota=5, window=1, left=4, seconds=None)
    service.engine.answer = bytes
    call = fakes.call(named(fakes, service), origin=PAGE, x_api_key=KEY)
    assert readable(call)
    assert b"ratelimit" in call.headers
    assert {b"ratelimit", b"ratelimit-policy"} <= set(call.headers[EXPOSED].split(b", "))


def test_a_call_that_is_dropped_on_purpose_stays_dropped(fakes):
    given = []
    request = fakes.call(fakes.app(), origin=PAGE).request
    Cors((PAGE,), None).replying(request, given.append)(DROPPED)
    assert given == [DROPPED]
    assert given[0] is DROPPED


def test_an_answer_that_is_shared_is_left_as_it_was(fakes):
    cors = Cors((PAGE,), None)
    page = fakes.call(fakes.app(), "GET", "/livez", b"", origin=PAGE)
    before = page.response.headers
    for _ in range(2):
        assert ALLOWED in dict(cors.add(page.request, page.response).headers)
    assert page.response.headers == before


# -- preflights -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/predict", "/batch", "/health", "/nowhere", "/predict/", "*", "/jobs/a"])
@pytest.mark.parametrize("wants", ["POST", "GET", "DELETE", "PATCH"])
def test_leave_is_given_without_a_key_whatever_the_path_and_the_method(fakes, keys, path, wants):
    call = asks_leave(fakes, named(fakes, api_key_file=keys), path, wants=wants)
    assert (call.status, call.refused, call.response.body) == (204, True, b"")
    assert call.response.headers == (
        (ALLOWED, PAGE.encode()),
        (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE"),
        (b"access-control-allow-headers", ", ".join(REQUEST_HEADERS).encode()),
        (b"access-control-max-age", b"7200"),
        (VARY, b"origin"),
    )
    assert call.request.id


def test_leave_is_given_for_the_header_that_names_the_tenant(fakes):
    call = asks_leave(fakes, named(fakes, tenant_header="X-Tenant"))
    assert call.headers[b"access-control-allow-headers"].endswith(b", x-tenant")


@pytest.mark.parametrize("origin", [STRANGER, "null", "HTTPS://app.example", f"{PAGE}, {PAGE}", "", f"{PAGE}/"])
def test_an_origin_that_is_not_named_is_answered_as_before(fakes, keys, origin):
    for options, status in (({}, 204), ({"api_key_file": keys}, 401)):
        app, before = named(fakes, **options), fakes.app(**options)
        asked, plain = (asks_leave(fakes, each, origin=origin) for each in (app, before))
        assert asked.status == plain.status == status
        assert asked.response.headers == plain.response.headers


def test_other_options_requests_are_answered_as_before_and_may_be_read(fakes):
    call = fakes.call(named(fakes), "OPTIONS", "/predict", b"", origin=PAGE)
    assert (call.status, call.headers[b"allow"]) == (204, b"POST, OPTIONS")
    assert readable(call)
    assert b"access-control-allow-methods" not in call.headers
    no_page = fakes.call(named(fakes), "OPTIONS", "/predict", b"", access_control_request_method="POST")
    assert no_page.response.headers == ((b"allow", b"POST, OPTIONS"),)


def test_a_request_that_only_looks_like_a_preflight_is_a_request(fakes):
    service = fakes.Service()
    fakes.call(named(fakes, service), origin=PAGE, access_control_request_method="POST")
    assert len(service.engine.submissions) == 1


def test_a_preflight_is_counted_among_the_requests_of_no_route(fakes):
    app = named(fakes)
    request = asks_leave(fakes, app).request
    app.answered(request, 204, 0)
    assert request.route is None
    assert app._elsewhere.statuses == {204: 1}


# -- every origin -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [PAGE, STRANGER, "null"])
def test_a_star_lets_every_page_read_and_gives_it_leave(fakes, keys, origin):
    app = fakes.app(cors_allow_origin="*", api_key_file=keys)
    call = fakes.call(app, origin=origin)
    assert (call.status, call.headers[ALLOWED]) == (401, b"*")
    assert EXPOSED in call.headers
    assert VARY not in call.headers
    leave = asks_leave(fakes, app, origin=origin)
    assert (leave.status, leave.headers[ALLOWED]) == (204, b"*")
    assert leave.headers[b"access-control-allow-headers"].startswith(b"accept, authorization, ")
    assert b"access-control-allow-credentials" not in {*call.headers, *leave.headers}


def test_a_star_says_nothing_where_there_is_no_page(fakes):
    assert ALLOWED not in fakes.call(fakes.app(cors_allow_origin="*"), "GET", "/livez", b"").headers


def test_an_origin_that_is_named_beside_a_star_is_named(fakes):
    app = fakes.app(cors_allow_origin=["*", PAGE])
    assert readable(fakes.call(app, "GET", "/livez", b"", origin=PAGE))
    assert fakes.call(app, "GET", "/livez", b"", origin=STRANGER).headers[ALLOWED] == b"*"


# -- none -------------------------------------------------------------------------------------------------------------


def test_without_the_option_nothing_is_done(fakes):
    app = fakes.app()
    assert (app._cors, app._adds_fields) == (None, False)
    given = []
    request = fakes.call(app, origin=PAGE).request
    app.handle(request, given.append)
    submission = app.services[0].engine.submissions[-1]
    submission.settle(b"1")
    assert given[0].headers == ()
    assert ALLOWED not in asks_leave(fakes, app).headers


def test_without_the_option_an_answer_is_passed_on_as_it_is(fakes):
    answer = Response(200, b"text/plain", b"mine")
    for options, kept in (({}, True), ({"cors_allow_origin": PAGE}, False)):
        page = PageRoute("/own", lambda _: answer, Problems(ServerOptions(), FaultLog(LoopClock())))
        call = fakes.call(fakes.app(others=[page], **options), "GET", "/own", b"", origin=PAGE)
        assert (call.response is answer) is kept
        assert answer.headers == ()


def test_leave_is_given_for_every_method_of_every_route(fakes):
    class Port:
        max_inline = 100

        def schemas(self):
            return {}

    app = fakes.app(jobs=Port())
    assert {method for route in app._table.all for method in route.methods} == set(METHODS)


# -- lists that follow the sources ------------------------------------------------------------------------------------

SHOWN_TO_EVERY_PAGE = {"cache-control", "content-length", "content-type"}
FOR_THE_BROWSER = {"content-security-policy", "x-content-type-options", "vary"}
OF_ITSELF = {"content-encoding", "content-length", "origin", "sec-fetch-site", "transfer-encoding", "x-forwarded-for"}
"""What a browser sends without being told, or never does."""


def found_in_sources(pattern):
    sources = Path(penstock.server.__file__).parent.rglob("*.py")
    return {name for path in sources if path.parent.name != "http1" for name in re.findall(pattern, path.read_text())}


def test_a_page_may_read_every_header_that_an_answer_has():
    written = found_in_sources(r'(?<!get)(?<!pop)\(b"([a-z-]+)", ')
    assert {"location", "ratelimit", "x-should-retry"} <= written
    for_browsers = {name for name in written if name.startswith("access-control-")}
    assert written - for_browsers - SHOWN_TO_EVERY_PAGE - FOR_THE_BROWSER == set(RESPONSE_HEADERS)


def test_a_page_may_send_every_header_that_is_read():
    read = found_in_sources(r'headers\.get\(b"([a-z-]+)"') | found_in_sources(
        r'[A-Z_]+: Final = b"((?:x|grpc)-[a-z-]+)"'
    )
    assert {"priority", "idempotency-key", "x-request-timeout"} <= read
    assert read - OF_ITSELF == set(REQUEST_HEADERS)
