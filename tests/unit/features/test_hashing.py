"""Hashes and crosses are those of TensorFlow, by answers that TensorFlow 2.21 gave."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from penstock import features as f
from penstock.errors import ConfigError

CROSSES = [  # tf.sparse.cross_hashed([...], num_buckets=2**62), strings and int64
    (["a", "b"], 915435941025511274),
    (["é", 5], 3754114158325350042),
    ([2**40 + 7, -1, "x\0y"], 4399615887161970988),
    (["", ""], 3402824054113814661),
]


@pytest.mark.parametrize(("values", "expected"), CROSSES)
def test_a_cross_is_that_of_tensorflow(values, expected):
    kinds = {
        f"k{place}": f.Hashed(3, cross_only=True) if isinstance(value, str) else f.Ids(cross_only=True)
        for place, value in enumerate(values)
    }
    features = f.Features(kinds | {"c": f.Crossed(list(kinds), 2**62)})
    row = dict(zip(kinds, values, strict=True))
    assert features.encode([row])["c"].tolist() == [expected]


def test_a_hash_is_that_of_keras():
    # keras.layers.Hashing(num_bins=3) of A to E, as tests of ElasticDL have it
    assert f.Features({"a": f.Hashed(3)}).encode({"a": list("ABCDE")})["a"].tolist() == [1, 0, 1, 1, 2]


def test_a_cross_with_a_missing_key_is_missing():
    kinds = {"a": f.Hashed(3, fill_value=f.EMPTY, cross_only=True), "b": f.Hashed(3)}
    refused = f.Features(kinds | {"c": f.Crossed(["a", "b"], 4)}).encode_rows([{"b": 1}, {"a": 1, "b": 1}])
    assert refused.kept == [1]
    assert str(refused.invalid[0]) == "is missing, and 'c' is crossed with it at `$.a`"
    empty = f.Features(kinds | {"c": f.Crossed(["a", "b"], 4, one_hot=True, fill_value=f.EMPTY)})
    found = empty.encode([{"b": 1}, {"a": 1, "b": 1}])["c"]
    assert found.sum(axis=1).tolist() == [0, 1]
    assert found.dtype == np.float32


def test_another_hash_key_makes_other_buckets():
    kinds = {"a": f.Hashed(3), "b": f.Hashed(3)}
    row = {"a": "x", "b": "y"}
    buckets = {
        int(f.Features(kinds | {"c": f.Crossed(["a", "b"], 2**60, hash_key=key)}).encode([row])["c"][0])
        for key in (0, 1, 2**64 - 1, 0xDECAFCAFFE)
    }
    assert len(buckets) == 4


def test_without_the_library_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "farmhash", None)
    known = f.Vocabulary(["x"], num_oov_indices=0)
    crossed = {"a": known, "b": f.Vocabulary(["y"], num_oov_indices=0), "c": f.Crossed(["a", "b"], 3)}
    for kinds in ({"a": f.Hashed(3)}, {"a": f.Vocabulary(["x"])}, crossed):
        with pytest.raises(ConfigError, match=r"pip install 'penstock\[onnx\]'"):
            f.Features(kinds)
    known = f.Features({"a": f.Vocabulary(["x"], num_oov_indices=0), "n": f.Numeric()})
    assert known.encode([{"a": "x", "n": 1}])["a"].tolist() == [0]
