"""The options of a client and of its calls."""

from __future__ import annotations

import math

import pytest

from penstock.client.client_options import CallTerms, ClientOptions, ServerAddress, read_server_address
from penstock.errors import ConfigError
from rows import each


@pytest.mark.parametrize(
    ("url", "base", "uds"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", None),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000", None),
        ("https://models.example/a/b/", "https://models.example/a/b", None),
        ("http://[::1]:8000", "http://[::1]:8000", None),
        ("HTTPS://Models.example/A", "https://Models.example/A", None),
        ("http+unix:///run/a.sock", "http://localhost", "/run/a.sock"),
    ],
)
def test_a_url_names_a_server(url, base, uds):
    assert read_server_address(url) == ServerAddress(base, uds)


@each(
    ("url", "words"),
    [
        ("", "http://, https://"),
        (5, "must be a URL"),
        ("127.0.0.1:8000", "http://, https://"),
        ("ftp://a", "http://, https://"),
        ("http://", "and its address"),
        ("http://a:x", "and its address"),
        ("http://a:0", "and its address"),
        ("http://[::1", "and its address"),
        ("http://a/ b", "must be a URL"),
        ("http://a/\n", "must be a URL"),
        ("http://a?b=c", "must not have a query"),
        ("http://a#b", "must not have a query"),
        ("http://user:secret@a", "a user; pass"),
        ("http+unix://run/a.sock", "absolute path"),
        ("http+unix:///" + "a" * 107, "at most 107 bytes"),
    ],
)
def test_what_names_no_server_is_told(url, words):
    with pytest.raises(ConfigError, match=words) as caught:
        read_server_address(url)
    assert "secret" not in str(caught.value)


@each(
    ("options", "words"),
    [
        ({"timeout": 0}, "timeout must be more than 0 seconds"),
        ({"timeout": -1}, "timeout must be at least 0"),
        ({"timeout": "5"}, "timeout must be a number"),
        ({"timeout": True}, "timeout must be a number"),
        ({"timeout": math.nan}, "timeout must be a number"),
        ({"max_retries": -1}, "max_retries must be at least 0"),
        ({"max_retries": 1.5}, "max_retries must be a whole number"),
        ({"max_concurrency": 0}, "max_concurrency must be at least 1"),
        ({"max_result": 0}, "max_result must be at least 1"),
        ({"retry_non_idempotent": 1}, "retry_non_idempotent must be true or false"),
        ({"format": "pickle"}, "format must be one of 'json', 'msgpack'"),
        ({"tenant_header": "X Tenant"}, "tenant_header must be the name of a header"),
        ({"tenant_header": 5}, "tenant_header must be the name of a header"),
        ({"api_key": "sec\nret"}, "api_key must be printable ASCII"),
        ({"api_key": "s\u00e9cret"}, "api_key must be printable ASCII"),
        ({"api_key": 5}, "api_key must be printable ASCII"),
        ({"api_key": "secret "}, "without spaces around"),
        ({"api_key": " secret"}, "without spaces around"),
    ],
)
def test_an_option_that_cannot_be_is_told_and_a_key_is_not_shown(options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        ClientOptions(**options)
    assert "cret" not in str(caught.value)


@each(
    ("terms", "words"),
    [
        ({"service": "a/b"}, "a service's name"),
        ({"urgency": 8}, "urgency must be a whole number"),
        ({"urgency": -1}, "urgency must be a whole number"),
        ({"urgency": True}, "urgency must be a whole number"),
        ({"urgency": 1.0}, "urgency must be a whole number"),
        ({"tenant": "a b"}, "a tenant's name"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"timeout": True}, "timeout must be more than 0"),
        ({"timeout": "1"}, "timeout must be more than 0"),
        ({"request_id": ""}, "request_id must be"),
        ({"request_id": "a b"}, "request_id must be"),
        ({"request_id": "a" * 121}, "request_id must be"),
        ({"request_id": 5}, "request_id must be"),
    ],
)
def test_what_a_call_cannot_ask_for_is_told(terms, words):
    with pytest.raises(ConfigError, match=words):
        CallTerms(**terms)


def test_a_call_may_ask_for_all_of_it():
    CallTerms("rank", 0, "gold", math.inf, "a" * 120)
