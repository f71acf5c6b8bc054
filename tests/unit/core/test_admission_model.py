"""Random histories of the door and its ledger against plain lists: every answer is compared.

The plain door keeps who holds which bytes and adds them up for every answer.  Requests pass both as the engine lets
them pass.  Where the two differ, the seed in the message is the history to replay.
"""

from __future__ import annotations

import math
from random import Random

from night import histories
from penstock.core.admission import Admission
from penstock.core.item import Item, Request
from penstock.core.lanes import FRONT, Lane
from penstock.core.outcome import Result
from penstock.core.tenants import Tenant
from plain_order import PlainOrder

HISTORIES = histories(150)
STEPS = 120


class PlainRequest:
    """A request as its bytes see it."""

    def __init__(self, line, lane, deadline, sizes, extra, holds_results):
        self.line, self.lane, self.deadline = line, lane, deadline
        self.sizes = sizes
        """The sizes of the payloads that are not fed."""
        self.extra = extra
        """Bytes besides the payloads, until the last is fed."""
        self.is_in = False
        self.gathers = holds_results
        """Whether its results are held until the last is there."""
        self.full = False
        """Whether it was told to gather no more."""
        self.items = []
        """The sizes of its items in hand."""
        self.results = []
        """The sizes of the results that wait for the others."""
        self.began = math.inf
        """When it had its first result."""

    @property
    def unfed(self):
        return sum(self.sizes) + self.extra

    @property
    def held(self):
        return (self.unfed if self.is_in else 0) + sum(self.items) + sum(self.results)


