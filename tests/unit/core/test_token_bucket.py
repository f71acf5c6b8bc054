"""When a tenant may have its next item by its rate."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.token_bucket import Allowance, TokenBucket


def test_a_bucket_is_full_at_first_and_holds_no_more_than_its_burst():
    bucket = TokenBucket(rate=2.0, burst=3.0)
    for _ in range(3):
        assert bucket.has_token(100.0)
        bucket.take(100.0)
    assert not bucket.has_token(100.0)
    assert bucket.next_token == 100.5
    assert bucket.has_token(100.5)
    assert not bucket.is_full(101.4)
    assert bucket.is_full(101.5)


def test_each_refusal_takes_the_next_slot_and_slots_pass_with_time():
    bucket = TokenBucket(rate=1.0, burst=1.0)
    bucket.take(0.0)
    assert [bucket.next_slot(0.0) for _ in range(3)] == [1.0, 2.0, 3.0]
    bucket.take(1.0)  # the first has come back as told
    assert bucket.next_slot(1.5) == 4.0
    bucket.take(9.0)  # nobody else came: the slots have passed
    assert bucket.next_slot(9.0) == 10.0


def test_a_refusal_counts_what_goes_before_it():
    bucket = TokenBucket(rate=10.0, burst=1.0)
    bucket.take(0.0)
    assert bucket.next_slot(0.0, ahead=9) == pytest.approx(1.0)
    assert bucket.next_slot(0.0, ahead=9) == pytest.approx(1.1)
    assert bucket.next_slot(0.5, ahead=4) == pytest.approx(1.2)


def test_nobody_is_told_more_than_a_minute():
    bucket = TokenBucket(rate=0.001, burst=1.0)
    bucket.take(0.0)
    assert bucket.next_slot(0.0) == 60.0


def test_an_allowance_is_in_whole_numbers():
    bucket = TokenBucket(rate=0.3, burst=2.5)
    assert bucket.allowance(0.0) == Allowance(2, 9, 2, None)  # no third token fits
    bucket.take(0.0)
    assert bucket.allowance(0.0) == Allowance(2, 9, 1, 2)  # 1.5 are left: the second is there in 1.7 s
    bucket.take(0.0)
    assert bucket.allowance(0.0) == Allowance(2, 9, 0, 2)
    assert bucket.allowance(1.7) == Allowance(2, 9, 1, 4)


PARTS = 1024
"""The rates, bursts and moments below are multiples of 1/1024: floats hold what is computed of them nearly exactly."""
steps = st.lists(st.tuples(st.integers(0, 4 * PARTS), st.sampled_from(["take", "take", "slot"])), max_size=60)


@given(rate=st.integers(1, 64 * PARTS), burst=st.integers(PARTS, 64 * PARTS), steps=steps)
def test_a_bucket_holds_what_exact_arithmetic_says(rate, burst, steps):
    exact_rate, exact_burst = Fraction(rate, PARTS), Fraction(burst, PARTS)
    bucket = TokenBucket(float(exact_rate), float(exact_burst))
    tokens, now = exact_burst, Fraction(0)
    near = Fraction(1, 10**6)
    for pause, what in steps:
        now += Fraction(pause, PARTS)
        tokens = min(exact_burst, tokens + exact_rate * Fraction(pause, PARTS))
        at = float(now)
        if abs(tokens - 1) > near:
            assert bucket.has_token(at) == (tokens > 1)
        told = bucket.allowance(at)
        assert told.left <= tokens + near
        assert told.left >= math.floor(tokens - near) or told.left + 1 > tokens - near
        assert (told.left > 0) == bucket.has_token(at)
        if told.seconds is not None:
            assert told.left + 1 <= tokens + exact_rate * told.seconds + near
        if what == "take" and bucket.has_token(at):
            bucket.take(at)
            tokens = max(Fraction(0), tokens - 1)
        elif what == "slot" and not bucket.has_token(at):
            slot = bucket.next_slot(at)
            assert at <= slot <= at + 60
            assert slot >= min(bucket.next_token, at + 60)


@given(rate=st.floats(1e-6, 1e9), burst=st.floats(1, 1e9), start=st.floats(0, 1e7))
def test_a_timer_that_is_set_to_the_next_token_never_rings_too_early(rate, burst, start):
    bucket = TokenBucket(rate, burst)
    now = start
    for _ in range(20):
        moment = max(now, bucket.next_token)
        assert bucket.has_token(moment)
        bucket.take(moment)
        now = moment
