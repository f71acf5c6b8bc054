"""Random histories of the batching queue against a plain list: every answer is compared, not only invariants.

The plain queue keeps lists and looks at all of them for every answer.  Where the two differ, the seed in the message
is the history to replay.
"""

from __future__ import annotations

import math
from random import Random

import pytest

from penstock.config import Batch
from penstock.core.batching import BatchQueue
from penstock.core.item import Item, Request
from penstock.core.lanes import Lane

HISTORIES = 60
STEPS = 120

POLICIES = [
    Batch(max_size=1),
    Batch(max_size=3),
    Batch(max_size=4, max_wait=0.25),
    Batch(max_size=6, max_wait=1.0, max_gap=0.25),
    Batch(max_size=5, max_wait=math.inf, max_gap=0.5),
    Batch(max_size=5, max_wait=2.0, max_gap=0.0),
]


class PlainQueue:
    """What the contract says, with no thought for speed."""

    def __init__(self, policy, trip):
        self.policy = policy
        self.trip = trip
        self.draining = False
        self.expected_run = None
        self.suspects, self.singles, self.bulk = [], [], []
        self.arrived = {}
        self.bulk_turn = False

    def offer(self, item, now):
        self.arrived[item] = now
        (self.bulk if item.request.lane == Lane.BULK else self.singles).append(item)

    def everything(self):
        return [*self.suspects, *self.singles, *self.bulk]

    def discard(self, item):
        for lane in (self.suspects, self.singles, self.bulk):
            if item in lane:
                lane.remove(item)

    def put_back(self, items):
        self.singles[:0] = [item for item in items if item.request.lane == Lane.SINGLE]
        self.bulk[:0] = [item for item in items if item.request.lane == Lane.BULK]

    def due(self):
        """(moment, reason), where a moment of -inf means at once; None while nothing waits."""
        policy = self.policy
        if self.suspects:
            return -math.inf, "retry"
        if not self.singles and not self.bulk:
            return None
        for at_once, reason in (
            (len(self.singles) + len(self.bulk) >= policy.max_size, "full"),
            (self.bulk, "bulk"),
            (self.draining, "drain"),
            (policy.max_wait == 0, "idle"),
        ):
            if at_once:
                return -math.inf, reason
        moments = [(self.arrived[self.singles[0]] + policy.max_wait, "waited")]
        if policy.max_gap is not None:
            moments.append((self.arrived[self.singles[-1]] + policy.max_gap, "gap"))
        latest = min(item.deadline for item in self.singles)
        moments.append((latest - (self.expected_run or 0.0) - self.trip, "deadline"))
        return min(moments)

    def take(self, now, idle, at_most):
        due = self.due()
        if due is None or now < due[0]:
            return None
        if not idle and due[1] not in ("full", "retry"):
            return None
        if not idle and due[1] == "full" and (at_most or 10**9) < self.policy.max_size:
            return None
        if due[1] == "retry":
            return [self.suspects.pop(0)], "retry"
        count = min(len(self.singles) + len(self.bulk), self.policy.max_size, at_most or 10**9)
        turns = bool(self.singles and self.bulk)
        items = []
        for _ in range(count):
            first, second = (self.bulk, self.singles) if self.bulk_turn else (self.singles, self.bulk)
            items.append((first or second).pop(0))
            if turns:
                self.bulk_turn = not self.bulk_turn
        return items, due[1]


