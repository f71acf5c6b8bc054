"""Where the first stage's own bound is reached, far below that of the service, shares are parts of what is in hand."""

from __future__ import annotations

import math

import pytest

from penstock.config import Batch
from penstock.errors import Overloaded
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest


@pytest.fixture
def make(make_rig, tmp_path):
    """Makes a started rig whose first stage lets four wait; `gold` has three times the weight of others."""

    async def start(*more, **options):
        path = tmp_path / "tenants.toml"
        path.write_text("[tenants.gold]\nweight = 3")
        specs = [stage(math.sqrt, max_queued=4, batch=Batch(max_size=1), prefetch=0), *more]
        return await make_rig(*specs, tenants_file=str(path), **options).start()

    return start


async def offer(rig, tenant, n):
    """Submit `n` single requests; how many of them were let in."""
    let_in = 0
    for _ in range(n):
        try:
            rig.submit(tenant=tenant)
        except Overloaded:
            continue
        let_in += 1
        await rest()
    return let_in


def in_hand(rig, tenant):
    return rig.engine._flow.find_tenant(tenant).items


async def answer_all(rig):
    while any(worker.frames for worker in rig.workers.alive):
        for worker in rig.workers.alive:
            while worker.frames:
                worker.answer()
                await rest()


async def test_who_has_little_gets_a_place_from_who_has_much(make):
    rig = await make()
    assert await offer(rig, "flood", 20) == 5, "one runs, four wait"
    assert rig.engine.refusal(tenant="few") is None
    assert await offer(rig, "few", 1) == 1
    assert (in_hand(rig, "flood"), in_hand(rig, "few")) == (4, 1)
    assert rig.engine.counters.preempted == 1
    assert await offer(rig, "flood", 20) == 0, "it has more than its share"
    await answer_all(rig)


async def test_shares_go_by_weight(make):
    rig = await make()
    await offer(rig, "flood", 20)
    await offer(rig, "gold", 20)
    assert (in_hand(rig, "flood"), in_hand(rig, "gold")) == (1, 4), "the shares are 1.25 and 3.75"
    await answer_all(rig)


async def test_what_is_in_later_stages_is_in_hand_too(make):
    rig = await make(stage(math.cos, batch=Batch(max_size=1), prefetch=0))
    for _ in range(6):
        await offer(rig, "few", 1)
        rig.workers[0].answer()
        await rest()
    assert in_hand(rig, "few") == 6
    assert await offer(rig, "flood", 20) == 5
    assert await offer(rig, "few", 1) == 0, "it has six of eleven"
    await answer_all(rig)


async def test_at_the_bound_of_the_service_they_are_parts_of_that(make):
    rig = await make(max_in_flight=4)
    assert await offer(rig, "flood", 20) == 4
    assert await offer(rig, "few", 20) == 2
    await answer_all(rig)
