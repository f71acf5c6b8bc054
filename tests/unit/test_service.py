"""What a service is made of is checked when it is made."""

from __future__ import annotations

import math

import pytest

import penstock as ps


def double(x: int) -> int:
    return x * 2


@pytest.mark.parametrize("name", ["", None, 3, b"service"])
def test_a_name_is_a_string_that_is_not_empty(name):
    with pytest.raises(ps.ConfigError, match=r"name is a string that is not empty, got "):
        ps.Service(double, name=name)


@pytest.mark.parametrize("cpus", [[], (), 0, "01", [0.0], [-1], [True], [None], [[0]]])
def test_cpus_are_core_numbers_and_at_least_one(cpus):
    with pytest.raises(ps.ConfigError, match=r"service 'here': cpus takes a list of core numbers"):
        ps.Service(double, name="here", cpus=cpus)


def test_cpus_may_be_anything_that_gives_core_numbers():
    assert ps.Service(double, cpus=range(2)).cpus == (0, 1)
    assert ps.Service(double, cpus={3}).cpus == (3,)
    assert ps.Service(double).cpus is None


@pytest.mark.parametrize("inline", [None, 1, "no"])
def test_inline_is_true_or_false(inline):
    with pytest.raises(ps.ConfigError, match=r"inline must be True or False, got "):
        ps.Service(double, inline=inline)
    with pytest.raises(ps.ConfigError, match=r"inline must be True or False, got "):
        ps.Service(double).configured(inline=inline)


@pytest.mark.parametrize("options", [{}, {"max_queued": 3}, ps.ServerOptions(), 0, ps.ServiceOptions])
def test_options_are_service_options(options):
    with pytest.raises(ps.ConfigError, match=r"options takes a penstock.ServiceOptions, got "):
        ps.Service(double, options=options)


def test_options_come_as_one_or_field_by_field():
    options = ps.ServiceOptions(max_queued=3)
    assert ps.Service(double, options=options).options is options
    assert ps.Service(double, max_queued=3).options == options
    with pytest.raises(ps.ConfigError, match="not both"):
        ps.Service(double, options=options, timeout=1.0)


def test_an_option_there_is_not_is_refused_at_birth_and_later():
    with pytest.raises(ps.ConfigError, match="'bogus'"):
        ps.Service(double, bogus=1)
    with pytest.raises(ps.ConfigError, match="'bogus'"):
        ps.Service(double).configured(bogus=1)
    with pytest.raises(ps.ConfigError, match="max_queued must be at least 1, got 0"):
        ps.Service(double).configured(max_queued=0)


def test_a_configured_service_differs_in_what_was_asked_for_only():
    before = ps.Service(double, name="one", cpus=[0], max_queued=3, validate=True)
    after = before.configured(max_queued=4, inline=True)
    assert after.options == ps.ServiceOptions(max_queued=4, validate=True)
    assert (after.name, after.cpus, after.stages, after.inline) == ("one", (0,), before.stages, True)
    assert (before.options.max_queued, before.inline) == (3, False)


@pytest.mark.parametrize("drain", [None, math.nan, -1, -math.inf, True, "30"])
async def test_a_drain_that_is_no_time_is_refused_even_where_there_is_nothing_to_stop(drain):
    with pytest.raises(ps.ConfigError, match=r"drain must be a number of seconds, at least 0, got "):
        await ps.Service(double).stop(drain)
