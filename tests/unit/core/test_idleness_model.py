"""Random histories of the idle order against a look at everybody for each answer."""

from __future__ import annotations

import math
from random import Random

from penstock.core.idleness import IDLE_SECONDS, IdleOrder
from rows import each

HISTORIES = 200
STEPS = 200


class Guest:
    """Idle since `since`; inf is not idle."""

    def __init__(self, since, asked):
        self.since = since
        self.asked = asked

    def idle_since(self):
        return self.since

    def has_asked(self):
        return self.asked

    def rank(self):
        return self.asked, self.since


def first_of(guests, now):
    """The ranks of those who may make way, best first."""
    return sorted(guest.rank() for guest in guests if now - guest.since >= IDLE_SECONDS)


@each("seed", range(HISTORIES))
def test_the_order_finds_whom_a_look_at_everybody_would_find(seed):
    random = Random(seed)
    order, guests, now = IdleOrder(), [], 100.0
    for _ in range(STEPS):
        now += random.choice([0.0, 0.0, 0.0625, 0.125, 0.25, 1.0, 1.5])
        order.forget(now) if random.random() < 0.1 else None
        match random.choice(["come", "ask", "answer", "answer", "go", "take", "take", "take"]):
            case "come":
                guests.append(Guest(now, asked=False))
            case "ask" if guests:
                guest = random.choice(guests)
                guest.since, guest.asked = math.inf, True
            case "answer" if guests:
                guest = random.choice(guests)
                if guest.asked:
                    guest.since = now
            case "go" if guests:
                guest = guests.pop(random.randrange(len(guests)))
                guest.since = math.inf
            case "take":
                expected = first_of(guests, now)
                taken = order.take(guests, now)
                assert (taken and taken.rank()) == (expected[0] if expected else None)
                if taken is not None:
                    guests.remove(taken)
                    taken.since = math.inf
