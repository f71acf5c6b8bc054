"""Parameters beside the tables, which many processes change at once."""

import logging

import numpy as np
import pytest

from penstock.embeddings.memory_store import MemoryTrainingStore
from penstock.embeddings.shared_parameters import SharedParameters
from penstock.embeddings.shared_store import SharedTrainingStore
from penstock.errors import RowsUnavailable, TableMismatch

SHAPES = {"out.weight": (30, 20), "out.bias": (30,), "gain": ()}
SIZE = 631


def numbers(shift=0.0):
    """Numbers of which no two are equal, and sums of which are exact."""
    return (np.arange(SIZE) / 8 + shift).astype(np.float32)


@pytest.fixture(params=["memory", "shared"])
def store(request, tmp_path):
    return MemoryTrainingStore() if request.param == "memory" else SharedTrainingStore(tmp_path / "rows")


def test_all_have_the_first_values_and_the_sum_of_what_each_changed(store, caplog):
    with caplog.at_level(logging.INFO, "penstock.embeddings"):
        idle, *busy = [SharedParameters(store, SHAPES, numbers(shift=1000.0 * place)) for place in range(4)]
    assert [record.message for record in caplog.records] == [
        "the store has the other parameters already: using them instead of those of this model"
    ] * 3
    values = [each.seen.copy() for each in busy]
    for _ in range(5):
        for place, each in enumerate(busy):
            assert np.array_equal(each.seen, values[place])
            changed = values[place] - np.float32(0.5) * (place + 1) * (np.arange(SIZE) % 3)
            values[place] = each.added(each.changes(changed)).copy()
    expected = numbers() - 5 * 3.0 * (np.arange(SIZE) % 3)
    assert np.array_equal(values[-1], expected)
    assert np.array_equal(idle.taken(numbers()), expected)
    assert np.array_equal(SharedParameters(store, SHAPES, numbers(shift=7.0)).seen, expected)


def test_what_was_not_added_yet_stays_on_top_and_is_added_once(store):
    one, other = (SharedParameters(store, SHAPES, numbers()) for _ in range(2))
    other.added(other.changes(numbers() + 4))
    values = one.taken(numbers() + 2)
    assert np.array_equal(values, numbers() + 6)
    assert np.array_equal(one.taken(values), values)
    assert np.array_equal(one.added(one.changes(values)), values)
    assert np.array_equal(other.taken(numbers() + 4), values)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({**SHAPES, "gain": (1,)}, r"gain \[\]; this one has gain \[1\]"),
        ({**SHAPES, "more": (1,)}, r"nothing; this one has more \[1\]"),
        ({"out.weight": (30, 20)}, r"out.bias \[30\]; this one has nothing"),
        ({}, r"out.weight \[30, 20\]; this one has nothing"),
        ({"x" * 300: (600,), **SHAPES}, r"out.weight \[30, 20\]; this one has x{300} \[600\]"),
    ],
)
def test_another_model_is_refused_by_its_first_parameter_that_differs(shapes, words, store):
    SharedParameters(store, SHAPES, numbers())
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    with pytest.raises(TableMismatch, match=words):
        SharedParameters(store, shapes, np.zeros(size, np.float32))


def test_a_model_without_other_parameters_has_nothing_to_share(store):
    for _ in range(2):
        alone = SharedParameters(store, {}, np.empty(0, np.float32))
        assert alone.added(alone.changes(alone.seen)).shape == alone.taken(alone.seen).shape == (0,)
    with pytest.raises(TableMismatch, match=r"nothing; this one has out.weight"):
        SharedParameters(store, SHAPES, numbers())


def test_a_value_that_is_not_finite_is_refused_by_its_name(store):
    there = SharedParameters(store, SHAPES, numbers())
    for place, name in ((599, "out.weight"), (600, "out.bias"), (630, "gain")):
        wrong = numbers()
        wrong[place] = np.nan
        with pytest.raises(FloatingPointError, match=f"parameter '{name}' is not finite"):
            there.changes(wrong)


class Failing(MemoryTrainingStore):
    fails = False

    def fetch(self, table, ids):
        if self.fails:
            raise RowsUnavailable("the folder is gone")
        return super().fetch(table, ids)


def test_a_change_is_not_added_twice_where_the_store_fails_behind_it():
    store = Failing()
    one, other = (SharedParameters(store, SHAPES, numbers()) for _ in range(2))
    store.fails = True
    with pytest.raises(RowsUnavailable):
        one.added(one.changes(numbers() + 2))
    store.fails = False
    assert np.array_equal(one.added(one.changes(numbers() + 2)), numbers() + 2)
    assert np.array_equal(other.taken(numbers()), numbers() + 2)
