"""Numbers of float16 and float32 as float64: each counts as the shortest decimal that is this number, so 0.3 as 0.3.

That decimal is what JSON has of it, and what somebody wrote before it was rounded.  The float64 with the same bits is
another number, 0.30000001192092896: it would lie on another side of a boundary, and equal none of `missing_values`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.codec.numpy_ import widen

POWERS: Final = np.array([float(10**exponent) for exponent in range(23)])
"""The powers of ten that a float64 holds exactly."""
EASY: Final = (1e-12, 1e21)
"""Between them no decimal of ten digits needs another power."""
MOST_DIGITS: Final = 9
"""No float32 needs more."""


def largest_whole(dtype: Any) -> float:
    """From here on not every integer is a float of this dtype of numpy, so which one was meant is not known."""
    return float(2.0 ** (np.finfo(dtype).nmant + 1))


def widen_all(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Each number of an array as `widen` gives it.

    A million different float32 take about 0.5 s, and by way of their texts 4 s.  The quotient of a whole number of at
    most 2**53 and an exact power of ten is the float64 nearest to that decimal (Clinger, 1990), so it is enough to try
    how many places the decimal needs.  All 919 million float32 in `EASY` were compared with their texts.
    """
    with np.errstate(invalid="ignore"):  # a signalling NaN
        found: npt.NDArray[np.float64] = numbers.astype(np.float64)
    sizes = np.abs(found)
    easy = (sizes >= EASY[0]) & (sizes < EASY[1]) & (numbers.dtype.type is np.float32)  # half floats are few
    rest = np.flatnonzero(easy)
    fewest = -np.floor(np.log10(sizes[rest])).astype(np.intp)
    for more in range(MOST_DIGITS + 1):  # the logarithm may be rounded up to the next integer
        if not rest.size:
            break
        places = fewest + more
        up, down = POWERS[np.maximum(places, 0)], POWERS[np.maximum(-places, 0)]
        decimals = np.rint(found[rest] * up / down) / up * down
        done = decimals.astype(np.float32) == numbers[rest]
        found[rest[done]] = decimals[done]
        rest, fewest = rest[~done], fewest[~done]
    hard = np.flatnonzero(~easy & np.isfinite(found) & (found != 0))
    values, codes = np.unique(numbers[hard], return_inverse=True)
    found[hard] = np.array([widen(value) for value in values], dtype=np.float64)[codes]
    return found
