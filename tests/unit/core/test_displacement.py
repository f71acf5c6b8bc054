"""Which item makes way for a newcomer, compared with a plain list of everything that waits."""

from __future__ import annotations

from random import Random

from night import histories
from penstock.config import Batch
from penstock.core.batching import BatchQueue
from penstock.core.displacement import item_to_displace
from penstock.core.item import Item, Request
from penstock.core.lanes import Lane
from penstock.core.tenants import Tenant


class Door:
    """A queue of one stage and the tenants of what waits in it; nothing is at a worker unless a test says so."""

    def __init__(self, *tenants, max_items):
        self.queue = BatchQueue(Batch())
        self.tenants = tenants
        self.max_items = max_items
        self.made = 0

    def put(self, tenant, urgency=3, lane=Lane.SINGLE):
        request = Request([b"x"], 1, 1, 1e9, print, lane, urgency=urgency, tenant=tenant)
        self.made += 1
        item = Item(self.made, b"x", 1, request, 0)
        tenant.items += 1
        self.queue.offer(item, 0.0)
        return item

    def displaced(self, tenant, urgency=3):
        weights = sum(t.weight for t in self.tenants if t.items or t is tenant)
        return item_to_displace(tenant, urgency, self.queue.newest_unrun(), self.max_items, weights)


def test_who_holds_less_than_its_share_displaces_the_newest_of_who_holds_more():
    flood, quiet = Tenant("flood"), Tenant("quiet")
    door = Door(flood, quiet, max_items=4)
    items = [door.put(flood) for _ in range(4)]
    assert door.displaced(quiet) is items[-1]
    assert door.displaced(flood) is None, "it has all of its share"


def test_a_better_urgency_displaces_a_worse_one_and_no_equal_one():
    gold = Tenant("gold")
    door = Door(gold, max_items=2)
    usual, late = door.put(gold, 3), door.put(gold, 5)
    assert door.displaced(gold, 3) is late
    assert door.displaced(gold, 5) is None
    door.queue.discard(late)
    assert door.displaced(gold, 3) is None
    assert door.displaced(gold, 2) is usual


def test_what_has_run_and_what_is_at_a_worker_stays():
    flood, quiet = Tenant("flood"), Tenant("quiet")
    door = Door(flood, quiet, max_items=3)
    ran, fresh = door.put(flood), door.put(flood)
    ran.ran = True
    assert door.displaced(quiet) is fresh
    door.queue.discard(fresh)
    assert door.displaced(quiet) is None
    door.queue.take(0.0)
    assert door.displaced(quiet) is None


def plain_answer(door, waiting, tenant, urgency):
    """The rule, said of a plain list."""
    weights = sum(t.weight for t in door.tenants if t.items or t is tenant)

    def share(t):
        return door.max_items * t.weight / weights

    legal = [
        item
        for item in waiting
        if urgency < item.request.urgency
        or (tenant.items < share(tenant) and item.request.tenant.items > share(item.request.tenant))
    ]
    return max(
        legal,
        key=lambda i: (i.request.urgency, i.request.tenant.items - share(i.request.tenant), i.id),
        default=None,
    )


def test_random_histories_against_a_plain_list():
    displaced = 0
    for seed in range(histories(300)):
        random = Random(seed)
        tenants = [Tenant(f"t{n}", random.choice((1.0, 1.0, 2.0, 3.0, 0.5))) for n in range(random.randrange(1, 5))]
        door = Door(*tenants, max_items=random.randrange(1, 12))
        waiting = []
        for _ in range(120):
            tenant, urgency = random.choice(tenants), random.choice((1, 3, 3, 3, 6))
            if random.random() < 0.25 and waiting:  # a batch leaves
                for item in door.queue.take(0.0).items:
                    waiting.remove(item)
                    item.request.tenant.items -= random.random() < 0.8  # what stays is in hand elsewhere
                continue
            in_hand = sum(t.items for t in tenants)
            if in_hand >= door.max_items:
                found = door.displaced(tenant, urgency)
                assert found is plain_answer(door, waiting, tenant, urgency), seed
                if found is None:
                    continue
                displaced += 1
                waiting.remove(found)
                door.queue.discard(found)
                found.request.tenant.items -= 1
            waiting.append(door.put(tenant, urgency, random.choice((Lane.SINGLE, Lane.BULK))))
    assert displaced > histories(1000)
