from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.artifact.comparing import compare_output, worst_of

TOLERANCE = (1e-5, 1e-5)
INFINITY = math.inf


def compared(expected, got, *, dtype="float32", tolerance=TOLERANCE, first_row=0):
    return compare_output(
        "p", np.array(expected, dtype=dtype), np.array(got, dtype=dtype), tolerance=tolerance, first_row=first_row
    )


def test_equal_answers_have_no_difference():
    found = compared([1, 2], [1, 2])
    assert (found.difference, found.outside, found.problem) == (0.0, 0, "")


def test_the_edge_of_the_tolerance_is_within_it():
    assert not compared([8.0], [8.5], tolerance=(0.25, 0.03125), dtype="float64").problem
    assert compared([8.0], [8.5], tolerance=(0.25, 0.031), dtype="float64").problem


def test_the_relative_tolerance_is_of_what_the_model_answered():
    assert not compared([10.0], [0.0], tolerance=(0.0, 1.0)).problem
    assert compared([0.0], [10.0], tolerance=(0.0, 1.0)).problem


def test_the_worst_row_is_the_farthest_outside_and_not_that_of_the_greatest_difference():
    found = compared([1e6, 1.0, 2.0], [1e6 + 4, 1.5, 2.1])
    assert (found.row, found.expected, found.got) == (1, 1.0, 1.5)
    assert found.difference == 4.0
    assert found.outside == 2
    assert (
        found.problem
        == "the graph returned 1.5, the model returned 1.0: they differ by 0.5, and the tolerance allows 2e-05"
    )


def test_rows_are_counted_from_the_first():
    assert compared([1.0, 2.0], [1.0, 3.0], first_row=100).row == 101


def test_a_row_of_several_values_counts_once_and_shows_its_worst():
    found = compared([[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.5, 9.0]])
    assert (found.row, found.outside, found.expected, found.got) == (1, 1, 4.0, 9.0)


@pytest.mark.parametrize(
    ("expected", "got"), [(1.0, math.nan), (math.nan, 1.0), (math.nan, math.nan), (INFINITY, math.nan)]
)
def test_nan_is_no_answer_on_either_side(expected, got):
    found = compared([0.0, expected], [0.0, got], tolerance=(INFINITY, 0.0))
    assert (found.row, found.outside, found.difference) == (1, 1, INFINITY)
    assert found.problem.endswith("NaN is not a valid output")


def test_infinity_is_within_tolerance_of_itself_alone():
    assert not compared([INFINITY, -INFINITY], [INFINITY, -INFINITY]).problem
    assert compared([INFINITY], [3.0]).problem
    assert compared([3.0], [INFINITY]).problem
    assert compared([INFINITY], [-INFINITY]).problem


@pytest.mark.parametrize(
    ("dtype", "expected", "got", "difference"),
    [
        ("int64", [1, 2**63 - 1], [1, 2**63 - 2], 0.0),
        ("int64", [1, 5], [1, 9], 4.0),
        ("uint8", [0, 255], [0, 0], 255.0),
        ("bool", [True, True], [True, False], INFINITY),
        ("object", ["a", "b"], ["a", "B"], INFINITY),
    ],
)
def test_what_is_no_float_has_to_be_equal(dtype, expected, got, difference):
    assert not compared(expected, expected, dtype=dtype, tolerance=(10.0, 10.0)).problem
    found = compared(expected, got, dtype=dtype, tolerance=(10.0, 10.0))
    assert (found.row, found.outside, found.difference) == (1, 1, difference)
    assert found.problem == f"the graph returned {got[1]!r}, the model returned {expected[1]!r}"


def test_another_dtype_is_outside_of_every_tolerance():
    found = compare_output("p", np.zeros(2, dtype="float32"), np.zeros(2, dtype="float64"), tolerance=(1.0, 1.0))
    assert found.problem == "the graph returned float64, the model returned float32"
    assert (found.outside, found.expected, found.got) == (2, "float32 (2,)", "float64 (2,)")


@pytest.mark.parametrize("shape", [(), (3,), (2, 1), (1,)])
def test_another_shape_is_outside_of_every_tolerance(shape):
    found = compare_output("p", np.zeros(2), np.zeros(shape), tolerance=(1.0, 1.0))
    assert found.problem == f"the output of the graph has the shape {shape}, that of the model (2,)"


def test_an_output_without_values_is_equal():
    assert not compared(np.zeros((3, 0)), np.zeros((3, 0))).problem


def test_of_several_comparisons_the_worst_is_kept_with_the_greatest_difference():
    good, bad = compared([1e6], [1e6 + 5]), compared([1.0, 1.0], [1.1, 1.1])
    assert bad.problem
    assert not good.problem
    found = worst_of([good, bad])
    assert (found.problem, found.outside, found.difference) == (bad.problem, 2, 5.0)
    assert worst_of([good]) == good


numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), st.floats(0, 10), st.floats(0, 10))
def test_numbers_are_within_tolerance_where_python_finds_them_so(pairs, absolute, relative):
    def is_within(expected, got):
        if math.isinf(expected) or math.isinf(got):
            return expected == got
        return abs(got - expected) <= absolute + relative * abs(expected)  # false for NaN

    wrong = [place for place, pair in enumerate(pairs) if not is_within(*pair)]
    expected, got = zip(*pairs, strict=True)
    found = compared(expected, got, tolerance=(absolute, relative))
    assert (found.outside, bool(found.problem)) == (len(wrong), bool(wrong))
    assert not wrong or found.row in wrong
