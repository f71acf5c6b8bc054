"""Places of ids."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.embeddings.id_index import entries_for, find, insert


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("kind", ["counted", "random", "strided"])
def test_every_id_is_found_at_its_place_and_no_other_is(dtype, kind):
    count = 5000
    random = np.random.default_rng(0)
    ids = {
        "counted": np.arange(count),
        "random": np.unique(random.integers(-(2**63), 2**63 - 1, count)),
        "strided": (np.arange(count) - count // 2) << 40,
    }[kind]
    ids = random.permutation(ids)
    table = np.zeros(entries_for(len(ids)), dtype)
    for some in np.array_split(np.arange(len(ids)), 9):
        insert(table, ids[some], some)
    places = random.permutation(np.arange(len(ids)).repeat(2))
    assert (find(table, ids, ids[places]) == places).all()
    others = np.setdiff1d(random.integers(-(2**63), 2**63 - 1, count), ids)
    assert (find(table, ids, others) == -1).all()
    assert find(table, ids, ids[:0]).tolist() == []


def test_there_are_two_entries_for_each_id_and_a_power_of_two():
    for count in (0, 1, 32, 33, 1000, 2**20, 2**20 + 1):
        entries = entries_for(count)
        assert entries >= max(64, 2 * count)
        assert entries & (entries - 1) == 0
        assert entries < max(65, 4 * count)
