"""From a claim to the end of an attempt, with an engine that answers when a test says so."""

from __future__ import annotations

import asyncio
import logging
import resource

import msgspec
import pytest

from fake_work import Count, Measure, fake_service, outside_service
from penstock.codec.formats import Codec
from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.errors import (
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    InvalidItem,
    NotReady,
    StageFailed,
    StoreUnavailable,
    TransferFailed,
    TransferRejected,
    WorkerLost,
)
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import Answer, AttemptEnd, Renewed, Room
from penstock.jobs.store_watch import StoreWatch
from penstock.testing.virtual_clock import rest


@pytest.fixture
def one_job(bench):
    """A bench whose only job, `a`, has gone to the engine."""

    async def make(*services, output=None, **options):
        work = await bench(*services, **options)
        work.submit(output=output)
        await work.turn()
        return work

    return make


def held_back(work, when):
    """Hold back each answer of the store as long as the job is as `when` says, until the event is set."""
    answered, run = asyncio.Event(), work.consumer._store_threads.run

    async def answer_late(call):
        result = await run(call)
        if work.job() is not None and when(work.job()):
            await answered.wait()
        return result

    work.consumer._store_threads.run = answer_late
    return answered


async def test_a_job_goes_to_the_engine_and_its_result_to_the_store(bench):
    work = await bench()
    work.submit("a", b"3")
    await work.turn()
    (ticket,) = work.engine.tickets
    assert (ticket.payload, ticket.job_id) == (b"3", "a")
    assert ticket.given == {
        "codec_in": Codec.JSON,
        "codec_out": Codec.JSON,
        "deadline": float("inf"),
        "lane": Lane.BACK,
        "alone": False,
        "nbytes": 1,
    }
    assert work.job().state is JobState.RUNNING
    ticket.settle(b"6")
    await work.turn()
    assert work.job().state is JobState.SUCCEEDED
    assert work.memory.result("a").body == b"6"
    assert len(work.consumer.holding) == 0
    assert work.consumer.holding.nbytes == 0


@pytest.mark.parametrize("taking", [State.BUSY, State.STALLED])
async def test_nothing_is_claimed_before_the_service_takes_work(one_job, taking):
    service = fake_service()
    service.engine.state = State.STARTING
    work = await one_job(service)
    assert work.job().state is JobState.QUEUED
    service.engine.state = taking
    await work.turn(2.0)
    assert work.job().state is JobState.RUNNING


async def test_the_first_claim_is_made_as_soon_as_the_service_is_ready(bench):
    service = fake_service()
    service.engine.state = State.STARTING
    work = await bench(service)
    work.submit()
    await work.turn(0.01)
    service.engine.state = State.READY
    work.consumer.services_ready()
    await work.turn(0.01)
    assert work.job().state is JobState.RUNNING


async def test_what_is_held_and_not_begun_is_one_batch_for_each_worker(bench):
    work = await bench(fake_service(workers=2, max_size=3))
    for n in range(20):
        work.submit(f"j{n:02}")
    await work.turn()
    assert len(work.engine.tickets) == 6
    for ticket in work.engine.tickets[:3]:
        ticket.begun = True
    await work.turn(2.0)
    assert len(work.engine.tickets) == 9


async def test_the_next_batch_is_claimed_as_soon_as_the_model_has_begun_with_this_one(bench):
    work = await bench(fake_service(max_size=3))
    work.engine.begins = 3
    for n in range(20):
        work.submit(f"j{n:02}")
    await work.turn()
    assert len(work.engine.tickets) == 6


async def test_a_large_input_is_copied_into_shared_memory_and_a_small_one_is_not(bench):
    work = await bench(fake_service(max_size=2))
    work.submit("small", b"5" * 4095)
    work.submit("large", b"6" * 4096)
    await work.turn()
    (piece,) = work.engine.pieces
    assert bytes(piece) == work.engine.of("large").payload == b"6" * 4096
    assert work.engine.of("small").payload == b"5" * 4095


async def test_a_claim_that_bytes_have_cut_short_is_followed_by_the_next_at_once(bench):
    work = await bench(fake_service(max_size=8), max_buffered_bytes=10)
    for n in range(4):
        work.submit(f"j{n}", b"1234567")
    await work.turn()
    assert [ticket.job_id for ticket in work.engine.tickets] == ["j0", "j1"]  # the second passes the bound alone
    work.engine.of("j0").settle(b"6")
    work.engine.of("j1").settle(b"6")
    await work.turn(0.01)
    assert [ticket.job_id for ticket in work.engine.tickets] == ["j0", "j1", "j2", "j3"]


# -- several services -------------------------------------------------------------------------------------------------


@pytest.fixture
def two(bench):
    """A bench of the services `one` and `fast`."""

    async def make(**options):
        return await bench(fake_service(name="one"), fake_service(name="fast"), **options)

    return make


async def is_begun(work, **more):
    """Whether a job for `fast` that is submitted now goes to its engine."""
    work.submit("f", service="fast", **more)
    await work.turn(0.25)
    return [ticket.job_id for ticket in work.services[1].engine.tickets] == ["f"]


async def test_a_service_that_has_no_room_holds_up_no_other(two):
    work = await two()
    for n in range(60):
        work.submit(f"j{n:02}", service="one")
    await work.turn()
    assert [ticket.job_id for ticket in work.engine.tickets] == ["j00"]
    assert await is_begun(work)
    assert len(work.engine.tickets) == 1


@pytest.mark.parametrize("sick", [{"state": State.STARTING}, {"state": State.FAILED}, {"memory_short": True}])
async def test_a_service_that_takes_no_work_is_left_out_of_the_claims(two, sick):
    work = await two()
    vars(work.engine).update(sick)
    work.submit("a", service="one")
    assert await is_begun(work)
    assert work.job().state is JobState.QUEUED


async def test_a_service_of_which_much_is_held_leaves_the_others_their_part_of_the_memory(two):
    work = await two(max_buffered_bytes=10)
    work.submit("a", b"123456", service="one")
    await work.turn()
    work.engine.of("a").begun = True
    work.submit("b", service="one")
    assert await is_begun(work)
    assert work.job("b").state is JobState.QUEUED


async def test_a_service_that_has_filled_its_part_of_the_spool_stops_no_claim_of_another(two, tmp_path):
    work = await two(spool_dir=str(tmp_path / "spool"), max_spool_bytes=6)
    work.submit("a", service="one", output="file:///out/a")
    await work.turn()
    work.transfers.errors = [TransferFailed("slow")]
    work.engine.of("a").settle(b"six")
    await work.turn(0.01)
    work.submit("b", service="one")
    assert await is_begun(work)
    assert work.job("b").state is JobState.QUEUED


