"""Places of ids."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.embeddings.id_index import LARGEST_DIRECT, IdIndex, direct_entries, entries_for

COUNT = 5000


@pytest.mark.parametrize("kind", ["direct", "counted", "random", "strided"])
def test_every_id_is_found_at_its_place_and_no_other_is(kind):
    random = np.random.default_rng(0)
    ids = {
        "direct": random.permutation(2 * COUNT)[:COUNT],
        "counted": np.arange(COUNT),
        "random": np.unique(random.integers(-(2**63), 2**63 - 1, COUNT)),
        "strided": (np.arange(COUNT) - COUNT // 2) << 40,
    }[kind]
    known = random.permutation(ids)
    index = IdIndex(direct_entries(2 * COUNT if kind == "direct" else None))
    for count in (0, 1, 1, 40, 2000, len(known)):
        index.catch_up(known, count)
        places = random.permutation(np.arange(count).repeat(2))
        assert (index.find(known, known[places]) == places).all()
        others = np.concatenate([known[count:], np.setdiff1d(random.integers(0, 2 * COUNT, COUNT), ids)])
        assert (index.find(known, others) == -1).all()
    assert index.find(known, known[:0]).tolist() == []


def test_ids_have_an_entry_each_where_there_are_few_enough():
    assert len(direct_entries(LARGEST_DIRECT)) == LARGEST_DIRECT
    assert direct_entries(LARGEST_DIRECT + 1) is None
    assert direct_entries(None) is None


def test_a_hash_table_has_two_entries_for_each_id_and_a_power_of_two():
    for count in (0, 1, 32, 33, 1000, 2**20, 2**20 + 1):
        entries = entries_for(count)
        assert entries >= max(64, 2 * count)
        assert entries & (entries - 1) == 0
        assert entries < max(65, 4 * count)
