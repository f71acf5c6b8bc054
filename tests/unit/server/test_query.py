import pytest

from penstock.errors import ConfigError
from penstock.server.query import MOST_PARAMETERS, read_query
from rows import each

KNOWN = {"priority": int, "delay": float, "key": str, "service": str}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (b"", {}),
        (b"priority=5&delay=0.5&key=a", {"priority": 5, "delay": 0.5, "key": "a"}),
        (b"priority=-5&delay=1e3", {"priority": -5, "delay": 1000.0}),
        (b"key=", {"key": ""}),
        (b"key=a%20b%26c+d", {"key": "a b&c d"}),
        (b"key=%C3%A4", {"key": "\u00e4"}),
        (b"&&", {}),
    ],
)
def test_a_query_is_read_by_the_types_of_its_parameters(query, found):
    assert read_query(query, KNOWN) == found


@each(
    ("query", "words"),
    [
        (b"prioritx=5", "unknown parameter 'prioritx': did you mean 'priority'"),
        (b"x=5", "; this path has priority, delay, key, service"),
        (b"key=a&key=a", "'key' is repeated"),
        (b"priority=1.5", "must be a whole number, got '1.5'"),
        (b"priority=1_000", "whole number"),
        (b"priority=+1", "whole number"),
        (b"priority=", "whole number"),
        (b"priority=" + b"9" * 5000, "whole number"),
        (b"delay=nan", "must be a number, got 'nan'"),
        (b"delay=inf", "number"),
        (b"delay=1e999", "number"),
        (b"key=%FF", "UTF-8"),
        ("key=\u00e4".encode(), "UTF-8"),
        (b"&".join(b"a%d=1" % n for n in range(MOST_PARAMETERS + 1)), "more than"),
    ],
)
def test_what_cannot_be_read_is_told(query, words):
    with pytest.raises(ConfigError, match=words) as refused:
        read_query(query, KNOWN)
    assert len(str(refused.value)) < 300


def test_a_path_without_parameters_says_so():
    with pytest.raises(ConfigError, match="unknown parameter 'x': this path has no parameters"):
        read_query(b"x=1", {})
