"""What a call in process asks of the engine, and what it makes of the outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import pickle
import weakref
from decimal import Decimal
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from penstock.calls import Terms
from penstock.codec import pickle_
from penstock.codec.formats import Codec
from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.errors import Cancelled, ConfigError, InvalidItem, NotReady, Overloaded, StageFailed
from penstock.runtime.caller_formats import CallerFormats, pack_item

NOON = 1000.0


async def settled() -> None:
    """Let every task go on as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def drain(stream, answers: list) -> None:
    async for answer in stream:
        answers.append(answer)


class Stranger:
    """Can be pickled, and not be unpickled."""

    def __reduce__(self):
        return (divmod, (1, 0))


def unpicklable():
    return lambda: None


def test_a_packed_item_shares_no_memory_with_what_was_given():
    array = np.zeros(1000)
    packed = pack_item(array)
    array[:] = 1
    assert not pickle_.loads(packed).any()


def test_an_item_that_cannot_be_pickled_is_invalid_with_its_cause():
    packed = pack_item(unpicklable())
    assert isinstance(packed, InvalidItem)
    assert "`function` cannot be pickled" in packed.reason
    assert isinstance(packed.__cause__, (AttributeError, pickle.PicklingError))


async def test_one_item_is_submitted_alone_and_its_result_comes_back(engine, make_calls):
    engine.answer = lambda item: item * 2
    assert await make_calls(engine).answer(21, Terms(), wait=True) == 42
    (submission,) = engine.submissions
    assert (submission.items, submission.lane, submission.wait) == ([21], Lane.SINGLE, True)


OUTSIDE = CallerFormats(Codec.JSON, Codec.MSGPACK, "last", item=float, result=float)


async def test_items_for_workers_from_outside_are_written_in_a_format_that_they_read(engine, make_calls):
    engine.answer = lambda item: msgspec.msgpack.encode(float(item) * 2)
    calls = make_calls(engine, formats=OUTSIDE)
    assert await calls.answer(21, Terms(), wait=True) == 42.0
    assert await calls.answer_many([1, 2], Terms(), wait=True, return_exceptions=False) == [2.0, 4.0]
    streamed = []
    await drain(calls.stream([3, 4], Terms(), return_exceptions=False), streamed)
    assert streamed == [6.0, 8.0]
    assert {submission.codecs for submission in engine.submissions} == {(Codec.JSON, Codec.MSGPACK)}
    assert [item for submission in engine.submissions for item in submission.items] == [b"21", b"1", b"2", b"3", b"4"]


async def test_an_item_that_cannot_be_written_for_them_is_invalid_and_its_mates_are_answered(engine, make_calls):
    engine.answer = lambda _: b"\x01"
    calls = make_calls(engine, formats=OUTSIDE)
    good, bad = await calls.answer_many([1, {1j}], Terms(), wait=True, return_exceptions=True)
    assert good == 1.0
    assert isinstance(bad, InvalidItem)
    with pytest.raises(InvalidItem, match="the input has NaN"):
        await calls.answer(math.nan, Terms(), wait=True)


async def test_a_result_of_theirs_that_cannot_be_read_is_the_stages_failure(engine, make_calls):
    engine.answer = lambda _: msgspec.msgpack.encode("x")
    with pytest.raises(StageFailed, match="the result cannot be read from MSGPACK: expected `float`, got `str`"):
        await make_calls(engine, formats=OUTSIDE).answer(1, Terms(), wait=True)


async def test_one_item_that_need_not_wait_is_submitted_so(engine, make_calls):
    engine.answer = lambda item: item
    await make_calls(engine).answer(1, Terms(), wait=False)
    assert not engine.submissions[0].wait


async def test_the_failure_of_one_item_is_raised(engine, make_calls):
    engine.answer = lambda _: Overloaded("later")
    with pytest.raises(Overloaded, match="later"):
        await make_calls(engine).answer(1, Terms(), wait=True)


