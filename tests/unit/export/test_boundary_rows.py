"""Rows made of the probes, with a number on each boundary and a step beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock import features as f
from penstock.export.boundary_rows import boundary_tables


def around(number, dtype=np.float64):
    on = dtype(number)
    return [np.nextafter(on, dtype(-np.inf)), on, np.nextafter(on, dtype(np.inf))]


def test_a_spec_without_boundaries_has_no_such_rows():
    assert boundary_tables(f.Features({"a": f.Hashed(5), "n": f.Numeric()}), [{"a": "x", "n": 1}]) == []


def test_each_boundary_has_a_row_and_one_a_step_before_and_after_it():
    features = f.Features({"a": f.Bucketized([0.3, 0.7]), "b": f.Bucketized(quantiles=2), "h": f.Hashed(5)})
    rows = [{"a": 0.1, "b": 1, "h": "x"}, {"a": 0.5, "b": 4, "h": "y"}]
    (table,) = boundary_tables(features.fit(rows), rows)
    assert table == {"a": [*around(0.3), *around(0.7)], "b": around(2.5) * 2, "h": ["x", "y"] * 3}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("form", [np.array, list])
def test_a_narrow_column_has_steps_of_its_own_precision_besides(dtype, form):
    features = f.Features(
        {"a": f.Bucketized([0.3, 0.7]), "b": f.Bucketized([1], fill_value=0), "k": f.Numeric(column="a")}
    )
    wide, narrow = boundary_tables(features, {"a": form(np.array([0.1, 0.5], dtype=dtype)), "b": [None, 1]})
    assert wide["a"] == [*around(0.3), *around(0.7)]
    assert narrow["a"] == [*around(0.3, dtype), *around(0.7, dtype)]
    assert {type(number) for number in narrow["a"]} == {dtype}
    assert (wide["b"], narrow["b"]) == (around(1) * 2, [None, 1] * 3)


def test_a_number_beyond_the_ends_of_a_dtype_is_left_out():
    _, narrow = boundary_tables(f.Features({"a": f.Bucketized([1.0, 1e9])}), {"a": np.float16([2])})
    assert narrow["a"] == [*around(1, np.float16), np.float16(65504)]
    last = float(np.finfo(np.float64).max)
    (wide,) = boundary_tables(f.Features({"a": f.Bucketized([last])}), [{"a": 2}])
    assert wide["a"] == [math.nextafter(last, 0), last]


def test_a_number_that_another_feature_of_the_column_refuses_is_left_out():
    features = f.Features({"a": f.Bucketized([2.0, 1e300]), "i": f.Ids(9, column="a")})
    (table,) = boundary_tables(features, [{"a": 3}])
    assert table == {"a": [2.0]}
    assert boundary_tables(f.Features({"a": f.Bucketized([0.5]), "i": f.Ids(9, column="a")}), [{"a": 3}]) == []


def test_lists_have_one_number_which_weighs_1():
    features = f.Features(
        {"a": f.Bucketized([0.5], max_length=3, weights="w", fill_value=f.EMPTY), "c": f.Ids(9, max_length=2)}
    )
    table = {"a": [[np.float32(0.1)], None], "w": [[2.0], None], "c": [[1], []]}
    wide, narrow = boundary_tables(features, table)
    assert wide == {"a": [[one] for one in around(0.5)], "w": [[1.0]] * 3, "c": [[1], [], [1]]}
    assert narrow["a"] == [[one] for one in around(0.5, np.float32)]


def test_what_lies_beside_zero_is_the_least_number_there_is():
    (table,) = boundary_tables(f.Features({"a": f.Bucketized([0.0])}), [{"a": 1}])
    assert table["a"] == [math.nextafter(0, -1), 0.0, math.nextafter(0, 1)]
