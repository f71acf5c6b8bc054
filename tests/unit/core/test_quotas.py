"""Which items a tenant may have by its own rate and bound, compared with plain lists."""

from __future__ import annotations

from random import Random

import pytest

from night import histories
from penstock.core.admission import Admission
from penstock.core.item import Item, Request
from penstock.core.lanes import Lane
from penstock.core.quotas import Quotas
from penstock.core.tenants import Tenant
from penstock.core.token_bucket import TokenBucket


def made(tenant, n=1, *, lane=Lane.SINGLE, urgency=3):
    return Request([b"x"] * n, 1, 1, 1e9, print, lane, urgency=urgency, tenant=tenant)


def rated(rate=1.0, burst=1.0, **limits):
    return Tenant("rated", bucket=TokenBucket(rate, burst), **limits)


@pytest.fixture
def door():
    return Admission(1000, 1000)


@pytest.fixture
def quotas(door):
    return Quotas(door)


def take_in(door, quotas, request, now):
    """Let `request` in, and take the token of its only item."""
    door.let_in(request)
    fed(door, quotas, request, now)


def fed(door, quotas, request, now):
    door.ledger.feed(Item(1, b"x", 1, request, request.fed))
    quotas.took(request.tenant, now)


def feed(door, quotas, now):
    """Feed all that may be fed; the requests, in order."""
    found = []
    quotas.release(now)
    while (request := door.feed_next()) is not None:
        fed(door, quotas, request, now)
        found.append(request)
    return found


def test_newcomers_get_no_token_while_others_of_their_tenant_wait(door, quotas):
    tenant, other = rated(), rated()
    assert quotas.allows(tenant, 0.0)
    take_in(door, quotas, made(tenant), 0.0)
    assert not quotas.allows(tenant, 0.0)
    waits = made(tenant)
    quotas.line_up(waits, 0.0)
    assert not quotas.allows(tenant, 5.0)
    assert quotas.allows(other, 0.0)
    assert quotas.next_moment() == 1.0
    quotas.release_one(other, 1.0)
    quotas.release_one(tenant, 0.9)
    assert door.held_back == 1
    quotas.release_one(tenant, 1.0)
    assert (door.held_back, door.waiting) == (0, 1)
    assert feed(door, quotas, 1.0) == [waits]
    assert quotas.next_moment() is None


def test_what_waits_for_tokens_is_ahead_of_newcomers(door, quotas):
    tenant = rated()
    assert quotas.ahead_of_newcomers(tenant) == 0
    take_in(door, quotas, made(tenant), 0.0)
    batch, single = made(tenant, 5, lane=Lane.BULK), made(tenant)
    for request in (batch, single):
        quotas.line_up(request, 0.0)
    assert quotas.ahead_of_newcomers(tenant) == 6
    assert feed(door, quotas, 1.0) == [single]
    assert feed(door, quotas, 2.0) == [batch]
    assert quotas.ahead_of_newcomers(tenant) == 4


def test_what_waits_for_tokens_may_hold_half_of_the_bytes(door, quotas):
    tenant = rated(1.0, 4.0)
    assert not quotas.holds_too_long(tenant, 4, 900, 0.0), "it has a token for each item"
    assert quotas.holds_too_long(tenant, 5, 501, 0.0)
    assert not quotas.holds_too_long(tenant, 5, 500, 0.0)
    assert not quotas.holds_too_long(Tenant("bounded", max_queued=1), 5, 501, 0.0)
    for _ in range(4):
        take_in(door, quotas, made(tenant), 0.0)
    batch = made(tenant, 3, lane=Lane.BULK)
    batch.unfed_bytes = 300
    door.let_in(batch)
    fed(door, quotas, batch, 0.0)
    quotas.line_up(batch, 0.0)
    assert quotas.holds_too_long(rated(), 2, 202, 0.0)
    assert not quotas.holds_too_long(rated(), 2, 201, 0.0)
    assert not quotas.holds_too_long(rated(), 1, 900, 0.0), "it waits for no token once it is let in"


class PlainQuotas:
    """The same of one tenant, with a list of those who wait and a count of tokens at whole seconds."""

    def __init__(self, burst, most):
        self.tokens = self.burst = burst
        self.most = most
        self.in_hand = 0
        self.waiting = []
        self.turns = {}
        """By urgency, the lane whose turn it is."""

    def may(self):
        return self.tokens >= 1 and (self.most is None or self.in_hand < self.most)

    def take(self):
        self.tokens -= 1
        self.in_hand += 1

    def release(self):
        released = []
        while self.waiting and self.may():
            best = min(request.urgency for request in self.waiting)
            first = [request for request in self.waiting if request.urgency == best]
            turn = [request for request in first if request.lane == self.turns.get(best, Lane.SINGLE)] or first
            self.turns[best] = Lane(1 - turn[0].lane)
            self.waiting.remove(turn[0])
            self.take()
            released.append(turn[0])
            self.begin_anew()
        return released

    def begin_anew(self):
        """The turn is with single requests when somebody of an urgency begins to wait."""
        waiting = {request.urgency for request in self.waiting}
        self.turns = {urgency: turn for urgency, turn in self.turns.items() if urgency in waiting}


def test_random_histories_against_a_plain_list():
    for seed in range(histories(200)):
        random = Random(seed)
        burst, most = random.randrange(1, 5), random.choice((None, 1, 3))
        door = Admission(1000, 1000)
        quotas, tenant = Quotas(door), rated(1.0, float(burst), max_queued=most)
        plain = PlainQuotas(burst, most)
        now, in_hand = 0.0, []
        for _ in range(80):
            released = feed(door, quotas, now)
            assert released == plain.release(), seed
            in_hand += released
            assert door.held_back == len(plain.waiting)
            assert door.waiting == 0
            allowed = quotas.allows(tenant, now)
            assert allowed == (plain.may() and not plain.waiting), seed
            what = random.choice(("time", "new", "new", "new", "settle", "drop"))
            if what == "time":
                now += 1.0
                plain.tokens = min(plain.burst, plain.tokens + 1)
            elif what == "new":
                request = made(tenant, lane=random.choice((Lane.SINGLE, Lane.BULK)), urgency=random.choice((1, 3)))
                if allowed:
                    take_in(door, quotas, request, now)
                    plain.take()
                    in_hand.append(request)
                else:
                    quotas.line_up(request, now)
                    plain.waiting.append(request)
            elif what == "settle" and in_hand:
                door.settle(Item(1, b"x", 1, in_hand.pop(), 0))
                plain.in_hand -= 1
            elif what == "drop" and plain.waiting:
                gone = random.choice(plain.waiting)
                plain.waiting.remove(gone)
                plain.begin_anew()
                door.drop_unfed(gone)