async def test_many_items_are_one_request_whose_answers_come_in_order(engine, make_calls):
    engine.answer = lambda item: Overloaded() if item == 2 else item
    packed = [pack_item(x) for x in (1, unpicklable(), 2, 3)]
    first, second, third, fourth = await make_calls(engine).answers(packed, Terms(), wait=True, lane=Lane.BULK)
    assert (first, fourth) == (1, 3)
    assert isinstance(second, InvalidItem)
    assert isinstance(third, Overloaded)
    (submission,) = engine.submissions
    assert (submission.items, submission.lane) == ([1, 2, 3], Lane.BULK)


@pytest.mark.parametrize(
    ("asked", "limit", "deadline"),
    [(None, 60.0, 1060.0), (5.0, 60.0, 1005.0), (90.0, 60.0, 1060.0), (None, math.inf, math.inf), (0.0, 60.0, NOON)],
)
async def test_the_deadline_is_the_services_or_the_callers_if_that_is_sooner(
    asked, limit, deadline, engine, make_calls
):
    engine.answer = lambda item: item
    await make_calls(engine, timeout=limit).answer(1, Terms(asked), wait=True)
    assert engine.submissions[0].deadline == deadline


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        (math.nan, "nan"),
        (Decimal("nan"), "nan"),
        (Decimal("snan"), "Decimal('sNaN')"),
        ("x", "'x'"),
        ("5", "'5'"),
        ([5], "[5]"),
        (1j, "1j"),
        (10**400, "an integer too large for a float"),
        (-(10**5000), "an integer too large for a float"),
    ],
    ids=["nan", "nan of decimal", "snan", "a word", "a digit", "a list", "complex", "10**400", "-(10**5000)"],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda calls, timeout: calls.answer(1, Terms(timeout), wait=True),
        lambda calls, timeout: calls.answers([pack_item(1)] * 2, Terms(timeout), wait=True, lane=Lane.BULK),
        lambda calls, timeout: drain(calls.stream([1, 2], Terms(timeout), return_exceptions=True), []),
    ],
    ids=["one item", "many items", "a stream"],
)
async def test_a_timeout_that_is_no_number_is_refused_before_anything_is_submitted(
    asked, got, call, engine, make_calls
):
    with pytest.raises(ConfigError) as refused:
        await call(make_calls(engine), asked)
    assert str(refused.value) == f"timeout must be a number of seconds, got {got}"
    assert engine.submissions == []


@pytest.mark.parametrize("asked", [5, np.float32(5), np.int64(5), Decimal(5), Fraction(5)], ids=repr)
async def test_a_timeout_may_be_a_number_of_any_kind(asked, engine, make_calls):
    engine.answer = lambda item: item
    await make_calls(engine).answer(1, Terms(asked), wait=True)
    assert engine.submissions[0].deadline == NOON + 5.0
    assert isinstance(engine.submissions[0].deadline, float)


async def test_the_text_on_a_wrong_timeout_is_cut(engine, make_calls):
    with pytest.raises(ConfigError) as refused:
        await make_calls(engine).answer(1, Terms("x" * 10**6), wait=True)
    assert len(str(refused.value)) < 10_000


async def test_a_service_that_was_never_started_takes_no_calls(engine, make_calls):
    calls = make_calls(None)
    with pytest.raises(NotReady, match="service 'here' was never started"):
        await calls.answer(1, Terms(), wait=True)
    with pytest.raises(NotReady, match="service 'here' was never started"):
        await drain(calls.stream([1], Terms(), return_exceptions=True), [])


async def test_calls_that_were_disconnected_are_as_if_never_started(engine, make_calls):
    calls = make_calls(engine)
    calls.disconnect()
    with pytest.raises(NotReady, match="never started"):
        await calls.answer(1, Terms(), wait=True)
    assert engine.submissions == []


async def test_a_call_on_another_loop_than_the_engines_is_refused(engine, make_calls):
    other, engine.state = asyncio.new_event_loop(), State.READY
    with pytest.raises(ConfigError, match=r"service 'here' runs on another event loop.*blocking\(\)"):
        await make_calls(engine, other).answer(1, Terms(), wait=True)
    other.close()
    assert engine.submissions == []


