"""Tenants in a running service: quotas, shares and who makes way."""

from __future__ import annotations

import math

import pytest

from penstock.config import Batch
from penstock.core.lanes import Lane
from penstock.core.tenants import Tenant
from penstock.errors import ConfigError, Overloaded, QuotaExceeded
from penstock.hosting.build import is_compiled
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest


def spec(**options):
    """A stage that nothing ever runs."""
    return stage(math.sqrt, **options)


@pytest.fixture
def make(make_rig, tmp_path):
    """Makes a started rig whose tenants are those of a file of this text."""

    async def start(text, *specs, **options):
        path = tmp_path / "tenants.toml"
        path.write_text(text)
        return await make_rig(*specs, tenants_file=str(path), **options).start()

    return start


async def answer_all(rig, worker=0):
    while rig.workers[worker].frames:
        rig.workers[worker].answer()
        await rest()


def refused(rig, kind=QuotaExceeded, **how):
    with pytest.raises(kind) as caught:
        rig.submit(**how)
    return caught.value


# -- quotas -----------------------------------------------------------------------------------------------------------


async def test_beyond_its_rate_a_tenant_is_refused_and_told_when_its_token_comes(make):
    rig = await make("[tenants.gold]\nrate = 2\nburst = 2")
    calls = [rig.submit(tenant="gold") for _ in range(2)]
    errors = [refused(rig, tenant="gold") for _ in range(3)]
    assert [(e.retry_after, e.retry_after_ms) for e in errors] == [(1, 500), (1, 1000), (2, 1500)]
    assert {e.reason for e in errors} == {"quota"}
    other = rig.submit(tenant="iron")
    await rig.clock.advance(0.5)
    calls.append(rig.submit(tenant="gold"))
    await rest()
    await answer_all(rig)
    assert all(call.ends == [b"1"] for call in [*calls, other])
    assert rig.engine.counters.rejected_quota == 3


async def test_the_head_asks_and_takes_no_token(make):
    rig = await make("[tenants.gold]\nrate = 1\nburst = 1")
    for _ in range(5):
        assert rig.engine.refusal(tenant="gold") is None
    await rig.call(tenant="gold")
    assert isinstance(rig.engine.refusal(tenant="gold"), QuotaExceeded)
    await answer_all(rig)


async def test_who_waits_in_process_waits_for_a_token_and_keeps_nobody_else_waiting(make):
    rig = await make("[tenants.gold]\nrate = 1\nburst = 1", spec(batch=Batch(max_size=8)))
    calls = [rig.submit(b"%d" % n, tenant="gold", wait=True) for n in range(3)]
    await rest()
    assert rig.workers[0].batches == [[b"0"]]
    assert isinstance(refused(rig, tenant="gold"), QuotaExceeded), "others of its tenant wait"
    other = await rig.call(b"other", tenant="iron")
    await answer_all(rig)
    assert other.ends == [b"other"]
    await rig.clock.advance(0.99)
    assert not calls[1].done
    await rig.clock.advance(0.02)
    await answer_all(rig)
    assert calls[1].ends == [b"1"]
    await rig.clock.advance(1.0)
    await answer_all(rig)
    assert calls[2].ends == [b"2"]


async def test_a_client_batch_is_charged_by_item_and_fed_as_tokens_come(make):
    rig = await make("[tenants.gold]\nrate = 1\nburst = 2", spec(batch=Batch(max_size=8), prefetch=0))
    call = await rig.call(*[b"%d" % n for n in range(4)], tenant="gold", lane=Lane.BULK)
    await answer_all(rig)
    assert rig.engine.queued == 0
    assert not call.done
    assert isinstance(refused(rig, tenant="gold"), QuotaExceeded)
    for _ in range(2):
        await rig.clock.advance(1.0)
        await answer_all(rig)
    assert call.ends == [b"0", b"1", b"2", b"3"]
    assert isinstance(refused(rig, tenant="gold", lane=Lane.BULK), QuotaExceeded), "the first item has no token"


