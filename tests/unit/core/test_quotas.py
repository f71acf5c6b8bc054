"""Which items a tenant may have by its own rate and bound, compared with plain lists."""

from __future__ import annotations

from random import Random

import pytest

from penstock.core.item import Request
from penstock.core.lanes import Lane
from penstock.core.quotas import Quotas
from penstock.core.tenants import Tenant
from penstock.core.token_bucket import TokenBucket


def made(tenant, n=1, *, lane=Lane.SINGLE, urgency=3):
    return Request([b"x"] * n, 1, 1, 1e9, print, lane, urgency=urgency, tenant=tenant)


def rated(rate=1.0, burst=1.0, **limits):
    return Tenant("rated", bucket=TokenBucket(rate, burst), **limits)


def test_newcomers_get_no_token_while_others_of_their_tenant_wait():
    quotas, tenant, other = Quotas(), rated(), rated()
    first = made(tenant)
    assert quotas.allows(tenant, 0.0)
    quotas.grant(first, 0.0)
    assert not quotas.allows(tenant, 0.0)
    quotas.line_up(made(tenant))
    assert not quotas.allows(tenant, 5.0)
    assert quotas.allows(other, 0.0)
    assert quotas.next_moment() == 1.0
    assert len(quotas.release(1.0)) == 1
    assert quotas.waiting == 0
    assert quotas.next_moment() is None


def test_no_time_ends_the_wait_of_who_has_no_room_of_its_own():
    quotas, tenant = Quotas(), Tenant("bounded", max_queued=1)
    quotas.grant(made(tenant), 0.0)
    quotas.line_up(made(tenant))
    assert quotas.next_moment() is None
    assert quotas.release(100.0) == []
    tenant.granted = 0
    assert len(quotas.release(100.0)) == 1


def test_who_waits_no_longer_leaves_the_others_in_their_places():
    quotas, tenant = Quotas(), Tenant("bounded", max_queued=1)
    tenant.items = 1
    one, two, three = made(tenant), made(tenant), made(tenant, urgency=5)
    for request in (one, two, three):
        quotas.line_up(request)
    quotas.drop(one)
    quotas.drop(made(tenant))  # it never waited
    quotas.drop(made(tenant, urgency=7))
    quotas.drop(made(Tenant("another", max_queued=1)))
    assert quotas.requests() == [two, three]
    assert quotas.waiting == 2
    quotas.drop(two)
    quotas.drop(three)
    assert (quotas.waiting, quotas.requests()) == (0, [])


def test_who_leaves_with_a_token_that_was_not_used_gives_it_back():
    quotas, tenant = Quotas(), rated()
    request = made(tenant)
    quotas.grant(request, 0.0)
    quotas.drop(request)
    assert (tenant.granted, quotas.allows(tenant, 0.0)) == (0, True)
    bounded = Tenant("bounded", max_queued=1)
    request = made(bounded)
    quotas.grant(request, 0.0)
    quotas.drop(request)
    assert quotas.allows(bounded, 0.0)


class PlainQuotas:
    """The same of one tenant, with a list of those who wait and a count of tokens at whole seconds."""

    def __init__(self, burst, most):
        self.tokens = self.burst = burst
        self.most = most
        self.in_hand = 0
        self.waiting = []
        self.turn = Lane.SINGLE

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
            turn = [request for request in first if request.lane == self.turn] or first
            self.turn = Lane(1 - turn[0].lane)
            self.waiting.remove(turn[0])
            self.take()
            released.append(turn[0])
        self.begin_anew()
        return released

    def begin_anew(self):
        """The turn is with single requests when somebody begins to wait."""
        if not self.waiting:
            self.turn = Lane.SINGLE


@pytest.mark.parametrize("part", range(4))
def test_random_histories_against_a_plain_list(part):
    for seed in range(part, 200, 4):
        random = Random(seed)
        burst, most = random.randrange(1, 5), random.choice((None, 1, 3))
        quotas, tenant = Quotas(), rated(1.0, float(burst), max_queued=most)
        plain = PlainQuotas(burst, most)
        now, in_hand = 0.0, []
        for _ in range(80):
            released = quotas.release(now)
            assert released == plain.release(), seed
            for request in released:
                quotas.fed(request)
                tenant.items += 1
                in_hand.append(request)
            assert quotas.waiting == len(plain.waiting)
            allowed = quotas.allows(tenant, now)
            assert allowed == (plain.may() and not plain.waiting), seed
            what = random.choice(("time", "new", "new", "new", "settle", "drop"))
            if what == "time":
                now += 1.0
                plain.tokens = min(plain.burst, plain.tokens + 1)
            elif what == "new":
                request = made(tenant, lane=random.choice((Lane.SINGLE, Lane.BULK)), urgency=random.choice((1, 3)))
                if allowed:
                    quotas.grant(request, now)
                    quotas.fed(request)
                    plain.take()
                    tenant.items += 1
                    in_hand.append(request)
                else:
                    quotas.line_up(request)
                    plain.waiting.append(request)
            elif what == "settle" and in_hand:
                in_hand.pop()
                tenant.items -= 1
                plain.in_hand -= 1
            elif what == "drop" and plain.waiting:
                gone = random.choice(plain.waiting)
                plain.waiting.remove(gone)
                plain.begin_anew()
                quotas.drop(gone)
