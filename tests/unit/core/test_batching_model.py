"""Random histories of the batching queue against a plain list: every answer is compared, not only invariants.

The plain queue keeps lists and looks at all of them for every answer.  Where the two differ, the seed in the message
is the history to replay.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import takewhile
from random import Random

import pytest

from night import histories
from penstock.config import Batch
from penstock.core.batching import BatchQueue
from penstock.core.item import Item, Request
from penstock.core.lanes import Lane
from penstock.core.run_times import RunTimes
from penstock.core.tenants import Tenant
from plain_order import PlainOrder

HISTORIES = histories(120)
STEPS = 120

POLICIES = [
    Batch(max_size=1, max_wait=0),
    Batch(max_size=3, max_wait=0),
    Batch(max_size=4, max_wait=0.25),
    Batch(max_size=6, max_wait=1.0, max_idle_gap=0.25),
    Batch(max_size=5, max_wait=math.inf, max_idle_gap=0.5),
    Batch(max_size=5, max_wait=2.0, max_idle_gap=0.0),
]


WEIGHTS = ["1", "1", "3", "2", "0.5", "7"]
SHARES = ["0", "0.05", "0.3", "1"]


class PlainQueue:
    """What the contract says, with no thought for speed."""

    def __init__(self, policy, trip, share, by_deadline=False):
        self.policy = policy
        self.trip = trip
        self.share = Fraction(share)
        self.owed = Fraction(0)
        self.draining = False
        self.runs = RunTimes()
        self.suspects, self.back_suspects, self.back = [], [], []
        self.arrived = {}
        self.order = PlainOrder(
            [],
            line_of=lambda item: (item.request.urgency, item.request.tenant),
            lane_of=lambda item: item.request.lane,
            deadline_of=lambda item: item.deadline,
            by_deadline=by_deadline,
        )

    @property
    def front(self):
        return self.order.waiting

    @property
    def singles(self):
        return [item for item in self.front if item.request.lane == Lane.SINGLE]

    @property
    def bulk(self):
        return [item for item in self.front if item.request.lane == Lane.BULK]

    def offer(self, item, now):
        self.arrived[item] = now
        if item.request.lane == Lane.BACK:
            self.back.append(item)
        else:
            self.order.add(item)

    def ahead_of(self, item):
        if item.request.lane == Lane.BACK:
            return len(self.everything())
        return len(self.suspects) + self.order.ahead_of(item)

    def everything(self):
        return [*self.suspects, *self.back_suspects, *self.front, *self.back]

    def retry(self, items):
        for item in items:
            (self.back_suspects if item.request.lane == Lane.BACK else self.suspects).append(item)

    def discard(self, item):
        for lane in (self.suspects, self.back_suspects, self.order, self.back):
            if item in (self.front if lane is self.order else lane):
                lane.remove(item)
        self.forget_if_empty()

    def put_back(self, items):
        self.back[:0] = [item for item in items if item.request.lane == Lane.BACK]
        for item in reversed(items):
            if item.request.lane != Lane.BACK:
                self.order.put_back(item)

    def due(self, now, at_most=None, back=True):
        """(moment, reason), where a moment of -inf means at once; None while nothing that may leave waits."""
        if (self.suspects and at_most != 0) or (self.back_suspects and back):
            return -math.inf, "retry"
        front = self.front if at_most != 0 else []
        behind = self.together() if back else []
        if len(front) + len(behind) >= self.policy.max_size:
            return -math.inf, "full"
        found = self.front_due() if front else (math.inf, "")
        if back and self.back:
            return found if found[0] <= now else (-math.inf, "background")
        return found if front else None

    def front_due(self):
        policy = self.policy
        for at_once, reason in (
            (self.bulk, "bulk"),
            (len(self.singles) >= policy.max_size, "full"),
            (self.draining, "drain"),
            (policy.max_wait == 0, "idle"),
            (any(item.request.alone for item in self.singles), "isolated"),
        ):
            if at_once:
                return -math.inf, reason
        lines = self.order.lines(self.singles).values()
        moments = [(min(self.arrived[line[0]] for line in lines) + policy.max_wait, "timeout")]
        if policy.max_idle_gap is not None:
            moments.append((max(self.arrived[line[-1]] for line in lines) + policy.max_idle_gap, "idle_gap"))
        latest = min(item.deadline for item in self.singles)
        moments.append((latest - self.runs.expected(min(len(self.front), policy.max_size)) - self.trip, "deadline"))
        return min(moments)

    def together(self):
        """The first items of BACK that may run together."""
        return list(takewhile(lambda item: not item.request.alone, self.back))[: self.policy.max_size]

    def take(self, now, idle, at_most, back):
        size = self.policy.max_size
        due = self.due(now, at_most, back)
        if due is None or now < due[0]:
            return None
        if due[1] == "retry":
            return [(self.suspects if self.suspects and at_most != 0 else self.back_suspects).pop(0)], "retry"
        front = min(len(self.front), 10**9 if at_most is None else at_most)
        behind = len(self.together()) if back else 0
        alone_in_front = any(item.request.alone for item in self.front)
        if not idle and (front + behind < size or alone_in_front):
            return None
        reason = due[1]
        saturated, lone = front >= size, back and self.back and self.back[0].request.alone
        if lone and reason == "background":
            return self.from_back(1, price=0), "isolated"
        if back and self.back and (lone or saturated):
            self.owed += self.share * size
        if lone:
            if self.owed >= size:
                return self.from_back(1, price=size), "isolated"
            behind = 0
        behind = min(behind, math.floor(self.owed) if saturated else size - front)
        front = min(front, size - behind)
        items = self.from_front(front)
        if len(items) < front or any(item.request.alone for item in items):
            return items, "isolated"
        return items + self.from_back(behind, price=behind if saturated else 0), reason

    def from_back(self, count, price):
        items, self.back = self.back[:count], self.back[count:]
        self.owed -= price
        self.forget_if_empty()
        return items

    def forget_if_empty(self):
        if not self.back:
            self.owed %= 1

    def from_front(self, count):
        items = []
        while len(items) < count:
            if self.order.first().request.alone:
                return items or [self.order.pop()]
            items.append(self.order.pop())
        return items


class History:
    """One random history, played to both queues."""

    def __init__(self, seed):
        self.seed = seed
        self.random = Random(seed)
        policy = POLICIES[seed % len(POLICIES)]
        trip = self.random.choice((0.0, 0.125))
        share = self.random.choice(SHARES)
        self.with_back, self.with_alone = self.random.random() < 0.7, self.random.random() < 0.5
        by_deadline = self.random.random() < 0.4
        self.urgencies = self.random.choice(([3], [3], [1, 3], [0, 3, 4, 7]))
        weights = [WEIGHTS[n % len(WEIGHTS)] for n in range(self.random.choice((1, 1, 2, 3, 40)))]
        self.tenants = [Tenant(f"t{n}", float(weight)) for n, weight in enumerate(weights)]
        self.queue = BatchQueue(policy, round_trip_seconds=trip, back_share=float(share), by_deadline=by_deadline)
        self.plain = PlainQueue(policy, trip, share, by_deadline)
        self.now = 1.0
        self.made = 0
        self.out = []
        self.gone = []

    def offer(self):
        for _ in range(self.random.choice((1, 1, 2, 7))):
            item = self.make()
            self.queue.offer(item, self.now)
            self.plain.offer(item, self.now)

    def make(self):
        lanes, weights = (Lane.SINGLE, Lane.BULK, Lane.BACK), (0.75, 0.25, 0.5 * self.with_back)
        (lane,) = self.random.choices(lanes, weights)
        deadline = self.now + self.random.choice((0.0, 0.5, 1.0, 3.0)) if self.random.random() < 0.4 else math.inf
        alone = self.with_alone and self.random.random() < 0.15
        self.made += 1
        urgency, tenant = self.random.choice(self.urgencies), self.random.choice(self.tenants)
        request = Request([b""], 1, 1, deadline, print, lane, alone=alone, urgency=urgency, tenant=tenant)
        item = Item(self.made, b"", self.random.randrange(100), request, 0)
        item.arrived = 0.0  # at the stage before
        return item

    def look_ahead(self):
        newcomer = self.make()
        self.made -= 1
        request = newcomer.request
        ahead = self.queue.ahead_of(request.urgency, request.tenant, request.lane, newcomer.deadline)
        assert ahead == self.plain.ahead_of(newcomer), self

    def wait(self):
        due = self.queue.next_deadline()
        choices = [self.now + 0.0625, self.now + 0.5]
        if due is not None and due != math.inf:
            choices += [max(self.now, due), max(self.now, math.nextafter(due, 0.0))]
        self.now = self.random.choice(choices)

    def take(self, idle=None):
        if idle is None:
            idle, at_most, back = self.random.random() < 0.7, self.random.choice((None, None, 0, 1, 3)), self.often()
        else:
            at_most, back = None, True
        batch = self.queue.take(self.now, idle=idle, at_most=at_most, back=back)
        plain = self.plain.take(self.now, idle, at_most, back)
        assert (batch and (ids(batch.items), batch.reason.value)) == (plain and (ids(plain[0]), plain[1])), self
        if batch is not None:
            self.out.append(batch.items)

    def often(self):
        return self.random.random() < 0.8

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
            self.plain.retry(suspects)

    def retry(self):
        if self.out:
            items = self.out.pop(self.random.randrange(len(self.out)))
            for item in items:
                item.suspect = True
            self.queue.retry(items)
            self.plain.retry(items)

    def ran(self):
        seconds = self.random.choice((0.125, 0.25))
        size = self.random.randint(1, self.queue.policy.max_size)
        self.queue.ran(seconds, size, self.now)
        self.plain.runs.add(seconds, size)

    def compare(self):
        queue, plain = self.queue, self.plain
        assert sorted(ids(queue)) == sorted(ids(plain.everything())), self
        assert len(queue) == len(plain.everything()), self
        behind = [item for item in plain.everything() if item.request.lane == Lane.BACK]
        assert queue.back_items == len(queue) - queue.front_items == len(behind), self
        assert queue.back_nbytes == sum(item.nbytes for item in behind), self
        assert queue.nbytes == sum(item.nbytes for item in plain.everything()), self
        for back in (True, False):
            moment, due = queue.next_deadline(back=back), plain.due(self.now, back=back)
            if due is None or moment is None:
                assert moment is due, self
            elif moment > self.now or due[0] > self.now:
                assert moment == due[0], self

    def play(self):
        steps = (
            [self.offer] * 5
            + [self.wait] * 4
            + [self.take] * 5
            + [self.discard, self.put_back, self.retry, self.ran, self.look_ahead]
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
