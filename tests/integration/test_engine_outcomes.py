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


async def test_an_invalid_item_raised_anywhere_is_the_callers_fault():
    async with ps.Service(stages.ActBatch, stages.Chain) as service:
        with pytest.raises(ps.InvalidItem, match="too long"):
            await service.predict(("raise a", "invalid", "too long"))
        with pytest.raises(ps.InvalidItem, match=r"a question is no number at `\$\.text`"):
            await service.predict("?")
        assert service.engine.counters.invalid == 2
        assert service.engine.counters.failed == 0


async def test_an_exception_returned_in_an_items_place_fails_that_item():
    async with ps.Service(stages.ActBatch) as service:
        answers = await service.predict_many([1, ("return a", "not you"), 3], return_exceptions=True)
        assert (answers[0], answers[2]) == (1, 3)
        assert answers[1].is_a(ValueError)
        assert service.engine.stages[0].counters.bisected == 0


async def test_preprocess_and_postprocess_run_around_each_item():
    async with ps.Service(stages.Chain) as service:
        answers = await service.predict_many(["10", "?", "0", "x", "1000", "7"], return_exceptions=True)
    assert (answers[0], answers[5]) == ("1000/10=100", "1000/7=142")
    assert isinstance(answers[1], ps.InvalidItem)
    assert answers[2].is_a(ZeroDivisionError)
    assert answers[3].is_a(ValueError)
    assert answers[4].is_a(RuntimeError)


async def test_a_failed_item_skips_the_stages_that_are_left(tmp_path):
    async with ps.Service(stages.ActBatch, ps.stage(stages.Noting, setup={"folder": str(tmp_path)})) as service:
        await service.predict_many([1, ("raise",), ("raise a", "invalid", "no"), 4], return_exceptions=True)
    assert notes(tmp_path / "ran") == [1, 4]


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


async def test_a_wholly_broken_model_does_not_cost_a_call_per_item(tmp_path):
    async with ps.Service(ps.stage(stages.Poisonable, setup={"folder": str(tmp_path)})) as service:
        answers = await service.predict_many(["all bad"] * 32, return_exceptions=True)
    assert all(answer.is_a(RuntimeError) for answer in answers)
    assert len(notes(tmp_path / "calls")) == call_limit(32) == 24


async def test_bisection_can_be_turned_off(tmp_path):
    spec = ps.stage(stages.Poisonable, bisect=False, setup={"folder": str(tmp_path)})
    async with ps.Service(spec) as service:
        answers = await service.predict_many([1, "bad", 3], return_exceptions=True)
    assert all(isinstance(answer, ps.StageFailed) for answer in answers)
    assert notes(tmp_path / "calls") == [[1, "bad", 3]]


async def test_results_of_the_wrong_number_are_an_error_with_both_lengths_and_no_bisection():
    async with ps.Service(stages.WrongLength) as service:
        answers = await service.predict_many([1, 2, 3], return_exceptions=True)
        for answer in answers:
            assert answer.message == "stage 'WrongLength': predict returned 2 results for 3 items"
        assert service.engine.stages[0].counters.bisected == 0


async def test_a_batch_of_results_may_be_a_tuple_or_an_array_and_not_nothing():
    async with ps.Service(stages.Returns) as service:
        assert await service.predict_many(["tuple", 2]) == ["tuple", 2]
        rows = await service.predict_many(["array", 2, 3])
        assert [list(row) for row in rows] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(ps.StageFailed, match="must return a list of 1 results, got NoneType"):
            await service.predict("nothing")


async def test_items_are_validated_when_asked_and_only_then():
    async with ps.Service(stages.Double) as service:
        assert await service.predict("no int") == "no intno int"
    async with ps.Service(stages.Double, validate=True) as service:
        assert await service.predict(3) == 6
        with pytest.raises(ps.InvalidItem, match="int"):
            await service.predict("no int")


async def test_a_result_of_another_type_fails_that_item_alone_when_asked():
    async with ps.Service(stages.Typed) as service:
        assert await service.predict_many([1, -1]) == [1, "negative"]
    async with ps.Service(stages.Typed, validate_results=True) as service:
        answers = await service.predict_many([1, -1, 2], return_exceptions=True)
        assert (answers[0], answers[2]) == (1, 2)
        assert isinstance(answers[1], ps.StageFailed)
        assert "int" in answers[1].message


async def test_only_the_first_stage_validates_items_and_only_the_last_its_results():
    async with ps.Service(stages.Typed, stages.Echo, validate=True, validate_results=True) as service:
        assert await service.predict(-1) == "negative"


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


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.filterwarnings("ignore:.*inline")
async def test_a_batch_that_is_bisected_answers_as_if_each_item_had_been_alone(inline):
    async with ps.Service(ps.stage(rough_stages.ChangesAndReuses), inline=inline) as service:
        answers = await service.predict_many([[i] for i in range(8)], return_exceptions=True)
    assert answers[5].is_a(ValueError)
    assert [set(y) for i, y in enumerate(answers) if i != 5] == [{i + 1.0} for i in range(8) if i != 5]


@pytest.mark.parametrize("kind", ["CancelledError", "KeyboardInterrupt", "GeneratorExit"])
async def test_what_is_no_exception_fails_its_item_and_not_its_worker(kind):
    async with ps.Service(rough_stages.RaisesAny) as service:
        pid = service.engine.stages[0].workers[0].pid
        answers = await service.predict_many([kind, "fine"], return_exceptions=True)
        assert answers[0].type_name.endswith(kind)
        assert answers[1] == "fine"
        assert service.engine.stages[0].workers[0].pid == pid
        assert service.engine.stages[0].workers[0].restarts == 0


async def test_an_item_that_a_worker_cannot_unpickle_is_no_callers_fault():
    async with ps.Service(stages.Echo) as service:
        with pytest.raises(ps.StageFailed, match="cannot be unpickled: ValueError"):
            await service.predict(rough_stages.LoadsNowhere())


async def test_an_item_larger_than_all_bytes_passes_alone():
    async with ps.Service(stages.Echo, stages.Double, max_queued_bytes=1000) as service:
        answers = await asyncio.gather(*(service.predict(b"x" * 5000) for _ in range(5)))
        assert answers == [b"x" * 10_000] * 5
        assert service.engine.held_bytes == 0


async def test_every_ending_is_counted_once_and_they_add_up(tmp_path):
    async with ps.Service(stages.ActBatch, max_queued=64) as service:
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