async def test_who_is_refused_behind_a_client_batch_is_told_when_the_batch_has_its_tokens(make):
    rig = await make("[tenants.gold]\nrate = 10\nburst = 10", spec(batch=Batch(max_size=8)))
    batch = rig.submit(*[b"x"] * 100, tenant="gold", lane=Lane.BULK)
    tries = 1
    while True:
        await rest()
        try:
            rig.submit(tenant="gold")
            break
        except QuotaExceeded as error:
            tries += 1
            for _ in range(math.ceil(error.retry_after_ms / 100)):
                await rig.clock.advance(0.1)
                await answer_all(rig)
    assert tries == 2
    assert batch.done
    await rest()
    await answer_all(rig)


@pytest.mark.skipif(is_compiled(), reason="compiled code does not look up what a test has replaced")
async def test_nobody_but_who_is_asked_about_is_looked_at_between_pumps(make, monkeypatch):
    rig = await make('[tenants."*"]\nrate = 1\nburst = 1\n[tenants.gold]\nrate = 1000', spec(batch=Batch(max_size=64)))
    for n in range(50):
        rig.submit(b"1", b"2", tenant=f"t{n}", lane=Lane.BULK)
    await rest()
    looks = []
    monkeypatch.setattr(Tenant, "has_room", property(lambda tenant: looks.append(tenant) or True))
    for _ in range(10):
        assert rig.engine.refusal(tenant="gold") is None
        rig.submit(tenant="gold")
    assert {tenant.name for tenant in looks} == {"gold"}
    looks.clear()
    await rig.clock.advance(1.0)  # a token for each of them
    assert len(looks) <= 6 * 50
    while rig.workers[0].frames:
        await answer_all(rig)


@pytest.mark.skipif(is_compiled(), reason="compiled code does not look up what a test has replaced")
async def test_who_asks_for_room_alone_has_no_tenant_looked_at(make, monkeypatch):
    rig = await make('[tenants."*"]\nrate = 1\nburst = 1')
    call = rig.submit(b"1", b"2", lane=Lane.BULK)
    looks = []
    monkeypatch.setattr(Tenant, "has_room", property(lambda tenant: looks.append(tenant) or True))
    assert rig.engine.refusal(lane=Lane.BACK) is None
    assert looks == []
    rig.engine.cancel(call.request)
    await rest()


async def test_what_waits_for_tokens_leaves_half_of_the_bytes_to_the_others(make):
    rig = await make(
        "[tenants.slow]\nrate = 0.01\nburst = 1",
        spec(batch=Batch(max_size=4)),
        max_in_flight=100,
        max_queued_bytes=1000,
    )
    with pytest.raises(Overloaded, match="would exceed 500 bytes") as caught:
        rig.submit(*[b"x" * 100] * 10, tenant="slow", lane=Lane.BULK)
    assert caught.value.reason == "memory_budget"
    batch = await rig.call(*[b"x" * 100] * 5, tenant="slow", lane=Lane.BULK, within=60.0)
    await answer_all(rig)
    assert rig.engine.refusal(nbytes=600, tenant="gold") is None
    assert {name: n.refused for name, n in rig.engine.tenant_rows()}["slow"] == 10
    await rig.clock.advance(61.0)
    assert batch.done


async def test_what_leaves_while_it_waits_for_a_token_takes_none(make):
    rig = await make("[tenants.gold]\nrate = 1\nburst = 1")
    await rig.call(tenant="gold")
    gone = rig.submit(b"gone", tenant="gold", wait=True)
    late = rig.submit(b"late", tenant="gold", wait=True, within=0.5)
    stays = rig.submit(b"stays", tenant="gold", wait=True)
    rig.engine.cancel(gone.request)
    await answer_all(rig)
    await rig.clock.advance(0.6)
    assert late.done
    await rig.clock.advance(0.5)
    await answer_all(rig)
    assert stays.ends == [b"stays"]