async def test_transfers_of_a_service_that_hang_hold_up_none_of_another(two, tmp_path):
    work = await two(spool_dir=str(tmp_path / "spool"))
    work.transfers.hanging = ["https://slow/"]
    for n in range(40):
        work.submit(f"up{n}", service="one", output="https://slow/out")
        await work.turn(0.3)
        work.engine.of(f"up{n}").settle(b"6")
    for n in range(40):
        work.submit(f"in{n}", b"", service="one", input_url="https://slow/in")
    await work.turn()
    work.transfers.inputs["https://in/f"] = b"21"
    assert await is_begun(work, body=b"", input_url="https://in/f", output="file:///out/f")
    work.transfers.errors = [TransferFailed("once")]  # so that the spool has it meanwhile
    work.services[1].engine.of("f").settle(b"42")
    await work.turn(1.0)
    assert work.job("f").state is JobState.SUCCEEDED


async def test_outputs_that_are_not_delivered_hold_up_no_claim_where_it_ends_when_all_is_done(bench):
    services = [fake_service(name="one"), fake_service(name="fast")]
    for service in services:
        service.engine.state = State.STARTING
    work = await bench(*services, until_empty=True)
    work.transfers.hanging = ["file:///slow/"]
    work.submit("a", service="one", output="file:///slow/a")
    (job,) = work.memory.claim("another", lease=9.0, rooms=[Room(("one",), 1, 9)])
    work.memory.end_attempts([AttemptEnd(job.hold, JobState.SUCCEEDED)])
    for service in services:
        service.engine.state = State.READY
    await work.turn(1.3)
    assert await is_begun(work)


async def test_a_service_that_is_idle_delays_no_claim_of_another(two):
    work = await two(poll_interval=9.0)
    work.engine.begins = 2
    work.submit("a", service="one")
    work.submit("b", service="one")
    work.submit("c", service="one")
    await work.turn(10.0)
    assert [ticket.job_id for ticket in work.engine.tickets] == ["a", "b", "c"]
    work.submit("d", service="one")
    work.engine.of("c").begun = True
    work.engine.of("a").settle(b"6")
    await work.turn(0.01)
    assert [ticket.job_id for ticket in work.engine.tickets] == ["a", "b", "c", "d"]


async def test_concurrency_bounds_the_jobs_of_each_service(two):
    work = await two(max_in_flight_jobs=1)
    for name in "ab":
        work.submit(name, service="one")
    await work.turn()
    work.engine.of("a").begun = True
    assert await is_begun(work)
    assert work.job("b").state is JobState.QUEUED


# -- the ends of attempts ---------------------------------------------------------------------------------------------


async def test_with_a_concurrency_of_one_a_job_goes_through_alone_end_to_end(bench):
    work = await bench(fake_service(max_size=32), max_in_flight_jobs=1)
    work.submit("a")
    work.submit("b")
    await work.turn()
    assert [ticket.job_id for ticket in work.engine.tickets] == ["a"]
    work.engine.of("a").begun = True
    await work.turn(2.0)
    assert len(work.engine.tickets) == 1
    work.engine.of("a").settle(b"6")
    await work.turn()
    assert [ticket.job_id for ticket in work.engine.tickets] == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "state", "attempts"),
    [
        (StageFailed("boom", type_name="builtins.ValueError", traceback="Traceback"), "scheduled", {"application": 1}),
        (WorkerLost(alone=True), "scheduled", {"worker_lost": 1}),
        (WorkerLost(alone=False), "scheduled", {}),
        (InvalidItem("no int"), "dead", {"invalid_input": 1}),
        (DeadlineExceeded(), "expired", {}),
    ],
)
async def test_each_failure_ends_the_attempt_by_its_own_cause(one_job, error, state, attempts):
    work = await one_job()
    work.engine.of("a").settle(error)
    await work.turn(0.01)
    job = work.job()
    assert (job.state, job.failures) == (state, attempts)
    assert job.error.message == str(error.args[0])


async def test_who_failed_by_the_application_runs_alone_next_and_dies_at_the_third(one_job):
    work = await one_job()
    for attempt in range(3):
        ticket = work.engine.of("a")
        assert ticket.given["alone"] is (attempt > 0)
        ticket.settle(StageFailed("boom", type_name="builtins.ValueError", traceback="Traceback"))
        await work.turn(5.0)
    job = work.job()
    assert (job.state, job.failures) == (JobState.DEAD, {"application": 3})
    assert job.error.traceback == "Traceback"
    assert [attempt.cause for attempt in job.attempts] == ["application", "application", "dead"]


async def test_a_service_that_is_not_ready_gives_the_job_back_uncounted(bench):
    work = await bench()
    work.submit()
    work.engine.refuses = NotReady(state="failed")
    await work.turn()
    work.engine.state = State.FAILED
    await work.turn(2.0)
    job = work.job()
    assert (job.state, job.failures) == (JobState.QUEUED, {})
    assert {attempt.cause for attempt in job.attempts} == {"released"}


async def test_the_deadline_of_a_job_is_its_own(bench):
    work = await bench()
    work.submit(deadline=work.wall() + 100.0)
    await work.turn()
    left = work.engine.of("a").given["deadline"] - work.clock.now()
    assert left == pytest.approx(100.0, abs=1.0)


async def test_a_content_type_that_the_service_does_not_take_is_the_jobs_fault(bench):
    work = await bench()
    work.submit(content_type="audio/wav")
    await work.turn()
    assert work.job().state is JobState.DEAD
    assert "audio/wav" in work.job().error.message
    assert work.engine.tickets == []


async def test_where_the_job_does_not_say_it_the_content_type_is_the_servers(bench):
    work = await bench(fake_service(Count))
    work.transfers.inputs["https://in/a"] = b"12"
    work.transfers.content_type = "application/octet-stream"
    work.submit("a", b"", content_type="", input_url="https://in/a")
    await work.turn()
    assert work.engine.of("a").given["codec_in"] is Codec.RAW
    work.transfers.content_type = "audio/wav"
    work.submit("b", b"", content_type="", input_url="https://in/a")
    await work.turn(2.0)
    assert work.job("b").state is JobState.DEAD
    assert "audio/wav" in work.job("b").error.message


async def test_a_job_crosses_to_workers_from_outside_in_messagepack_and_its_result_is_what_was_asked_for(bench):
    work = await bench(outside_service(max_size=2))
    work.transfers.inputs["https://in/b"] = b'{"x": 1}'
    work.submit("a", b"[1, 2]")
    work.submit("b", b"", content_type="application/json", input_url="https://in/b")
    await work.turn()
    for name, payload in (("a", b"\x92\x01\x02"), ("b", b"\x81\xa1x\x01")):
        ticket = work.engine.of(name)
        assert ticket.payload == payload
        assert (ticket.given["codec_in"], ticket.given["codec_out"]) == (Codec.MSGPACK, Codec.MSGPACK)
        ticket.settle(payload)
    await work.turn()
    assert work.memory.result("a").body == b"[1,2]"
    assert work.memory.result("b").body == b'{"x":1}'
    assert work.consumer.holding.nbytes == 0