class History:
    """One random history, played to both queues."""

    def __init__(self, seed):
        self.seed = seed
        self.random = Random(seed)
        policy = POLICIES[seed % len(POLICIES)]
        trip = self.random.choice((0.0, 0.125))
        self.queue, self.plain = BatchQueue(policy, round_trip_seconds=trip), PlainQueue(policy, trip)
        self.now = 1.0
        self.made = 0
        self.out = []
        self.gone = []

    def offer(self):
        for _ in range(self.random.choice((1, 1, 2, 7))):
            lane = Lane.BULK if self.random.random() < 0.25 else Lane.SINGLE
            deadline = self.now + self.random.choice((0.0, 0.5, 1.0, 3.0)) if self.random.random() < 0.4 else math.inf
            nbytes = self.random.randrange(100)
            self.made += 1
            item = Item(self.made, b"", nbytes, Request([b""], 1, 1, deadline, print, lane), 0)
            item.arrived = 0.0  # at the stage before
            self.queue.offer(item, self.now)
            self.plain.offer(item, self.now)

    def wait(self):
        due = self.queue.next_deadline()
        choices = [self.now + 0.0625, self.now + 0.5]
        if due is not None and due != math.inf:
            choices += [max(self.now, due), max(self.now, math.nextafter(due, 0.0))]
        self.now = self.random.choice(choices)

    def take(self, idle=None):
        idle = self.random.random() < 0.7 if idle is None else idle
        at_most = self.random.choice((None, None, 1, 3))
        batch = self.queue.take(self.now, idle=idle, at_most=at_most)
        plain = self.plain.take(self.now, idle, at_most)
        assert (batch and (ids(batch.items), batch.reason.value)) == (plain and (ids(plain[0]), plain[1])), self
        if batch is not None:
            self.out.append(batch.items)

    def discard(self):
        waiting = self.plain.everything()
        if waiting:
            item = self.random.choice(waiting)
            self.queue.discard(item)
            self.plain.discard(item)
            self.gone.append(item)

    def put_back(self):
        if self.out:
            items = self.out.pop(self.random.randrange(len(self.out)))
            fresh, suspects = [i for i in items if not i.suspect], [i for i in items if i.suspect]
            self.queue.put_back(fresh)
            self.queue.retry(suspects)
            self.plain.put_back(fresh)
            self.plain.suspects += suspects

    def retry(self):
        if self.out:
            items = self.out.pop(self.random.randrange(len(self.out)))
            for item in items:
                item.suspect = True
            self.queue.retry(items)
            self.plain.suspects += items

    def ran(self):
        seconds = self.random.choice((0.125, 0.25))
        before = self.plain.expected_run
        self.queue.ran(seconds)
        self.plain.expected_run = seconds if before is None else before + 0.2 * (seconds - before)

    def compare(self):
        queue, plain = self.queue, self.plain
        assert ids(queue) == ids(plain.everything()), self
        assert len(queue) == len(plain.everything()), self
        assert queue.nbytes == sum(item.nbytes for item in plain.everything()), self
        moment, due = queue.next_deadline(), plain.due()
        if due is None or moment is None:
            assert moment is due, self
        elif moment > self.now or due[0] > self.now:
            assert moment == due[0], self

    def play(self):
        steps = (
            [self.offer] * 5 + [self.wait] * 4 + [self.take] * 5 + [self.discard, self.put_back, self.retry, self.ran]
        )
        for step in range(STEPS):
            if step == STEPS - 20 and self.random.random() < 0.5:
                self.queue.draining = self.plain.draining = True
            self.random.choice(steps)()
            self.compare()
        while len(self.queue):
            self.now = max(self.now, self.queue.next_deadline())
            before = len(self.out)
            self.take(idle=True)
            self.compare()
            assert len(self.out) > before, f"an idle worker got nothing when it was due: {self}"
        left = sorted(ids(self.gone) + [i for items in self.out for i in ids(items)])
        assert left == list(range(1, self.made + 1)), self

    def __str__(self):
        return f"history {self.seed} at {self.now}"


def ids(items):
    return [item.id for item in items]


@pytest.mark.parametrize("policy", range(len(POLICIES)), ids=lambda i: repr(POLICIES[i]))
def test_the_queue_answers_as_a_plain_list_would(policy):
    for n in range(HISTORIES):
        History(policy + n * len(POLICIES)).play()
