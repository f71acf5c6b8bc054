"""What the simulator has found in each case, and the ratios made of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import TypeAlias

import msgspec

from hold_policies import NEVER, YARDSTICKS


class Shown(msgspec.Struct):
    """What one policy has shown in one case: the means of its plays.  Times are in seconds."""

    throughput: float
    mean: float
    p99: float
    batches: int
    """Of all plays."""
    cuts: dict[str, int]
    """The batches of all plays, by the reason for which they were cut."""


def average(plays: Sequence[Shown]) -> Shown:
    """What several plays of one case have shown together."""
    cuts: Counter[str] = Counter()
    for shown in plays:
        cuts.update(shown.cuts)
    return Shown(
        throughput=fmean(shown.throughput for shown in plays),
        mean=fmean(shown.mean for shown in plays),
        p99=fmean(shown.p99 for shown in plays),
        batches=sum(shown.batches for shown in plays),
        cuts=dict(cuts),
    )


class Played(msgspec.Struct):
    """One case, and every policy in it."""

    name: str
    kind: str
    closed: bool
    workers: int
    words: str
    by_policy: dict[str, Shown]


class HoldRun(msgspec.Struct):
    """Everything that one run of the simulator has found."""

    when: datetime
    policy: str
    settings: dict[str, float | str]
    played: list[Played]
    few: dict[int, float]
    """By the number of callers."""
    changes: dict[str, dict[str, float]]
    """By `workers:kind after`, then by the kind before."""


Ratio: TypeAlias = Callable[[Played, str], float]
"""Of a case and a policy; more is better."""


def best_fixed(played: Played) -> str:
    """The fixed policy with the least mean latency; 0 is one of them."""
    return min(YARDSTICKS, key=lambda name: played.by_policy[name].mean)


def throughput_to_never(played: Played, policy: str) -> float:
    return played.by_policy[policy].throughput / played.by_policy[NEVER].throughput


def mean_to_never(played: Played, policy: str) -> float:
    return played.by_policy[NEVER].mean / played.by_policy[policy].mean


def p99_to_never(played: Played, policy: str) -> float:
    return played.by_policy[NEVER].p99 / played.by_policy[policy].p99


def mean_to_best_fixed(played: Played, policy: str) -> float:
    return played.by_policy[best_fixed(played)].mean / played.by_policy[policy].mean


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def reached_by(values: Sequence[float], share: float) -> float:
    """What that share of the values reach, at least."""
    ordered = sorted(values)
    return ordered[min(int((1 - share) * len(ordered) + 1e-9), len(ordered) - 1)]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: a ratio, over some of the cases, summed up."""

    words: str
    ratio: Ratio
    sum_up: Callable[[Sequence[float]], float]
    targets: dict[int, float]
    """By the number of workers."""
    closed: bool | None = None
    """Whether it is about closed loads alone, or open ones alone, or all."""

    def value(self, played: Iterable[Played], policy: str) -> float | None:
        values = [self.ratio(p, policy) for p in played if self.closed is None or p.closed is self.closed]
        return self.sum_up(values) if values else None


def _of(share: float) -> Callable[[Sequence[float]], float]:
    return lambda values: reached_by(values, share)


def _bounds(one: float, more: float) -> dict[int, float]:
    return {1: one, 2: more, 4: more}


ROWS = (
    Row("throughput, to max_wait 0: closed, worst", throughput_to_never, min, _bounds(0.96, 0.87), closed=True),
    Row("1 / mean latency, to 0: worst", mean_to_never, min, _bounds(0.80, 0.75)),
    Row("1 / mean latency, to 0: 99 of 100 cases", mean_to_never, _of(0.99), _bounds(0.97, 0.94)),
    Row("1 / mean latency, to 0: geometric mean", mean_to_never, geometric_mean, _bounds(1.06, 1.05)),
    Row("1 / p99, to 0: open, 99 of 100 cases", p99_to_never, _of(0.99), _bounds(0.90, 0.87), closed=False),
    Row("1 / p99, to 0: open, geometric mean", p99_to_never, geometric_mean, _bounds(1.02, 1.03), closed=False),
    Row("1 / p99, to 0: closed, 95 of 100 cases", p99_to_never, _of(0.95), _bounds(0.80, 0.93), closed=True),
    Row("1 / p99, to 0: closed, geometric mean", p99_to_never, geometric_mean, _bounds(1.03, 1.05), closed=True),
    Row("1 / mean latency, to the best fixed: geometric mean", mean_to_best_fixed, geometric_mean, _bounds(1.0, 0.98)),
)
FEW_TARGET = 0.90
CHANGE_TARGET = 0.95
