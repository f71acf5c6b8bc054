"""The sender: turns, tries and ends of calls, over a wire that answers as a test says and in virtual time."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from penstock.client.flow_limit import End, FlowLimit
from penstock.client.gate import Gate
from penstock.client.interruption import Interruption
from penstock.client.many_calls import gather_bounded
from penstock.client.replies import NoReply, Reply
from penstock.errors import Cancelled, ConfigError, DeadlineExceeded, InvalidItem, NotReady, Overloaded
from penstock.testing.virtual_clock import VirtualClock, rest

JSON = {"content-type": "application/json"}
FULL = Reply(
    503,
    {"content-type": "application/problem+json", "x-should-retry": "true", "retry-after-ms": "1000"},
    b'{"type": "urn:penstock:problem:overloaded", "reason": "queue_full"}',
)


def ok(text=b"5"):
    return Reply(200, JSON, text)


async def test_a_call_is_sent_and_answered(Rig):
    rig = Rig()
    call = rig.begin(request_id="mine")
    await rest()
    (request,) = rig.wire.sent
    assert (request.method, request.url, request.body) == ("POST", "http://a/predict", b"1")
    assert request.headers["x-request-id"] == "mine"
    assert (request.headers["x-attempt"], request.headers["x-request-timeout"]) == ("1", "30.000")
    assert request.headers["content-type"] == "application/json"
    assert rig.sender.stats.in_flight == 1
    rig.wire.answer(ok())
    assert await call == 5
    stats = rig.sender.stats
    assert (stats.requests, stats.attempts, stats.retries, stats.in_flight, stats.retry_budget) == (1, 1, 0, 0, 10)
    assert rig.clock.waiting == [], "no timer is left"


async def test_an_array_asks_for_an_array_and_other_items_leave_the_answer_to_the_server(Rig):
    rig = Rig()
    calls = [rig.begin(np.arange(2)), rig.begin(1), asyncio.ensure_future(rig.client.health())]
    await rest()
    told = [(request.headers.get("content-type"), request.headers.get("accept")) for request in rig.wire.sent]
    assert told == [
        ("application/x-npy", "application/x-npy, */*;q=0.9"),
        ("application/json", None),
        (None, None),
    ]
    for _ in calls:
        rig.wire.answer(ok(b"{}"))
    assert await asyncio.gather(*calls) == [{}, {}, {}]


async def test_a_refused_call_holds_no_place_until_it_is_tried_again(Rig):
    rig = Rig(max_concurrency=1)
    one, two = rig.begin(1), rig.begin(2)
    await rest()
    assert rig.sender.stats.waiting == 1
    rig.wire.answer(FULL)
    await rest()
    assert [request.body for request in rig.wire.sent] == [b"1", b"2"]
    rig.wire.answer(ok(b"20"))
    assert await two == 20
    await rig.clock.advance(0.999)
    assert len(rig.wire.sent) == 2
    await rig.clock.advance(0.001)
    rig.wire.answer(ok(b"10"))
    assert await one == 10
    assert (rig.sender.stats.retries, rig.sender.stats.client_initiated_retries, rig.sender.stats.limit) == (1, 0, 1)


async def test_what_nobody_asked_for_is_counted(Rig):
    rig = Rig()
    call = rig.begin()
    await rest()
    rig.wire.answer(NoReply(sent=False, detail="refused"))
    await rig.clock.advance(0.375)
    rig.wire.answer(ok())
    await call
    assert (rig.sender.stats.client_initiated_retries, rig.sender.stats.retry_budget) == (1, 9)


async def test_a_try_is_given_up_half_a_second_behind_the_deadline_and_its_request_is_ended(Rig):
    rig = Rig(timeout=2.0)
    call = rig.begin()
    await rig.clock.advance(2.499)
    assert not call.done()
    await rig.clock.advance(0.001)
    with pytest.raises(DeadlineExceeded, match=r"the call timed out after 2 s, without a response") as caught:
        await call
    assert (rig.wire.cancelled, caught.value.ran, caught.value.status) == (1, True, None)
    assert caught.value.request_id
    assert rig.sender.stats.in_flight == 0


async def test_the_wait_for_a_turn_ends_at_the_deadline(Rig):
    rig = Rig(max_concurrency=1)
    first, second = rig.begin(), rig.begin(timeout=1.0)
    await rig.clock.advance(1.0)
    with pytest.raises(DeadlineExceeded, match="while it was queued in the client") as caught:
        await second
    assert (caught.value.ran, rig.sender.stats.waiting, len(rig.wire.sent)) == (False, 0, 1)
    rig.wire.answer(ok())
    assert await first == 5


async def test_a_turn_that_comes_at_the_deadline_is_too_late(Rig):
    rig = Rig(max_concurrency=1)
    first, second = rig.begin(), rig.begin(timeout=1.0)
    await rest()
    rig.clock._now += 1.0  # the timer of the second is about to ring
    rig.wire.answer(ok())
    await first
    with pytest.raises(DeadlineExceeded, match="before it could be sent"):
        await second
    assert (len(rig.wire.sent), rig.sender.stats.in_flight) == (1, 0)


async def test_no_time_limit_is_no_timer(Rig):
    rig = Rig(timeout=math.inf)
    call = rig.begin()
    await rest()
    assert rig.clock.waiting == []
    assert "x-request-timeout" not in rig.wire.sent[0].headers
    rig.wire.answer(ok())
    await call


async def test_a_cancelled_call_ends_its_request_and_gives_its_place_to_the_next(Rig):
    rig = Rig(max_concurrency=1)
    first, second = rig.begin(), rig.begin()
    await rest()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await rest()
    assert (rig.wire.cancelled, len(rig.wire.sent)) == (1, 2)
    rig.wire.answer(ok(), place=-1)
    assert await second == 5


async def test_closing_ends_every_call_in_whatever_it_is(Rig):
    rig = Rig(max_concurrency=1)
    refused = rig.begin(1)
    await rest()
    rig.wire.answer(FULL)
    flying, waiting = rig.begin(2), rig.begin(3)
    await rest()
    assert (rig.sender.stats.in_flight, rig.sender.stats.waiting) == (1, 1)
    await asyncio.gather(rig.sender.close(), rig.sender.close())
    for call in (refused, flying, waiting):
        with pytest.raises(Cancelled, match="closed"):
            await call
    assert (rig.wire.closed, rig.wire.cancelled, rig.sender.stats.in_flight) == (1, 1, 0)
    with pytest.raises(ConfigError, match="the client is closed"):
        await rig.begin()


async def test_closing_ends_the_chunks_of_a_call_that_have_not_begun(Rig):
    rig = Rig(max_concurrency=1)
    many = rig.begin_many([1, 2, 3], keep_going=True, request_id="r")
    await rest()
    await rig.sender.close()
    answers = await many
    assert [(type(one), one.request_id) for one in answers] == [(Cancelled, "r-0")] * 2 + [(Cancelled, "r-1")]
    assert len(rig.wire.sent) == 1


async def test_closing_ends_the_pause_between_two_asks_for_a_job(Rig):
    rig = Rig()
    asked = asyncio.ensure_future(rig.client.jobs.result("j1"))
    await rest()
    rig.wire.answer(Reply(202, JSON, b'{"id": "j1", "queue": "q", "state": "queued", "created_at": 0}'))
    await rest()
    assert len(rig.clock.waiting) == 1
    await rig.sender.close()
    with pytest.raises(Cancelled, match="closed"):
        await asked
    assert rig.clock.waiting == []
    with pytest.raises(Cancelled, match="closed"):  # one that begins in the turn in which the client is closed
        await rig.sender.pause(1.0, rig.core.jobs.get("j1").head)


def test_a_client_belongs_to_one_event_loop(Rig):
    rig = Rig()

    async def call():
        begun = rig.begin()
        await rest()
        rig.wire.answer(ok())
        return await begun

    async def refused():
        await rig.begin()

    assert asyncio.run(call()) == 5
    with pytest.raises(ConfigError, match="another event loop"):
        asyncio.run(refused())
    asyncio.run(rig.sender.close())
    assert rig.wire.closed == 0, "its connections are gone with their loop"
    with pytest.raises(ConfigError, match="the client is closed"):
        asyncio.run(refused())


async def test_a_client_is_closed_on_the_event_loop_that_it_belongs_to(Rig):
    rig = Rig()
    begun = rig.begin()
    await rest()
    with pytest.raises(ConfigError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, rig.sender.close())
    rig.wire.answer(ok())
    assert await begun == 5


# -- many -------------------------------------------------------------------------------------------------------------


def outcomes(*answers):
    text = b",".join(answers)
    return Reply(207, JSON, b'{"outcomes": [' + text + b"]}")


INVALID = b'{"error": {"type": "urn:penstock:problem:invalid-item", "status": 422}}'
NOT_READY = b'{"error": {"type": "urn:penstock:problem:not-ready", "status": 503, "retry_after": 1}}'


async def test_chunks_are_one_list_and_share_one_deadline(Rig):
    rig = Rig(timeout=4.0, max_concurrency=1)
    call = rig.begin_many([1, 2, 3])
    await rig.clock.advance(3.0)
    rig.wire.answer(outcomes(b'{"result": 10}', b'{"result": 20}'))
    await rest()
    assert rig.wire.sent[1].headers["x-request-timeout"] == "1.000"
    rig.wire.answer(outcomes(b'{"result": 30}'))
    assert await call == [10, 20, 30]


async def test_the_first_failure_ends_the_other_chunks(Rig):
    rig = Rig()
    call = rig.begin_many([1, 2, 3])
    await rest()
    rig.wire.answer(outcomes(b'{"result": 10}', INVALID))
    with pytest.raises(InvalidItem):
        await call
    assert rig.wire.cancelled == 1


async def test_with_failures_in_their_places_every_chunk_is_answered(Rig):
    rig = Rig(max_retries=0)
    call = rig.begin_many([1, object(), object(), object(), 5], keep_going=True)
    await rest()
    assert [request.body for request in rig.wire.sent] == [b"[1]", b"[5]"]
    rig.wire.answer(outcomes(NOT_READY))
    rig.wire.answer(outcomes(b'{"result": 50}'))
    assert [type(answer) for answer in await call] == [NotReady, InvalidItem, InvalidItem, InvalidItem, int]
    assert await rig.begin_many([]) == []


async def test_a_cancelled_call_of_many_ends_all_its_requests(Rig):
    rig = Rig()
    call = rig.begin_many([1, 2, 3])
    await rest()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert rig.wire.cancelled == 2


async def test_only_some_of_many_run_at_a_time_and_their_results_keep_the_order():
    running, most = 0, 0

    def maker(number):
        async def make():
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(10 - number):
                await asyncio.sleep(0)
            running -= 1
            return number

        return make

    assert await gather_bounded([maker(number) for number in range(10)], 3) == list(range(10))
    assert most == 3


# -- the gate, and interruptions --------------------------------------------------------------------------------------


async def test_a_pause_ends_at_its_moment_and_is_forgotten_where_the_gate_is_closed():
    clock = VirtualClock()
    gate = Gate(FlowLimit(1), clock)
    gate.leave(await gate.enter(3, 0), End.REFUSAL, 5.0)  # the first refusal is no reason for a pause
    gate.leave(await gate.enter(3, 1), End.REFUSAL, 5.0)
    third = asyncio.ensure_future(gate.enter(3, 2))
    await clock.advance(4.999)
    assert (gate.waiting, third.done()) == (1, False)
    await clock.advance(0.001)
    gate.leave(await third, End.REFUSAL, 5.0)
    assert clock.waiting == [5.0]
    gate.close()
    gate.close()
    assert clock.waiting == []


async def test_an_interruption_ends_what_is_awaited_with_its_error():
    clock = VirtualClock()

    async def wait():
        with Interruption(clock) as ended:
            ended.interrupt_at(clock.now() + 1.0, Overloaded("first"))
            ended.interrupt_at(clock.now() + 2.0, NotReady("second"))
            await asyncio.Event().wait()

    task = asyncio.ensure_future(wait())
    await clock.advance(1.0)
    assert not task.done()
    await clock.advance(1.0)
    with pytest.raises(NotReady, match="second"):
        await task
    assert clock.waiting == []


async def test_who_is_cancelled_by_somebody_else_too_stays_cancelled():
    clock = VirtualClock()

    async def wait():
        with Interruption(clock) as ended:
            ended.interrupt_at(clock.now() + 1.0, NotReady())
            await asyncio.Event().wait()

    task = asyncio.ensure_future(wait())
    await rest()
    clock._now += 1.0
    for _, _, timer in clock._timers:
        timer.ring()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_interruption_that_comes_too_late_is_nothing():
    ended = Interruption(VirtualClock())
    with ended:
        pass
    ended.interrupt(NotReady())
    await asyncio.sleep(0)


async def test_of_two_interruptions_the_first_counts():
    async def wait():
        with Interruption(VirtualClock()) as ended:
            loop = asyncio.get_running_loop()
            loop.call_soon(ended.interrupt, NotReady("first"))
            loop.call_soon(ended.interrupt, Overloaded("second"))
            await asyncio.Event().wait()

    with pytest.raises(NotReady, match="first"):
        await wait()


async def test_an_error_of_its_own_goes_before_an_interruption():
    async def wait():
        with Interruption(VirtualClock()) as ended:
            asyncio.get_running_loop().call_soon(ended.interrupt, NotReady())
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("mine") from None

    with pytest.raises(ValueError, match="mine"):
        await wait()
    await asyncio.sleep(0)  # and nothing is left of it
