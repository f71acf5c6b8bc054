"""API keys: which requests they guard, how they are read and compared."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.server.auth import KEY_FILE_BYTES, ApiKeys, read_keys
from penstock.server.pages.docs import ASSETS, OWN


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# ours\n\n  first-key  \nsecond-key\n")
    return str(path)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer  second-key "},
        {"x_api_key": "second-key"},
        {"x_api_key": "first-key", "authorization": "Basic abc"},
    ],
)
def test_an_accepted_key_opens(fakes, key_file, headers):
    assert not fakes.call(fakes.app(api_key_file=key_file), **headers).replies


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic first-key"},
        {"authorization": "first-key"},
        {"x_api_key": ""},
        {"x_api_key": "first-ke"},
        {"x_api_key": "first-keys"},
        {"x_api_key": "# ours"},
        {"x_api_key": "first-key, second-key"},
    ],
)
def test_anything_else_is_401(fakes, key_file, headers):
    call = fakes.call(fakes.app(api_key_file=key_file), **headers)
    assert (call.status, call.headers[b"www-authenticate"]) == (401, b"Bearer")


@pytest.mark.parametrize(
    ("headers", "unknown"),
    [
        ({}, False),
        ({"authorization": "Basic wrong"}, False),
        ({"authorization": "Bearer"}, False),
        ({"authorization": "Bearer wrong"}, True),
        ({"x_api_key": "wrong"}, True),
    ],
)
def test_a_key_that_is_not_known_is_not_told_as_a_missing_one(fakes, key_file, headers, unknown):
    detail = fakes.call(fakes.app(api_key_file=key_file), **headers).json["detail"]
    assert detail.startswith("unknown API key; ") == unknown
    assert detail.endswith("send an API key as `Authorization: Bearer KEY` or as `X-API-Key: KEY`")
    assert "wrong" not in detail


@pytest.mark.parametrize(
    "path",
    ["/predict", "/batch", "/health", "/health?deep=1", "/metrics", "/scale", "/openapi.json", "/docs/x", "/nowhere"],
)
def test_the_key_guards_all_that_is_told_of_a_service_and_what_does_not_exist(fakes, key_file, path):
    app = fakes.app(api_key_file=key_file)
    for method in ("GET", "POST", "OPTIONS"):
        assert fakes.call(app, method, path).status == 401


@pytest.mark.parametrize(("path", "status"), [("/predict/", 401), ("/health/", 401), ("/livez/", 308), ("*", 401)])
def test_a_slash_behind_a_path_asks_for_the_key_that_the_path_asks_for(fakes, key_file, path, status):
    app = fakes.app(api_key_file=key_file)
    assert fakes.call(app, "OPTIONS", path).status == status
    assert fakes.call(app, "OPTIONS", path, x_api_key="first-key").status == (204 if path == "*" else 308)


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_the_two_questions_of_a_load_balancer_need_no_key(fakes, key_file, path):
    assert fakes.call(fakes.app(api_key_file=key_file), "GET", path).status == 200


@pytest.mark.parametrize("path", ["/docs", *(f"/docs/{name}" for name in (*OWN, *ASSETS))])
def test_the_page_that_asks_for_the_key_needs_none_and_names_no_service(fakes, key_file, path):
    call = fakes.call(fakes.app(fakes.Service(name="orders"), api_key_file=key_file), "GET", path)
    assert call.status == 200
    assert b"orders" not in call.response.body


@pytest.mark.parametrize("accepted", [1, 1000])
def test_a_request_costs_two_digests_however_many_keys_there_are(monkeypatch, accepted):
    keys = ApiKeys([b"%d" % n for n in range(accepted)])
    made = []
    real = hmac.digest
    monkeypatch.setattr(hmac, "digest", lambda *how: made.append(how) or real(*how))
    assert not keys.admits({b"x-api-key": b"no", b"authorization": b"Bearer neither"})
    assert len(made) == 2
    assert keys.admits({b"authorization": b"Bearer 0"})


def test_nobody_can_tell_the_digest_of_a_key_from_the_key():
    one, two = ApiKeys([b"key"]), ApiKeys([b"key"])
    assert one._names.keys().isdisjoint(two._names)
    assert one.admits({b"x-api-key": b"key"})
    assert two.admits({b"x-api-key": b"key"})


@pytest.mark.parametrize("text", ["", "\n\n", "# only words\n"])
def test_a_file_without_a_key_is_a_config_error(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError, match="contains no key"):
        read_keys(str(path))


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbffirst-key\nsecond-key\n")
    assert read_keys(str(path)).admits({b"x-api-key": b"first-key"})


def test_no_keys_at_all_is_a_config_error():
    with pytest.raises(ConfigError, match="no API key"):
        ApiKeys([])


def test_a_file_that_is_not_there_is_a_config_error(fakes, tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        fakes.app(api_key_file=str(tmp_path / "missing"))


def test_a_file_may_be_as_large_as_its_limit_and_no_larger(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(b"first-key\n" + b"#" * (KEY_FILE_BYTES - 10))
    assert read_keys(str(path)).admits({b"x-api-key": b"first-key"})
    path.write_bytes(b"first-key\n" + b"#" * (KEY_FILE_BYTES - 9))
    with pytest.raises(ConfigError, match="is larger than 1048576 bytes"):
        read_keys(str(path))


def test_a_file_without_an_end_is_a_config_error():
    with pytest.raises(ConfigError, match="api_key_file '/dev/zero' is not a regular file"):
        read_keys("/dev/zero")


def test_renewed_keys_hold_for_every_request_that_comes_afterwards(fakes, key_file):
    app = fakes.app(api_key_file=key_file)
    (renewal,) = app.renewals()
    Path(key_file).write_text("second-key\nthird-key\n")
    use = renewal.read()
    assert fakes.call(app, "GET", "/health", x_api_key="first-key").status == 200, "they are read, and not in force"
    use()
    found = {
        key: fakes.call(app, "GET", "/health", x_api_key=f"{key}-key").status for key in ("first", "second", "third")
    }
    assert found == {"first": 401, "second": 200, "third": 200}


def test_without_a_key_file_there_are_no_keys_to_renew(fakes):
    assert fakes.app().renewals() == []


def test_a_key_with_a_space_is_a_config_error_that_does_not_show_it(tmp_path):
    path = tmp_path / "keys"
    path.write_text("good\nsecret # mine\n")
    with pytest.raises(ConfigError, match="line 2 contains a space") as caught:
        read_keys(str(path))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", [b"\0\0\0", b"sec\x01ret", b"sec\x7fret", b"sec\x1bret"])
def test_a_key_that_no_header_can_carry_is_a_config_error_that_does_not_show_it(tmp_path, key):
    path = tmp_path / "keys"
    path.write_bytes(b"good\n" + key + b"\n")
    with pytest.raises(ConfigError, match="line 2 contains a control character") as caught:
        read_keys(str(path))
    assert "sec" not in str(caught.value)


def test_a_file_that_became_zeros_leaves_the_old_keys_in_use(fakes, key_file):
    app = fakes.app(api_key_file=key_file)
    (renewal,) = app.renewals()
    Path(key_file).write_bytes(b"\0\0\0\n")
    with pytest.raises(ConfigError, match="control character"):
        renewal.read()
    assert fakes.call(app, "GET", "/health", x_api_key="first-key").status == 200


def test_letters_beyond_ascii_may_be_in_a_key(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(b"k\xc3\xa9y\n\xff\xfe\n")
    assert read_keys(str(path)).admits({b"x-api-key": b"\xff\xfe"})


def test_a_key_is_in_no_log_and_no_answer(fakes, key_file, caplog):
    caplog.set_level("DEBUG")
    app = fakes.app(api_key_file=key_file, access_log=True)
    for key in ("first-key", "nearly-first-key"):
        call = fakes.call(app, "GET", "/health", x_api_key=key)
        app.answered(call.request, call.status, 0)
        assert b"first-key" not in call.response.body
    assert "first-key" not in caplog.text