@pytest.mark.parametrize("url", [None, "https://in/a"])
async def test_an_input_that_cannot_cross_to_them_is_the_jobs_fault(bench, url):
    work = await bench(outside_service(item=int))
    work.transfers.inputs["https://in/a"] = b'"a"'
    work.submit("a", b"" if url else b'"a"', input_url=url)
    await work.turn()
    assert work.job("a").state is JobState.DEAD
    assert work.job("a").error.message == "expected `int`, got `str`"
    assert work.engine.tickets == []


class Faulty(msgspec.Struct):
    x: int

    def __post_init__(self):
        raise KeyError("a bug")


@pytest.mark.parametrize("url", [None, "https://in/a"])
async def test_a_fault_in_a_check_of_the_items_type_fails_the_attempt_by_the_application(bench, url):
    work = await bench(outside_service(item=Faulty))
    work.transfers.inputs["https://in/a"] = b'{"x": 1}'
    work.submit("a", b"" if url else b'{"x": 1}', input_url=url)
    await work.turn()
    assert (work.job("a").state, work.job("a").failures) == (JobState.SCHEDULED, {"application": 1})
    assert work.job("a").error.type == "builtins.KeyError"


async def test_a_result_of_theirs_that_cannot_be_read_fails_the_attempt_by_the_application(bench):
    work = await bench(outside_service(result=int))
    work.submit("a", b"1")
    await work.turn()
    work.engine.of("a").settle(b"\xa1a")
    await work.turn(0.01)
    assert (work.job("a").state, work.job("a").failures) == (JobState.SCHEDULED, {"application": 1})
    assert work.job("a").error.message.startswith("the result cannot be read from MSGPACK: expected `int`")


async def test_a_job_that_names_no_service_needs_that_there_is_but_one(bench):
    work = await bench(fake_service(name="one"), fake_service(name="two"))
    work.submit("a")
    work.submit("b", service="two")
    await work.turn()
    assert work.job("a").state is JobState.DEAD
    assert "one, two" in work.job("a").error.message
    assert [t.job_id for t in work.services[1].engine.tickets] == ["b"]


async def test_a_result_that_is_too_large_needs_an_output(one_job):
    work = await one_job(max_inline_bytes=10)
    work.engine.of("a").settle(b"x" * 11)
    await work.turn()
    assert work.job().state is JobState.DEAD
    assert "output" in work.job().error.message


# -- leases -----------------------------------------------------------------------------------------------------------


async def test_a_lost_job_is_dropped_and_its_result_is_not_committed(one_job):
    work = await one_job()
    work.engine.state = State.STARTING  # it claims nothing meanwhile
    await work.turn(31.0)
    (other,) = work.memory.claim("other", lease=30, rooms=[Room(("", "double"), 1, 99)])
    work.renew()
    await work.turn(0.0)
    assert work.engine.of("a").settled  # withdrawn
    assert len(work.consumer.holding) == 0
    assert work.job().attempts[-1].fencing_token == other.fence
    assert work.job().state is JobState.RUNNING


def told(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.levelno >= logging.WARNING]


GONE = (
    "the store does not know {} jobs that this consumer holds. It was emptied or restored, or the jobs finished "
    "elsewhere and were purged: {}"
)


async def test_a_job_that_is_another_s_is_told_as_a_warning(one_job, caplog):
    work = await one_job()
    work.engine.state = State.STARTING
    await work.turn(31.0)
    work.memory.claim("other", lease=30, rooms=[Room(("", "double"), 1, 99)])
    work.renew()
    await work.turn(1.0)
    assert told(caplog) == [
        ("WARNING", "lease of job a lost: another consumer holds the job, or it has finished; dropping its work here")
    ]


@pytest.mark.parametrize("ends", [0, 2, 4])
async def test_jobs_that_the_store_has_lost_are_told_once_as_an_error(bench, caplog, ends):
    """Whether it says so to a renewal, or to the ends of attempts."""
    work = await bench(fake_service(max_size=4))
    for job_id in "abcd":
        work.submit(job_id)
    await work.turn()
    work.memory._forget(list(work.memory._jobs.values()))
    for ticket in work.engine.tickets[:ends]:
        ticket.settle(b"6")
    await work.turn(0.1)
    work.renew()
    await work.turn(1.0)
    assert len(work.consumer.holding) == 0
    ((level, text),) = told(caplog)
    assert level == "ERROR"
    head, _, named = text.rpartition(": ")
    assert (head, set(named.split(", "))) == (GONE.format(4, "").removesuffix(": "), set("abcd"))
    await work.turn(120.0)
    assert len(told(caplog)) == 1


async def test_a_job_that_the_store_knows_only_by_older_claims_is_one_that_it_has_lost(one_job, caplog):
    work = await one_job()
    work.memory._jobs["a"].history.clear()  # as before the claim
    work.memory._jobs["a"].fence = 0
    work.memory._jobs["a"].state = JobState.QUEUED
    work.engine.state = State.STARTING
    work.renew()
    await work.turn(1.0)
    assert told(caplog) == [("ERROR", GONE.format(1, "a"))]


async def test_what_is_lost_more_is_told_together_a_minute_later(bench, caplog):
    work = await bench(fake_service(max_size=1))
    for job_id in ("a", "b", "c"):
        work.submit(job_id)
        await work.turn(2.0)
        del work.memory._jobs[job_id]
        work.engine.of(job_id).settle(b"6")
        await work.turn(2.0)
    assert told(caplog) == [("ERROR", GONE.format(1, "a"))]
    work.lose_store()
    await work.turn(60.0)
    work.store.gone = None
    await work.turn(10.0)
    assert told(caplog)[-1] == ("ERROR", GONE.format(2, "b, c"))


async def test_what_was_lost_is_told_at_the_end(one_job, caplog):
    work = await one_job()
    work.memory._forget(list(work.memory._jobs.values()))
    work.engine.of("a").settle(b"6")
    await work.turn(0.1)
    await closing(work, 0.0)
    assert told(caplog) == [("ERROR", GONE.format(1, "a"))]


async def test_past_its_local_deadline_nothing_new_begins_until_a_renewal_says_ok(one_job):
    work = await one_job()
    work.engine.state = State.STARTING
    await work.turn(31.0)
    work.engine.of("a").settle(b"6")
    await work.turn(1.0)
    assert work.job().state is JobState.RUNNING  # a commit is a step, too
    work.renew()
    await work.turn(0.0)
    assert work.job().state is JobState.SUCCEEDED


async def test_a_claim_whose_answer_took_longer_than_its_lease_begins_nothing_before_a_renewal(bench):
    work = await bench()
    answered = held_back(work, lambda job: True)
    work.submit()
    await work.turn(31.0)
    answered.set()
    await work.turn(0.0)
    assert len(work.consumer.holding) == 1
    assert work.engine.tickets == []
    work.renew()
    await work.turn(0.0)
    assert [ticket.job_id for ticket in work.engine.tickets] == ["a"]


async def test_a_renewal_without_an_answer_is_unknown_and_not_lost(one_job):
    work = await one_job()
    work.lose_store()
    work.renew()
    await work.turn(0.0)
    assert not work.engine.of("a").settled
    work.store.gone = None
    work.engine.of("a").settle(b"6")
    await work.turn(2.0)
    assert work.job().state is JobState.SUCCEEDED


