"""The calls that users make, from the call to what goes over the wire and back."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock.client.client_options import ServerAddress
from penstock.client.replies import Reply
from penstock.client.world import World, connect_httpx
from penstock.errors import ConfigError, DeadlineExceeded, JobFailed, JobNotFound
from penstock.testing.virtual_clock import rest


def reply(value, status=200, content_type="application/json"):
    return Reply(status, {"content-type": content_type}, msgspec.json.encode(value))


def job(state="queued", known_as="j1", **more):
    return {"id": known_as, "queue": "q", "state": state, "created_at": 1.0, **more}


def failed(kind="job-failed", status=500):
    return reply({"type": f"urn:penstock:problem:{kind}", "id": "j1"}, status, "application/problem+json")


async def done(rig, call, *replies):
    """What a call gives, whose requests are answered with `replies` one after the other."""
    task = asyncio.ensure_future(call)
    for one in replies:
        await rest()
        rig.wire.answer(one)
    return await task


def asked(rig):
    return [f"{request.method} {request.url.removeprefix('http://a')}" for request in rig.wire.sent]


async def test_a_client_predicts_one_and_many_and_tells_its_health(Rig):
    rig = Rig()
    async with rig.client as c:
        assert await done(rig, c.predict(1, service="rank"), reply(5)) == 5
        assert await done(rig, c.predict_many([1], return_exceptions=True), reply({"outcomes": [{"result": 2}]})) == [2]
        assert await done(rig, c.health(), reply({"state": "ready"})) == {"state": "ready"}
        assert c.stats.requests == 3
        assert repr(c) == "<AsyncClient http://a>"
    assert asked(rig) == ["POST /rank/predict", "POST /batch", "GET /health"]
    assert rig.wire.closed == 1


async def test_a_wrong_argument_is_told_before_anything_is_sent(Rig):
    rig = Rig()
    for call in (rig.client.predict(1, urgency=9), rig.client.predict_many([1], batch_size=0)):
        with pytest.raises(ConfigError):
            await call
    with pytest.raises(ConfigError):
        Rig(format="xml")
    assert rig.wire.sent == []


async def test_a_job_is_submitted_looked_at_and_cancelled(Rig):
    rig = Rig()
    jobs = rig.client.jobs
    found = await done(rig, jobs.submit({"x": 1}, key="order-7"), reply(job(), 202))
    assert rig.wire.sent[0].headers["idempotency-key"] == "order-7"
    assert (await done(rig, jobs.get(found), reply(job("running")))).state == "running"
    assert (await done(rig, jobs.cancel("j1"), reply(job("cancelled")))).state == "cancelled"
    assert asked(rig) == ["POST /jobs", "GET /jobs/j1", "DELETE /jobs/j1"]
    await done(rig, jobs.submit(1), reply(job(), 202))
    assert len(rig.wire.sent[-1].headers["idempotency-key"]) == 32


async def test_a_result_is_asked_for_until_it_is_there(Rig):
    rig = Rig()
    call = asyncio.ensure_future(rig.client.jobs.result("j1"))
    await rig.clock.advance(20.0)
    rig.wire.answer(reply(job(), 202))
    await rest()
    rig.wire.answer(reply(job(), 202))  # too soon
    await rig.clock.advance(0.499)
    assert len(rig.wire.sent) == 2
    await rig.clock.advance(0.001)
    rig.wire.answer(reply([1, 2]))
    assert await call == [1, 2]
    assert asked(rig) == ["GET /jobs/j1/result?wait=20.000"] * 3


async def test_a_job_that_takes_too_long_is_told_with_its_state(Rig):
    rig = Rig()
    call = asyncio.ensure_future(rig.client.jobs.result("j1", timeout=2))
    await rig.clock.advance(2.0)
    rig.wire.answer(reply(job("running"), 202))
    with pytest.raises(DeadlineExceeded, match="job j1 is still running after 2 s"):
        await call


async def test_a_result_elsewhere_is_its_url_and_one_that_looks_so_is_itself(Rig):
    rig = Rig()
    result = reply({"output_url": "s3://b/a"})
    there = reply(job("succeeded", output_url="s3://b/a"))
    assert await done(rig, rig.client.jobs.result("j1"), result, there) == "s3://b/a"
    assert await done(rig, rig.client.jobs.result("j1"), result, reply(job("succeeded"))) == {"output_url": "s3://b/a"}


async def test_waiting_for_jobs_gives_them_in_their_order_however_they_end(Rig):
    rig = Rig(max_concurrency=1)
    call = rig.client.jobs.wait(["j1", "j2", "j1"])
    found = await done(rig, call, failed(), reply(job("dead")), reply(5), reply(job("succeeded", "j2")))
    assert [(one.id, one.state.value) for one in found] == [("j1", "dead"), ("j2", "succeeded"), ("j1", "dead")]
    assert await rig.client.jobs.wait([]) == []


async def test_waiting_for_what_is_no_list_or_no_job_is_told(Rig):
    rig = Rig()
    with pytest.raises(ConfigError, match="several jobs"):
        await rig.client.jobs.wait("j1")
    with pytest.raises(JobNotFound):
        await done(rig, rig.client.jobs.wait(["j1"]), failed("job-not-found", 404))
    with pytest.raises(JobFailed):
        await done(rig, rig.client.jobs.result("j1"), failed())


def test_the_world_as_it_is_goes_over_httpx():
    assert World().connect is connect_httpx
    assert type(connect_httpx(ServerAddress("http://a"), 4)).__name__ == "HttpxWire"
