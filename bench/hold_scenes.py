"""Two fixed scenes of the simulator: few callers before a device, and the change from a kind of load to another."""

from __future__ import annotations

import math
from itertools import product
from random import Random

from hold_cases import SWITCHED
from hold_loads import Callers, bursts, poisson, sources
from hold_policies import queue_maker
from hold_sim import Case, Outcome, draw_for, play

FEW = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""The numbers of callers of the first scene."""
ROUNDS = 200
"""How often each of them asks."""
CHANGE_AT = 1.0
AFTER = 1.5
REPEATS = 6
EARLY = slice(30, 60)
"""The batches after a change that are looked at."""


def few_callers(policy: str, tick: float) -> dict[int, float]:
    """For each number c of callers, the throughput as a share of c / (a + b c).

    Hops, answers and the way back to the caller are small here, 10, 5 and 100 us, and a run has no scatter.
    """
    found = {}
    for count in FEW:
        case = Case(
            name=f"few:1:{count}",
            kind="callers",
            workers=1,
            max_size=64,
            a=5e-3,
            b=0.1e-3,
            scatter=0.0,
            answer=5e-6,
            requests=count * ROUNDS,
            warm=count * ROUNDS * 2 // 5,
            callers=(Callers(count, 100e-6, spread=5e-3),),
            hop=10e-6,
        )
        reached = play(case, queue_maker(policy, tick), draw_for(case), tick=tick).throughput
        found[count] = reached * (case.a + case.b * count) / count
    return found


def _load(kind: str, workers: int, start: float, stop: float, repeat: int) -> tuple[tuple[Callers, ...], list[float]]:
    """A load of that kind that lasts from `start` to `stop`."""
    draw = Random(f"{kind} {workers} {start} {repeat}")
    if kind == "callers":
        return (Callers(8 * workers, 0.5e-3, 0.0, 5e-3, start, stop),), []
    if kind == "thinking callers":
        return (Callers(12 * workers, 0.5e-3, 15e-3, 15e-3, start, stop),), []
    rate = 400.0 * workers
    if kind == "Poisson":
        return (), poisson(draw, rate, start, stop, 10**6)
    if kind == "regular sources":
        return (), sources(draw, rate, start, stop, 10**6, count=5)
    regular = kind == "regular bursts"
    moments = bursts(draw, rate, start, stop, 10**6, size=8 * workers, spread=1e-3, regular=regular)
    return (), [moment for moment in moments if moment < stop]


def _changed(before: str, after: str, workers: int, repeat: int, policy: str, tick: float) -> Outcome:
    late, early = (
        _load(after, workers, CHANGE_AT, CHANGE_AT + AFTER, repeat),
        _load(before, workers, 0.0, CHANGE_AT, repeat),
    )
    case = Case(
        name=f"change:{workers}:{repeat}",
        kind="change",
        workers=workers,
        max_size=32,
        a=5e-3,
        b=0.1e-3,
        scatter=0.0,
        answer=20e-6,
        requests=10**6,
        warm=0,
        callers=late[0] + early[0],  # these first: their draws are the same whatever was before
        arrivals=early[1] + late[1],
    )
    return play(case, queue_maker(policy, tick), draw_for(case), tick=tick)


def _mean_within(outcome: Outcome, first: float, last: float) -> tuple[float, int]:
    chosen = [(size, total) for sent, size, total in outcome.trace if first <= sent <= last]
    return sum(total for _, total in chosen), sum(size for size, _ in chosen)


def after_change(after: str, workers: int, policy: str, tick: float) -> dict[str, float]:
    """For each kind of load before: how near to its settled latency `after` is in the batches 31 to 60.

    What is settled is a simulation with `after` from the beginning, and the same requests: its mean latency within the
    same time, over that of the changed one.  1 is as good, less is worse.
    """
    settled = [_changed(after, after, workers, repeat, policy, tick) for repeat in range(REPEATS)]
    found = {}
    for before in SWITCHED:
        if before == after:
            continue
        sums = [0.0, 0.0]
        counts = [0, 0]
        for repeat in range(REPEATS):
            changed = _changed(before, after, workers, repeat, policy, tick)
            moments = [sent for sent, _, _ in changed.trace if sent >= CHANGE_AT][EARLY]
            for i, outcome in enumerate((changed, settled[repeat])):
                total, count = _mean_within(outcome, moments[0], moments[-1])
                sums[i] += total
                counts[i] += count
        found[before] = (sums[1] / counts[1]) / (sums[0] / counts[0]) if all(counts) else math.nan
    return found


def scene_jobs(workers: tuple[int, ...]) -> list[tuple[str, int]]:
    """What there is to simulate: the first scene, and each kind of load that comes after another."""
    return [("few", 1)] * (1 in workers) + [(kind, number) for number, kind in product(workers, SWITCHED)]
