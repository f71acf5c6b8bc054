"""Rows that no update has made yet: one rule for each table, so training and serving agree on an id nobody has seen.

`Init` is Philox4x32-10 of Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (2011).  A row depends on the
seed, the id and the table's name alone, so nothing is stored for it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from penstock.errors import ConfigError

Rows: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = NDArray[np.int64]

_ROUNDS: Final = 10
_MULTIPLIERS: Final = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL: Final = 0x9E3779B9, 0xBB67AE85
"""By how much each half of the key grows from one round to the next."""
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)


class Zeros(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="zeros"):
    """Every such row is zeros."""

    def rows(self, ids: Any, width: int, table: str = "") -> Rows:  # noqa: ARG002  # the rule takes no part in it
        """Rows of `ids`, `width` numbers each, float32."""
        return np.zeros((len(ids), width), np.float32)


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="constant"):
    """Every such row has the same values."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values or not all(map(is_finite, self.values)):
            raise ConfigError(f"constant must have finite numbers, one for each column, got {self.values!r}")
        force_setattr(self, "values", tuple(map(float, self.values)))  # numbers of numpy cannot be written as JSON

    def rows(self, ids: Any, width: int, table: str = "") -> Rows:  # noqa: ARG002
        """Rows of `ids`; ConfigError where there are not `width` values."""
        if len(self.values) != width:
            raise ConfigError(f"constant has {len(self.values)} values, but a row has {width} columns")
        return np.tile(np.array(self.values, np.float32), (len(ids), 1))


class Init(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="init"):
    """Every such row is drawn from [low, high), by its id."""

    seed: int = 0
    low: float = -0.05
    high: float = 0.05

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**64:
            raise ConfigError(f"init must have a seed from 0 to 2**64 - 1, got {self.seed!r}")
        if not (is_finite(self.low) and is_finite(self.high) and self.low <= self.high):
            raise ConfigError(f"init must have finite bounds, low not above high, got {self.low!r} and {self.high!r}")
        force_setattr(self, "low", float(self.low))
        force_setattr(self, "high", float(self.high))

    def rows(self, ids: Any, width: int, table: str = "") -> Rows:
        """Rows of `ids` in the table of this name."""
        words = philox(self.seed, np.asarray(ids, np.int64), zlib.crc32(table.encode()), -(-width // 4))
        drawn = (words.reshape(len(ids), 4 * words.shape[1])[:, :width] >> np.uint32(8)).astype(np.float64) * 2.0**-24
        return (self.low + (self.high - self.low) * drawn).astype(np.float32)


MissingRule: TypeAlias = Zeros | Constant | Init


def is_finite(value: object) -> bool:
    """Whether a value is a number, of Python or of numpy, and finite."""
    return isinstance(value, int | float | np.integer | np.floating) and math.isfinite(value)


def zeros() -> Zeros:
    """Rows of zeros."""
    return Zeros()


def constant(values: Sequence[float]) -> Constant:
    """Rows that have these values, a value a column."""
    return Constant(tuple(values))


def init(seed: int = 0, low: float = -0.05, high: float = 0.05) -> Init:
    """Rows drawn from [low, high) by the seed, the id and the table's name."""
    return Init(seed, low, high)


def philox(key: int, ids: Ids, last: int, blocks: int) -> NDArray[np.uint32]:
    """The words of Philox4x32-10, uint32 of shape (ids, blocks, 4).

    The counter of a block is the low and the high half of the id, the number of the block, and `last`.
    """
    numbers = ids.view(np.uint64)[:, None]
    shape = (len(ids), blocks)
    counter = [
        np.broadcast_to(numbers & _LOW, shape),
        np.broadcast_to(numbers >> _HALF, shape),
        np.broadcast_to(np.arange(blocks, dtype=np.uint64), shape),
        np.full(shape, last, np.uint64),
    ]
    for number in range(_ROUNDS):
        keys = [np.uint64((key >> 32 * half) + number * _WEYL[half] & 0xFFFFFFFF) for half in (0, 1)]
        first, second = counter[0] * _MULTIPLIERS[0], counter[2] * _MULTIPLIERS[1]
        counter = [
            (second >> _HALF) ^ counter[1] ^ keys[0],
            second & _LOW,
            (first >> _HALF) ^ counter[3] ^ keys[1],
            first & _LOW,
        ]
    return np.stack(counter, axis=-1).astype(np.uint32)
