import pytest

from penstock.cli.targets import parse_target
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "where", "attribute", "is_file"),
    [
        ("good:service", "good", "service", False),
        ("good:a.b", "good", "a.b", False),
        ("a.good:service", "a.good", "service", False),
        ("good", "good", "", False),
        ("good.py:service", "good.py", "service", True),
        ("a/good.py:make", "a/good.py", "make", True),
        ("/a/b c/good.py", "/a/b c/good.py", "", True),
    ],
)
def test_a_target_is_a_module_or_a_file_and_perhaps_a_name_in_it(text, where, attribute, is_file):
    target = parse_target(text)
    assert target == (text, where, attribute)
    assert target.is_file is is_file


@pytest.mark.parametrize("text", ["", ":", ":x", "x:", ".:x", "a..b:x", "a:b..c", "a:b.", ".py", ".py:x"])
def test_what_names_no_service_is_told_how_one_is_named(text):
    with pytest.raises(ConfigError, match=r"does not name a service: write module:service, or file\.py:service"):
        parse_target(text)


def test_a_file_without_its_ending_is_told_the_ending():
    with pytest.raises(ConfigError, match=r"for a file, write a/good\.py:service"):
        parse_target("a/good:service")
