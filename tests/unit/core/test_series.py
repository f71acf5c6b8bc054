"""Which counters with labels there may be, and what their totals are."""

from __future__ import annotations

import decimal
import math

import pytest

from penstock.core.series import (
    LONGEST_NAME,
    LONGEST_VALUE,
    MOST_LABELS,
    OWN,
    SeriesCounts,
    amount_of,
    check_series,
    series_of,
    shown,
)
from penstock.errors import ConfigError


def series(name="user_hits", **labels):
    return series_of(name, labels)


def test_what_is_counted_of_a_series_is_added_up_whatever_the_order_of_its_labels():
    counts = SeriesCounts()
    assert counts.add(series_of("user_hits", {"b": "2", "a": "1"}), 2.0)
    assert counts.add(series_of("user_hits", {"a": "1", "b": "2"}), 0.5)
    assert counts.add(series(), 0.0)
    assert list(counts.items()) == [(("user_hits", (("a", "1"), ("b", "2"))), 2.5), (("user_hits", ()), 0.0)]


def test_series_beyond_the_limit_are_dropped_and_those_that_are_there_are_counted_on():
    counts = SeriesCounts(most=2)
    assert [counts.add(series(lang=lang), 1.0) for lang in ("en", "de", "fr", "en")] == [True, True, False, True]
    assert list(counts.items()) == [(series(lang="en"), 2.0), (series(lang="de"), 1.0)]


def test_a_stage_that_counts_too_many_series_leaves_their_places_to_those_of_penstock():
    counts = SeriesCounts(most=1)
    assert [counts.add(series(lang=lang), 1.0) for lang in ("en", "de")] == [True, False]
    assert [counts.add(series("rows_fetched", table=table), 1.0) for table in ("user", "item")] == [True, False]


@pytest.mark.parametrize("name", ["hits", "h", "cache_hits_2", "totals", "a" * LONGEST_NAME])
def test_such_names_are_those_of_counters(name):
    check_series(series(f"user_{name}"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is not a valid counter name"),
        ("Hits", "is not a valid counter name"),
        ("2hits", "is not a valid counter name"),
        ("cache-hits", "is not a valid counter name"),
        ("hits\n", "is not a valid counter name"),
        ("hïts", "is not a valid counter name"),
        ("a" * (LONGEST_NAME + 1), "is not a valid counter name"),
        ("hits_total", "remove '_total'"),
        ("hits_created", "remove '_created'"),
    ],
)
def test_other_names_are_refused(name, why):
    with pytest.raises(ConfigError, match=why):
        SeriesCounts().add(series(f"user_{name}"), 1.0)


def test_a_name_without_the_prefix_of_users_is_one_of_the_known_ones():
    for name in OWN:
        check_series(series(name, table="user"))
    with pytest.raises(ConfigError, match="'rows' is not a valid counter name"):
        check_series(series("rows"))


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"service": "x"}, "'service' is reserved: every counter has this label"),
        ({"stage": "x"}, "'stage' is reserved: every counter has this label"),
        ({"x-y": "x"}, "'x-y' is not a valid label"),
        ({"__x": "x"}, "'__x' is not a valid label"),
        ({"": "x"}, "'' is not a valid label"),
        ({"l" * (LONGEST_NAME + 1): "x"}, "is not a valid label"),
        ({f"l{i}": "x" for i in range(MOST_LABELS + 1)}, "at most 10 labels, 'hits' got 11"),
        ({"lang": "x" * (LONGEST_VALUE + 1)}, "the label 'lang' has a value of more than 200 characters"),
    ],
)
def test_labels_that_prometheus_does_not_take_are_refused(labels, why):
    with pytest.raises(ConfigError, match=why):
        check_series(series(**labels))


@pytest.mark.parametrize("amount", [-1.0, -1e-9, math.nan, math.inf, 2.0**53 + 2])
def test_a_total_never_decreases_nor_ceases_to_be_a_number(amount):
    counts = SeriesCounts()
    counts.add(series(), 1.0)
    with pytest.raises(ConfigError, match="a count must be a number from 0 to 2"):
        counts.add(series(), amount)
    assert list(counts.items()) == [(series(), 1.0)]


@pytest.mark.parametrize("n", ["3", b"3", None, [1], math.nan, math.inf, -1, 1 << 54, 10**400, 1j])
def test_what_cannot_be_counted_is_refused(n):
    with pytest.raises(ConfigError, match="a count must be a number from 0 to 2"):
        amount_of(n)


def test_numbers_of_any_library_are_counted_and_true_is_one():
    assert [amount_of(n) for n in (3, 0.5, True, False, decimal.Decimal("1.5"))] == [3.0, 0.5, 1.0, 0.0, 1.5]


def test_a_series_is_shown_as_metrics_have_it():
    assert shown(series()) == "penstock_user_hits_total"
    assert shown(series(b="2", a='"')) == "penstock_user_hits_total{a='\"',b='2'}"
