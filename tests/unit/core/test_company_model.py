"""Random histories of a stage that learns how long to hold a free worker, and of the rule against a plain computation.

Crowds come back: each of the callers in a crowd asks again soon after its answer.  Where an assertion fails, the seed
in the message is the history to replay.
"""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest

from night import histories
from penstock.config import Batch
from penstock.core.batching import BatchQueue
from penstock.core.company import SPANS, Company
from penstock.core.cuts import Reason
from penstock.core.item import Item, Request
from penstock.core.lanes import Lane
from penstock.core.run_times import RunTimes
from penstock.core.tenants import Tenant
from penstock.core.worker_batches import WorkerBatches
from plain_average import plain_average

HISTORIES = histories(24)
STEPS = 1200
STEP = 0.001
SLACK = 1e-9
"""For sums of floats."""
TENANTS = [Tenant("gold", 3.0), Tenant("iron", 1.0)]
POSSIBLE = {Reason.FULL, Reason.IDLE, Reason.ADAPTIVE, Reason.ADAPTIVE_TIMEOUT, Reason.DEADLINE, Reason.BULK,
            Reason.BACKGROUND, Reason.ISOLATED, Reason.RETRY, Reason.DRAIN}  # fmt: skip


class History:
    """One random history of a queue, several workers, and a crowd of callers that come back."""

    def __init__(self, seed):
        self.seed = seed
        self.random = random = Random(seed)
        self.most_workers = random.choice((1, 1, 2, 3))
        self.wild = random.random() < 0.6
        """Whether all that is rare happens too."""
        self.ending = False
        """Whether everything is to leave now."""
        self.trip = random.choice((0.0, 0.001))
        most_batches = random.choice((None, None, 2))
        self.most_batches = most_batches or math.inf
        self.queue = BatchQueue(
            Batch(max_size=random.choice((8, 16, 32) if self.wild else (16, 32)), max_wait="auto"),
            self.most_workers,
            max_batches=most_batches,
            round_trip_seconds=self.trip,
            back_share=random.choice((0.0, 0.2)),
            by_deadline=random.random() < 0.3,
            timer_step=STEP,
        )
        self.a, self.b = random.choice(((0.016, 0.0), (0.020, 0.0005), (0.004, 0.001)))
        self.now = 1.0
        self.made = 0
        self.out = {}
        """Of each worker, the batches that it has, with the moments when they are back."""
        self.gone, self.ran = [], []
        self.coming = sorted(
            1.0 + random.uniform(0, 0.001) for _ in range(random.choice((3, 8, 20) if self.wild else (8, 20)))
        )
        """When the callers of the crowd come."""
        self.held_since = None
        self.reasons = Counter()
        self.holds = 0

    # -- what happens ---------------------------------------------------------------------------------------------

    def make(self, *, deadline=math.inf, lane=Lane.SINGLE, alone=False):
        self.made += 1
        urgency = self.random.choice((3, 3, 3, 1)) if self.wild else 3
        tenant = self.random.choice(TENANTS)
        request = Request([b""], 1, 1, deadline, print, lane, alone=alone, urgency=urgency, tenant=tenant)
        item = Item(self.made, b"", 1, request, 0)
        self.queue.offer(item, self.now)

    def something_rare(self):
        random, queue = self.random, self.queue
        waiting = list(queue)
        match random.randrange(8):
            case 0:
                for _ in range(random.choice((1, 3, 3, 40))):
                    self.make(lane=Lane.BULK)
            case 1:
                self.make(lane=Lane.BACK, alone=random.random() < 0.3)
            case 2:
                self.make(alone=True)
            case 3:
                self.make(deadline=self.now + random.choice((0.0, 0.018, 0.022, 0.05)))
            case 4 if waiting:
                item = random.choice(waiting)
                queue.discard(item)
                self.gone.append(item.id)
            case 5 if self.out:
                self.lose(random.choice(list(self.out)))
            case 6:
                queue.workers = random.choice((0, self.most_workers, self.most_workers))
                if queue.workers == 0:
                    for worker in list(self.out):
                        self.lose(worker)
            case 7 if queue.draining or random.random() < 0.1:
                queue.draining = not queue.draining
        self.forget_hold_if_over()

    def lose(self, worker):
        """A worker dies; of its batches, the one that ran is of suspects."""
        self.queue.lost(worker, self.now)
        for place, (_, batch) in enumerate(self.out.pop(worker)):
            if place == 0 and self.random.random() < 0.5:
                for item in batch:
                    item.suspect = True
                self.queue.retry(batch)
            else:
                self.queue.put_back([item for item in batch if not item.suspect])
                self.queue.retry([item for item in batch if item.suspect])

    def forget_hold_if_over(self):
        singles = [item for item in self.queue if item.request.lane == Lane.SINGLE and not item.suspect]
        if not singles or self.queue.workers == 0:
            self.held_since = None

    def go_on(self):
        """To the next thing that happens: somebody comes, a batch is back, or a timer rings, a little late."""
        moments = [batches[0][0] for batches in self.out.values()] + self.coming[:1] + [self.now + 0.05]
        due = self.queue.next_deadline()
        if self.held_since is not None and due is not None:
            moments.append(math.ceil(due / STEP) * STEP if self.random.random() < 0.5 else due)
        self.now = max(self.now, min(moments))
        for worker, batches in list(self.out.items()):
            if batches[0][0] <= self.now:
                self.bring_back(worker)
        while self.coming and self.coming[0] <= self.now:
            del self.coming[0]
            self.make()

    def bring_back(self, worker):
        batches = self.out[worker]
        _, items = batches.pop(0)
        if batches:
            batches[0] = (self.now + self.run_of(batches[0][1]), batches[0][1])
        else:
            del self.out[worker]
        self.ran += [item.id for item in items]
        back = all(item.request.lane == Lane.BACK for item in items)
        calls = self.random.choice((1, 1, 1, 2))
        self.queue.ran(self.run_of(items), len(items), self.now, worker, back=back, calls=calls)
        again = [item for item in items if item.request.lane == Lane.SINGLE]
        spread = self.random.choice((0.0005, 0.0005, 0.0005, 0.002))
        self.coming = sorted(self.coming + [self.now + self.random.uniform(0.0001, spread) for _ in again][:20])

    def run_of(self, items):
        return self.a + self.b * len(items)

    # -- the workers ask ------------------------------------------------------------------------------------------

    def ask(self):
        for worker in self.random.sample(range(self.most_workers), self.queue.workers):
            has = self.out.get(worker, [])
            taken = sum(len(batches) for batches in self.out.values())
            if len(has) < 2 and taken < self.most_batches:
                self.take(worker, idle=not has)

    def take(self, worker, *, idle):
        queue = self.queue
        limited = self.wild and not self.ending
        at_most = self.random.choice((None, None, 0, 3)) if limited else None
        back = not limited or self.random.random() < 0.8
        due = queue.next_deadline(back=back)
        batch = queue.take(self.now, idle=idle, at_most=at_most, back=back, worker=worker)
        if batch is not None:
            self.note(batch, idle)
            self.out.setdefault(worker, []).append((self.now + self.run_of(batch.items), batch.items))
        elif idle and at_most != 0 and due is not None:
            self.note_hold(due, queue.next_deadline(back=back))

    def note_hold(self, due, until):
        """An idle worker got nothing where `due` was the next deadline; `until` is it now."""
        queue = self.queue
        assert until > self.now, f"a free worker got nothing, and is not told to wait: {self}"
        if self.held_since is None:
            self.held_since = self.now
            self.holds += 1
        else:
            assert self.now < due, f"an idle worker got nothing when it was due: {self}"
        assert until <= self.held_since + queue.runs.fixed + SLACK, self
        earliest = min(item.deadline for item in queue if item.request.lane == Lane.SINGLE)
        assert until <= earliest - queue.expected_run(queue.front_items) - self.trip + SLACK, self
        assert not queue.draining, self
        assert all(item.request.lane == Lane.SINGLE and not item.request.alone for item in queue if self.in_front(item))

    def in_front(self, item):
        return item.request.lane != Lane.BACK

    def note(self, batch, idle):
        assert batch.reason in POSSIBLE, self
        assert 0 < len(batch.items) <= self.queue.policy.max_size, self
        if batch.reason in {Reason.ADAPTIVE_TIMEOUT, Reason.ADAPTIVE}:
            assert self.held_since is not None, self
        if not idle:
            assert batch.reason in {Reason.FULL, Reason.RETRY, Reason.ISOLATED}, self
        self.reasons[batch.reason] += 1
        if len(batch.items) > batch.back and batch.reason != Reason.RETRY:  # a suspect leaves, and the hold goes on
            self.held_since = None

    def play(self):
        for _ in range(STEPS):
            self.go_on()
            if self.wild and self.random.random() < 0.06:
                self.something_rare()
            self.ask()
        self.queue.workers = self.most_workers
        self.ending = True
        while len(self.queue) or self.out:
            self.now += 1.0
            for worker in list(self.out):
                self.bring_back(worker)
            self.ask()
        assert sorted(self.ran + self.gone) == list(range(1, self.made + 1)), self

    def __str__(self):
        return f"history {self.seed} at {self.now}"