async def test_a_token_is_spent_by_what_gets_in_hand_however_it_ends(make):
    rig = await make("[tenants.gold]\nrate = 0.1\nburst = 2", spec(prefetch=0), max_in_flight=1)
    held = await rig.call(tenant="iron")
    waits = await rig.call(tenant="gold", wait=True)
    assert rig.engine.allowance("gold").left == 2, "it waits for room in the service"
    rig.engine.cancel(waits.request)
    assert rig.engine.allowance("gold").left == 2
    await answer_all(rig)
    assert held.done
    ran = await rig.call(tenant="gold")
    rig.engine.cancel(ran.request)
    assert rig.engine.allowance("gold").left == 1


async def test_who_waits_for_bytes_does_not_have_the_room_of_its_tenant(make):
    rig = await make("[tenants.gold]\nmax_queued = 1", spec(prefetch=0), max_queued_bytes=10, timeout=math.inf)
    many = await rig.call(b"55555", b"55555", lane=Lane.BULK, wait=True, tenant="gold")
    one = await rig.call(b"666666", wait=True, tenant="gold")
    for _ in range(3):
        await answer_all(rig)
    assert (many.ends, one.ends) == ([b"55555", b"55555"], [b"666666"])


async def test_who_waits_for_room_in_the_service_does_not_have_the_room_of_its_tenant(make):
    rig = await make("[tenants.gold]\nmax_queued = 1", spec(prefetch=0), max_in_flight=4, timeout=math.inf)
    for _ in range(8):
        await rig.call(tenant="flood", wait=True)
    low = await rig.call(b"low", wait=True, tenant="gold", urgency=7)
    assert rig.engine.refusal(tenant="gold", urgency=0) is None, "it has nothing in hand"
    urgent = await rig.call(b"urgent", wait=True, tenant="gold", urgency=0)
    for _ in range(20):  # the flood goes on
        rig.workers[0].answer()
        rig.submit(tenant="flood", wait=True)
        await rest()
    assert (urgent.done, low.done) == (True, False)
    await answer_all(rig)
    assert low.ends == [b"low"]


async def test_beyond_its_own_bound_a_tenant_is_refused_and_its_batch_is_fed_as_room_comes(make):
    rig = await make("[tenants.gold]\nmax_queued = 2", spec(batch=Batch(max_size=1), prefetch=0))
    call = await rig.call(b"0", b"1", b"2", tenant="gold", lane=Lane.BULK)
    assert rig.engine.queued == 2
    error = refused(rig, tenant="gold")
    assert (error.reason, error.retry_after >= 1) == ("quota", True)
    assert rig.submit(tenant="iron") is not None
    for _ in range(4):
        await answer_all(rig)
    assert call.ends == [b"0", b"1", b"2"]
    assert rig.engine.allowance("gold") is None


async def test_all_others_have_the_terms_of_the_star_and_jobs_have_no_tenant(make):
    rig = await make('[tenants."*"]\nrate = 1\nburst = 1\nurgency = 4')
    for tenant in ("", "a", "b"):
        await rig.call(tenant=tenant, urgency=0)
        assert isinstance(refused(rig, tenant=tenant), QuotaExceeded)
    job = rig.submit(b"1", b"2", b"3", lane=Lane.BACK)
    assert rig.calls[0].request.urgency == 4
    for _ in range(8):
        await answer_all(rig)
    assert job.done


async def test_an_engine_with_a_wrong_file_is_not_made(make_rig, tmp_path):
    for what, why in ((tmp_path, "is not a regular file"), (tmp_path / "missing", "cannot be read")):
        with pytest.raises(ConfigError, match=why):
            make_rig(tenants_file=str(what))
    path = tmp_path / "large"
    path.write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="is larger than 4194304 bytes"):
        make_rig(tenants_file=str(path))


# -- displacement -----------------------------------------------------------------------------------------------------