class PlainDoor:
    """What the contracts of admission and ledger say, with no thought for speed."""

    def __init__(self, max_items, max_bytes, *, by_deadline):
        self.max_items, self.max_bytes = max_items, max_bytes
        self.limits = {Lane.SINGLE: max_items, Lane.BULK: max(1, max_items // 2)}
        self.outside = 0
        self.answers = []
        """The sizes of the finished answers that nobody has taken."""
        self.requests = []
        """All that are not complete."""
        self.order = PlainOrder(
            [],
            line_of=lambda request: request.line,
            lane_of=lambda request: request.lane,
            deadline_of=lambda request: request.deadline,
            by_deadline=by_deadline,
        )
        self.lines_held = {}
        """Who waits of each tenant that is held back, by line, and the turn of that line."""
        self.results = 0
        """How many requests had a result."""

    @property
    def held(self):
        return self.taken + sum(self.answers)

    @property
    def taken(self):
        """The bytes that take room from newcomers."""
        return self.outside + sum(request.held for request in self.requests)

    def in_hand(self, lanes=FRONT):
        return sum(len(request.items) for request in self.requests if request.lane in lanes)

    def fits(self, nbytes):
        return self.taken == 0 or self.taken + nbytes <= self.max_bytes

    def waiting_in(self, lane):
        return [request for request in self.order.waiting if request.lane == lane]

    def has_room(self, nbytes, urgency=7):
        overtaken = [request for request in self.waiting_in(Lane.SINGLE) if request.line[0] <= urgency]
        return self.in_hand() < self.max_items and not overtaken and self.fits(nbytes)

    def must_wait(self, lane):
        return bool(self.waiting_in(lane)) or self.in_hand([lane]) >= self.limits[lane]

    def next_fed(self):
        """Who is fed next, or None."""
        starved = False
        for line in self.order.ranked():
            lanes = self.order.lanes(line)
            turn = self.order.turns[line]
            open_lanes = [lanes[n] for n in (turn, 1 - turn) if lanes[n] and self.in_hand([n]) < self.limits[n]]
            for lane in open_lanes:
                if lane[0].is_in or (not starved and self.fits(lane[0].unfed)):
                    return lane[0]
                half_fed = [request for request in lane if request.is_in]
                if half_fed:
                    return half_fed[0]
            starved = starved or bool(open_lanes)
        return None

    def feed_next(self):
        """The request whose turn it is, or None."""
        request = self.next_fed() if self.in_hand() < self.max_items else None
        if request is not None:
            self.order.served(request)
            self.feed(request)
            if request.sizes:
                self.order.waiting.remove(request)
                self.order.waiting.append(request)
            else:
                self.order.remove(request)
        return request

    def feed(self, request):
        request.is_in = True
        request.items.append(request.sizes.pop(0))
        if not request.sizes:
            request.extra = 0

    def keep_result(self, request, nbytes):
        """The request that is full by this, or None."""
        if not request.gathers or len(request.items) + len(request.sizes) == 0:
            return None
        request.results.append(nbytes)
        if request.began == math.inf:
            self.results += 1
            request.began = self.results
        if request.full:
            return None
        gathering = [other for other in self.requests if other.results and not other.full]
        if sum(sum(other.results) for other in gathering) <= self.max_bytes:
            return None
        gathering.sort(key=lambda other: (-sum(other.results), other.began))
        gathering[0].full = True
        return gathering[0]

    def drop_unfed(self, request):
        request.sizes, request.extra = [], 0
        if request in self.order.waiting:
            self.order.remove(request)
        tenant = request.line[1]
        if tenant in self.lines_held and request in self.lines_held[tenant].get(request.line, [[]])[0]:
            self.lines_held[tenant][request.line][0].remove(request)
            self.lines_held[tenant] = {line: held for line, held in self.lines_held[tenant].items() if held[0]}
            self.lines_held = {tenant: lines for tenant, lines in self.lines_held.items() if lines}

    def line_up(self, request):
        tenant = request.line[1]
        if tenant in self.lines_held:
            self.lines_held[tenant].setdefault(request.line, ([], 0))[0].append(request)
        else:
            self.order.add(request)

    def hold_back(self, tenant):
        lines = [line for line in self.order.lines() if line[1] is tenant]
        if lines:
            # The turns first: where nobody is left, they are forgotten.
            turns = {line: self.order.turns[line] for line in lines}
            self.lines_held[tenant] = {line: (self.order.suspend(line), turns[line]) for line in lines}

    def let_go(self, tenant):
        for line, (out, turn) in self.lines_held.pop(tenant).items():
            self.order.resume(line, out, turn)

    def held_back(self):
        """Who is held back, tenant by tenant and line by line."""
        return [request for lines in self.lines_held.values() for out, _ in lines.values() for request in out]


class History:
    """One random history, played to both doors."""

    def __init__(self, seed):
        self.seed = seed
        self.random = Random(seed)
        bounds = self.random.randrange(1, 9), self.random.choice((20, 60, 10**6))
        by_deadline = self.random.random() < 0.4
        self.door = Admission(*bounds, by_deadline=by_deadline)
        self.plain = PlainDoor(*bounds, by_deadline=by_deadline)
        self.urgencies = self.random.choice(([3], [3], [1, 3], [0, 3, 4, 7]))
        weights = (1.0, 3.0, 0.5, 2.0)[: self.random.choice((1, 1, 2, 4))]
        self.tenants = [Tenant(f"t{n}", weight) for n, weight in enumerate(weights)]
        self.pairs = {}
        """For each plain request the real one, and the real items in hand in the order of the plain ones."""

    def play(self):
        steps = [self.submit] * 4 + [self.feed] * 4 + [self.settle] * 4 + [self.advance, self.drop, self.hold]
        steps += [self.answer, self.take_answer]
        if self.random.random() < 0.5:
            steps += [self.hold_back, self.let_go]
        for _ in range(STEPS):
            self.random.choice(steps)()
            self.compare()
        self.end()

    def submit(self):
        lane = Lane.BULK if self.random.random() < 0.4 else Lane.SINGLE
        sizes = [self.random.randrange(12) for _ in range(self.random.choice((1, 1, 2, 5)))]
        holds_results = self.random.random() < 0.5
        urgency, tenant = self.random.choice(self.urgencies), self.random.choice(self.tenants)
        deadline = self.random.choice((1.0, 2.0, 3.0, math.inf))
        plain = PlainRequest((urgency, tenant), lane, deadline, sizes, self.random.randrange(3), holds_results)
        payloads = [b"x" * size for size in sizes]
        request = Request(payloads, 1, 1, deadline, print, lane, holds_results, urgency=urgency, tenant=tenant)
        request.unfed_bytes = plain.unfed
        self.pairs[plain] = request, []
        has_room, must_wait = self.plain.has_room(plain.unfed, urgency), self.plain.must_wait(lane)
        assert self.door.has_room(request.unfed_bytes, urgency) is has_room, self
        assert self.door.must_wait(lane) is must_wait, self
        self.plain.requests.append(plain)
        if has_room and not (must_wait and self.random.random() < 0.5):
            self.door.let_in(request)
            self.plain.feed(plain)
            self.make_item(plain)
        if plain.sizes:
            self.door.line_up(request)
            self.plain.line_up(plain)

    def make_item(self, plain):
        request, items = self.pairs[plain]
        payload = request.payloads[request.fed]
        item = Item(1, payload, len(payload), request, request.fed)
        self.door.ledger.feed(item)
        items.append(item)

    def feed(self):
        request, plain = self.door.feed_next(), self.plain.feed_next()
        assert request is (plain and self.pairs[plain][0]), self
        if plain is not None:
            self.make_item(plain)

    def hold_back(self):
        tenant = self.random.choice(self.tenants)
        self.door.hold_back(tenant)
        self.plain.hold_back(tenant)

    def let_go(self):
        if self.plain.lines_held:
            tenant = self.random.choice(list(self.plain.lines_held))
            self.door.let_go(tenant)
            self.plain.let_go(tenant)

    def any_item(self):
        """A request and the place of one of its items, or None."""
        found = [(plain, place) for plain in self.plain.requests for place in range(len(plain.items))]
        return self.random.choice(found) if found else None

    def advance(self):
        found = self.any_item()
        if found is not None:
            plain, place = found
            plain.items[place] = self.random.randrange(30)
            self.door.ledger.advance(self.pairs[plain][1][place], [b"", b"y" * plain.items[place]])

    def settle(self):
        found = self.any_item()
        if found is not None:
            self.settle_one(*found, self.random.choice((None, 0, 3, 7)))

    def settle_one(self, plain, place, result):
        """Settle an item with a result of so many bytes, or with a failure."""
        request, items = self.pairs[plain]
        self.door.settle(items.pop(place))
        plain.items.pop(place)
        if result is not None:
            full = self.plain.keep_result(plain, result)
            assert self.door.ledger.keep_outcome(request, Result(b"z" * result)) is (full and self.pairs[full][0]), self
        request.unsettled -= 1
        self.complete(plain)

    def complete(self, plain):
        if not plain.items and not plain.sizes:
            self.door.ledger.complete(self.pairs[plain][0])
            self.plain.requests.remove(plain)

    def drop(self):
        if self.plain.requests:
            self.drop_one(self.random.choice(self.plain.requests))

    def drop_one(self, plain):
        request, _ = self.pairs[plain]
        request.unsettled -= len(plain.sizes)
        self.door.drop_unfed(request)
        self.plain.drop_unfed(plain)
        self.complete(plain)

    def hold(self):
        nbytes = self.random.choice((-self.plain.outside, 5, 20))
        self.door.ledger.hold(nbytes)
        self.plain.outside += nbytes

    def answer(self):
        self.plain.answers.append(self.random.choice((1, 9, 30)))
        self.door.ledger.hold_answer(self.plain.answers[-1])

    def take_answer(self):
        if self.plain.answers:
            place = self.random.randrange(len(self.plain.answers))
            self.door.ledger.hold_answer(-self.plain.answers.pop(place))

    def compare(self):
        door, plain = self.door, self.plain
        assert (door.items, door.ledger.held) == (plain.in_hand(), plain.held), self
        assert door.ledger.answers == sum(plain.answers), self
        assert door.ledger.answers_overfull is (sum(plain.answers) > plain.max_bytes), self
        lanes = [lane for line in plain.order.ranked() for lane in plain.order.lanes(line)]
        waiting = [self.pairs[request][0] for lane in lanes for request in lane]
        held_back = {self.pairs[request][0] for request in plain.held_back()}
        requests = door.requests()
        assert requests[: len(waiting)] == waiting, self
        assert set(requests[len(waiting) :]) == held_back, self
        assert (door.waiting, door.held_back, len(requests)) == (
            len(waiting),
            len(held_back),
            len([*waiting, *held_back]),
        ), self
        assert door.held_tenants() == list(plain.lines_held), self
        assert [tenant for tenant in self.tenants if door.holds_back(tenant)] == [
            t for t in self.tenants if t in plain.lines_held
        ]
        left = plain.max_bytes - plain.taken
        for nbytes in (0, left, left + 1):
            assert door.has_room(nbytes) is plain.has_room(nbytes), (self, nbytes)
            for urgency in (0, 3, 4):
                assert door.has_room(nbytes, urgency) is plain.has_room(nbytes, urgency), (self, nbytes, urgency)
        for lane in FRONT:
            assert door.must_wait(lane) is plain.must_wait(lane), (self, lane)
        for request, (real, items) in self.pairs.items():
            if request in plain.requests:
                assert (real.admitted, real.unfed_bytes) == (request.is_in, request.unfed), self
                assert (real.result_bytes, [item.nbytes for item in items]) == (sum(request.results), request.items)
                assert real.full is request.full, self

    def end(self):
        """End every request: nothing may be left but what is held outside."""
        for plain in list(self.plain.requests):
            while plain.items:
                self.settle_one(plain, 0, None)
            if plain in self.plain.requests:
                self.drop_one(plain)
            self.compare()
        while self.plain.answers:
            self.take_answer()
        assert (self.door.items, self.door.waiting, self.door.held_back) == (0, 0, 0), self
        assert self.door.ledger.held == self.plain.outside, self

    def __str__(self):
        return f"history {self.seed}"


def test_the_door_answers_as_plain_lists_would():
    for seed in range(HISTORIES):
        History(seed).play()
