"""Draw the cases of the simulator: the seed, the number of workers and an index say all of a case.

A case is played several times.  Its parameters are the same each time.  The moments at which its requests come, and its
scatters, are those of the play.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias

from hold_loads import Callers, bursts, poisson, sources
from hold_sim import Case

KINDS = (
    "callers",
    "thinking callers",
    "callers",
    "callers and Poisson",
    "callers",
    "Poisson",
    "regular bursts",
    "random bursts",
    "switching",
    "regular sources",
)
"""The kinds of load, in the turns in which cases have them."""
CLOSED = frozenset({"callers", "thinking callers", "callers and Poisson"})
"""The kinds with callers who wait for their answers all the time; the others are open."""
SWITCHED = ("callers", "thinking callers", "Poisson", "regular bursts", "random bursts", "regular sources")
"""What a switching load switches between."""
OF_CAPACITY = 0.97
"""The most of what the stage can answer that an open load asks for."""
WARM_BATCHES = 60
PLAYS = 3
"""How often each case is played.  Near saturation one play says much by chance alone."""


@dataclass(frozen=True, slots=True)
class Part:
    """A load, or the part of one that lasts from a moment to another."""

    callers: tuple[Callers, ...]
    arrivals: list[float]
    batch: float
    """How many items a batch has, about."""
    words: str


Span: TypeAlias = tuple[float, float, int]
"""From when until when, and the most requests of an open load."""


def log_uniform(draw: Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def highest_rate(case: Case) -> float:
    """The requests a second that workers and coordinator can both answer."""
    return min(case.capacity, 1 / (1.5 * case.answer))


def usual_batch(case: Case, rate: float) -> float:
    """The items of a batch where `rate` requests a second come and nothing waits for company, about."""
    share = rate / case.workers
    left = 1 - share * case.b
    return case.max_size if left <= 0 else min(max(share * case.a / left, 1.0), case.max_size)


def _callers(draw: Random, _come: Random, case: Case, span: Span, *, thinks: bool = False) -> Part:
    count = round(log_uniform(draw, 1, 3 * case.max_size * case.workers))
    back = log_uniform(draw, 50e-6, 3e-3)
    run = case.a + case.b * min(max(count / case.workers, 1), case.max_size)
    think = run * log_uniform(draw, 0.5, 20) if thinks else 0.0
    group = Callers(count, back, think, back + think + run / 2, span[0], span[1])
    rate = min(count / (run + back + think), highest_rate(case))
    batch = usual_batch(case, rate) if thinks else min(max(count / (2 * case.workers), 1), case.max_size)
    words = f"{count} callers, back after {ms(back)}" + (f", who think for {ms(think)}" if thinks else "")
    return Part((group,), [], batch, words)


def _thinking(draw: Random, come: Random, case: Case, span: Span) -> Part:
    return _callers(draw, come, case, span, thinks=True)


def _rate(draw: Random, case: Case) -> tuple[float, str]:
    share = draw.choice((log_uniform(draw, 0.005, OF_CAPACITY), draw.uniform(0.005, OF_CAPACITY)))
    rate = share * highest_rate(case)
    return rate, f"{rate:.4g} requests/s ({share:.1%} of what it can)"


def _poisson(draw: Random, come: Random, case: Case, span: Span) -> Part:
    rate, words = _rate(draw, case)
    return Part((), poisson(come, rate, *span), usual_batch(case, rate), f"Poisson, {words}")


def _mixed(draw: Random, come: Random, case: Case, span: Span) -> Part:
    asking, open_load = _callers(draw, come, case, span), _poisson(draw, come, case, span)
    return Part(
        asking.callers, open_load.arrivals, asking.batch + open_load.batch, f"{asking.words}, and {open_load.words}"
    )


def _bursts(*, regular: bool) -> Callable[[Random, Random, Case, Span], Part]:
    def made(draw: Random, come: Random, case: Case, span: Span) -> Part:
        rate, words = _rate(draw, case)
        size = max(2, round(log_uniform(draw, 2, 2 * case.max_size)))
        spread = draw.choice((0.0, min(log_uniform(draw, 0.02, 1.0) * case.a, 0.5 * size / rate)))
        moments = bursts(come, rate, *span, size=size, spread=spread, regular=regular)
        batch = min(max(usual_batch(case, rate), size / 2), case.max_size)
        kind = "regular" if regular else "random"
        return Part((), moments, batch, f"{kind} bursts of {size} within {ms(spread)}, {words}")

    return made


def _sources(draw: Random, come: Random, case: Case, span: Span) -> Part:
    rate, words = _rate(draw, case)
    count = draw.randint(2, 12)
    return Part((), sources(come, rate, *span, count=count), usual_batch(case, rate), f"{count} sources, {words}")


def _switching(draw: Random, come: Random, case: Case, span: Span) -> Part:
    """Two or three loads in turns, each for 20 to 150 runs."""
    start, stop, most = span
    seeds = [(draw.choice(SWITCHED), draw.getrandbits(64)) for _ in range(draw.choice((2, 2, 3)))]
    length = (case.a + case.b * case.max_size / 4) * log_uniform(draw, 20, 150)
    parts: list[Part] = []
    turn, count = 0, 0
    while start < stop and count < most and turn < 12:
        kind, seed = seeds[turn % len(seeds)]
        part = LOADS[kind](Random(seed), come, case, (start, min(start + length, stop), most - count))
        parts.append(part)
        start, turn = start + length, turn + 1
        asked = sum(c.count / (c.back + c.think + case.a + case.b) for c in part.callers) * length
        count += len(part.arrivals) + round(min(asked, highest_rate(case) * length))
    words = f"in turns of {ms(length)}: " + "; ".join(part.words for part in parts[: len(seeds)])
    callers = tuple(group for part in parts for group in part.callers)
    arrivals = sorted(moment for part in parts for moment in part.arrivals)
    return Part(callers, arrivals, sum(part.batch for part in parts) / len(parts), words)


LOADS: dict[str, Callable[[Random, Random, Case, Span], Part]] = {
    "callers": _callers,
    "thinking callers": _thinking,
    "callers and Poisson": _mixed,
    "Poisson": _poisson,
    "regular bursts": _bursts(regular=True),
    "random bursts": _bursts(regular=False),
    "switching": _switching,
    "regular sources": _sources,
}

MOST_REQUESTS = 5000


def requests_for(batch: float) -> int:
    """How many requests are enough for figures of batches of that size."""
    return round(min(max(200 * batch, 800), MOST_REQUESTS))


def draw_case(seed: int, workers: int, index: int, number: int = 0) -> Case:
    """The case of that name, as its play `number` has it."""
    name = f"{seed}:{workers}:{index}"
    draw = Random(name)
    kind = KINDS[index % len(KINDS)]
    a = log_uniform(draw, 0.2e-3, 50e-3)
    bare = Case(
        name=name,
        number=number,
        kind=kind,
        workers=workers,
        max_size=round(log_uniform(draw, 4, 128)),
        a=a,
        b=a * log_uniform(draw, 0.001, 0.5),
        scatter=draw.uniform(0.0, 0.3),
        answer=log_uniform(draw, 5e-6, 60e-6),
        requests=0,
        warm=0,
    )
    part = LOADS[kind](draw, Random(f"{name} moments {number}"), bare, (0.0, math.inf, MOST_REQUESTS))
    asking = sum(group.count for group in part.callers) if kind != "switching" else 0
    requests = max(requests_for(part.batch), 5 * asking)
    if kind not in CLOSED:
        requests = max(requests, 1500)
    arrivals = part.arrivals if kind == "switching" else part.arrivals[:requests]
    if not part.callers:
        requests = len(arrivals)
    return replace(
        bare,
        requests=requests,
        warm=round(max(0.15 * requests, min(WARM_BATCHES * part.batch, 0.4 * requests))),
        callers=part.callers,
        arrivals=arrivals,
        words=part.words,
    )


def draw_cases(seed: int, workers: int, count: int, kind: str | None = None) -> Iterator[Case]:
    """`count` cases, or those of one kind among them."""
    for index in range(count):
        if kind is None or KINDS[index % len(KINDS)] == kind:
            yield draw_case(seed, workers, index)


def model_words(case: Case) -> str:
    """The model and the machine of `case`, in words."""
    return (
        f"{case.workers} worker{'s' * (case.workers > 1)}, max_size {case.max_size}, a {ms(case.a)}, b {ms(case.b)}, "
        f"scatter {case.scatter:.0%}, {case.answer * 1e6:.0f} us an answer"
    )