async def test_a_newcomer_below_its_share_displaces_and_the_head_displaces_nobody(make_rig):
    rig = await make_rig(spec(prefetch=0), max_in_flight=4).start()
    flood = [await rig.call(b"f%d" % n, tenant="flood") for n in range(4)]
    assert rig.engine.refusal(tenant="quiet") is None
    assert rig.engine.queued == 4
    assert not any(call.done for call in flood)
    quiet = [rig.submit(b"q%d" % n, tenant="quiet") for n in range(2)]
    await rest()
    assert [call.done for call in flood] == [False, False, True, True]
    error = flood[3].error
    assert (type(error), error.reason, error.started) == (Overloaded, "preempted", False)
    assert error.retry_after_ms >= 50
    assert isinstance(refused(rig, Overloaded, tenant="quiet"), Overloaded), "it has its share"
    assert rig.engine.counters.preempted == 2
    assert rig.engine.queued == 4
    for _ in range(4):
        await answer_all(rig)
    assert all(call.ends for call in [*flood[:2], *quiet])


async def test_an_item_of_a_client_batch_is_displaced_alone(make_rig):
    rig = await make_rig(spec(prefetch=0), max_in_flight=4).start()
    batch = await rig.call(*[b"%d" % n for n in range(2)], lane=Lane.BULK, urgency=5)
    single = [await rig.call(urgency=5) for _ in range(2)]
    urgent = await rig.call(b"urgent", urgency=1)
    assert single[1].done
    urgent2, urgent3 = await rig.call(urgency=1), await rig.call(urgency=1)
    for _ in range(6):
        await answer_all(rig)
    assert batch.ends[0] == b"0"
    assert batch.ends[1] is Overloaded
    assert urgent.ends == [b"urgent"]
    assert urgent2.done
    assert urgent3.done


async def test_when_all_in_hand_is_at_workers_the_newcomer_is_refused(make_rig):
    rig = await make_rig(spec(workers=2, prefetch=0), max_in_flight=2).start()
    for _ in range(2):
        await rig.call(tenant="flood", urgency=7)
    assert refused(rig, Overloaded, tenant="quiet", urgency=0).reason == "queue_full"
    await answer_all(rig)
    await answer_all(rig, 1)


async def test_the_bound_of_bytes_is_not_moved(make_rig):
    rig = await make_rig(spec(prefetch=0), max_in_flight=2, max_queued_bytes=10).start()
    flood = [await rig.call(b"1234", tenant="flood") for _ in range(2)]
    with pytest.raises(Overloaded) as caught:
        rig.submit(b"123", tenant="quiet", urgency=0)
    assert caught.value.reason == "memory_budget"
    for _ in range(3):
        await answer_all(rig)
    assert all(call.done for call in flood)


async def test_one_who_waits_for_bytes_keeps_out_its_own_rank_and_worse_for_that_reason(make_rig):
    rig = await make_rig(spec(prefetch=0), max_in_flight=100, max_queued_bytes=100).start()
    for _ in range(3):
        await rig.call(b"f" * 20, tenant="flood")
    waits = await rig.call(b"w" * 60, wait=True, tenant="flood", urgency=5)
    assert rig.engine.refusal(nbytes=5, tenant="gold", urgency=0) is None
    first = await rig.call(b"12345", tenant="gold", urgency=4)
    assert refused(rig, Overloaded, urgency=5).reason == "memory_budget"
    assert refused(rig, Overloaded, urgency=7).reason == "memory_budget"
    for _ in range(6):
        await answer_all(rig)
    assert (first.ends, waits.ends) == ([b"12345"], [b"w" * 60])


async def test_a_caller_that_submits_when_it_is_displaced_does_not_get_the_place(make_rig):
    rig = await make_rig(spec(prefetch=0), max_in_flight=2).start()
    await rig.call(tenant="flood")
    again = []

    def told(outcomes):
        try:
            rig.submit(tenant="flood")
        except Overloaded as error:
            again.append(error.reason)

    rig.engine.submit((b"2",), 1, 1, math.inf, told, tenant="flood")
    quiet = await rig.call(b"q", tenant="quiet")
    assert again == ["queue_full"]
    for _ in range(3):
        await answer_all(rig)
    assert quiet.ends == [b"q"]


