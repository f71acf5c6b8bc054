"""Probes, as `/health?deep=1` sends them: they take a place like any item, and cost no tenant anything else."""

from __future__ import annotations

import math
import pickle

import pytest

from penstock.codec.formats import Codec
from penstock.errors import DeadlineExceeded, InvalidItem, NotReady, Overloaded
from penstock.runtime.spec import stage
from penstock.testing.virtual_clock import rest

EXAMPLE = 4.0
PROBE = pickle.dumps(EXAMPLE, protocol=5)


@pytest.fixture
def make(make_rig, tmp_path):
    """Makes a started rig of one worker that prefetches nothing; `tenants` is the text of a file of tenants."""

    async def start(*, tenants="", limits=None, **options):
        path = tmp_path / "tenants.toml"
        path.write_text(tenants)
        spec = stage(math.sqrt, prefetch=0, **(limits or {}))
        return await make_rig(spec, tenants_file=str(path), **options).start()

    return start


async def probe(rig, within=5.0, codec_out=None):
    """What the probe is told, in a list that is empty until then."""
    told = []
    rig.engine.submit_probe(EXAMPLE, rig.clock.now() + within, told.append, codec_out)
    await rest()
    return told


def refused(rig, kind=Overloaded):
    with pytest.raises(kind) as caught:
        rig.engine.submit_probe(EXAMPLE, math.inf, list)
    return caught.value


async def answer_all(rig):
    while rig.workers[0].frames:
        rig.workers[0].answer()
        await rest()


async def test_a_probe_goes_through_before_all_who_are_less_urgent(make):
    rig = await make()
    rig.submit(b"runs")
    await rest()
    rig.submit(b"waits", urgency=0)
    rig.submit(b"waits too")
    told = await probe(rig)
    assert rig.engine.queued == 4
    ran = []
    while rig.workers[0].frames:
        ran += rig.workers[0].batches[0]
        rig.workers[0].answer()
        await rest()
    assert set(ran[:3]) == {b"runs", b"waits", PROBE}
    ((outcome,),) = told
    assert bytes(outcome.payload) == PROBE


async def test_it_is_sent_as_pickled_and_wants_its_result_so(make):
    rig = await make()
    told = await probe(rig)
    (frame,) = rig.engine.stages[0].workers[0].frames
    request = frame.items[0].request
    assert (request.codec_in, request.codec_out, request.urgency) == (Codec.PICKLE, Codec.PICKLE, 0)
    await answer_all(rig)
    assert len(told) == 1


async def test_its_result_is_asked_for_as_by_a_caller_in_process_or_in_the_format_that_is_named(make):
    rig = await make()
    for codec_out, asked in ((None, Codec.PICKLE), (Codec.MSGPACK, Codec.MSGPACK)):
        await probe(rig, codec_out=codec_out)
        assert [frame.codecs_out for frame in rig.workers[0].frames] == [(asked,)]
        await answer_all(rig)


async def test_an_example_that_cannot_be_written_is_refused_before_anything_is_counted(make):
    rig = await make()
    with pytest.raises(InvalidItem, match="cannot be pickled"):
        rig.engine.submit_probe(lambda: None, math.inf, list)
    assert (rig.engine.queued, rig.engine.counters.accepted) == (0, 0)


async def test_it_needs_no_token_and_takes_none(make):
    rig = await make(tenants='[tenants."*"]\nrate = 0.2\nmax_queued = 1\nurgency = 5')
    told = [await probe(rig) for _ in range(3)]
    call = rig.submit(b"client")
    await answer_all(rig)
    assert call.ends == [b"client"]
    assert [len(each) for each in told] == [1, 1, 1]
    assert rig.engine.counters.rejected == 0
    assert rig.engine._tenants.anyone.accepted == 1


@pytest.mark.parametrize("limits", [{}, {"max_queued": 3}], ids=["service", "stage"])
async def test_a_full_service_refuses_it_and_it_displaces_nobody_and_takes_no_slot(make, limits):
    rig = await make(max_in_flight=4, limits=limits)
    await rig.call(b"runs")
    rig.engine.stages[0].queue.runs.add(1.0, 1)
    calls = [rig.submit(b"%d" % n, tenant="gold", urgency=7) for n in range(3)]
    await rest()
    first = rig.engine.refusal(urgency=7, tenant="gold")
    assert {refused(rig).reason for _ in range(9)} == {"queue_full"}
    second = rig.engine.refusal(urgency=7, tenant="gold")
    assert second.retry_after_ms - first.retry_after_ms == 1000
    assert rig.engine.counters.rejected_queue_full == 9
    await answer_all(rig)
    assert [call.ends for call in calls] == [[b"0"], [b"1"], [b"2"]]


async def test_it_is_never_displaced_however_small_the_shares_are(make):
    rig = await make(max_in_flight=2, tenants="[tenants.iron]\nweight = 9")
    await rig.call(b"runs", tenant="gold")
    told = await probe(rig)
    with pytest.raises(Overloaded):
        rig.submit(tenant="iron", urgency=0)
    assert told == []
    await answer_all(rig)
    assert len(told) == 1


async def test_it_is_not_refused_by_prediction(make):
    rig = await make(admission="deadline")
    await rig.call(b"runs")
    await rig.clock.advance(4.0)
    rig.engine.stages[0].queue.runs.add(100.0, 1)
    rig.submit(b"waits", within=1e6)
    await rest()
    assert rig.engine.refusal(0, rig.clock.now() + 5.0).reason == "deadline"
    told = await probe(rig)
    await rig.clock.advance(5.1)
    ((outcome,),) = told
    assert isinstance(outcome.error, DeadlineExceeded)
    await answer_all(rig)


async def test_one_that_expires_takes_no_slot(make):
    rig = await make(max_in_flight=2)
    await rig.call(b"runs")
    rig.engine.stages[0].queue.runs.add(1.0, 1)
    told = await probe(rig)
    first = rig.engine.refusal()
    await rig.clock.advance(5.0)
    ((outcome,),) = told
    assert outcome.error.retry_after_ms == 1000
    rig.submit(b"waits")
    second = rig.engine.refusal()
    assert second.retry_after_ms == first.retry_after_ms == 1000, "the first slot has passed, and nobody took one"
    await answer_all(rig)


async def test_it_is_told_of_bytes_memory_and_a_service_that_does_not_serve(make):
    rig = await make(max_queued_bytes=100)
    await rig.call(b"x" * 90)
    assert refused(rig).reason == "memory_budget"
    rig.engine._flow.set_memory_short(True)
    assert refused(rig).reason == "memory_pressure"
    rig.engine._flow.set_memory_short(False)
    await answer_all(rig)
    await rig.stop()
    refused(rig, NotReady)
    assert (rig.engine.counters.rejected_memory_budget, rig.engine.counters.rejected_memory_pressure) == (1, 1)
