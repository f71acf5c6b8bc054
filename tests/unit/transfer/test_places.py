"""URLs of inputs and outputs: how they are read, what is refused, and what a message shows of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import TransferRejected
from penstock.transfer.places import (
    LONGEST_URL,
    FilePlace,
    ObjectPlace,
    WebPlace,
    parse_file_or_object,
    parse_place,
    shown_url,
)
from rows import each


@each(
    ("url", "place"),
    [
        ("file:///data/in/a.wav", FilePlace(("data", "in", "a.wav"))),
        ("FILE://localhost/data", FilePlace(("data",))),
        ("file:////data/./in//a", FilePlace(("data", "in", "a"))),
        ("file:///a%20b%2Fc%25d", FilePlace(("a b", "c%d"))),
        ("file:///h\u00f6he", FilePlace(("h\u00f6he",))),
        ("file:///h%C3%B6he", FilePlace(("h\u00f6he",))),
        ("file:///", FilePlace(())),
        ("file://", FilePlace(())),
        ("s3://in/a/b.wav", ObjectPlace("in", ("a", "b.wav"))),
        ("s3://in/a%20b", ObjectPlace("in", ("a b",))),
        ("s3://in", ObjectPlace("in", ())),
        ("s3://in/", ObjectPlace("in", ())),
        ("s3://In.1_x-y/a", ObjectPlace("In.1_x-y", ("a",))),
        ("http://Example.COM", WebPlace("http", "example.com", 80, "/")),
        ("https://example.com:/a?b=c#d", WebPlace("https", "example.com", 443, "/a?b=c")),
        ("HTTP://1.2.3.4:8080/../a%20b", WebPlace("http", "1.2.3.4", 8080, "/../a%20b")),
        ("http://[2606:4700::1]:81/?q", WebPlace("http", "2606:4700::1", 81, "/?q")),
        ("http://0x7f.1/", WebPlace("http", "0x7f.1", 80, "/")),
        ("http://2130706433/", WebPlace("http", "2130706433", 80, "/")),
    ],
)
def test_a_url_names_a_place(url, place):
    assert parse_place(url) == place


@each(
    ("url", "why"),
    [
        ("", "is not a URL"),
        ("data.wav", "is not a URL"),
        ("/data/in", "is not a URL"),
        ("file:/data/in", "is not a URL"),
        (" http://example.com/", "is not a URL"),
        ("ftp://example.com/a", "scheme ftp is not supported"),
        ("gopher://127.0.0.1/", "scheme gopher is not supported"),
        ("file://server/share", "a file URL has no host"),
        ("file:///data/../etc/passwd", "a path must not contain `..`"),
        ("file:///data/%2e%2e/etc/passwd", "a path must not contain `..`"),
        ("file:///data/..%2Fetc", "a path must not contain `..`"),
        ("file:///data/a%00b", "control characters"),
        ("file:///data/a\nb", "control characters"),
        ("file:///data/a?b", "%3F"),
        ("file:///data/a#b", "%23"),
        ("file:///data/100%", "%25"),
        ("file:///data/%ff", "not UTF-8"),
        ("file:///data/\ud800", "not UTF-8"),
        ("s3:///a", "s3://bucket/folder/name"),
        ("s3://a/b", "s3://bucket/folder/name"),
        ("s3://in:80/b", "s3://bucket/folder/name"),
        ("s3://in/a//b", "a segment of a key must not be empty or `.`"),
        ("s3://in//a", "a segment of a key must not be empty or `.`"),
        ("s3://in/a//", "a segment of a key must not be empty or `.`"),
        ("s3://in/a/./b", "a segment of a key must not be empty or `.`"),
        ("s3://in/a/../b", "a path must not contain `..`"),
        ("http:///a", "the host or the port is not valid"),
        ("http://a b/", "printable"),
        ("http://example.com/h\u00f6he", "printable"),
        ("http://h\u00f6he.example/", "printable"),
        ("http://example.com/a\r\nHost: b", "printable"),
        ("http://example.com:0/", "the host or the port is not valid"),
        ("http://example.com:65536/", "the host or the port is not valid"),
        ("http://example.com:+80/", "the host or the port is not valid"),
        ("http://example.com\\@127.0.0.1/", "a user or password in the URL is not supported"),
        ("http://example.com\\a/", "the host or the port is not valid"),
        ("http://[fe80::1%25eth0]/", "the host or the port is not valid"),
        ("http://[::1/", "the host or the port is not valid"),
        ("http://::1/", "the host or the port is not valid"),
        ("http://user:secret@example.com/", "a user or password in the URL is not supported"),
        ("s3://key:secret@in/a", "a user or password in the URL is not supported"),
        ("http://example.com/" + "a" * LONGEST_URL, "the maximum is 16384"),
    ],
)
def test_what_names_no_place_is_refused(url, why):
    with pytest.raises(TransferRejected) as refused:
        parse_place(url)
    assert why in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["file:///", "file:///data/", "s3://in", "s3://in/a/"])
def test_a_folder_is_neither_an_input_nor_an_output(url):
    with pytest.raises(TransferRejected, match="names a directory"):
        parse_file_or_object(url)


@pytest.mark.parametrize("url", ["file:///data", "s3://in/a", "http://example.com/", "https://example.com/a/"])
def test_a_file_and_an_object_and_any_page_may_be_one(url):
    assert parse_file_or_object(url) == parse_place(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@example.com/a?token=secret#secret", "https://***@example.com/a?***"),
        ("https://example.com/@user/a", "https://example.com/@user/a"),
        ("secret@example.com/a", "***@example.com/a"),
        ("//user:secret@example.com/a", "//***@example.com/a"),
        ("https://example.com/a\n?secret\nsecret", "https://example.com/a\ufffd?***"),
        ("s3://in/a", "s3://in/a"),
        ("x" * 300, "x" * 200 + "..."),
    ],
)
def test_a_message_shows_no_secret_and_one_line(url, shown):
    assert shown_url(url) == shown


def test_a_place_is_shown_as_its_url():
    urls = ["file:///data/a%20b", "s3://in/a/b%3Fc", "http://example.com:81/a", "https://[::1]/a"]
    assert [str(parse_place(url)) for url in urls] == urls
    assert str(parse_place("https://example.com/a?secret")) == "https://example.com/a?***"


@given(st.lists(st.text("ab%?#. \u00f6"), max_size=4))
def test_a_file_is_the_same_when_its_url_is_read_again(names):
    place = FilePlace(tuple(name for name in names if name not in ("", ".", "..")))
    assert parse_place(str(place)) == place


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("file:///data/a.wav", "a.wav"),
        ("file:///", ""),
        ("s3://in/a/b.wav", "b.wav"),
        ("s3://in", ""),
        ("https://example.com/x/a%20b.wav?c=/d", "a b.wav"),
        ("https://example.com/", ""),
    ],
)
def test_a_place_has_the_last_name_of_its_path(url, name):
    assert parse_place(url).name == name


@pytest.mark.parametrize(
    ("location", "there"),
    [
        ("/b", "http://example.com:81/b"),
        ("b?c", "http://example.com:81/a/b?***"),
        ("//other.example/b", "http://other.example/b"),
        ("https://other.example", "https://other.example/"),
        ("/a b/\xe4", "http://example.com:81/a%20b/%E4"),
        ("", "http://example.com:81/a/x?***"),
    ],
)
def test_a_redirect_leads_to_a_place(location, there):
    assert str(parse_place("http://example.com:81/a/x?y").follow(location)) == there


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://example.com/", "not encrypted"),
        ("file:///etc/passwd", "only redirects to http and https are followed"),
        ("s3://in/a", "only redirects to http and https are followed"),
        ("gopher://example.com/", "scheme gopher is not supported"),
        ("https://user:secret@example.com/", "a user or password in the URL is not supported"),
        ("https://[::1/", "redirects to an invalid URL"),
    ],
)
def test_a_redirect_to_elsewhere_is_refused(location, why):
    with pytest.raises(TransferRejected, match=why) as refused:
        parse_place("https://example.com/a").follow(location)
    assert "secret" not in str(refused.value)