async def test_a_newcomer_displaces_in_the_turn_of_the_loop_in_which_items_end_too(make_rig):
    rig = await make_rig(spec(prefetch=0, batch=Batch(max_size=2)), max_in_flight=4).start()
    flood = [await rig.call(b"f", tenant="flood", wait=True) for _ in range(10)]
    rig.workers[0].answer()  # those who wait are fed at the end of this turn
    assert rig.engine.refusal(tenant="quiet") is None
    quiet, urgent = rig.submit(b"q", tenant="quiet"), rig.submit(b"u", tenant="urgent", urgency=0)
    assert rig.engine.queued == 4
    assert rig.engine.counters.preempted == 2
    for _ in range(6):
        await rest()
        await answer_all(rig)
    assert (quiet.ends, urgent.ends) == ([b"q"], [b"u"])
    assert [call.ends for call in flood].count([Overloaded]) == 2


async def test_who_waits_of_a_tenant_goes_before_its_newcomer_in_the_turn_in_which_room_comes(make):
    rig = await make("[tenants.gold]\nmax_queued = 1", spec(prefetch=0))
    first = await rig.call(b"1", tenant="gold")
    waiting = rig.submit(b"2", tenant="gold", wait=True)
    await rest()
    rig.workers[0].answer()  # whoever waits is fed at the end of this turn
    assert isinstance(rig.engine.refusal(tenant="gold"), QuotaExceeded)
    assert rig.engine.queued == 1
    await rest()
    await answer_all(rig)
    assert (first.ends, waiting.ends) == ([b"1"], [b"2"])


async def test_where_those_who_wait_leave_room_a_newcomer_has_it_at_once(make_rig):
    rig = await make_rig(spec(prefetch=0, batch=Batch(max_size=4)), max_in_flight=4).start()
    calls = [rig.submit(wait=True) for _ in range(5)]
    await rest()
    rig.workers[0].answer()
    assert rig.engine.refusal() is None
    calls.append(rig.submit())
    assert rig.engine.queued == 2
    for _ in range(4):
        await rest()
        await answer_all(rig)
    assert all(call.ends == [b"1"] for call in calls)


async def test_nobody_is_told_before_its_own_submission_has_returned(make_rig, caplog):
    rig = await make_rig(spec(prefetch=0), max_in_flight=2).start()
    await rig.call(urgency=5)
    told = []

    def again(outcomes):
        rig.submit(b"urgent", urgency=0)
        raise ValueError("a caller's own mistake")

    rig.engine.submit((b"2",), 1, 1, math.inf, again, urgency=5)
    rig.engine.submit((b"3",), 1, 1, math.inf, told.append, urgency=4)
    assert told == []
    await rest()
    assert [outcomes[0].error.reason for outcomes in told] == ["preempted"]
    assert "error in a caller's callback" in caplog.text
    for _ in range(3):
        await answer_all(rig)


async def test_at_the_bound_of_the_first_stage_a_newcomer_displaces_too(make_rig):
    rig = await make_rig(spec(prefetch=0, max_queued=2)).start()
    flood = [await rig.call(urgency=5) for _ in range(3)]
    assert refused(rig, Overloaded, urgency=5).reason == "queue_full"
    await rig.call(urgency=4)
    assert flood[2].done
    for _ in range(4):
        await answer_all(rig)


# -- what is counted --------------------------------------------------------------------------------------------------


async def test_what_is_counted_of_each_tenant(make_rig):
    rig = await make_rig(spec(prefetch=0), max_in_flight=2).start()
    assert rig.engine.tenant_rows() == []
    await rig.call(tenant="a")
    await rig.call(tenant="b")
    refused(rig, Overloaded, tenant="b")
    rig.engine.note_refused("a")
    await rig.clock.advance(2.0)
    await answer_all(rig)
    await answer_all(rig)
    rows = {name: (n.accepted, n.refused, n.waited) for name, n in rig.engine.tenant_rows()}
    assert rows == {"": (0, 0, 0.0), "a": (1, 1, 0.0), "b": (1, 1, 2.0), "other": (0, 0, 0.0)}
