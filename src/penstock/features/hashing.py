"""The hashes of TensorFlow and Keras: FarmHash64 of a string, and FingerprintCat64 of two hashes.

Both are part of what a model was trained on, so they never change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError

_MULTIPLIER: Final = np.uint64(0xC6A4A7935BD1E995)
_SHIFT: Final = np.uint64(47)

Hashes = npt.NDArray[np.uint64]


def check_can_hash() -> None:
    """Do nothing, or raise ConfigError where the library is not installed.

    Whoever may have to hash asks when it is made: else the first request with an unknown category would be told.
    """
    try:
        import farmhash  # noqa: F401  # whether it can be imported is the question
    except ModuleNotFoundError:
        raise ConfigError("hashed features require the library pyfarmhash: pip install 'penstock[onnx]'") from None


def hash_words(words: Iterable[str]) -> Hashes:
    """FarmHash64 of each string in UTF-8."""
    from farmhash import fingerprint64

    return np.array([fingerprint64(word) for word in words], dtype=np.uint64)


def bucket_of(hashes: Hashes, buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each hash."""
    return (hashes % np.uint64(buckets)).astype(np.int64)


def concatenate_hashes(first: Hashes, second: Hashes) -> Hashes:
    """FingerprintCat64 of each pair, as tensorflow/core/platform/fingerprint.h has it; the order of the two counts."""
    mixed = (first ^ _MULTIPLIER) ^ (_shift_mix(second * _MULTIPLIER) * _MULTIPLIER)
    return _shift_mix(_shift_mix(mixed * _MULTIPLIER) * _MULTIPLIER)


def _shift_mix(hashes: Hashes) -> Hashes:
    mixed: Hashes = hashes ^ (hashes >> _SHIFT)
    return mixed
