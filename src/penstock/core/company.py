"""Decide how long a free worker waits for company, by what was seen of arrivals.  Pure: it is told the time.

An item is worth waiting for if it would otherwise wait for the next run.  To wait costs those who are here.  This is
the marginal value theorem (Charnov, 1976): go on gathering while that brings more than it costs.  For arrivals at
random, a threshold is the best rule there is (Deb and Serfozo, 1973).

Contract
--------
* A *single* is an item that came by itself and that need not be alone, of any tenant and urgency.
* A *decision* begins when a worker comes free while singles wait (`FREED`), or when a single comes where none waits
  while a worker is free (`ARRIVED`).  It ends the *window* of the decision before it, whichever kind that was.
* Of each window, and each span h not longer than it, is learned how many singles came within h of its start: a moving
  average of weight 1 / windows, at least 0.05, and their variance.  Those count that came after the batch was cut.  So
  nothing has to be held for the sake of learning.  The span 0 is until a free worker first asks.
* A second average has weight 0.25.  Where it is three standard errors away from the first, that one begins anew
  from it.
* How many are still to come follows from how many have come already; see `still_to_come`.
* Before four windows of a kind that are as long as h nothing is held for h.
* A hold is worth what it spares those who come, less what it costs the others; see `_best`.
* A hold lasts at most as long as the fixed part of a run, a, timers included, however often it is decided anew.  Where
  the last three runs were all shorter than a, the longest of them takes its place.
* Nobody is held where as many wait as each worker could have, by the most that were in hand between two answers, of
  the last eight.
* While no worker is there nothing is held, and the window is dropped, unlearned.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

from penstock.core.run_times import RunTimes
from penstock.core.worker_batches import WorkerBatches

ARRIVED: Final = 0
FREED: Final = 1

SPANS: Final[list[float]] = [0.0, *[0.000125 * 2.0 ** (i / 2) for i in range(20)]]
"""The spans h of which is learned, in seconds: 0, and from 1/8 ms to 91 ms, two in each octave."""
LONGEST_SPAN: Final = SPANS[-1]
LEAST_WEIGHT: Final = 0.05
LATELY_WEIGHT: Final = 0.25
MOST_AVERAGED: Final = 39.0
"""A moving average of weight w is as sure as a mean of 2 / w - 1 values: of so many, and the short one of 7."""
LATELY_AVERAGED: Final = 7.0
LEAST_WINDOWS: Final = 4
CHANGED: Final = 3.0
"""How many standard errors of the short average are no chance."""
LEAST_VARIANCE: Final = 0.1
"""Counts that were always the same may differ by a third of one before that counts as a change."""
BEGUN_ANEW: Final = 8
"""So many windows stand for the short average, where the long one begins anew from it."""
LEAST_EXPECTED: Final = 1e-6
"""Fewer are nobody.  An average falls for ever while nobody comes, and the square of a very small one would be 0."""
SURE: Final = 1.5
"""Of those who are to come, so many standard errors are not counted."""
STRAGGLERS: Final = 2.0
"""A hold for those who come within h lasts so many times as long, because some of them come late."""
LEAST_GAIN: Final = 0.05
"""While nobody has come, a hold must spare so much of the time that all of them spend in their run."""
SOONER: Final = 0.25
"""How much it counts that another worker comes free before this one would be back."""


class Learned:
    """How many singles came within each of `SPANS` of the decisions of one kind."""

    def __init__(self) -> None:
        self.windows = [0] * len(SPANS)
        self.mean = [0.0] * len(SPANS)
        self.variance = [0.0] * len(SPANS)
        self._lately = [0.0] * len(SPANS)

    def add(self, length: float, arrivals: list[float], at_once: int) -> None:
        """Learn from a window of `length` seconds.

        `arrivals` are those after its start, in their order; `at_once` of them came before a free worker first asked,
        and -1 says that none did.
        """
        if at_once >= 0:
            self._add(0, at_once)
        came, total = 0, len(arrivals)
        for i in range(1, len(SPANS)):
            if SPANS[i] > length:
                return
            while came < total and arrivals[came] <= SPANS[i]:
                came += 1
            self._add(i, came)

    def _add(self, i: int, came: int) -> None:
        count = self.windows[i] + 1
        self.windows[i] = count
        self._lately[i] += max(1.0 / count, LATELY_WEIGHT) * (came - self._lately[i])
        weight = max(1.0 / count, LEAST_WEIGHT)
        off = came - self.mean[i]
        self.mean[i] += weight * off
        self.variance[i] = (1.0 - weight) * (self.variance[i] + weight * off * off)
        gap = self._lately[i] - self.mean[i]
        if count > BEGUN_ANEW and gap * gap > CHANGED * CHANGED * (self.variance[i] + LEAST_VARIANCE) / LATELY_AVERAGED:
            self.windows[i] = BEGUN_ANEW
            self.mean[i] = self._lately[i]

    def within(self, seconds: float) -> float:
        """How many come within `seconds`, as far as that is known: within the longest span of at most that length."""
        found = 0.0
        for i in range(1, len(SPANS)):
            if SPANS[i] > seconds or self.windows[i] < LEAST_WINDOWS:
                break
            found = self.mean[i]
        return found

    def by(self, passed: float, following: int) -> float:
        """How many have come when `passed` seconds have, on the average; `following` is the first span after that."""
        earlier = following - 1
        share = (passed - SPANS[earlier]) / (SPANS[following] - SPANS[earlier])
        return self.mean[earlier] + share * (self.mean[following] - self.mean[earlier])

    def still_to_come(self, i: int, by_now: float, joined: int) -> float:
        """How many more come within the span `i`, where `joined` have come so far, and `by_now` usually have.

        It is what a binomial, Poisson or negative binomial count of that mean and variance says, whichever has them:
        of callers who all come back, one who has come is one less to come; of requests at random those who came say
        nothing; of bursts of any size, many mean that more are to come.  Of that, as much is not counted as 1.5
        standard errors are of the mean.
        """
        mean, variance = self.mean[i], self.variance[i]
        if mean - by_now < LEAST_EXPECTED:
            return 0.0
        dispersion = variance - mean
        known = (mean * mean + joined * dispersion) / (mean * mean + by_now * dispersion)
        error = SURE * math.sqrt(variance / min(self.windows[i], MOST_AVERAGED)) / mean
        return max(0.0, (mean - by_now) * (known - error))


class Company:
    """The hold of one stage.

    `until` is the moment until which a free worker is held, and 0 where none is.  `timer_step` is the resolution of
    the timers, in seconds.
    """

    def __init__(self, runs: RunTimes, batches: WorkerBatches, timer_step: float) -> None:
        self.until = 0.0
        self._runs = runs
        self._batches = batches
        self._step = timer_step
        self._kinds = [Learned(), Learned()]
        self._kind = ARRIVED
        self._start = -1.0
        """When the decision began; -1 before the first, and after a window was dropped."""
        self._arrivals: list[float] = []
        self._joined = 0
        self._at_once = -1
        """How many had joined when a free worker first asked; -1 before that."""

    # -- decisions ------------------------------------------------------------------------------------------------

    def arrived(self, now: float, waiting: int) -> None:
        """A single has come where `waiting` others wait."""
        if waiting == 0 and self._batches.free > 0:
            self._begin(ARRIVED, now)
            self._batches.came_free = False
            return
        if self._start >= 0.0:
            self._joined += 1
            after = now - self._start
            if after <= LONGEST_SPAN:
                self._arrivals.append(after)

    def asked(self, now: float) -> None:
        """A free worker asks while singles wait."""
        if self._batches.came_free:
            self._batches.came_free = False
            self._begin(FREED, now)
        if self._at_once < 0:
            self._at_once = self._joined

    def _begin(self, kind: int, now: float) -> None:
        if self._start >= 0.0:
            self._kinds[self._kind].add(now - self._start, self._arrivals, self._at_once)
        self._kind = kind
        self._start = now
        self._arrivals = []
        self._joined = 0
        self._at_once = -1

    def drop_window(self) -> None:
        """Learn nothing from what goes on: no worker is there, or none could be held."""
        self._start = -1.0

    # -- worth ------------------------------------------------------------------------------------------------------

    @property
    def can_hold(self) -> bool:
        """Whether a timer can end a hold before it has cost more than it may."""
        return self._step <= self._runs.lately_fixed

    def hold(self, waiting: int, room: int, worker: int, now: float, spent: float) -> float:
        """Until when the free `worker` is to be held, where so many singles wait; 0 if it is not.

        `room` is how many more may come into the batch.  `spent` is how long it has been held.
        """
        if self._start < 0.0 or room <= 0 or self._batches.all_here(waiting):
            return 0.0
        fixed, each = self._runs.lately_fixed, self._runs.each
        others = max(0, self._batches.free - 1)
        run = fixed + each * waiting
        otherwise = run
        """How long one who comes now would wait for a worker if this one did not wait."""
        if others > 0:
            otherwise = min(run, fixed + each)
        else:
            soonest = self._batches.soonest(self._runs, now)
            if soonest < run:
                otherwise = (1.0 - SOONER) * run + SOONER * soonest
        idle = self._batches.idle_for(worker, self._start)
        if self._kind == ARRIVED and idle > run:
            idle = 0.0
        best = self._best(waiting, room, others, otherwise - idle - each * waiting, now - self._start, spent)
        return now + best if best > 0.0 else 0.0

    def _best(self, waiting: int, room: int, others: int, spared: float, passed: float, spent: float) -> float:
        """How long the best hold is; 0 where none is worth it.

        `passed` is the time since the decision, and `others` are the other free workers, each of which takes one of
        those who come.  `spared` is how much sooner one of them begins if there is no hold at all.  A hold until h is
        worth `spared`, less the wait until h, for each that comes by then.  It costs the wait for each that is here,
        and, where there is one worker, for each that comes in the run of those who are here.
        """
        fixed, each, step = self._runs.lately_fixed, self._runs.each, self._step
        learned = self._kinds[self._kind]
        in_run = learned.within(passed + fixed + each * waiting) if self._batches.live == 1 else 0.0
        following = max(1, bisect_right(SPANS, passed))
        by_now = learned.by(passed, following) if following < len(SPANS) else 0.0
        best = best_hold = 0.0
        for i in range(following, len(SPANS)):
            wait = SPANS[i] - passed
            hold = STRAGGLERS * wait
            if learned.windows[i] < LEAST_WINDOWS or spent + math.ceil(hold / step) * step > fixed:
                break  # as with all that are longer
            more = min(max(0.0, learned.still_to_come(i, by_now, self._joined) - others), room)
            worth = more * (spared - wait) - (waiting + max(0.0, in_run - learned.mean[i])) * wait
            if worth > best:
                together = waiting + more
                if self._joined or worth > LEAST_GAIN * together * (fixed + each * together):
                    best, best_hold = worth, hold
        return best_hold