async def test_a_job_to_be_cancelled_ends_so_at_the_next_renewal(one_job):
    work = await one_job()
    assert work.memory.cancel("a").state is JobState.RUNNING
    work.renew()
    await work.turn()
    assert work.job().state is JobState.CANCELLED
    assert work.engine.of("a").settled


async def test_who_commits_first_wins_over_a_cancel(one_job):
    work = await one_job()
    work.memory.cancel("a")
    work.engine.of("a").settle(b"6")
    await work.turn()
    assert work.job().state is JobState.SUCCEEDED


async def test_an_upload_is_given_up_for_a_job_that_is_to_be_cancelled(one_job):
    work = await one_job(retry_backoff=300.0, output="file:///out/a")
    work.transfers.errors = [TransferFailed("slow")] * 5
    work.engine.of("a").settle(b"6")
    await work.turn(0.01)
    work.memory.cancel("a")
    work.renew()
    await work.turn(0.01)
    assert work.job().state is JobState.CANCELLED
    assert len(work.consumer.holding) == 0


async def test_each_upload_that_fails_is_an_attempt_and_the_tenth_is_the_last(one_job):
    work = await one_job(retry_backoff=0.0, output="file:///out/a")
    work.transfers.errors = [TransferFailed("slow")] * 10
    work.engine.of("a").settle(b"6")
    await work.turn(30.0)
    assert (work.job().state, work.job().failures) == (JobState.DEAD, {"transfer": 10})
    assert work.consumer.counters.attempts == {"transfer": 10}


async def test_uploads_that_failed_before_one_that_did_not_are_attempts(one_job):
    work = await one_job(retry_backoff=0.0, output="file:///out/a")
    work.transfers.errors = [TransferFailed("slow")] * 3
    work.engine.of("a").settle(b"6")
    await work.turn(30.0)
    assert (work.job().state, work.job().failures) == (JobState.SUCCEEDED, {"transfer": 3})


async def test_uploads_that_failed_count_also_where_the_job_is_given_back(one_job):
    work = await one_job(retry_backoff=300.0, output="file:///out/a")
    work.transfers.errors = [TransferFailed("slow")]
    work.engine.of("a").settle(b"6")
    await work.turn(0.01)
    closed = await closing(work, 0.0)
    await work.turn(2.0)
    await closed
    assert (work.job().state, work.job().failures) == (JobState.QUEUED, {"transfer": 1})


