"""Which files and objects may be read: those beneath a prefix, at the borders of its segments."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError, TransferRejected
from penstock.transfer.allowed_places import AllowedPlaces
from penstock.transfer.places import parse_place

ALLOWED = AllowedPlaces.parse("file:///data/in, s3://in/a/,s3://all,file:///data/in/deep", "--allow-input")


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("file:///data/in/a", "file:///data/in"),
        ("file:///data/in/a/b", "file:///data/in"),
        ("file:///data/in/deep/b", "file:///data/in/deep"),
        ("file:///data/in/deep", "file:///data/in"),
        ("s3://in/a/b", "s3://in/a"),
        ("s3://all/b", "s3://all/"),
    ],
)
def test_what_lies_beneath_a_prefix_is_allowed_by_the_longest(url, root):
    assert str(ALLOWED.root_of(parse_place(url))) == root


@pytest.mark.parametrize(
    "url",
    ["file:///data/in", "file:///data/in2/a", "file:///data", "file:///a", "s3://in/ab", "s3://in/a", "s3://al/a"],
)
def test_what_lies_elsewhere_is_refused(url):
    with pytest.raises(TransferRejected, match="not below a prefix of --allow-input"):
        ALLOWED.root_of(parse_place(url))


def test_nothing_is_allowed_by_default():
    with pytest.raises(TransferRejected, match="it is not below a prefix of"):
        AllowedPlaces.parse("", "--allow-input").root_of(parse_place("file:///a"))


def test_a_prefix_of_files_allows_no_objects():
    with pytest.raises(TransferRejected, match="it is not below a prefix of"):
        AllowedPlaces.parse("file:///", "--allow-input").root_of(parse_place("s3://bucket/a"))
    assert AllowedPlaces.parse("file:///", "--allow-input").root_of(parse_place("file:///a")).segments == ()


@pytest.mark.parametrize("text", ["/data/in", "file:///a/../b", "https://example.com/", "s3://"])
def test_what_is_no_prefix_is_an_error_of_the_option(text):
    with pytest.raises(ConfigError, match=r"^--allow-output: "):
        AllowedPlaces.parse(f"file:///data,{text}", "--allow-output")
