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
  average of weight 1 / windows, at least 0.25, and their variance.  Those count that came after the batch was cut.  So
  nothing has to be held for the sake of learning.
* Before four windows of a kind that are as long as h nothing is held for h.
* A hold is worth what it spares those who come, less what it costs the others; see `_best`.
* A hold lasts at most as long as the fixed part of a run, a, timers included, however often it is decided anew.
* Nobody is held where as many wait as each worker could have, by the most that were in hand between two answers, of
  the last eight.
* While no worker is there nothing is held, and the window is dropped, unlearned.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.core.run_times import RunTimes
from penstock.core.worker_batches import WorkerBatches

ARRIVED: Final = 0
FREED: Final = 1

SPANS: Final = [0.000125 * 2.0 ** (i / 2) for i in range(20)]
"""The spans h of which is learned, in seconds: from 1/8 ms to 91 ms, two in each octave."""
LONGEST_SPAN: Final = SPANS[-1]
LEAST_WEIGHT: Final = 0.25
LEAST_WINDOWS: Final = 4
STRAGGLERS: Final = 1.5
"""A hold for those who come within h lasts so much longer, because some of them come late."""
LEAST_GAIN: Final = 0.05
"""While nobody has come, a hold must spare so much of the time that all of them spend in their run."""
AVERAGED: Final = 7.0
"""A moving average of weight 0.25 is as sure as a mean of so many."""
SOONER: Final = 0.25
"""How much it counts that another worker comes free before this one would be back."""


class Learned:
    """How many singles came within each of `SPANS` of the decisions of one kind."""

    def __init__(self) -> None:
        self.windows = [0] * len(SPANS)
        self.mean = [0.0] * len(SPANS)
        self.variance = [0.0] * len(SPANS)

    def add(self, length: float, arrivals: list[float]) -> None:
        """Learn from a window of `length` seconds; `arrivals` are those after its start, in their order."""
        came, total = 0, len(arrivals)
        for i, span in enumerate(SPANS):
            if span > length:
                return
            while came < total and arrivals[came] <= span:
                came += 1
            count = self.windows[i] + 1
            self.windows[i] = count
            weight = max(1.0 / count, LEAST_WEIGHT)
            off = came - self.mean[i]
            self.mean[i] += weight * off
            self.variance[i] = (1.0 - weight) * (self.variance[i] + weight * off * off)

    def within(self, seconds: float) -> float:
        """How many come within `seconds`, as far as that is known: within the longest span of at most that length."""
        found = 0.0
        for i, span in enumerate(SPANS):
            if span > seconds or self.windows[i] < LEAST_WINDOWS:
                break
            found = self.mean[i]
        return found


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
        """When the decision began; -1 before the first, and after all workers were gone."""
        self._arrivals: list[float] = []
        self._joined = 0

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

    def _begin(self, kind: int, now: float) -> None:
        if self._start >= 0.0:
            self._kinds[self._kind].add(now - self._start, self._arrivals)
        self._kind = kind
        self._start = now
        self._arrivals = []
        self._joined = 0

    def drop_window(self) -> None:
        """Learn nothing from what goes on: no worker is there."""
        self._start = -1.0

    # -- worth ------------------------------------------------------------------------------------------------------

    def hold(self, waiting: int, room: int, worker: int, now: float, spent: float) -> float:
        """Until when the free `worker` is to be held, where so many singles wait; 0 if it is not.

        `room` is how many more may come into the batch.  `spent` is how long it has been held.
        """
        fixed, each = self._runs.fixed, self._runs.each
        # No timer ends a hold before it has cost more than it may: the usual case where runs are short.
        if self._step > fixed or self._start < 0.0 or room <= 0 or self._batches.all_here(waiting):
            return 0.0
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
        fixed, each, step = self._runs.fixed, self._runs.each, self._step
        learned = self._kinds[self._kind]
        windows, mean, variance = learned.windows, learned.mean, learned.variance
        in_run = learned.within(passed + fixed + each * waiting) if self._batches.live == 1 else 0.0
        # Before the first span nothing is known but who has come.
        before = learned.within(passed) if passed >= SPANS[0] else float(self._joined)
        best = best_hold = 0.0
        for i, span in enumerate(SPANS):
            wait = span - passed
            if wait <= 0.0:
                continue
            hold = STRAGGLERS * wait
            if windows[i] < LEAST_WINDOWS or spent + math.ceil(hold / step) * step > fixed:
                break  # as with all that are longer
            more = min(max(0.0, mean[i] - math.sqrt(variance[i] / AVERAGED) - before - others), room)
            worth = more * (spared - wait) - (waiting + max(0.0, in_run - mean[i])) * wait
            if worth > best:
                together = waiting + more
                if self._joined or worth > LEAST_GAIN * together * (fixed + each * together):
                    best, best_hold = worth, hold
        return best_hold
