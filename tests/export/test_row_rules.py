"""The words of `penstock.embeddings.init` are those of TensorFlow's Philox, for the same key and counter."""

import os
import zlib

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")

from penstock.embeddings.rules import philox  # noqa: E402

PHILOX = 1


@pytest.mark.parametrize("id_", [0, 1, 2**40 + 7, -1, -(2**63)])
def test_the_words_of_an_id_are_those_of_tensorflow(id_):
    seed, name = 0x1234_5678_9ABC_DEF0, "user.embedding"
    table = zlib.crc32(name.encode())
    blocks = philox(seed, np.array([id_]), table, 3)[0]
    for number, words in enumerate(blocks):
        low = id_ % 2**64
        high = number | table << 32
        counter = tf.constant(np.array([low, high], np.uint64))
        key = tf.constant(np.array([seed], np.uint64))
        drawn = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[4], key=key, counter=counter, alg=PHILOX, dtype=tf.uint32
        )
        assert drawn.numpy().tolist() == words.tolist()
