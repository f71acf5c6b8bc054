"""What becomes of an item: failures are its own, travel as text, and skip the stages that are left."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import rough_stages
import stages
from notes_and_gates import notes
from waiting import until

import penstock as ps
from penstock.worker.bisect import call_limit


async def test_an_exception_travels_as_text_and_answers_what_it_is():
    async with ps.Service(ps.stage(stages.Act, name="act")) as service:
        with pytest.raises(ps.StageFailed) as caught:
            await service.predict(("raise a", "key", "missing"))
    failure = caught.value
    assert (failure.stage, failure.type_name, failure.message) == ("act", "builtins.KeyError", "'missing'")
    assert failure.is_a(KeyError)
    assert failure.is_a(LookupError)
    assert not failure.is_a(ValueError)
    assert 'stages.py", line' in failure.traceback
    assert "in fail_with" in failure.traceback
    assert "penstock/worker" not in failure.traceback
    assert "KeyError: 'missing'" in str(failure)


@pytest.mark.parametrize("target", [stages.Act, stages.ActBatch])
async def test_whatever_a_stage_raises_fails_its_item_and_not_its_worker(target):
    async with ps.Service(target) as service:
        pid = (await service.predict(("facts",)))["pid"]
        for item, kind in (
            (("raise a", "exit", "bye"), SystemExit),
            (("raise a", "nested"), LookupError),
            (("lambda",), None),
            (("raise", "surrogate \udc80"), ValueError),
        ):
            with pytest.raises(ps.StageFailed) as caught:
                await service.predict(item)
            assert kind is None or caught.value.is_a(kind)
        assert (await service.predict(("facts",)))["pid"] == pid


async def test_one_bad_item_among_thirty_two_fails_alone(tmp_path):
    async with ps.Service(ps.stage(stages.Poisonable, setup={"folder": str(tmp_path)})) as service:
        items = [*range(20), "bad", *range(21, 32)]
        answers = await service.predict_many(items, return_exceptions=True)
        assert isinstance(answers[20], ps.StageFailed)
        assert answers[20].is_a(ValueError)
        assert "Poisonable" in answers[20].stage
        assert [a for i, a in enumerate(answers) if i != 20] == [f"ok {i}" for i in range(32) if i != 20]
        assert service.engine.stages[0].counters.bisected == 1
        calls = notes(tmp_path / "calls")
        assert len(calls) <= call_limit(32)
        assert len(calls[0]) == 32


@pytest.mark.parametrize("shape", [(3,), (200, 300), (50_000_000 // 8,)])
async def test_arrays_travel_between_stages_without_a_copy_of_their_bytes_and_results_are_writable(shape):
    array = np.zeros(shape)
    target = stages.Arrays if array.nbytes > 1024 else stages.AddOne
    first, second = ps.stage(target, name="first"), ps.stage(target, name="second")
    async with ps.Service(first, second) as service:
        answer = await service.predict(array)
        assert answer.shape == shape
        assert answer.flags.writeable
        assert (answer == 2).all()
        assert (array == 0).all()
        assert service.engine.held_bytes == 0


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.filterwarnings("ignore:.*inline")
async def test_a_stage_cannot_write_into_an_array_it_was_sent_and_numpy_says_so(inline):
    async with ps.Service(ps.stage(rough_stages.AddsInPlace), inline=inline) as service:
        answers = await service.predict_many([np.zeros(5000)] * 3, return_exceptions=True)
        assert [answer.is_a(ValueError) for answer in answers] == [True] * 3
        assert "read-only" in answers[0].message


async def test_every_ending_is_counted_once_and_they_add_up(tmp_path):
    async with ps.Service(stages.ActBatch, max_in_flight=64) as service:
        calls = [
            service.predict(1),
            service.predict(("raise",)),
            service.predict(("raise a", "invalid", "no")),
            service.predict(("sleep", 0.1), timeout=0.02),
            service.predict_many([1, 2, ("raise",)], return_exceptions=True),
        ]
        await asyncio.gather(*calls, return_exceptions=True)
        leaver = asyncio.create_task(service.predict(("hold", str(tmp_path), 1)))
        await until(lambda: notes(tmp_path / "ran"))
        leaver.cancel()
        await asyncio.wait((leaver,))
        (tmp_path / "open").touch()
        c = service.engine.counters
        assert (c.succeeded, c.failed, c.invalid, c.cancelled) == (3, 2, 1, 1)
        assert c.expired == 1
        assert c.accepted == 8
        assert service.engine.queued == 0


async def test_only_the_first_stage_validates_items_and_only_the_last_its_results():
    async with ps.Service(stages.Typed, stages.Double, validate_inputs=True) as service:
        assert await service.predict(-1) == "negativenegative"
        with pytest.raises(ps.InvalidItem, match="int"):
            await service.predict("no int")
    async with ps.Service(stages.Typed, stages.Echo, validate_results=True) as service:
        assert await service.predict(-1) == "negative"
    async with ps.Service(stages.Typed, validate_results=True) as service:
        answers = await service.predict_many([1, -1, 2], return_exceptions=True)
        assert (answers[0], answers[2]) == (1, 2)
        assert isinstance(answers[1], ps.StageFailed)
