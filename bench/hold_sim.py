"""Simulate one stage in virtual time: one coordinator, its workers, its callers, and the real `BatchQueue`.

The coordinator works in turns, as an event loop does.  A turn takes what has come by its beginning: requests, answers
of workers, its timer.  It handles these in their order, and each takes time.  At its end it pumps once, as
`StageDriver.pump` does.  A worker runs its batches one after the other, and holds at most two.  What a batch takes on
the way to a worker or back is `hop`; that the coordinator writes and reads a frame costs it nothing more.

The same play of a case is the same for each policy: open arrivals are listed beforehand, the returns of a caller are
drawn for that caller, and the scatter of a run is drawn for the number of the batch.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeAlias

from hold_loads import Callers
from penstock.codec.formats import Codec
from penstock.core.dispatch import FrameHolder, least_busy
from penstock.core.item import Item, Request
from penstock.core.lanes import Lane
from penstock.hosting.loop_clock import TIMER_TICK_SECONDS

WINDOW = 2
"""The most batches that a worker holds: the one that it runs, and one that was sent ahead."""
DRAWS = 4099
"""How many scatters of returns, and of runs, are drawn for a case; a prime, so that callers start at different ones."""
MOST_RINGS_IN_VAIN = 1000

Queue: TypeAlias = Any
"""A `BatchQueue`, or what has its methods."""


class Stuck(Exception):
    """The queue holds items and names no moment that would free them."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is simulated: a model, a machine, a load.  Times are in seconds."""

    name: str
    """`seed:workers:index`"""
    kind: str
    workers: int
    max_size: int
    a: float
    """A batch of n runs for a + b n."""
    b: float
    scatter: float
    """The relative standard deviation of a run."""
    answer: float
    """What the coordinator takes for an answer; a request takes half of that."""
    requests: int
    """The simulation ends with that many answers, or when nothing is left."""
    warm: int
    """That many answers are not counted."""
    callers: tuple[Callers, ...] = ()
    arrivals: Sequence[float] = field(default=(), repr=False)
    hop: float = 50e-6
    words: str = ""
    """The load, in words."""
    number: int = 0
    """Which of its plays this is: each has moments and scatters of its own."""

    @property
    def capacity(self) -> float:
        """The requests a second that the workers could answer in full batches."""
        return self.workers * self.max_size / (self.a + self.b * self.max_size)


@dataclass(slots=True)
class Outcome:
    """What one simulation has shown."""

    throughput: float
    """Answers a second."""
    mean: float
    """Of the latencies: from the moment when a request comes to the coordinator until its answer is written."""
    p99: float
    batches: int
    cuts: dict[str, int]
    answered: int
    busy: float
    """Seconds that the workers ran, together."""
    ended: float
    """When the last answer was written."""
    trace: list[tuple[float, int, float]]
    """For each batch: when it was sent, its items, and the sum of their latencies."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What is drawn for a play of a case, and is the same for each policy."""

    returns: list[float]
    """Scatters of returns and thinking; their mean is 1."""
    runs: list[float]
    """Scatters of runs; their mean is 1."""
    starts: list[float]
    """When each caller asks first."""


def draw_for(case: Case) -> Draws:
    """The draws of `case`; its name and number are their seed."""
    draw = Random(f"{case.name} play {case.number}")
    sigma = math.sqrt(math.log1p(case.scatter**2))
    returns = [min(draw.expovariate(1.0), 8.0) for _ in range(DRAWS)]
    runs = [min(max(draw.lognormvariate(-sigma * sigma / 2, sigma), 0.3), 3.0) for _ in range(DRAWS)]
    starts = [group.start + draw.random() * group.spread for group in case.callers for _ in range(group.count)]
    return Draws(returns, runs, starts)


