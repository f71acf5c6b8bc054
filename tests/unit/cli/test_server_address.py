"""Where `penstock health` asks: what a URL names, and where the variables have a server listen."""

from __future__ import annotations

import pytest

from penstock.cli.server_address import HealthAddress, address_from_environment, address_of
from penstock.errors import ConfigError
from rows import each


@each(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", HealthAddress("127.0.0.1", 8000)),
        ("http://127.0.0.1:8000/", HealthAddress("127.0.0.1", 8000)),
        ("http://127.0.0.1:8000/readyz", HealthAddress("127.0.0.1", 8000)),
        ("HTTP://Prices.example", HealthAddress("prices.example", 80)),
        ("https://prices.example", HealthAddress("prices.example", 443, tls=True)),
        ("http://[::1]:8000", HealthAddress("::1", 8000)),
        ("http://a:1/models/prices", HealthAddress("a", 1, target="/models/prices/readyz")),
        ("http://a:1/models/readyz/", HealthAddress("a", 1, target="/models/readyz")),
        ("unix:/run/a.sock", HealthAddress("localhost", 0, unix_path="/run/a.sock")),
        ("unix:a b%20.sock", HealthAddress("localhost", 0, unix_path="a b%20.sock")),
        ("http+unix:///run/a%20b.sock", HealthAddress("localhost", 0, unix_path="/run/a b.sock")),
        ("https+unix:///run/a.sock", HealthAddress("localhost", 0, unix_path="/run/a.sock", tls=True)),
    ],
)
def test_a_url_names_where_to_connect_and_what_to_ask_for(url, expected):
    assert address_of(url) == expected


@each(
    ("url", "words"),
    [
        ("", "is not a URL"),
        ("prices", "does not name a server: write http://HOST:PORT, "),
        ("127.0.0.1:8000", "does not name a server"),
        ("localhost:8000", "does not name a server"),
        ("ftp://127.0.0.1", "does not name a server"),
        ("http://", "does not name a server"),
        ("http://:8000", "does not name a server"),
        ("http://a:many", "is not a URL"),
        ("http://a:65536", "is not a URL"),
        ("http://a:0", "no server can listen on port 0"),
        ("http://[::1", "is not a URL"),
        ("http://a b", "characters that must be escaped"),
        ("http://a\nb", "characters that must be escaped"),
        ("http://ä", "characters that must be escaped"),
        ("http://me:secret@a", "must not have a user"),
        ("http://me:secret@a:65536", "must not have a user"),
        ("ftp://me:secret@a", "must not have a user"),
        ("http://a?deep=1", "must not have a query"),
        ("http://a#b", "must not have a query or fragment"),
        ("unix:", "cannot be the path"),
        ("unix:a\0b", "cannot be the path"),
        ("http+unix://", "cannot be the path"),
        ("http+unix:///a%00b", "cannot be the path"),
        ("http+unix://run/a.sock", "has three slashes"),
    ],
)
def test_what_names_no_server_is_told_why(url, words):
    with pytest.raises(ConfigError) as refused:
        address_of(url)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("environ", "expected", "name"),
    [
        ({}, HealthAddress("127.0.0.1", 8000), "http://127.0.0.1:8000"),
        ({"PENSTOCK_PORT": "81"}, HealthAddress("127.0.0.1", 81), "http://127.0.0.1:81"),
        ({"PENSTOCK_PORT": ""}, HealthAddress("127.0.0.1", 8000), "http://127.0.0.1:8000"),
        ({"PENSTOCK_HOST": "0.0.0.0"}, HealthAddress("127.0.0.1", 8000), "http://127.0.0.1:8000"),
        ({"PENSTOCK_HOST": "::"}, HealthAddress("127.0.0.1", 8000), "http://127.0.0.1:8000"),
        ({"PENSTOCK_HOST": "10.1.2.3"}, HealthAddress("10.1.2.3", 8000), "http://10.1.2.3:8000"),
        ({"PENSTOCK_HOST": "10.1.2.3, ::1"}, HealthAddress("10.1.2.3", 8000), "http://10.1.2.3:8000"),
        (
            {"PENSTOCK_TLS_CERT": "c", "PENSTOCK_TLS_KEY": "k"},
            HealthAddress("127.0.0.1", 8000, tls=True),
            "https://127.0.0.1:8000",
        ),
        (
            {"PENSTOCK_PORT": "tcp://10.0.0.1:8000", "PENSTOCK_MAX_BODY_BYTES": "of the stove"},
            HealthAddress("127.0.0.1", 8000),
            "http://127.0.0.1:8000",
        ),
        (
            {"PENSTOCK_UDS": "/run/a.sock", "PENSTOCK_PORT": "81"},
            HealthAddress("localhost", 0, unix_path="/run/a.sock"),
            "unix:/run/a.sock",
        ),
        (
            {"PENSTOCK_UDS": "a", "PENSTOCK_TLS_CERT": "c", "PENSTOCK_TLS_KEY": "k"},
            HealthAddress("localhost", 0, unix_path="a", tls=True),
            "unix:a",
        ),
    ],
)
def test_the_variables_of_a_server_say_where_it_is(environ, expected, name):
    assert address_from_environment(environ) == expected
    assert expected.name == name


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"PENSTOCK_PORT": "0"}, "pass the URL"),
        ({"PENSTOCK_PORT": "many"}, "PENSTOCK_PORT: expected an integer, got 'many'"),
        ({"PENSTOCK_PORT": "65536"}, "PENSTOCK_PORT must be at most 65535"),
        ({"PENSTOCK_TLS_CERT": "c"}, "tls_cert and tls_key must be set together"),
    ],
)
def test_variables_with_which_no_server_can_be_found_are_told(environ, words):
    with pytest.raises(ConfigError) as refused:
        address_from_environment(environ)
    assert words in str(refused.value)
