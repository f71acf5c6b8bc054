"""An index of ascending ids: it finds what numpy finds, and a wrong one can do no harm."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.embeddings.bucket_index import BucketIndex, entries_of, index_of, most_entries

LEAST, MOST = -(2**63), 2**63 - 1
DRAW = np.random.default_rng(0)
LISTS = {
    "one": [7],
    "both ends": [LEAST, MOST],
    "all of a range": np.arange(-1000, 1000),
    "every third": np.arange(0, 6000, 3),
    "spread": DRAW.integers(LEAST, MOST, 2000),
    "two crowds far apart": [*range(500), *range(2**62, 2**62 + 500)],
    "a crowd below one far away": [*range(1000), MOST],
    "powers of two": [*(2**n for n in range(63)), *(-(2**n) for n in range(64))],
}


def index(ids):
    ids = np.unique(np.asarray(ids, np.int64))
    return BucketIndex(ids, np.concatenate(list(index_of(ids))), int(ids[0]), int(ids[-1]))


def asked_of(made):
    """Ids that are there and others near them, from the first to the last."""
    near = np.unique(np.concatenate([made.ids - 1, made.ids, made.ids + 1, DRAW.integers(LEAST, MOST, 100)]))
    return near[(near >= made.first) & (near <= made.last)]


@pytest.mark.parametrize("name", LISTS)
def test_it_finds_what_is_there_and_nothing_else(name):
    made = index(LISTS[name])
    asked = asked_of(made)
    places, found = made.find(asked)
    assert (found == np.isin(asked, made.ids)).all()
    assert (made.ids[places[found]] == asked[found]).all()


@pytest.mark.parametrize("name", LISTS)
def test_it_has_the_entries_that_its_ids_say_and_never_more_than_there_may_be(name):
    made = index(LISTS[name])
    assert len(made.entries) == entries_of(made.first, made.last, len(made.ids)) <= most_entries(len(made.ids))
    assert len(made.entries) % 16 == 0


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("entry", [-(2**31), -1, 0, 1000, 2**31 - 1, None])
def test_wrong_entries_may_hide_an_id_and_never_give_another_s_place(name, entry):
    made = index(LISTS[name])
    wrong = DRAW.integers(-(2**31), 2**31 - 1, len(made.entries)) if entry is None else entry
    made.entries[:] = wrong
    asked = asked_of(made)
    places, found = made.find(asked)
    assert (made.ids.take(places[found], mode="clip") == asked[found]).all()


def test_wrong_ids_end_a_search_as_right_ones_do():
    made = index(LISTS["spread"])
    asked = asked_of(made)
    for wrong in (made.ids[::-1].copy(), np.zeros_like(made.ids), np.full_like(made.ids, LEAST)):
        places, found = made._replace(ids=wrong).find(asked)
        assert (wrong.take(places[found], mode="clip") == asked[found]).all()