def test_whatever_happens_every_item_leaves_once_and_no_hold_is_longer_than_it_may_be():
    reasons = Counter()
    for seed in range(HISTORIES):
        history = History(seed)
        history.play()
        reasons += history.reasons
        if not history.wild:
            assert history.holds > 20, f"crowds that come back are worth holding for: {history}"
            assert history.queue.held_seconds > 0.0
    assert set(reasons) == POSSIBLE
    assert reasons[Reason.ADAPTIVE] > histories(200)
    assert reasons[Reason.ADAPTIVE_TIMEOUT] > histories(200)


# -- the rule, against a plain computation ----------------------------------------------------------------------------


class PlainWorkers:
    """The batches of workers, as lists."""

    def __init__(self, count):
        self.batches = [[] for _ in range(count)]
        self.began = [0.0] * count
        self.free_since = [None] * count

    @property
    def free(self):
        return [worker for worker, batches in enumerate(self.batches) if not batches]

    def soonest(self, run_of, now):
        alone = [worker for worker, batches in enumerate(self.batches) if len(batches) == 1]
        return max(0.0, min([self.began[w] + run_of(self.batches[w][0]) - now for w in alone], default=math.inf))


class RuleHistory:
    """Random decisions and arrivals, told to a `Company`, and kept in lists."""

    def __init__(self, seed):
        self.seed = seed
        self.random = random = Random(seed)
        self.runs = RunTimes()
        self.a, self.b = random.choice(((0.016, 0.0), (0.010, 0.001), (0.003, 0.0002)))
        for size in (1, 1000):
            self.runs.add(self.a + self.b * size, size)
        self.a, self.b = self.runs.fixed, self.runs.each
        self.workers = random.choice((1, 1, 2, 3))
        self.batches = WorkerBatches(self.workers)
        self.plain = PlainWorkers(self.workers)
        self.step = random.choice((0.00025, 0.001, 0.002))
        self.company = Company(self.runs, self.batches, self.step)
        self.windows = {"arrived": [], "freed": []}
        """Of each kind, the windows that have ended, as (length, arrivals, how many came before a worker asked)."""
        self.kind, self.start, self.arrivals = None, None, []
        self.at_once = -1
        self.came_free = False
        self.now = 1.0
        self.holds = 0

    def play(self):
        busy = self.random.choice((0.2, 0.5))
        for _ in range(150):
            self.now += self.random.choice((0.0001, 0.0004, 0.002, 0.012, 0.2))
            if self.random.random() < busy:
                self.work()
            if self.random.random() < 0.7:
                self.come(self.random.choice((0, 0, 1, 5)))
            if self.random.random() < 0.6:
                if self.came_free:
                    self.begin("freed")
                if self.at_once < 0:
                    self.at_once = len(self.arrivals)
                self.company.asked(self.now)
            for _ in range(self.random.choice((0, 2, 3, 3))):
                self.now += self.random.choice((0.0001, 0.0002))
                self.come(1)
                self.compare()
            self.compare()

    def begin(self, kind):
        if self.kind is not None:
            self.windows[self.kind].append((self.now - self.start, self.arrivals, self.at_once))
        self.kind, self.start, self.arrivals, self.at_once, self.came_free = kind, self.now, [], -1, False

    def come(self, waiting):
        self.company.arrived(self.now, waiting)
        if waiting == 0 and self.plain.free:
            self.begin("arrived")
        elif self.kind is not None:
            self.arrivals.append(self.now - self.start)

    def work(self):
        worker, plain = self.random.randrange(self.workers), self.plain
        self.batches.in_hand(1000)
        if plain.batches[worker] and self.random.random() < 0.7:
            plain.batches[worker].pop(0)
            plain.began[worker] = self.now
            if not plain.batches[worker]:
                plain.free_since[worker] = self.now
                self.came_free = True
            self.batches.back(worker, 0, self.now)
        else:
            size = self.random.choice((1, 3))
            if not plain.batches[worker]:
                plain.began[worker] = self.now
            plain.batches[worker].append(size)
            self.batches.sent(worker, size, self.now)

    # -- the same, plainly ----------------------------------------------------------------------------------------

    def expected(self, span):
        """(windows, mean, variance) of those who come within `span` of a decision of this kind."""
        windows = self.windows[self.kind]
        if span == 0.0:
            return plain_average([at_once for _, _, at_once in windows if at_once >= 0])
        return plain_average([sum(after <= span for after in came) for length, came, _ in windows if length >= span])

    def within(self, seconds, expected):
        known = [
            mean
            for span, (windows, mean, _) in zip(SPANS, expected, strict=True)
            if 0.0 < span <= seconds and windows > 3
        ]
        return known[-1] if known else 0.0

    def usually_by(self, passed, expected):
        """How many have come by then, on the average: between two spans it is a line."""
        means = [mean for _, mean, _ in expected]
        after = next((i for i, span in enumerate(SPANS) if span > passed), None)
        if after is None:
            return 0.0
        share = (passed - SPANS[after - 1]) / (SPANS[after] - SPANS[after - 1])
        return (1 - share) * means[after - 1] + share * means[after]

    def worths(self, waiting, room, worker, spent):
        """Of each hold that may be, (what it is worth, its length)."""
        if self.kind is None or room == 0 or self.batches.all_here(waiting):
            return []
        a, b, passed, free = self.a, self.b, self.now - self.start, self.plain.free
        expected = [self.expected(span) for span in SPANS]
        others = max(0, len(free) - 1)
        run = spared = a + b * waiting
        if others:
            spared = a + b
        else:
            soonest = self.plain.soonest(lambda size: a + b * size, self.now)
            if soonest < run:
                spared = 0.75 * run + 0.25 * soonest
        since = self.plain.free_since[worker]
        idle = 0.0 if since is None else self.start - since
        spared -= b * waiting + (0.0 if self.kind == "arrived" and idle > run else idle)
        before = self.usually_by(passed, expected)
        later = self.within(passed + run, expected) if self.workers == 1 else 0.0
        found = []
        for span, (windows, mean, variance) in zip(SPANS, expected, strict=True):
            wait = span - passed
            timer = math.ceil(2 * wait / self.step) * self.step
            if wait <= 0 or windows < 4 or mean - before < 1e-6 or spent + timer > a:
                continue
            known = (mean**2 + len(self.arrivals) * (variance - mean)) / (mean**2 + before * (variance - mean))
            error = 1.5 * math.sqrt(variance / min(windows, 39)) / mean
            more = min(room, (mean - before) * (known - error) - others)
            if more <= 0:
                continue
            worth = more * (spared - wait) - waiting * wait - max(0.0, later - mean) * wait
            if self.arrivals or worth > 0.05 * (waiting + more) * (a + b * (waiting + more)):
                found.append((worth, 2 * wait))
        return found

    def compare(self):
        if not self.plain.free:
            return
        worker = self.random.choice(self.plain.free)
        waiting, room = self.random.choice((1, 1, 2, 4)), self.random.choice((0, 2, 30))
        spent = self.random.choice((0.0, 0.0, 0.001))
        until = self.company.hold(waiting, room, worker, self.now, spent)
        worths = [found for found in self.worths(waiting, room, worker, spent) if found[0] > 0.0]
        if not worths:
            assert until == 0.0, self
        else:
            self.holds += 1
            best = max(worths)[0]
            good = [self.now + hold for worth, hold in worths if worth >= best - SLACK]
            assert any(until == pytest.approx(moment, abs=SLACK) for moment in good), self

    def __str__(self):
        return f"history {self.seed} at {self.now}"


def test_a_hold_is_as_plainly_computed_from_all_that_happened():
    holds = 0
    for seed in range(histories(60)):
        history = RuleHistory(seed)
        history.play()
        holds += history.holds
    assert holds > histories(1000)
