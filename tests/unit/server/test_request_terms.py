"""The time limits that a request's header names."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.server.request_terms import (
    malformed_limit,
    read_envoy_timeout,
    read_grpc_timeout,
    read_time_limit,
    read_timeout,
)
from rows import each

REQUEST, GRPC, ENVOY = b"x-request-timeout", b"grpc-timeout", b"x-envoy-expected-rq-timeout-ms"
UNITS = {b"H": 3600, b"M": 60, b"S": 1, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


@each(
    ("fields", "seconds"),
    [
        ({}, 60.0),
        ({REQUEST: b"2"}, 2.0),
        ({REQUEST: b" 0.25 "}, 0.25),
        ({REQUEST: b"1e1"}, 10.0),
        ({GRPC: b"1500m"}, 1.5),
        ({ENVOY: b"250"}, 0.25),
        ({ENVOY: b"0"}, 60.0),
        ({ENVOY: b"000"}, 60.0),
        ({REQUEST: b"3", GRPC: b"2S", ENVOY: b"1000"}, 1.0),
        ({REQUEST: b"3", GRPC: b"1S", ENVOY: b"2000"}, 1.0),
        ({REQUEST: b"1", GRPC: b"2S", ENVOY: b"3000"}, 1.0),
        ({REQUEST: b"3", GRPC: b"2S", ENVOY: b"0"}, 2.0),
        ({REQUEST: b"61", GRPC: b"2M", ENVOY: b"61000"}, 60.0),
        ({GRPC: b"1H"}, 60.0),
    ],
)
def test_the_smallest_limit_counts(fields, seconds):
    assert read_time_limit(fields, 60.0) == seconds
    assert malformed_limit(fields) == ""


def test_a_service_without_a_limit_takes_the_clients():
    assert read_time_limit({}, math.inf) == math.inf
    assert read_time_limit({ENVOY: b"0"}, math.inf) == math.inf
    assert read_time_limit({GRPC: b"99999999H"}, math.inf) == 99_999_999 * 3600.0


@pytest.mark.parametrize(("unit", "seconds"), UNITS.items())
def test_grpcs_units_are_hours_minutes_seconds_and_thousandths_of_what_is_before(unit, seconds):
    assert read_grpc_timeout(b"1" + unit) == seconds
    assert read_grpc_timeout(b"00000007" + unit) == 7 * seconds
    assert read_grpc_timeout(b"99999999" + unit) == pytest.approx(99_999_999 * seconds)


@each(
    ("field", "value"),
    [
        (REQUEST, b"soon"),
        (REQUEST, b"0"),
        *[
            (GRPC, value)
            for value in (b"", b"S", b"1", b"0S", b"00000000m", b"123456789S", b"1s", b"1h", b"-1S", b"+1S", b"1.5S",
                          b" 1S", b"1 S", b"1S ", b"1_0S", b"1SS", b"1S, 2S", b"\xb2S", b"1\xc2\xb5")
        ],
        *[(ENVOY, value) for value in (b"", b"-1", b"1.5", b"1s", b"+1", b"1, 2", b"1_0", b"\xb2", b"1" * 21, b"inf")],
    ],
)  # fmt: skip
def test_a_malformed_limit_is_told_by_its_name_whatever_the_others_are(field, value):
    names = {REQUEST: "X-Request-Timeout", GRPC: "grpc-timeout", ENVOY: "x-envoy-expected-rq-timeout-ms"}
    good = {REQUEST: b"0.001", GRPC: b"1n", ENVOY: b"1"}
    for fields in ({field: value}, {**good, field: value}):
        assert math.isnan(read_time_limit(fields, 60.0))
        assert malformed_limit(fields).startswith(f"{names[field]} must be ")


SPELT = st.text("0123456789HMSmun .+-_eE\xb2", max_size=12).map(lambda text: text.encode("latin-1"))
ANY = SPELT | st.binary(max_size=30)


@given(ANY)
@example(b"1S\n")
def test_what_is_read_as_grpcs_is_what_its_grammar_admits(value):
    found = re.fullmatch(rb"([0-9]{1,8})([HMSmun])", value, re.DOTALL)
    wanted = int(found[1]) * UNITS[found[2]] if found is not None and int(found[1]) else math.nan
    assert read_grpc_timeout(value) == pytest.approx(wanted, nan_ok=True)


@given(ANY)
@example(b"1\n")
def test_what_is_read_as_envoys_is_a_whole_number_of_milliseconds(value):
    whole = re.fullmatch(rb"[0-9]{1,20}", value) is not None
    wanted = (int(value) / 1000 if int(value) else math.inf) if whole else math.nan
    assert read_envoy_timeout(value) == pytest.approx(wanted, nan_ok=True)


@given(
    st.fixed_dictionaries({}, optional={REQUEST: ANY, GRPC: ANY | st.just(b"2S"), ENVOY: ANY | st.just(b"0")}),
    st.sampled_from([0.0, 1.0, 60.0, math.inf]),
)
def test_any_header_gives_the_smallest_limit_or_a_sentence(fields, longest):
    read = {REQUEST: read_timeout, GRPC: read_grpc_timeout, ENVOY: read_envoy_timeout}
    limits = [longest, *[read[name](value) for name, value in fields.items()]]
    limit = read_time_limit(fields, longest)
    if any(map(math.isnan, limits)):
        assert math.isnan(limit)
        assert malformed_limit(fields)
    else:
        assert limit == min(limits)
        assert not malformed_limit(fields)