async def test_a_call_of_a_service_whose_loop_is_closed_is_told_so(engine, make_calls):
    other, engine.state = asyncio.new_event_loop(), State.READY
    other.close()
    with pytest.raises(ConfigError) as refused:
        await make_calls(engine, other).answer(1, Terms(), wait=True)
    assert str(refused.value) == (
        "service 'here' was started on an event loop that is closed; call stop() and start it on the running loop"
    )
    assert engine.submissions == []


@pytest.mark.parametrize("closed", [True, False])
async def test_a_call_of_a_service_that_has_stopped_is_not_ready_on_every_loop(engine, make_calls, closed):
    other = asyncio.new_event_loop()
    assert engine.state is State.STOPPED
    if closed:
        other.close()
    with pytest.raises(NotReady, match="service 'here' has stopped"):
        await make_calls(engine, other).answer(1, Terms(), wait=True)
    other.close()


async def test_a_caller_that_is_cancelled_takes_its_items_back(engine, make_calls):
    call = asyncio.create_task(make_calls(engine).answer(1, Terms(), wait=True))
    await settled()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert engine.cancelled == engine.submissions


async def test_a_result_that_cannot_be_unpickled_is_a_failure_of_the_last_stage(engine, make_calls):
    engine.answer = lambda _: pickle.dumps(Stranger(), protocol=5)
    with pytest.raises(StageFailed, match=r"the result cannot be unpickled here: .*zero") as caught:
        await make_calls(engine).answer(1, Terms(), wait=True)
    assert caught.value.stage == "last"
    assert caught.value.is_a(ZeroDivisionError)


class Lazy:
    @property
    def __class__(self):
        raise ConnectionError("it cannot be loaded")

    def __reduce__(self):
        return Lazy, ()


async def test_a_result_whose_class_cannot_be_asked_for_is_a_result(engine, make_calls):
    engine.answer = lambda _: pickle.dumps(Lazy(), protocol=5)
    assert type(await make_calls(engine).answer(1, Terms(), wait=True)) is Lazy
    answers: list = []
    await drain(make_calls(engine).stream([1, 2], Terms(), return_exceptions=False), answers)
    assert [type(answer) for answer in answers] == [Lazy, Lazy]


# -- streams ----------------------------------------------------------------------------------------------------------


async def test_a_stream_reads_its_source_no_further_than_its_share(engine, make_calls):
    read = []

    def source():
        for i in range(10):
            read.append(i)
            yield i

    answers: list = []
    reader = asyncio.create_task(
        drain(make_calls(engine, max_in_flight=6).stream(source(), Terms(5.0), return_exceptions=False), answers)
    )
    await settled()
    assert read == [0, 1, 2]
    assert {(s.deadline, s.lane, s.wait) for s in engine.submissions} == {(NOON + 5, Lane.BULK, True)}
    for i in range(10):
        engine.submissions[i].settle(i * 10)
        await settled()
        assert len(read) == min(10, i + 4)
    await reader
    assert answers == [i * 10 for i in range(10)]


async def test_answers_of_a_stream_wait_for_those_before_them(engine, make_calls):
    answers: list = []
    reader = asyncio.create_task(drain(make_calls(engine).stream([1, 2], Terms(), return_exceptions=False), answers))
    await settled()
    engine.submissions[1].settle("second")
    await settled()
    assert answers == []
    engine.submissions[0].settle("first")
    await reader
    assert answers == ["first", "second"]


async def test_a_failure_in_a_stream_is_raised_in_its_place_or_stands_there(engine, make_calls):
    engine.answer = lambda item: Overloaded() if item == 2 else item
    answers: list = []
    with pytest.raises(Overloaded):
        await drain(make_calls(engine).stream([1, 2, 3], Terms(), return_exceptions=False), answers)
    assert answers == [1]
    answers.clear()
    await drain(make_calls(engine).stream([1, 2, unpicklable(), 3], Terms(), return_exceptions=True), answers)
    assert (answers[0], answers[3]) == (1, 3)
    assert [type(answer) for answer in answers[1:3]] == [Overloaded, InvalidItem]


