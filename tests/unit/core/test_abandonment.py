"""How long a worker may go on with a batch that nobody waits for."""

from __future__ import annotations

import math

import pytest

from penstock.core.abandonment import Abandonment, warning_after


def limit(abandonment, *, start=0.0, answered=True):
    return abandonment.limit(start_seconds=start, has_answered=answered)


@pytest.mark.parametrize("setting", [0.5, 40.0, math.inf])
def test_a_limit_in_seconds_is_what_it_is_whatever_the_stage_does(setting):
    abandonment = Abandonment(setting, has_examples=False)
    assert limit(abandonment, answered=False) == setting
    abandonment.answered(1000.0)
    abandonment.abandoned()
    assert limit(abandonment, start=5000.0) == setting


def test_the_least_is_thirty_seconds():
    assert limit(Abandonment(None, has_examples=True), start=29.9, answered=False) == 30.0


def test_a_limit_is_ten_times_the_longest_run_of_the_stage():
    abandonment = Abandonment(None, has_examples=True)
    for seconds in (3.0, 3.5, 0.1):
        abandonment.answered(seconds)
    assert limit(abandonment) == 35.0


def test_a_limit_is_no_shorter_than_the_start_of_its_worker():
    abandonment = Abandonment(None, has_examples=True)
    assert limit(abandonment, start=45.0) == 45.0
    assert limit(abandonment, start=31.0) == 31.0


def test_the_first_batch_of_a_worker_without_examples_may_compile_for_five_minutes():
    abandonment = Abandonment(None, has_examples=False)
    assert limit(abandonment, answered=False) == 300.0
    assert limit(abandonment, answered=True) == 30.0
    assert limit(abandonment, start=301.0, answered=False) == 301.0


def test_each_kill_doubles_the_limit_until_the_stage_answers_a_batch():
    abandonment = Abandonment(None, has_examples=True)
    for seconds in (60.0, 120.0, 240.0):
        abandonment.abandoned()
        assert limit(abandonment) == seconds
    abandonment.answered(0.1)
    assert limit(abandonment) == 30.0


@pytest.mark.parametrize(("seconds", "warning"), [(math.inf, 10.0), (30.0, 10.0), (20.0, 10.0), (3.0, 1.5)])
def test_the_log_tells_after_ten_seconds_or_half_of_the_time(seconds, warning):
    assert warning_after(seconds) == warning
