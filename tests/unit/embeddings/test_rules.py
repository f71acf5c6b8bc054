"""Rows that are not there, by their rule."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from penstock.embeddings.rules import constant, init, philox, zeros
from penstock.errors import ConfigError

ONES = 2**32 - 1


@pytest.mark.parametrize(
    ("key", "counter", "answer"),
    [
        ((0, 0), (0, 0, 0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES, ONES), (ONES, ONES, ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_the_words_are_the_published_answers_of_random123(key, counter, answer, monkeypatch):
    low, high, block, last = counter
    id_ = np.array([low | high << 32], np.uint64).view(np.int64)
    # A block of any number takes no table of so many blocks: numpy is asked for that block alone.
    monkeypatch.setattr(np, "arange", lambda blocks, dtype: np.array([block], dtype))
    words = philox(key[0] | key[1] << 32, id_, last, 1)
    assert " ".join(f"{word:08x}" for word in words[0, 0]) == answer


def test_a_row_is_of_its_seed_its_id_its_column_and_its_table():
    ids = np.array([-(2**63), -1, 0, 1, 2**63 - 1])
    rows = init(seed=2**64 - 1, low=-2, high=6).rows(ids, 6, "a/b")
    assert rows.dtype == np.float32
    for row, id_ in zip(rows, ids, strict=True):
        words = philox(2**64 - 1, np.array([id_]), zlib.crc32(b"a/b"), 2).reshape(-1)[:6]
        assert row.tolist() == [float(np.float32(-2 + 8.0 * ((int(word) >> 8) * 2.0**-24))) for word in words]
    others = (
        init(seed=1, low=-2, high=6).rows(ids, 6, "a/b"),
        init(seed=2**64 - 1, low=-2, high=6).rows(ids, 6, "a/c"),
        init(seed=2**64 - 1, low=-2, high=6).rows(ids, 6),
    )
    everything = np.concatenate([rows, *others])
    assert len(np.unique(everything)) == everything.size
    assert (everything >= -2).all()
    assert (everything < 6).all()


def test_no_ids_have_no_rows():
    for rule in (init(3), zeros(), constant([1, 2, 3])):
        assert rule.rows(np.empty(0, np.int64), 3, "table").shape == (0, 3)


def test_zeros_and_constants_are_what_they_say():
    ids = np.array([5, -5])
    assert zeros().rows(ids, 3).tolist() == [[0, 0, 0]] * 2
    assert constant([1, 0.5, -2]).rows(ids, 3).tolist() == [[1, 0.5, -2]] * 2
    with pytest.raises(ConfigError, match="3 values, but a row has 2 columns"):
        constant([1, 0.5, -2]).rows(ids, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: init(seed=-1), "a seed from 0 to 2.*64 - 1, got -1"),
        (lambda: init(seed=2**64), "a seed from 0"),
        (lambda: init(low=1, high=0), "low not above high, got 1 and 0"),
        (lambda: init(high=float("inf")), "finite bounds"),
        (lambda: init(seed="a"), "a seed from 0 to .*, got 'a'"),
        (lambda: init(low="a"), "got 'a' and 0.05"),
        (lambda: constant([]), "finite numbers"),
        (lambda: constant("ab"), "finite numbers"),
        (lambda: constant([float("nan")]), "finite numbers"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
