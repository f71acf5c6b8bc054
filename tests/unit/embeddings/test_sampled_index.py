"""An index of ascending ids: it finds what numpy finds, and a wrong one can do no harm."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.embeddings.sampled_index import SampledIndex, count_of_samples, samples_of

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
    return SampledIndex(ids, samples_of(ids))


def asked_of(made):
    """Ids that are there, others near them, and some from anywhere."""
    return np.unique(np.concatenate([made.ids - 1, made.ids, made.ids + 1, DRAW.integers(LEAST, MOST, 100)]))


@pytest.mark.parametrize("name", LISTS)
def test_it_finds_what_is_there_and_nothing_else(name):
    made = index(LISTS[name])
    asked = asked_of(made)
    places, found = made.find(asked)
    assert (found == np.isin(asked, made.ids)).all()
    assert (made.ids.take(places[found], mode="clip") == asked[found]).all()


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 32, 33])
def test_lists_of_every_length_are_found_whole(count):
    made = index(np.arange(count) * 3)
    assert len(made.samples) == count_of_samples(count)
    places, found = made.find(made.ids)
    assert found.all()
    assert (made.ids.take(places, mode="clip") == made.ids).all()
    assert not made.find(made.ids + 1)[1].any()


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("entry", [LEAST, -1, 0, 1000, MOST, None])
def test_wrong_entries_may_hide_an_id_and_never_give_another_s_place(name, entry):
    made = index(LISTS[name])
    made.samples[:] = DRAW.integers(LEAST, MOST, len(made.samples)) if entry is None else entry
    asked = asked_of(made)
    places, found = made.find(asked)
    assert (made.ids.take(places[found], mode="clip") == asked[found]).all()


def test_wrong_ids_end_a_search_as_right_ones_do():
    made = index(LISTS["spread"])
    asked = asked_of(made)
    for wrong in (made.ids[::-1].copy(), np.zeros_like(made.ids), np.full_like(made.ids, LEAST)):
        places, found = made._replace(ids=wrong).find(asked)
        assert (wrong.take(places[found], mode="clip") == asked[found]).all()
