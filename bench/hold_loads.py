"""The loads of the simulator: callers, and arrivals that do not wait for answers.

A load that is open is a sorted list of moments, drawn beforehand.  Callers are described here, and play in `hold_sim`.
Times are in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Callers:
    """Callers of one kind: each asks, waits for its answer, is back `back` later, thinks for `think`, and asks again.

    `back` and `think` are means.  Each caller first asks at a moment of its own, within `spread` after `start`.  From
    `stop` on none of them asks.
    """

    count: int
    back: float
    think: float = 0.0
    spread: float = 0.0
    start: float = 0.0
    stop: float = math.inf


def poisson(draw: Random, rate: float, start: float, stop: float, most: int) -> list[float]:
    """Independent requests, `rate` of them a second."""
    moments: list[float] = []
    moment = start + draw.expovariate(rate)
    while moment < stop and len(moments) < most:
        moments.append(moment)
        moment += draw.expovariate(rate)
    return moments


def bursts(
    draw: Random, rate: float, start: float, stop: float, most: int, *, size: int, spread: float, regular: bool
) -> list[float]:
    """Bursts of `size` requests, each within `spread`; `rate` requests a second together.

    Regular ones come at equal distances.  The distance of others is exponential, and so is their size, about.
    """
    moments: list[float] = []
    distance = size / rate
    moment = start + draw.random() * distance
    while moment < stop and len(moments) < most:
        count = size if regular else max(1, round(draw.expovariate(1 / size)))
        moments += [moment + draw.random() * spread for _ in range(count)]
        moment += distance if regular else draw.expovariate(1 / distance)
    return sorted(moments)[:most]


def sources(draw: Random, rate: float, start: float, stop: float, most: int, *, count: int) -> list[float]:
    """Regular sources, each with a period and a phase of its own; `rate` requests a second together."""
    shares = [draw.uniform(0.5, 1.5) for _ in range(count)]
    stop = min(stop, start + 1.1 * (most + count) / rate)
    moments: list[float] = []
    for share in shares:
        period = sum(shares) / (share * rate)
        moment = start + draw.random() * period
        while moment < stop:
            moments.append(moment)
            moment += period
    return sorted(moments)[:most]