def play(case: Case, make_queue: Callable[[Case], Queue], draws: Draws, *, tick: float = TIMER_TICK_SECONDS) -> Outcome:
    """Simulate `case` with the queue that `make_queue` makes."""
    queue = make_queue(case)
    offer, take = queue.offer, queue.take
    request = Request([b""], Codec.JSON, Codec.JSON, math.inf, print, Lane.SINGLE)
    a, b, hop, answer, half = case.a, case.b, case.hop, case.answer, case.answer / 2
    returns, runs, warm, limit = draws.returns, draws.runs, case.warm, case.requests
    groups = [group for group in case.callers for _ in range(group.count)]
    back = [group.back for group in groups]
    think = [group.think for group in groups]
    stop = [group.stop for group in groups]
    place = [caller * 7919 % DRAWS for caller in range(len(groups))]
    # Of a request: when it came, and whose it is; -1 is nobody's.  Its id is its place here.
    came: list[float] = []
    whose: list[int] = []
    arrivals = [*case.arrivals, math.inf]
    upcoming = 0
    first_counted = 0 if groups else warm
    holders = [FrameHolder() for _ in range(case.workers)]
    for holder in holders:
        holder.ready = True
    # What each holds: when it was sent, its items, and how long it runs.
    held: list[deque[Any]] = [holder.frames for holder in holders]
    number_of = {id(holder): number for number, holder in enumerate(holders)}
    free = [0.0] * case.workers
    # What comes: a moment, a number that no other has, and a caller (0 or more) or a worker (-1 or less).
    coming: list[tuple[float, int, int]] = [(moment, i, i) for i, moment in enumerate(draws.starts)]
    coming.append((math.inf, -1, -1))
    coming.sort()
    order = len(coming)
    ring = due = math.inf
    t = busy = 0.0
    in_vain = answered = batches = 0
    begun: tuple[int, float, int] | None = None
    ended: tuple[int, float, int] = (0, 0.0, 0)
    latencies: list[float] = []
    trace: list[tuple[float, int, float]] = []
    cuts: Counter[str] = Counter()
    while answered < limit:
        # -- a turn: what has come by now, in its order
        head, soon = coming[0][0], arrivals[upcoming]
        first = min(head, soon, ring)
        if first > t:
            if first == math.inf:
                if len(queue):
                    raise Stuck(f"{case.name}: {len(queue)} items wait, and nothing will come")
                break
            t = first
        until = t
        if ring <= until:
            ring = due = math.inf
        while True:
            if soon <= head:
                if soon > until:
                    break
                upcoming += 1
                moment, caller = soon, -1
                soon = arrivals[upcoming]
            else:
                if head > until:
                    break
                moment, _, caller = heappop(coming)
                head = coming[0][0]
                if caller < 0:
                    worker = -1 - caller
                    sent, items, seconds = held[worker].popleft()
                    queue.ran(seconds, len(items), t, worker=worker)
                    total = 0.0
                    for item in items:
                        t += answer
                        known = item.id
                        latency = t - came[known]
                        total += latency
                        if known >= first_counted:
                            latencies.append(latency)
                        caller = whose[known]
                        if caller >= 0:
                            at = place[caller]
                            later = t + back[caller] * returns[at] + think[caller] * returns[at - 2000]
                            place[caller] = at + 1 if at + 1 < DRAWS else 0
                            if later < stop[caller]:
                                order += 1
                                heappush(coming, (later, order, caller))
                                head = coming[0][0]
                    answered += len(items)
                    trace.append((sent, len(items), total))
                    ended = (answered, t, len(latencies))
                    if begun is None and answered >= warm:
                        begun = ended
                    continue
            t += half
            known = len(came)
            came.append(moment)
            whose.append(caller)
            offer(Item(known, b"", 1, request, 0), t)
        # -- the pump at its end
        while len(queue):
            chosen = least_busy(holders, WINDOW)
            if chosen is None:
                break
            worker = number_of[id(chosen)]
            frames = held[worker]
            batch = take(t, idle=not frames, worker=worker)
            if batch is None:
                if not frames:
                    moment = queue.next_deadline()
                    if moment is not None and moment < due:
                        due = moment
                        ring = t + math.ceil(max(moment - t, 0.0) / tick) * tick
                        in_vain = in_vain + 1 if ring <= t else 0
                        if in_vain > MOST_RINGS_IN_VAIN:
                            raise Stuck(f"{case.name}: the queue is due, and gives no batch")
                break
            items = batch.items
            seconds = (a + b * len(items)) * runs[batches % DRAWS]
            batches += 1
            busy += seconds
            cuts[batch.reason] += 1
            free[worker] = end = max(t + hop, free[worker]) + seconds
            frames.append((t, items, seconds))
            order += 1
            heappush(coming, (end + hop, order, -1 - worker))
    if begun is None or begun[0] == ended[0]:
        begun = (0, 0.0, 0)
    counted = latencies[begun[2] if groups else 0 :] or latencies
    counted.sort()
    return Outcome(
        throughput=(ended[0] - begun[0]) / (ended[1] - begun[1]),
        mean=sum(counted) / len(counted),
        p99=counted[min(len(counted) - 1, int(0.99 * len(counted)))],
        batches=batches,
        cuts={str(reason): count for reason, count in cuts.items()},
        answered=answered,
        busy=busy,
        ended=t,
        trace=trace,
    )
