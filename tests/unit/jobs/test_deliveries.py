"""Outputs on their way to their places: by a consumer, and by its deliveries alone, whose threads a test holds."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from fake_work import FakeTransfers, InlineThreads
from penstock.errors import StageFailed, StoreUnavailable, TransferFailed, TransferRejected
from penstock.jobs.deliveries import LANE_WIDTH, MOST_WAITING, Deliveries
from penstock.jobs.rules.job_states import JobState
from penstock.jobs.store import AttemptEnd, NewJob, Room
from penstock.jobs.stores.memory_store import MemoryStore
from penstock.jobs.work_options import WorkOptions
from penstock.testing.virtual_clock import VirtualClock, rest

LEASE = 30.0
LIMIT = 20.0


async def with_an_output(bench, place="file:///out/a"):
    """A consumer that has committed a job with an output, which is not in its place yet."""
    work = await bench()
    work.submit(output=place)
    await work.turn()
    work.engine.of("a").settle(b"6")
    return work


async def test_an_output_that_cannot_be_moved_now_is_moved_later(bench):
    work = await with_an_output(bench)
    work.transfers.finish_errors = [TransferFailed("slow"), TransferFailed("slow")]
    await work.turn(1.0)
    assert work.job().state is JobState.SUCCEEDED
    assert work.transfers.outputs == {}
    for _ in range(4):
        await work.turn(61.0)
    assert work.transfers.outputs == {"file:///out/a": b"6"}
    assert work.memory.deliveries(limit=9, lease=1) == []


async def test_an_output_of_which_nothing_is_there_is_told_once_and_forgotten(bench, caplog):
    work = await with_an_output(bench)
    work.transfers.finish_errors = [TransferRejected("there is neither")]
    await work.turn(1.0)
    await work.turn(61.0)
    assert [r.message for r in caplog.records if "was lost" in r.message] == [
        "the output of job a was lost, it cannot be moved to its URL: there is neither"
    ]
    assert work.memory.deliveries(limit=9, lease=1) == []


async def test_a_place_that_is_not_allowed_here_is_left_to_another_consumer(bench, caplog):
    work = await with_an_output(bench)
    work.transfers.refused = {"file:///out/a": TransferRejected("not allowed")}
    await work.turn(1.0)
    assert "this consumer may not move the output of job a" in caplog.text
    work.transfers.refused = {}
    await work.turn(61.0)
    assert work.transfers.outputs == {"file:///out/a": b"6"}


async def test_what_dead_attempts_have_left_is_removed(bench):
    work = await bench(retry_backoff=0.0)
    work.submit(output="file:///out/a")
    await work.turn()
    work.engine.of("a").settle(StageFailed("boom", type_name="builtins.ValueError"))
    await work.turn()
    work.engine.of("a").settle(b"6")
    await work.turn(6.0)
    assert work.transfers.outputs == {"file:///out/a": b"6"}
    assert ("file:///out/a", "a", 1) in work.transfers.discarded


class HeldThreads:
    """Threads whose calls to a target in `held` stay until they are let go, or are woken by an exception."""

    def __init__(self):
        self.held = set()
        self.at = []
        """The outputs at which threads are, in the order in which they came there."""
        self.gates = {}
        self.ended = 0

    async def run(self, call):
        output = call.args[0].output
        self.at.append(output)
        await asyncio.sleep(0)
        if output.rpartition("/")[0] in self.held:
            self.gates[output] = asyncio.get_running_loop().create_future()
            await self.gates[output]
        self.at.remove(output)
        return call()

    def let_go(self, output):
        self.gates.pop(output).set_result(None)

    def end(self):
        self.ended += 1


class Movers:
    """Deliveries alone, and jobs with outputs whose runs have ended."""

    def __init__(self, folder):
        self.clock = VirtualClock()
        self.store = MemoryStore("q", now=self.clock.now, wall=self.clock.now)
        self.transfers = FakeTransfers(folder)
        self.threads = HeldThreads()
        self.broke = []
        self.numbers = itertools.count()
        self.deliveries = Deliveries(
            SimpleNamespace(store=self.store),
            self.transfers,
            WorkOptions(lease=LEASE, transfer_timeout=LIMIT),
            store_threads=InlineThreads(1, ""),
            threads=lambda most, name: self.threads,
            clock=self.clock,
            broke=self.broke.append,
            draw=lambda: 0.5,
        )
        self.task = asyncio.ensure_future(self.deliveries.run())

    def end_jobs(self, target, count):
        outputs = [f"{target}/{next(self.numbers)}" for _ in range(count)]
        self.store.submit([NewJob(output.replace("/", "."), output=output) for output in outputs])
        claimed = self.store.claim("h", lease=LEASE, rooms=[Room(("",), count, 1)])
        for job in claimed:
            self.transfers.parts[job.output, job.id, job.fence] = b"6"
        self.store.end_attempts([AttemptEnd(job.hold, JobState.SUCCEEDED) for job in claimed])
        self.deliveries.ask()
        return outputs

    def moved(self, target):
        return sum(output.rpartition("/")[0] == target for output in self.transfers.outputs)


@pytest.fixture
async def movers(tmp_path):
    made = Movers(tmp_path)
    await rest()
    yield made
    made.task.cancel()
    made.deliveries.end()


async def test_sixteen_outputs_of_a_target_are_moved_at_a_time(movers):
    movers.threads.held = {"s3://a"}
    movers.end_jobs("s3://a", 20)
    await rest()
    assert len(movers.threads.at) == LANE_WIDTH == 16
    movers.threads.let_go(movers.threads.at[3])
    await rest()
    assert (len(movers.threads.at), movers.moved("s3://a")) == (16, 1)
    for output in list(movers.threads.at):
        movers.threads.let_go(output)
        await rest()
    for output in list(movers.threads.at):
        movers.threads.let_go(output)
    await rest()
    assert (movers.moved("s3://a"), movers.store.stats().pending_outputs, movers.threads.ended) == (20, 0, 1)


async def test_a_target_that_hangs_holds_up_only_its_own_outputs(movers):
    movers.threads.held = {"s3://a"}
    movers.end_jobs("s3://a", 2 * MOST_WAITING)
    movers.end_jobs("s3://b", 100)
    await movers.clock.advance(5.0)
    assert (movers.moved("s3://b"), movers.moved("s3://a")) == (100, 0)
    assert len(movers.threads.at) == LANE_WIDTH


async def test_an_output_that_fails_is_moved_again_by_itself_and_the_others_go_on(movers):
    movers.transfers.finish_errors = [TransferFailed("slow")]
    movers.end_jobs("s3://a", 300)
    await movers.clock.advance(1.0)
    assert movers.moved("s3://a") == 299
    await movers.clock.advance(LEASE + 6.0)
    assert movers.moved("s3://a") == 300


async def test_a_target_that_is_down_rests_and_is_tried_again(movers):
    movers.transfers.finish_errors = [TransferFailed("down")] * 200
    movers.end_jobs("s3://a", 100)
    await rest()
    tried = 200 - len(movers.transfers.finish_errors)
    assert LANE_WIDTH <= tried < 2 * LANE_WIDTH
    movers.end_jobs("s3://a", 40)
    await rest()
    assert 200 - len(movers.transfers.finish_errors) == tried
    movers.transfers.finish_errors.clear()
    await movers.clock.advance(LEASE + 6.0)
    assert (movers.moved("s3://a"), movers.store.stats().pending_outputs) == (140, 0)


async def test_an_output_that_takes_too_long_is_told_and_not_begun_twice(movers, caplog):
    movers.threads.held = {"s3://a"}
    (output,) = movers.end_jobs("s3://a", 1)
    await movers.clock.advance(LIMIT + 1.0)
    assert f"was not moved to its URL within {LIMIT:g} s" in caplog.text
    await movers.clock.advance(2 * LEASE)
    assert movers.threads.at == [output]
    movers.threads.let_go(output)
    await rest()
    assert (movers.moved("s3://a"), movers.store.stats().pending_outputs) == (1, 0)


async def test_an_output_whose_loan_is_over_is_not_begun(movers):
    movers.threads.held = {"s3://a"}
    movers.end_jobs("s3://a", 17)
    await rest()
    others = movers.store.deliveries
    movers.store.deliveries = lambda **_: []
    await movers.clock.advance(LEASE + 1.0)
    movers.threads.held = set()
    for output in list(movers.threads.at):
        movers.threads.let_go(output)
    await rest()
    assert movers.moved("s3://a") == LANE_WIDTH
    movers.store.deliveries = others
    await movers.clock.advance(6.0)
    assert movers.moved("s3://a") == 17


async def test_a_store_that_is_gone_hears_later_what_was_moved(movers):
    delivered = movers.store.delivered
    gone = [StoreUnavailable("gone")]

    def fail_once(deliveries):
        if gone:
            raise gone.pop()
        delivered(deliveries)

    movers.store.delivered = fail_once
    movers.end_jobs("s3://a", 1)
    await rest()
    assert (movers.moved("s3://a"), movers.store.stats().pending_outputs) == (1, 1)
    await movers.clock.advance(6.0)
    assert movers.store.stats().pending_outputs == 0


async def test_not_all_is_delivered_while_an_output_is_on_its_way_or_the_store_is_gone(movers):
    movers.threads.held = {"s3://a"}
    (output,) = movers.end_jobs("s3://a", 1)
    asking = asyncio.ensure_future(movers.deliveries.deliver_all())
    await movers.clock.advance(2.0)
    assert await asking is False
    movers.threads.let_go(output)
    await rest()
    assert await movers.deliveries.deliver_all() is True
    movers.store.deliveries = lambda **_: (_ for _ in ()).throw(StoreUnavailable("gone"))
    assert await movers.deliveries.deliver_all() is False


async def test_a_mistake_of_ours_is_told(movers):
    movers.transfers.finish_errors = [KeyError("a mistake")]
    movers.end_jobs("s3://a", 1)
    await rest()
    assert [type(error) for error in movers.broke] == [KeyError]
