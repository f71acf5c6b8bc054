"""How `log_level` is read."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.log_level_text import own_log_levels, read_log_levels


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("info", {"": 20}),
        ("WARNING", {"": 30}),
        ("info,my.model=debug", {"": 20, "my.model": 10}),
        ("my.model=Debug", {"": 20, "my.model": 10}),
        (" error , a = critical,b=info ", {"": 40, "a": 50, "b": 20}),
        ("a=b=debug", {"": 20, "a=b": 10}),  # whatever a logger is called
    ],
)
def test_a_level_alone_is_for_all_and_one_with_a_name_for_that_logger(text, levels):
    assert read_log_levels(text) == levels


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("verbose", "unknown level 'verbose'; the levels are debug, info, warning, error, critical"),
        ("", "unknown level ''"),
        ("info,", "unknown level ''"),
        ("my.model=", "unknown level ''"),
        ("my.model=10", "unknown level '10'"),
        ("=debug", "'=debug' has no logger name; write NAME=LEVEL, or LEVEL for all loggers"),
        ("info,debug", "the level of all loggers is given twice"),
        ("a=info,a=debug", "the level of 'a' is given twice"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_can_be(text, reason):
    with pytest.raises(ConfigError, match=f"log_level: {reason}"):
        read_log_levels(text)


def test_the_own_loggers_have_the_level_for_all_unless_they_are_named():
    levels = {"": 30, "penstock.access": 20, "penstocks": 10, "my.model": 10}
    assert own_log_levels(levels) == {"penstock": 30, "penstock.access": 20}
    assert own_log_levels({"": 30, "penstock": 10}) == {"penstock": 10}