async def test_a_source_that_fails_is_seen_after_the_answers_before_it(engine, make_calls):
    async def source():
        yield 1
        raise LookupError("no more")

    engine.answer = lambda item: item
    answers: list = []
    with pytest.raises(LookupError, match="no more"):
        await drain(make_calls(engine).stream(source(), Terms(), return_exceptions=True), answers)
    assert answers == [1]


async def test_leaving_a_stream_takes_back_what_has_no_answer_and_reads_no_further(engine, make_calls):
    source = iter(range(100))
    stream = make_calls(engine, max_in_flight=6).stream(source, Terms(), return_exceptions=False)
    first = asyncio.create_task(anext(stream))
    await settled()
    engine.submissions[0].settle("first")
    assert await first == "first"
    await settled()
    await stream.aclose()
    assert engine.cancelled == engine.submissions[1:]
    assert next(source) == 4


async def test_cancelling_the_reader_of_a_stream_takes_back_what_has_no_answer(engine, make_calls):
    reader = asyncio.create_task(drain(make_calls(engine).stream([1, 2], Terms(), return_exceptions=True), []))
    await settled()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert engine.cancelled == engine.submissions
    assert len(engine.submissions) == 2


async def test_a_stream_that_was_left_says_nothing_of_its_failed_source(engine, make_calls):
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def source():
        yield 1
        raise LookupError

    engine.answer = lambda item: Cancelled()
    with pytest.raises(Cancelled):
        await drain(make_calls(engine).stream(source(), Terms(), return_exceptions=False), [])
    await settled()
    assert told == []


# -- urgency ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("urgency", [0, 3, 7])
async def test_the_engine_is_told_the_urgency_of_every_call(engine, make_calls, urgency):
    engine.answer = lambda item: item
    calls, terms = make_calls(engine), Terms(urgency=urgency)
    await calls.answer(1, terms, wait=True)
    await calls.answers([pack_item(1)], terms, wait=True, lane=Lane.BULK)
    await drain(calls.stream([1], terms, return_exceptions=False), [])
    assert [submission.urgency for submission in engine.submissions] == [urgency] * 3


@pytest.mark.parametrize("urgency", [-1, 8, 3.0, True, "3", None, np.int64(3), math.nan])
async def test_an_urgency_that_is_no_int_from_0_to_7_is_a_config_error(engine, make_calls, urgency):
    with pytest.raises(
        ConfigError, match=r"urgency must be a whole number from 0 \(most urgent\) to 7 \(least urgent\), got"
    ):
        await make_calls(engine).answer(1, Terms(urgency=urgency), wait=True)
    with pytest.raises(ConfigError, match="urgency"):
        await drain(make_calls(engine).stream([1], Terms(urgency=urgency), return_exceptions=False), [])
    assert engine.submissions == []


class Large:
    """An item; a weak reference tells when it is gone."""


@pytest.mark.parametrize(
    "ask",
    [
        lambda calls, item: calls.answer(item, Terms(), wait=True),
        lambda calls, item: calls.answer_many([item], Terms(), wait=True, return_exceptions=False),
        lambda calls, item: drain(calls.stream([item], Terms(), return_exceptions=False), []),
    ],
    ids=["answer", "answer_many", "stream"],
)
async def test_a_call_that_fails_leaves_nothing_to_the_cycle_collector(engine, make_calls, ask):
    engine.answer = lambda _: InvalidItem("no")
    calls, item = make_calls(engine), Large()
    gone = weakref.ref(item)
    gc.disable()
    try:
        with contextlib.suppress(InvalidItem):
            await ask(calls, item)
        engine.submissions.clear()
        del item
        await settled()
        assert gone() is None
    finally:
        gc.enable()