async def test_a_mistake_of_ours_ends_the_consumer(one_job, monkeypatch):
    work = await one_job()
    monkeypatch.setattr(work.consumer.holding, "resize", lambda job, nbytes: 1 // 0)
    with pytest.raises(ZeroDivisionError):  # of the engine, which logs it
        work.engine.of("a").settle(b"6")
    with pytest.raises(ZeroDivisionError):
        await work.consumer.finished()
    monkeypatch.undo()


async def test_a_store_whose_password_was_changed_is_a_store_that_is_gone(one_job):
    work = await one_job()
    work.store.gone = ConfigError("WRONGPASS")
    work.renew()
    work.engine.of("a").settle(b"6")
    await work.turn(3.0)
    work.store.gone = None
    await work.turn(6.0)
    assert work.job().state is JobState.SUCCEEDED


# -- a store that is gone ---------------------------------------------------------------------------------------------


async def test_what_was_computed_while_the_store_was_gone_is_committed_when_it_is_back(one_job):
    work = await one_job()
    work.lose_store()
    work.engine.of("a").settle(b"6")
    await work.turn(10.0)
    assert len(work.engine.tickets) == 1
    work.store.gone = None
    await work.turn(10.0)
    assert work.job().state is JobState.SUCCEEDED
    assert len(work.engine.tickets) == 1


def told_to_the_store(work):
    """The calls of a holder, in their order."""
    return [call for call in work.store.calls if call in ("renew", "end_attempts", "claim")]


def commit_slowly(work):
    """Have a claim that is not kept back come before every commit."""
    load = work.consumer._commits._load

    async def load_slowly(job):
        await rest()
        return await load(job)

    work.consumer._commits._load = load_slowly


@pytest.mark.parametrize("computed_after", [5.0, 35.0])
async def test_after_an_outage_longer_than_a_lease_all_is_renewed_and_committed_before_a_claim(bench, computed_after):
    """Whether its end was sent while the store was gone, or waited for a renewal."""
    work = await bench(fake_service(max_size=4))
    commit_slowly(work)
    work.submit("a")
    work.submit("b")
    await work.turn()
    work.lose_store()
    await work.turn(computed_after)
    work.engine.of("a").settle(b"6")
    await work.turn(40.0 - computed_after)
    work.submit("c")
    work.store.calls.clear()
    work.store.gone = None
    await work.turn(10.0)
    calls = told_to_the_store(work)
    assert set(calls[: calls.index("claim")]) == {"renew", "end_attempts"}
    assert (work.job("a").state, work.job("c").state) == (JobState.SUCCEEDED, JobState.RUNNING)
    assert [len(work.job(name).attempts) for name in "abc"] == [1, 1, 1]
    assert [ticket.job_id for ticket in work.engine.tickets] == ["a", "b", "c"]


@pytest.mark.parametrize("outage", [7.0, 8.5, 10.0, 11.5])
async def test_an_end_that_the_store_has_missed_is_told_before_anything_is_claimed(bench, outage):
    """Whichever would be asked again first."""
    work = await bench(fake_service(max_size=4))
    commit_slowly(work)
    work.submit("a")
    await work.turn()
    work.lose_store()
    await work.turn(2.0)
    work.engine.of("a").settle(b"6")
    await work.turn(outage - 2.0)
    work.submit("b")
    work.store.calls.clear()
    work.store.gone = None
    await work.turn(10.0)
    assert told_to_the_store(work)[:2] == ["end_attempts", "claim"]
    assert work.job("b").state is JobState.RUNNING


async def test_an_end_that_was_heard_and_not_answered_is_told_again_as_soon_as_a_renewal_is_answered(
    bench, monkeypatch
):
    work = await bench(fake_service(max_size=4))
    work.submit("a")
    await work.turn(2.0)
    end_attempts = work.memory.end_attempts

    def end_and_go(ends):
        end_attempts(ends)
        work.lose_store()
        raise work.store.gone

    monkeypatch.setattr(work.memory, "end_attempts", end_and_go)
    work.engine.of("a").settle(b"6")
    await work.turn(40.0)
    monkeypatch.undo()
    work.store.calls.clear()
    while "end_attempts" not in work.store.calls:
        await work.turn(0.1)
    work.store.calls.clear()
    work.store.gone = None  # the next try is seconds away
    while not told_to_the_store(work):
        await work.turn(0.1)
    assert told_to_the_store(work) == ["renew", "end_attempts"]
    await work.turn(3.0)
    assert told_to_the_store(work)[2] == "claim"
    assert len(work.consumer.holding) == 0


async def test_an_end_for_which_the_store_has_no_room_keeps_no_claim_back(bench, monkeypatch):
    work = await bench(fake_service(max_size=4))
    work.submit("a")
    await work.turn()
    work.lose_store()
    work.engine.of("a").settle(b"6")
    await work.turn(1.0)
    monkeypatch.setattr(work.memory, "end_attempts", lambda ends: [Answer.UNKNOWN] * len(ends))
    work.store.gone = None
    work.submit("b")
    await work.turn(10.0)
    assert (work.job("a").state, work.job("b").state) == (JobState.RUNNING, JobState.RUNNING)
    assert len(work.engine.tickets) == 2


async def test_who_was_suspended_for_longer_than_a_lease_renews_before_it_claims(bench):
    work = await bench(fake_service(max_size=4))
    work.submit("a")
    await work.turn()
    work.submit("b")
    work.store.calls.clear()
    work.asleep = 31.0
    await work.turn(1.0)
    assert told_to_the_store(work) == ["renew"], "others renew what they hold, too"
    await work.turn(2.0)
    assert told_to_the_store(work)[:2] == ["renew", "claim"]
    assert [len(work.job(name).attempts) for name in "ab"] == [1, 1]
    assert [ticket.job_id for ticket in work.engine.tickets] == ["a", "b"]


async def test_a_renewal_of_which_the_store_says_nothing_is_tried_again_after_a_rest(bench, monkeypatch):
    work = await bench(fake_service(max_size=4))
    work.submit("a")
    await work.turn()
    monkeypatch.setattr(work.memory, "renew", lambda holds, lease: [Renewed(Answer.UNKNOWN)] * len(holds))
    work.asleep = 31.0
    work.store.calls.clear()
    await work.turn(20.0)
    assert 5 < work.store.calls.count("renew") < 20
    assert "claim" not in work.store.calls
    monkeypatch.undo()
    await work.turn(6.0)
    assert "claim" in work.store.calls


async def late_claim(work, *, done_late):
    """Have the next claim, or its answer, take longer than a lease, until the event is set."""
    go_on, run = asyncio.Event(), work.consumer._store_threads.run

    async def run_late(call):
        before = work.store.calls.count("claim")
        if done_late:
            await go_on.wait()
        result = await run(call)
        if work.store.calls.count("claim") > before:
            await go_on.wait()
        return result

    work.consumer._store_threads.run = run_late
    await work.turn(0.3)
    work.consumer._store_threads.run = run
    return go_on


async def test_a_claim_that_is_done_late_finds_what_is_held_here_and_nothing_begins_twice(bench):
    """As where the process was stopped, or the store away, when it was sent."""
    work = await bench(fake_service(max_size=4))
    work.submit("a")
    await work.turn()
    go_on = await late_claim(work, done_late=True)
    work.asleep = 31.0
    (held,) = work.consumer.holding.jobs()
    work.store.calls.clear()
    go_on.set()
    await work.turn(0.0)
    assert told_to_the_store(work)[0] == "claim"
    assert held.lease_until > 60.0
    assert (len(work.engine.tickets), len(work.job().attempts)) == (1, 1)


async def test_what_ends_before_the_answer_to_such_a_claim_is_not_begun_once_more(bench):
    work = await bench(fake_service(max_size=4))
    work.submit("a")
    await work.turn()
    work.asleep = 31.0
    (held,) = work.consumer.holding.jobs()
    held.lease_until = float("inf")  # it is taken for good, and has run out in the store
    go_on = await late_claim(work, done_late=False)
    work.engine.of("a").settle(b"6")
    await work.turn(0.0)
    assert (work.job().state, len(work.consumer.holding)) == (JobState.SUCCEEDED, 0)
    go_on.set()
    await work.turn(1.0)
    assert (len(work.engine.tickets), len(work.consumer.holding)) == (1, 0)


async def test_a_step_that_hangs_keeps_no_claim_back_and_its_job_is_claimed_as_lost(bench):
    work = await bench(fake_service(max_size=4))
    work.submit("a")
    await work.turn()
    (job,) = work.consumer.holding.jobs()
    job.step_limit = 10.0
    await work.turn(29.0)
    work.submit("b")
    await work.turn(2.0)
    assert work.job("b").state is JobState.RUNNING
    assert (work.job("a").failures, len(work.job("a").attempts)) == ({"lease_expired": 1}, 2)


async def test_a_store_that_is_gone_for_half_a_minute_makes_the_process_unready_and_not_dead(bench):
    work = await bench()
    work.lose_store()
    await work.turn(20.0)
    assert work.consumer.unready_because() == ""
    assert not work.consumer.store_watch.up
    await work.turn(20.0)
    assert "job store unavailable for" in work.consumer.unready_because()
    assert work.consumer.stuck_because() == ""
    work.store.gone = None
    await work.turn(10.0)
    assert work.consumer.unready_because() == ""
    assert work.consumer.store_watch.up


async def test_a_results_memory_is_the_spools_while_the_store_is_gone(bench, tmp_path):
    work = await bench(spool_dir=str(tmp_path / "spool"))
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
    work.submit(output="file:///out/a")
    await work.turn()
    work.transfers.errors = [TransferFailed("slow")]
    work.engine.of("a").settle(b"six")
    await work.turn(0.01)
    (spooled,) = (tmp_path / "spool").glob("*/*.result")
    assert spooled.read_bytes() == b"six"
    assert work.consumer.holding.nbytes == 0
    await work.turn(20.0)
    assert work.transfers.outputs == {"file:///out/a": b"six"}
    assert list((tmp_path / "spool").glob("*/*.result")) == []


async def test_a_result_for_which_the_disk_of_the_spool_has_no_room_stays_in_memory(bench, tmp_path, caplog):
    """The limit of a file's size stands for the disk; beyond it the system refuses to write."""
    work = await bench(spool_dir=str(tmp_path / "spool"))
    work.submit(output="file:///out/a")
    await work.turn()
    work.transfers.errors = [TransferFailed("slow")]
    work.engine.of("a").settle(b"six")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, hard))
    try:
        await work.turn(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot write to the spool: [Errno 27] File too large; the result stays in memory" in caplog.text
    assert (list((tmp_path / "spool").glob("*/*.result")), work.consumer.spool._nbytes.total()) == ([], 0)
    await work.turn(20.0)
    assert work.transfers.outputs == {"file:///out/a": b"six"}


async def test_a_result_that_the_spool_has_lost_is_computed_again(one_job, tmp_path, caplog):
    work = await one_job(spool_dir=str(tmp_path / "spool"), output="file:///out/a")
    work.transfers.errors = [TransferFailed("slow")]
    work.engine.of("a").settle(b"six")
    await work.turn(0.01)
    for path in (tmp_path / "spool").glob("*/*.result"):
        path.unlink()
    await work.turn(5.0)
    assert work.job().failures == {"transfer": 1}, "the loss counts nothing"
    assert caplog.text.count("the result of job a in the spool is lost") == 1
    assert len(work.engine.tickets) == 2
    work.engine.of("a").settle(b"six")
    await work.turn(6.0)
    assert work.transfers.outputs == {"file:///out/a": b"six"}


async def test_a_full_spool_stops_the_claims(one_job, tmp_path):
    work = await one_job(spool_dir=str(tmp_path / "spool"), max_spool_bytes=3, output="file:///out/a")
    work.transfers.errors = [TransferFailed("slow")] * 2
    work.engine.of("a").settle(b"six")
    await work.turn(0.01)
    assert work.consumer.spool.full
    work.submit("b")
    await work.turn(1.0)
    assert work.job("b").state is JobState.QUEUED
    for _ in range(5):
        await work.turn(2.0)
    assert work.transfers.outputs == {"file:///out/a": b"six"}
    assert work.job("b").state is JobState.RUNNING


async def test_no_job_is_claimed_while_a_service_is_short_of_memory(bench):
    work = await bench()
    work.engine.memory_short = True
    work.submit("a")
    await work.turn(3.0)
    assert work.job().state is JobState.QUEUED
    work.engine.memory_short = False
    await work.turn(1.0)
    assert work.job().state is JobState.RUNNING


# -- transfers --------------------------------------------------------------------------------------------------------


async def test_an_input_is_fetched_computed_and_forgotten(bench):
    work = await bench()
    work.transfers.inputs["https://in/a"] = b"21"
    work.submit(body=b"", input_url="https://in/a")
    await work.turn()
    assert work.engine.of("a").payload == b"21"
    work.engine.of("a").settle(b"42")
    await work.turn()
    assert work.job().state is JobState.SUCCEEDED
    assert list(work.transfers.folder.iterdir()) == []


async def test_a_first_stage_that_takes_a_path_gets_the_file(bench):
    work = await bench(fake_service(Measure))
    work.transfers.inputs["https://in/a"] = b"12345"
    work.submit("a", b"", input_url="https://in/a")
    work.submit("b", b'"/etc/passwd"')
    await work.turn()
    (ticket,) = work.engine.tickets
    assert ticket.given["codec_in"] is Codec.PICKLE
    assert b"a-1" in ticket.payload
    assert work.job("b").state is JobState.DEAD
    assert "input_url" in work.job("b").error.message


@pytest.mark.parametrize(
    ("error", "state", "attempts"),
    [(TransferFailed("slow"), "scheduled", {"transfer": 1}), (TransferRejected("404"), "dead", {"invalid_input": 1})],
)
async def test_a_fetch_that_fails_ends_the_attempt(bench, error, state, attempts):
    work = await bench()
    work.transfers.errors = [error]
    work.submit(body=b"", input_url="https://in/a")
    await work.turn(0.21)
    assert (work.job().state, work.job().failures) == (state, attempts)


async def test_inputs_that_never_come_take_no_place_of_jobs_that_have_theirs_or_are_elsewhere(bench):
    work = await bench()
    work.transfers.hanging = ["https://slow/"]
    work.transfers.inputs["https://in/b"] = b"21"
    for n in range(60):
        work.submit(f"s{n:02}", b"", input_url=f"https://slow/{n}")
    await work.turn()
    assert len(work.consumer.holding) == 8
    work.submit("a")
    await work.turn(0.21)
    assert [ticket.job_id for ticket in work.engine.tickets] == ["a"]
    work.engine.of("a").begun = True
    work.submit("b", b"", input_url="https://in/b")
    await work.turn(0.21)
    assert [ticket.job_id for ticket in work.engine.tickets] == ["a", "b"]
    assert len(work.consumer.holding) == 10


async def test_what_is_fetched_and_waits_for_the_model_is_bounded(bench):
    work = await bench(fake_service(max_size=2))
    for n in range(60):
        work.transfers.inputs[f"https://in{n % 4}/{n}"] = b"21"
        work.submit(f"j{n:02}", b"", input_url=f"https://in{n % 4}/{n}")
    await work.turn(2.0)
    assert len(work.consumer.holding) == 2 + 16
    for ticket in work.engine.tickets[:5]:
        ticket.begun = True
    await work.turn(2.0)
    assert len(work.consumer.holding) == 2 + 16 + 5


async def test_with_a_concurrency_of_one_jobs_of_both_kinds_have_their_turn(bench):
    work = await bench(max_in_flight_jobs=1)
    for n in range(9):
        work.transfers.inputs[f"https://in/{n}"] = b"21"
        work.submit(f"u{n}", b"", input_url=f"https://in/{n}")
        work.submit(f"j{n}")
    for _ in range(4):
        await work.turn()
        assert len(work.consumer.holding) == 1
        work.engine.tickets[-1].settle(b"6")
    assert {ticket.job_id for ticket in work.engine.tickets} == {"j0", "j1", "u0", "u1"}


async def test_outputs_at_a_host_that_hangs_have_half_of_the_places(bench):
    work = await bench()
    work.transfers.hanging = ["https://slow/"]
    for n in range(40):
        work.submit(f"s{n:02}", output=f"https://slow/{n}")
        await work.turn(0.3)
        work.engine.of(f"s{n:02}").settle(b"6")
    work.submit("a", output="https://out/a")
    await work.turn(0.3)
    work.engine.of("a").settle(b"6")
    await work.turn(0.1)
    assert work.job("a").state is JobState.SUCCEEDED


async def test_a_result_that_waits_for_its_turn_to_be_stored_is_dropped_where_nobody_wants_it(bench):
    work = await bench()
    work.transfers.hanging = ["https://slow/"]
    for n in range(9):
        work.submit(f"s{n}", output=f"https://slow/{n}")
        await work.turn(0.3)
        work.engine.of(f"s{n}").settle(b"6")
    await work.turn(0.1)
    work.memory.cancel("s8")
    work.renew()
    await work.turn(0.1)
    assert work.job("s8").state is JobState.CANCELLED
    assert len(work.consumer.holding) == 8


async def test_a_job_whose_fetch_failed_rests_behind_the_others(bench):
    work = await bench(max_in_flight_jobs=1)
    work.transfers.errors = [TransferFailed("slow")]
    for name in "abc":
        work.transfers.inputs[f"https://in/{name}"] = b"21"
        work.submit(name, b"", input_url=f"https://in/{name}")
    for expected in (["b"], ["b", "c"], ["b", "c", "a"]):
        await work.turn(1.0)
        assert [ticket.job_id for ticket in work.engine.tickets] == expected
        work.engine.of(expected[-1]).settle(b"42")


async def test_a_download_that_somebody_removes_before_it_is_read_is_fetched_again(bench):
    work = await bench(max_buffered_bytes=4)
    work.transfers.inputs["https://in/b"] = b"1234"
    work.submit("a", b"12345")
    await work.turn()
    work.engine.of("a").begun = True
    work.submit("b", b"", input_url="https://in/b")
    work.consumer.holding.resize(work.consumer.holding.jobs()[0], 3)  # room for a claim, and none for the input
    await work.turn(1.5)
    (download,) = work.transfers.folder.iterdir()
    download.unlink()
    work.engine.of("a").settle(b"1")
    await work.turn(0.1)
    assert (work.job("b").state, work.job("b").failures) == (JobState.SCHEDULED, {"transfer": 1})
    assert "cannot read the downloaded file" in work.job("b").error.message


async def test_a_place_that_is_not_allowed_is_refused_before_anything_is_done(bench):
    work = await bench()
    work.transfers.refused = {"file:///etc/passwd": TransferRejected("not allowed")}
    work.submit("a", body=b"", input_url="file:///etc/passwd")
    work.submit("b", output="file:///etc/passwd")
    await work.turn()
    assert [work.job(name).state for name in ("a", "b")] == [JobState.DEAD, JobState.DEAD]
    assert work.engine.tickets == []


async def test_an_output_is_moved_to_its_place_after_the_commit(one_job):
    work = await one_job(output="file:///out/a")
    work.engine.of("a").settle(b"6")
    await work.turn(0.01)
    assert work.job().state is JobState.SUCCEEDED
    await work.turn(6.0)
    assert work.transfers.outputs == {"file:///out/a": b"6"}
    assert work.memory.deliveries(limit=9, lease=1) == []
    assert work.memory.result("a").output_url == "file:///out/a"


async def test_an_output_that_cannot_be_stored_is_tried_again_and_nothing_is_computed_twice(one_job):
    work = await one_job(output="file:///out/a")
    work.transfers.errors = [TransferFailed("slow")] * 4
    work.engine.of("a").settle(b"6")
    for _ in range(30):
        await work.turn(2.0)
        work.renew()
    assert work.transfers.outputs == {"file:///out/a": b"6"}
    assert len(work.engine.tickets) == 1


async def test_the_tenth_transfer_that_fails_ends_the_run(one_job):
    work = await one_job(retry_backoff=0.0, output="file:///out/a")
    work.transfers.errors = [TransferFailed("slow")] * 10
    work.engine.of("a").settle(b"6")
    for _ in range(30):
        await work.turn(1.0)
        work.renew()
    assert work.job().state is JobState.DEAD
    assert work.job().error.message == "slow"


async def test_a_put_is_made_only_after_the_store_has_said_that_the_job_is_ours(one_job):
    work = await one_job(output="https://out/a")
    work.transfers.puts = True
    work.lose_store()
    work.engine.of("a").settle(b"6")
    await work.turn(5.0)
    assert work.transfers.parts == {}
    work.store.gone = None
    work.renew()
    await work.turn(1.0)
    assert work.transfers.parts == {("https://out/a", "a", 1): b"6"} or work.transfers.outputs


async def is_done_once_the_store_is_back(work):
    """Whether `a` has waited for the store for longer than a transfer may take, and was done in its only attempt."""
    await work.turn(100.0)
    assert work.consumer.stuck_because() == ""
    work.store.gone = None
    await work.turn(5.0)
    (ticket,) = work.engine.tickets
    if not ticket.settled:
        ticket.settle(b"6")
        await work.turn(5.0)
    return (work.job().state, work.job().failures) == (JobState.SUCCEEDED, {})


async def test_a_put_may_wait_for_the_store_for_longer_than_it_may_take_itself(one_job):
    work = await one_job(output="https://out/a")
    work.transfers.puts = True
    work.lose_store()
    work.engine.of("a").settle(b"6")
    assert await is_done_once_the_store_is_back(work)


async def test_the_limit_of_a_put_begins_with_the_answer_that_the_job_is_ours(one_job):
    work = await one_job(output="https://out/a")
    work.transfers.puts = True
    answered = held_back(work, lambda job: True)
    work.engine.of("a").settle(b"6")
    await work.turn(100.0)
    (job,) = work.consumer.holding.jobs()
    overdue = job.overdue(work.clock.now())
    answered.set()
    await work.turn(5.0)
    assert not overdue
    assert (work.job().state, work.job().failures) == (JobState.SUCCEEDED, {})


async def test_a_file_that_was_fetched_may_wait_for_a_renewal_for_longer_than_a_fetch_may_take(bench):
    work = await bench(fake_service(Measure))
    work.transfers.inputs["https://in/a"] = b"12345"
    download = work.transfers.download

    def download_past_the_lease(*args):
        work.asleep = 31.0
        work.lose_store()
        return download(*args)

    work.transfers.download = download_past_the_lease
    work.submit("a", b"", input_url="https://in/a")
    await work.turn()
    assert await is_done_once_the_store_is_back(work)


async def test_a_renewal_that_overtakes_a_commit_does_not_remove_what_was_committed(one_job):
    """The store says LOST of an attempt that it has just ended as it was told."""
    work = await one_job(output="file:///out/a")
    answered = held_back(work, lambda job: job.state is JobState.SUCCEEDED)
    work.engine.of("a").settle(b"6")
    await work.turn(0.0)
    assert work.job().state is JobState.SUCCEEDED
    work.renew()
    await work.turn(0.0)
    answered.set()
    await work.turn(6.0)
    assert work.transfers.outputs == {"file:///out/a": b"6"}
    assert work.consumer.counters.ended == {"succeeded": 1}


async def test_a_commit_whose_answer_was_lost_is_told_again_although_the_lease_has_run_out(one_job):
    work = await one_job(output="file:///out/a")
    end_attempts = work.memory.end_attempts

    def unanswered(ends):
        end_attempts(ends)
        raise StoreUnavailable("gone")

    work.memory.end_attempts = unanswered
    work.engine.of("a").settle(b"6")
    await work.turn(0.0)
    assert work.job().state is JobState.SUCCEEDED
    await work.turn(40.0)
    work.renew()  # its attempt has ended, so the store says LOST
    await work.turn(0.0)
    work.memory.end_attempts = end_attempts
    await work.turn(10.0)
    assert len(work.consumer.holding) == 0
    assert work.transfers.outputs == {"file:///out/a": b"6"}
    assert work.consumer.counters.ended == {"succeeded": 1}


async def test_what_a_late_attempt_wrote_is_removed_when_its_commit_is_refused(one_job):
    """Who has the job now has removed what older attempts left, and did not find this."""
    work = await one_job(output="file:///out/a")
    (job,) = work.consumer.holding.jobs()
    work.engine.state = State.STARTING
    await work.turn(31.0)
    (other,) = work.memory.claim("other", lease=30, rooms=[Room(("", "double"), 1, 99)])
    job.lease_until = work.clock.now() + 30.0  # as for one who was stopped on its way to the store
    work.engine.of("a").settle(b"6")
    await work.turn(0.1)
    assert len(work.consumer.holding) == 0
    assert ("file:///out/a", "a", job.hold.fence) in work.transfers.discarded
    assert work.job().attempts[-1].fencing_token == other.fence
    assert work.job().state is JobState.RUNNING


# -- the end ----------------------------------------------------------------------------------------------------------


async def closing(work, grace):
    task = asyncio.ensure_future(work.consumer.close(grace))
    await work.turn(0.0)
    return task


async def test_a_drain_gives_back_what_has_not_begun_and_lets_the_rest_finish(bench):
    work = await bench(fake_service(max_size=4))
    work.submit("a")
    work.submit("b")
    await work.turn()
    work.engine.of("a").begun = True
    task = await closing(work, 30.0)
    assert work.job("b").state is JobState.QUEUED
    assert work.job("b").attempts[-1].cause == "released"
    assert work.job("a").state is JobState.RUNNING
    work.engine.of("a").settle(b"6")
    await work.turn(0.1)
    await task
    assert work.job("a").state is JobState.SUCCEEDED


@pytest.mark.parametrize("late", [False, True])
async def test_what_a_worker_was_sent_ahead_is_held_until_it_has_said_whether_it_had_begun(one_job, late):
    work = await one_job()
    work.engine.of("a").sent_ahead = True
    task = await closing(work, 30.0)
    assert work.job().state is JobState.RUNNING
    work.engine.of("a").settle(b"6" if late else Cancelled())
    await work.turn(0.1)
    await task
    assert (work.job().state, work.job().failures) == (JobState.SUCCEEDED if late else JobState.QUEUED, {})


async def test_what_has_not_finished_by_the_end_of_the_drain_is_released(one_job):
    work = await one_job()
    work.engine.of("a").begun = True
    task = await closing(work, 5.0)
    await work.turn(6.0)
    await task
    assert work.job().state is JobState.QUEUED
    assert work.job().failures == {}


@pytest.mark.parametrize("more", [{}, {"input_url": "https://in/a"}])
async def test_what_a_claim_brings_during_the_drain_is_given_back_before_the_end(bench, more):
    work = await bench()
    answered = held_back(work, lambda job: job.state is JobState.RUNNING)
    work.submit(**more)
    await work.turn(0.2)
    assert (work.job().state, len(work.consumer.holding)) == (JobState.RUNNING, 0)
    task = await closing(work, 30.0)
    await work.turn(5.0)
    assert not task.done()
    answered.set()
    await work.turn(0.0)
    await task
    assert (work.job().state, work.job().attempts[-1].cause) == (JobState.QUEUED, "released")
    assert work.engine.tickets == []


async def ends_when_empty(bench):
    """A bench that ends when nothing is left, and claims nothing before its engine is ready."""
    service = fake_service()
    service.engine.state = State.STARTING
    return await bench(service, until_empty=True)


async def test_it_ends_by_itself_when_nothing_is_left_if_it_was_told_to(bench):
    work = await ends_when_empty(bench)
    work.submit("a")
    work.submit("b", delay=10.0)
    work.engine.state = State.READY
    finished = asyncio.ensure_future(work.consumer.finished())
    await work.turn(1.5)
    work.engine.of("a").settle(b"6")
    await work.turn(5.0)
    assert not finished.done()
    await work.turn(6.0)
    work.engine.of("b").settle(b"6")
    await work.turn(2.0)
    assert finished.done()


LEFT = "--until-empty keeps this consumer running, and it cannot claim the {} jobs left: {}"


async def test_it_says_once_a_minute_for_which_services_the_jobs_are_that_it_waits_for(bench, caplog):
    work = await ends_when_empty(bench)
    work.submit("a", service="aaa")
    work.submit("b", service="bbb", delay=999.0)
    work.engine.state = State.READY
    await work.turn(59.0)
    line = ("WARNING", LEFT.format(2, "they are for services that this consumer does not have: aaa, bbb"))
    assert told(caplog) == [line]
    await work.turn(60.0)
    assert told(caplog) == [line, line]


async def test_it_says_that_it_waits_because_the_queue_is_paused(bench, caplog):
    work = await ends_when_empty(bench)
    work.memory.pause()
    work.submit()
    work.engine.state = State.READY
    await work.turn(59.0)
    assert told(caplog) == [("WARNING", LEFT.format(1, "the queue is paused; continue with `penstock jobs resume`"))]


async def test_jobs_that_it_will_have_and_those_of_others_are_nothing_to_tell_of(bench, caplog):
    work = await ends_when_empty(bench)
    work.submit("a", delay=500.0, service="double")
    work.submit("b", service="other")
    work.memory.claim("another", lease=500.0, rooms=[Room(("other",), 1, 9)])
    work.engine.state = State.READY
    await work.turn(130.0)
    assert told(caplog) == []


async def left_by_another(bench):
    """A bench that ends when nothing is left; a consumer that was killed has committed a job, and had its delivery."""
    work = await ends_when_empty(bench)
    work.submit(output="file:///out/a")
    (job,) = work.memory.claim("another", lease=9.0, rooms=[Room(("", "double"), 1, 9)])
    work.transfers.parts["file:///out/a", "a", job.fence] = b"6"
    work.memory.end_attempts([AttemptEnd(job.hold, JobState.SUCCEEDED)])
    assert len(work.memory.deliveries(limit=9, lease=20.0)) == 1
    work.engine.state = State.READY
    return work, asyncio.ensure_future(work.consumer.finished())


async def test_it_does_not_end_before_an_output_that_another_consumer_had_in_hand_is_in_its_place(bench):
    work, finished = await left_by_another(bench)
    await work.turn(19.0)
    assert (finished.done(), work.transfers.outputs) == (False, {})
    await work.turn(7.0)
    assert (finished.done(), work.transfers.outputs) == (True, {"file:///out/a": b"6"})


async def test_it_ends_although_an_output_is_left_that_it_may_not_move(bench):
    work, finished = await left_by_another(bench)
    work.transfers.refused = {"file:///out/a": TransferRejected("not allowed")}
    await work.turn(27.0)
    assert finished.done()
    assert work.memory.stats().pending_outputs == 1


async def test_a_step_that_passes_its_limit_is_told_and_not_renewed(one_job):
    work = await one_job()
    (job,) = work.consumer.holding.jobs()
    job.step_limit = 10.0
    await work.turn(11.0)
    assert "has been in step compute" in work.consumer.stuck_because()
    before = job.lease_until
    work.renew()
    assert job.lease_until == before


async def test_a_claim_loop_that_makes_no_turn_is_stuck(bench):
    work = await bench()
    await work.turn(59.0)
    answered = asyncio.Event()

    async def answer_late(call):
        await answered.wait()
        return []

    work.consumer._store_threads.run = answer_late
    await work.turn(59.0)
    assert work.consumer.stuck_because() == ""
    await work.turn(3.0)
    assert "no claim has finished" in work.consumer.stuck_because()
    answered.set()
    await work.turn(1.0)
    assert work.consumer.stuck_because() == ""


def test_a_store_that_is_gone_for_another_reason_says_so_once(caplog):
    watch = StoreWatch(lambda: 0.0)
    for why in ("cut off", "cut off", "replaced", "replaced"):
        watch.answered(StoreUnavailable(why))
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "job store unavailable: cut off",
        "job store unavailable: replaced",
    ]
