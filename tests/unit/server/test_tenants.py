"""Who a request is from, over HTTP: keys, the header, what an answer says of a rate, and what is logged."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.config import ServerOptions
from penstock.core.tenant_rules import NO_RULES
from penstock.core.tenants import TenantNumbers
from penstock.core.token_bucket import Allowance, TokenBucket
from penstock.errors import ConfigError, Overloaded, QuotaExceeded
from penstock.server.app import App
from penstock.server.application import HttpRequest
from penstock.server.cors import REQUEST_HEADERS
from penstock.server.gateway import judge_head
from rows import each

GOLD, IRON, PLAIN = "key-of-gold", "key-of-iron", "a-plain-key"


@pytest.fixture
def tenants(tmp_path):
    """Writes a file of tenants, and returns its path."""

    def write(*lines, name="tenants.toml"):
        path = tmp_path / name
        path.write_text("\n".join(lines))
        return str(path)

    return write


def keyed(name, key):
    return f'[tenants.{name}]\nkey_sha256 = ["{sha256(key.encode()).hexdigest()}"]'


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(PLAIN)
    return str(path)


def tenant_of(fakes, app, **headers):
    """The tenant of a request, or the status it is refused with."""
    call = fakes.call(app, **headers)
    return call.status if call.refused else call.request.tenant


def test_who_sends_a_listed_key_is_that_tenant_and_who_sends_none_is_401(fakes, tenants):
    app = fakes.app(
        fakes.Service(tenants_file=tenants(keyed("gold", GOLD), keyed("iron", IRON))), tenant_header="X-Tenant"
    )
    assert tenant_of(fakes, app, x_api_key=GOLD) == "gold"
    assert tenant_of(fakes, app, authorization=f"Bearer {IRON}") == "iron"
    assert tenant_of(fakes, app, authorization=f"Bearer {IRON}", x_tenant="gold") == "iron"
    for headers in ({}, {"x_tenant": "gold"}, {"x_api_key": PLAIN}, {"x_api_key": GOLD[:-1]}):
        assert tenant_of(fakes, app, **headers) == 401
    assert fakes.call(app, "GET", "/health").status == 401
    assert fakes.call(app, "GET", "/health", x_api_key=GOLD).status == 200, "a tenant's key is an API key"
    assert fakes.call(app, "GET", "/livez").status == 200


def test_where_only_probes_are_answered_nobody_needs_a_key(fakes, tenants):
    service = fakes.Service(tenants_file=tenants(keyed("gold", GOLD)))
    app = App([service], ServerOptions(), fakes.StillClock(1.0), only_probes=True)
    for path in ("/health", "/metrics", "/livez"):
        assert fakes.call(app, "GET", path).status == 200


def test_a_key_of_nobody_lets_the_header_say_who_it_is(fakes, tenants, key_file):
    app = fakes.app(
        fakes.Service(tenants_file=tenants(keyed("gold", GOLD))), tenant_header="X-Tenant", api_key_file=key_file
    )
    assert tenant_of(fakes, app, x_api_key=PLAIN) == ""
    assert tenant_of(fakes, app, x_api_key=PLAIN, x_tenant="iron") == "iron"
    assert tenant_of(fakes, app, x_api_key=PLAIN, authorization=f"Bearer {GOLD}") == "gold"
    assert tenant_of(fakes, app, x_api_key=GOLD, authorization=f"Bearer {PLAIN}") == "gold"


def test_new_keys_of_the_key_file_leave_those_of_tenants(fakes, tenants, key_file):
    app = fakes.app(fakes.Service(tenants_file=tenants(keyed("gold", GOLD))), api_key_file=key_file)
    Path(key_file).write_text("another-key")
    (renewal,) = app.renewals()
    renewal.read()()
    assert tenant_of(fakes, app, x_api_key=PLAIN) == 401
    assert tenant_of(fakes, app, x_api_key="another-key") == ""
    assert tenant_of(fakes, app, x_api_key=GOLD) == "gold"


def test_without_keys_the_header_names_the_tenant_and_nobody_needs_a_file(fakes):
    app = fakes.app(tenant_header="X-Tenant")
    assert tenant_of(fakes, app) == ""
    assert tenant_of(fakes, app, x_tenant="A-1_b.c") == "A-1_b.c"
    assert tenant_of(fakes, app, x_tenant="n" * 64) == "n" * 64
    for wrong in ("a b", "", "n" * 65, "é", "a, b"):
        call = fakes.call(app, x_tenant=wrong)
        assert call.status == 400
        assert call.json["detail"] == "X-Tenant must be 1 to 64 letters, digits or `._-`"
    assert fakes.call(app, "GET", "/health", x_tenant="a b").status == 200, "a page is of no tenant"
    assert tenant_of(fakes, fakes.app(), x_tenant="gold") == "", "no header was said to name it"


def test_each_service_has_the_tenants_of_its_own_file(fakes, tenants):
    one = fakes.Service(name="one", tenants_file=tenants(keyed("gold", GOLD), name="one.toml"))
    two = fakes.Service(name="two", tenants_file=tenants(keyed("iron", IRON), name="two.toml"))
    open_one = fakes.Service(name="three")
    app = fakes.app(one, two, open_one)
    assert tenant_of(fakes, app, path="/one/predict", x_api_key=GOLD) == "gold"
    assert tenant_of(fakes, app, path="/two/predict", x_api_key=GOLD) == 401
    assert tenant_of(fakes, app, path="/three/predict", x_api_key=IRON) == ""
    assert tenant_of(fakes, app, path="/three/predict") == 401
    assert fakes.call(app, "GET", "/health", x_api_key=IRON).status == 200


def test_a_service_is_told_what_its_app_has_read(fakes, tenants):
    with_file, without = fakes.Service(tenants_file=tenants("[tenants.gold]\nrate = 5")), fakes.Service(name="other")
    fakes.app(with_file, without)
    assert with_file.tenant_rules.of("gold").rate == 5
    assert without.tenant_rules is NO_RULES


@pytest.mark.parametrize("text", ["[tenants.gold]\nweight = 0", "nonsense"])
def test_an_app_with_a_wrong_file_is_not_made(fakes, tenants, text):
    path = tenants(text)
    with pytest.raises(ConfigError, match=re.escape(path)):
        fakes.app(fakes.Service(tenants_file=path))


@each("name", ["Host", "Priority", "content-length", "Cookie", "X-Forwarded-For", "Origin", *REQUEST_HEADERS])
def test_a_field_that_means_something_else_cannot_name_the_tenant(name):
    with pytest.raises(ConfigError, match=f"tenant_header cannot be {name}"):
        ServerOptions(tenant_header=name)


@pytest.mark.parametrize("name", ["", "X Tenant", "X:", "é", 5, "x" * 257])
def test_what_is_no_field_cannot_name_the_tenant(name):
    with pytest.raises(ConfigError, match="tenant_header must"):
        ServerOptions(tenant_header=name)
    assert ServerOptions(tenant_header="x" * 256).tenant_header


# -- what answers say of a rate ---------------------------------------------------------------------------------------


def structured_list(value):
    """A list of items of RFC 9651 whose members are strings with whole numbers as parameters."""
    members = []
    for member in value.decode("ascii").split(","):
        found = re.fullmatch(r'"([ !#-\[\]-~]*)"((?:;[a-z*][a-z0-9_.*-]*=-?\d{1,15})*)', member.strip(" "))
        assert found, member
        pairs = [part.split("=") for part in found[2].split(";")[1:]]
        members.append((found[1], {name: int(number) for name, number in pairs}))
    return members


@pytest.fixture
def rated(fakes, tenants):
    """A service whose tenant `gold` has a rate, and its app."""
    service = fakes.Service(tenants_file=tenants("[tenants.gold]\nrate = 50\nburst = 100\nurgency = 2"))
    service.engine.allowances["gold"] = Allowance(100, 2, 7, 1)
    return service, fakes.app(service, tenant_header="X-Tenant", access_log=True)


def limits_of(headers):
    return [structured_list(headers[name]) for name in (b"ratelimit-policy", b"ratelimit")]


SAID = [[("items", {"q": 100, "w": 2})], [("items", {"r": 7, "t": 1})]]


def test_answers_and_refusals_to_a_tenant_with_a_rate_say_what_is_left(fakes, rated):
    service, app = rated
    call = fakes.call(app, x_tenant="gold")
    service.engine.submissions[-1].settle(b"1")
    assert call.status == 200
    assert limits_of(call.headers) == SAID
    late = fakes.call(app, x_tenant="gold", x_request_timeout="no")
    assert late.status == 400
    assert limits_of(late.headers) == SAID
    assert limits_of(dict(app.refuse(413, "too large", call.request).headers)) == SAID
    service.engine.allowances["gold"] = Allowance(100, 2, 100, None)
    assert limits_of(dict(app.refuse(413, "", call.request).headers))[1] == [("items", {"r": 100})]


def test_the_slowest_rate_and_the_largest_burst_are_told_in_a_field_that_can_be_read(fakes, rated):
    service, app = rated
    service.engine.allowances["gold"] = TokenBucket(rate=1e-6, burst=1e9).allowance(0.0)
    headers = dict(app.refuse(413, "", fakes.call(app, x_tenant="gold").request).headers)
    assert limits_of(headers)[0] == [("items", {"q": 10**9, "w": 10**15 - 1})]


def test_who_is_over_its_quota_is_429_whatever_a_full_service_answers(fakes, rated, tenants):
    service, _ = rated
    app = fakes.app(service, tenant_header="X-Tenant", overload_status=400)
    service.engine.refused = QuotaExceeded(retry_after=2, retry_after_ms=1500)
    call = fakes.call(app, x_tenant="gold")
    assert call.status == 429
    assert call.json["type"] == "urn:penstock:problem:quota-exceeded"
    assert (call.json["reason"], call.json["retry_after_ms"]) == ("quota", 1500)
    assert (call.headers[b"retry-after"], call.headers[b"retry-after-ms"]) == (b"2", b"1500")
    assert call.headers[b"x-should-retry"] == b"true"
    assert limits_of(call.headers) == SAID
    assert service.engine.refused_tenants == ["gold"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"content_length": "11"}, 413),
        ({"content_encoding": "gzip"}, 415),
        ({"content_encoding": "gzip", "content_length": "11"}, 415),
        ({"content_length": "10", "content_encoding": "identity"}, 429),
    ],
)
def test_what_can_never_be_taken_is_refused_for_good_and_takes_no_slot(fakes, rated, fields, status):
    service, _ = rated
    app = fakes.app(service, tenant_header="X-Tenant", max_body_bytes=10)
    service.engine.refused = QuotaExceeded(retry_after=2, retry_after_ms=1500)
    headers = {name.replace("_", "-").encode(): value.encode() for name, value in fields.items()}
    request = HttpRequest("POST", b"/predict", b"", {b"x-tenant": b"gold", **headers}, app.clock.now())
    refusal = judge_head(app, request)
    assert refusal.status == status
    assert dict(refusal.headers)[b"x-should-retry"] == (b"true" if status == 429 else b"false")
    assert len(service.engine.refused_tenants) == service.engine.counters.rejected == (status == 429)


def test_a_body_in_arrival_that_is_ended_is_a_refusal_to_its_tenant(fakes, tenants):
    service = fakes.Service(max_queued_bytes=100, tenants_file=tenants("[tenants.gold]\nrate = 50"))
    service.engine.allowances["gold"] = Allowance(100, 2, 7, 1)
    app = fakes.app(service, tenant_header="X-Tenant")
    call = fakes.call(app, x_tenant="gold")
    app.hold(call.request, 101)
    service.engine.refused = Overloaded(retry_after=3)
    refusal = app.overfull(call.request, 60)
    assert limits_of(dict(refusal.headers)) == SAID
    assert service.engine.refused_tenants == ["gold"]
    assert service.engine.counters.rejected_memory_budget == 1


def test_answers_to_others_say_nothing_of_a_rate(fakes, rated):
    service, app = rated
    call = fakes.call(app, x_tenant="iron")
    service.engine.submissions[-1].settle(b"1")
    assert b"ratelimit" not in call.headers
    assert b"ratelimit" not in fakes.call(app, "GET", "/health", x_tenant="gold").headers


# -- what is told -----------------------------------------------------------------------------------------------------


def test_the_access_log_has_the_tenant_and_the_urgency_it_was_served_with_and_no_key(fakes, tenants, caplog):
    caplog.set_level("INFO", "penstock.access")
    service = fakes.Service(tenants_file=tenants(keyed("gold", GOLD) + "\nurgency = 2"))
    app = fakes.app(service, access_log=True)
    for priority, urgency in (("u=0", 2), ("u=5", 5)):
        call = fakes.call(app, x_api_key=GOLD, priority=priority)
        app.answered(call.request, 200, 5)
        record = caplog.records[-1]
        assert (record.tenant, record.urgency) == ("gold", urgency)
        assert record.getMessage().endswith(f" tenant=gold u={urgency} attempt=1 client=unknown")
    refused = fakes.call(app, x_api_key=IRON)
    app.answered(refused.request, 401, 5)
    assert (caplog.records[-1].tenant, caplog.records[-1].urgency) == ("", 3)
    for key in (GOLD, IRON):
        assert key not in caplog.text
        assert key not in str(refused.json)


def test_metrics_show_tenants_by_name(fakes):
    service = fakes.Service()
    service.engine.tenants = [("gold", TenantNumbers(3, 1, 0.5)), ("other", TenantNumbers(2, 0, 0.0))]
    page = fakes.call(fakes.app(service), "GET", "/metrics").response.body.decode()
    assert 'penstock_tenant_items_accepted_total{service="echo",tenant="gold"} 3.0' in page
    assert 'penstock_tenant_items_rejected_total{service="echo",tenant="gold"} 1.0' in page
    assert 'penstock_tenant_queue_seconds_total{service="echo",tenant="gold"} 0.5' in page
    assert 'penstock_tenant_items_accepted_total{service="echo",tenant="other"} 2.0' in page
