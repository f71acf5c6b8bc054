"""Find the ids of values in TensorFlow: the place between boundaries, the hash, the place in a vocabulary, the cross.

No op here has a state: a vocabulary is a constant and no table, so nothing has to be tracked or initialised where a
graph is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from penstock.errors import ConfigError
from penstock.features.hashing import bucket_of, hash_words
from penstock.features.kinds import Crossed
from penstock.features.tensorflow_values import without_subnormals

LARGEST_INT64: Final = 2**63 - 1


def buckets_between(numbers: Any, boundaries: Sequence[float]) -> Any:
    """How many boundaries are not above each number."""
    return _search(tf.constant(boundaries, tf.float64), without_subnormals(numbers), side="right")


def hash_bucket(words: Any, buckets: int) -> Any:
    """The bucket of each string."""
    return tf.strings.to_hash_bucket_fast(words, buckets)


def places_in(words: Any, known: Sequence[str]) -> tuple[Any, Any]:
    """The place of each string in `known`, and whether it is there.

    The known strings are searched by their hashes, and compared as strings at the place where the hash is found.
    """
    if not known:
        return tf.zeros_like(words, tf.int64), tf.zeros_like(words, tf.bool)
    hashes = bucket_of(hash_words(known), LARGEST_INT64)
    order = sorted_hashes(known, hashes)
    found = _search(tf.constant(hashes[order]), hash_bucket(words, LARGEST_INT64), side="left")
    found = tf.minimum(found, len(known) - 1)
    same = tf.gather(tf.constant([known[place] for place in order], tf.string), found) == words
    return tf.gather(tf.constant(order, tf.int64), found), same


def sorted_hashes(known: Sequence[str], hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """The order in which hashes rise.

    Raises:
        ConfigError: two strings have one hash.  The search would find only one of them; none such are known.
    """
    order = np.argsort(hashes, kind="stable")
    equal = np.flatnonzero(np.diff(hashes[order]) == 0)
    if equal.size:
        first, second = known[order[equal[0]]], known[order[equal[0] + 1]]
        raise ConfigError(
            f"the values {first!r} and {second!r} have the same hash, so TensorFlow cannot distinguish "
            "them here: rename one"
        )
    return order


def cross_bucket(keys: Sequence[Any], cross: Crossed) -> Any:
    """The bucket of each row's combination of keys: `tf.sparse.cross_hashed` of one dense column a key.

    The function itself takes a `hash_key` of 0 for its own default, so its op is called.
    """
    signed = cross.hash_key - 2**64 if cross.hash_key > LARGEST_INT64 else cross.hash_key
    crossed = tf.raw_ops.SparseCross(
        indices=[],
        values=[],
        shapes=[],
        dense_inputs=[tf.expand_dims(key, 1) for key in keys],
        hashed_output=True,
        num_buckets=cross.buckets,
        hash_key=signed,
        out_type=tf.int64,
        internal_type=tf.string if all(key.dtype == tf.string for key in keys) else tf.int64,
    )
    return tf.ensure_shape(crossed.output_values, keys[0].shape)


def _search(order: Any, wanted: Any, *, side: str) -> Any:
    """`tf.searchsorted` for `wanted` of any shape."""
    found = tf.searchsorted(order, tf.reshape(wanted, [-1]), side=side, out_type=tf.int64)
    return tf.reshape(found, tf.shape(wanted))
