"""A stage whose workers attach from outside: who may, what they are told, and what their coming and going means."""

from __future__ import annotations

import asyncio
import json
import logging
import math

import msgspec
import pytest

from penstock.codec.formats import Codec
from penstock.config import Batch
from penstock.core.state import State
from penstock.errors import NotReady
from penstock.runtime.external_incarnation import ServiceStops
from penstock.runtime.external_spec import remote
from penstock.testing.fake_workers import FakeIncarnation
from penstock.testing.virtual_clock import rest
from penstock.transport.external_messages import ExternalHello, ExternalLaunch, unpack_json
from penstock.transport.framing import FrameDecoder, Kind, Status

pytestmark = pytest.mark.usefixtures("caplog")


class FakePeer(FakeIncarnation):
    """A worker from outside that has said HELLO, as its door hands it on."""

    def __init__(self, pid: int) -> None:
        super().__init__(None, None)
        self.pid = pid
        self.told: ExternalLaunch | None = None
        self.why = ""
        self.bounds: tuple[int, int] | None = None
        self._sent_to_it = FrameDecoder()

    def __repr__(self) -> str:
        return f"<FakePeer {self.pid}>"

    def serve(self, owner, *, max_body, max_items):
        self._owner = owner
        self.bounds = (max_body, max_items)
        asyncio.get_running_loop().call_soon(self.greet)

    def send(self, buffers):
        for frame in self._sent_to_it.feed(b"".join(buffers)):
            if frame.kind is Kind.LAUNCH:
                self.told = unpack_json(frame.payloads[0], ExternalLaunch)
            else:
                self.frames.append(frame)

    def kill(self, why):
        self.why = why
        super().kill(why)


class Stage:
    """A service whose only stage is external, and those who attach."""

    def __init__(self, rig) -> None:
        self.rig = rig
        self.driver = rig.engine.stages[0]
        self.peers: list[FakePeer] = []

    async def attach(self, *, ready: bool = True, **hello) -> FakePeer:
        peer = FakePeer(100 + len(self.peers))
        self.driver.attach(peer, ExternalHello(**{"pid": peer.pid, "language": "test", **hello}), 1000)
        self.peers.append(peer)
        await rest()
        if ready:
            peer.say(Kind.READY)
            await rest()
        return peer


@pytest.fixture
def make(make_rig):
    async def make(*, options=None, **spec):
        spec = {"batch": Batch(max_size=4), "accepts": ("json",), **spec}
        rig = make_rig(remote("square", **spec), **(options or {}))
        await rig.engine.start()
        return Stage(rig)

    return make


# -- the start, and readiness ---------------------------------------------------------------------------------------


async def test_a_start_waits_for_nobody_and_the_service_is_starting_until_a_worker_is_ready(make):
    stage = await make()
    engine = stage.rig.engine
    await stage.rig.clock.advance(12.5)
    assert (engine.state, engine.reason) == (State.STARTING, "square waits for a remote worker, 12 s")
    with pytest.raises(NotReady, match="square waits for a remote worker, 12 s"):
        stage.rig.submit()
    await stage.attach(ready=False)
    assert engine.state is State.STARTING, "it is there, and not set up yet"
    stage.peers[0].say(Kind.READY)
    assert (engine.state, engine.reason, list(engine.loading)) == (State.READY, "", [])
    call = await stage.rig.call(b"3")
    stage.peers[0].answer([b"9"])
    assert call.ends == [b"9"]


async def test_a_worker_is_told_what_it_needs_to_know(make):
    stage = await make(accepts=("msgpack", "json"), options={"max_queued_bytes": 9000, "nan_as_null": True})
    peer = await stage.attach()
    assert peer.told == ExternalLaunch(
        service="service",
        stage="square",
        index=0,
        count=64,
        batched=True,
        max_size=4,
        accepts=("msgpack", "json"),
        max_body=9000,
        validate_results=False,
        allow_nan=True,
        counts=False,  # a frame of counts may be longer than those bytes
    )
    assert peer.bounds == (9000, 4)
    usual = await make()
    assert (await usual.attach()).told.counts


async def test_only_the_last_stage_is_told_to_check_results(make_rig):
    rig = make_rig(remote("a", accepts=("json",)), remote("b", accepts=("json",)), validate_results=True)
    await rig.engine.start()
    told = [msgspec.json.decode(stage.launch_of(0))["validate_results"] for stage in rig.engine.stages]
    assert told == [False, True]


async def test_workers_get_the_lowest_free_number(make):
    stage = await make()
    peers = [await stage.attach() for _ in range(3)]
    assert [peer.told.index for peer in peers] == [0, 1, 2]
    peers[1].die("it closed its connection")
    peers[0].die("it closed its connection")
    assert [(await stage.attach()).told.index for _ in range(3)] == [0, 1, 3]


async def test_a_worker_is_shown_with_its_process_and_language(make):
    stage = await make()
    await stage.attach(language="node 20\n" + "x" * 500)
    (worker,) = stage.driver.workers
    assert worker.pid == 100
    assert worker.language.startswith(r"node 20\n")
    assert len(worker.language) <= 100


# -- who may attach -------------------------------------------------------------------------------------------------


async def test_a_service_that_stops_takes_nobody(make):
    stage = await make()
    await stage.rig.stop()
    with pytest.raises(ServiceStops):
        await stage.attach()


# -- workers go -----------------------------------------------------------------------------------------------------


async def test_items_wait_for_the_next_worker_and_the_state_stays(make):
    stage = await make()
    first = await stage.attach()
    first.die("it closed its connection")
    call = await stage.rig.call(b"3")
    await stage.rig.clock.advance(4.9)
    assert (stage.rig.engine.state, call.done) == (State.READY, False)
    (await stage.attach()).answer([b"9"])
    assert call.ends == [b"9"]
    await stage.rig.clock.advance(100.0)
    assert stage.rig.engine.state is State.READY


async def test_after_the_grace_the_stage_has_failed_until_a_worker_is_ready(make, caplog):
    stage = await make(options={"reattach_timeout": 3.0})
    first = await stage.attach()
    waiting = await stage.rig.call(b"3")
    first.die("it closed its connection")
    await stage.rig.clock.advance(3.0)
    assert waiting.ends == [NotReady]
    assert "square" in str(waiting.error)
    await stage.rig.clock.advance(4.0)
    engine = stage.rig.engine
    assert (engine.state, engine.reason) == (State.FAILED, "square waits for a remote worker, 7 s")
    with pytest.raises(NotReady, match="failed: square waits for a remote worker, 7 s"):
        stage.rig.submit()
    assert "stage 'square' has failed: no remote worker became ready within reattach_timeout" in caplog.text
    second = await stage.attach()
    assert engine.state is State.READY
    call = await stage.rig.call(b"2")
    second.answer([b"4"])
    assert call.ends == [b"4"]


async def test_a_timer_that_rings_early_is_set_again(make):
    stage = await make(options={"reattach_timeout": 3.0})
    (await stage.attach()).die("it closed its connection")
    await stage.rig.clock.advance(2.0)
    stage.driver._grace.cancel()
    stage.driver._grace_over()
    assert stage.rig.engine.state is State.READY
    await stage.rig.clock.advance(1.0)
    assert stage.rig.engine.state is State.FAILED


async def test_a_grace_without_an_end_never_fails(make):
    stage = await make(options={"reattach_timeout": math.inf})
    (await stage.attach()).die("it closed its connection")
    call = await stage.rig.call(b"3", within=1e6)
    await stage.rig.clock.advance(1e5)
    assert (stage.rig.engine.state, call.done) == (State.READY, False)


async def test_a_stage_whose_items_only_wait_for_a_worker_has_not_stalled(make):
    stage = await make(options={"reattach_timeout": math.inf, "progress_deadline": 30.0})
    (await stage.attach()).die("it closed its connection")
    await stage.rig.call(b"3")
    await stage.rig.clock.advance(1000.0)
    assert (stage.rig.engine.state, stage.driver.progress_age) == (State.READY, 0.0)
    peer = await stage.attach()
    await stage.rig.clock.advance(29.0)
    assert stage.rig.engine.state is State.READY
    await stage.rig.clock.advance(1.0)
    assert stage.rig.engine.state is State.STALLED, "now a worker has it"
    peer.answer([b"9"])
    assert stage.rig.engine.state is State.READY


async def test_a_worker_that_has_attached_and_is_not_ready_is_told_of(make):
    stage = await make()
    await stage.attach(ready=False)
    await stage.rig.clock.advance(9.0)
    assert stage.rig.engine.reason == "square waits for a remote worker to become ready, 9 s"


async def test_the_grace_begins_when_the_last_has_gone_not_when_it_says_so(make):
    stage = await make(options={"reattach_timeout": 3.0})
    peer = await stage.attach()
    peer.obedient = False
    call = await stage.rig.call(b"3")
    peer.say(Kind.DETACH)
    await stage.rig.clock.advance(10.0)
    assert stage.rig.engine.state is State.READY
    peer.answer([b"9"])
    peer.die("it closed its connection")
    assert call.ends == [b"9"]
    await stage.rig.clock.advance(2.9)
    assert stage.rig.engine.state is State.READY
    await stage.rig.clock.advance(0.1)
    assert stage.rig.engine.state is State.FAILED


async def test_a_worker_that_leaves_answers_what_it_holds_and_gets_nothing_more(make, caplog):
    caplog.set_level(logging.INFO)
    stage = await make()
    leaving, staying = await stage.attach(), await stage.attach()
    leaving.obedient = False
    first = await stage.rig.call(b"1")
    leaving.say(Kind.DETACH)
    assert leaving.orders == ["close"]
    others = [await stage.rig.call(str(i).encode()) for i in range(2)]
    assert len(leaving.frames) == 1
    leaving.answer([b"10"])
    leaving.die("it closed its connection")
    while staying.frames:
        staying.answer()
        await rest()
    assert [call.ends for call in (first, *others)] == [[b"10"], [b"0"], [b"1"]]
    assert "worker 0 of stage 'square' is detaching (pid 100)" in caplog.text
    assert "worker 0 of stage 'square' detached" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_bound_on_batches_holds_for_whoever_attaches_and_one_that_leaves_has_its_room_until_it_has_answered(
    make,
):
    stage = await make(batch=None, max_in_flight_batches=1)
    leaving, staying = await stage.attach(), await stage.attach()
    leaving.obedient = False
    calls = [await stage.rig.call(b"%d" % i) for i in range(2)]
    assert (leaving.batches, staying.batches) == ([[b"0"]], [])
    leaving.say(Kind.DETACH)
    await rest()
    assert staying.batches == []
    leaving.answer()
    await rest()
    assert staying.batches == [[b"1"]]
    leaving.die("it closed its connection")
    staying.answer()
    assert [call.ends for call in calls] == [[b"0"], [b"1"]]


async def test_an_end_without_a_word_is_a_death_its_oldest_frame_is_suspect_and_runs_once_more_alone(make):
    stage = await make(prefetch=1)
    first, second = await stage.attach(), await stage.attach()
    calls = [await stage.rig.call(b"1", b"2"), await stage.rig.call(b"3", b"4")]
    assert [len(peer.batches) for peer in (first, second)] == [1, 1]
    ahead = await stage.rig.call(b"5", b"6", b"7", b"8")
    assert len(first.batches) == 2
    first.die("it closed its connection")
    await rest()
    while second.frames:
        frame = second.frames[0]
        second.answer([bytes(p) * 2 for p in frame.payloads])
        await rest()
    assert [call.ends for call in (*calls, ahead)] == [[b"11", b"22"], [b"33", b"44"], [b"55", b"66", b"77", b"88"]]


async def test_a_worker_that_leaves_and_does_not_answer_has_died(make):
    stage = await make()
    first, second = await stage.attach(), await stage.attach()
    first.obedient = False
    call = await stage.rig.call(b"1")
    first.say(Kind.DETACH)
    first.die("it closed its connection")
    await rest()
    assert second.batches == [[b"1"]]
    second.answer([b"1"])
    assert call.ends == [b"1"]
    assert stage.driver.counters.retried == 1


# -- where one of ours would be killed ------------------------------------------------------------------------------


async def test_a_batch_over_its_time_has_its_worker_cut_off(make, caplog):
    stage = await make(timeout=2.0)
    first, second = await stage.attach(), await stage.attach()
    call = await stage.rig.call(b"1")
    await stage.rig.clock.advance(2.0)
    assert first.why == "a batch ran longer than 2 s"
    assert "worker 0 of stage 'square': a batch ran longer than 2 s; the worker is cut off" in caplog.text
    await rest()
    second.answer([b"1"])
    assert call.ends == [b"1"]
    assert len(stage.driver.workers) == 1


async def test_a_batch_that_nobody_waits_for_has_its_worker_cut_off(make, caplog):
    stage = await make(orphan_timeout=5.0)
    peer = await stage.attach()
    call = await stage.rig.call(b"1")
    stage.rig.engine.cancel(call.request)
    await stage.rig.clock.advance(5.0)
    await rest()
    assert peer.why == "it keeps running an abandoned batch"
    assert "an abandoned batch; the worker is cut off" in caplog.text


async def test_a_worker_that_only_fails_is_cut_off_and_one_that_comes_back_at_once_is_given_time(make):
    stage = await make(unhealthy_after=0.0, batch=None)

    async def fail_five(peer):
        for _ in range(5):
            await stage.rig.call(b"1")
            peer.fail()

    first = await stage.attach()
    await fail_five(first)
    assert first.why.startswith("every batch fails, the last with RuntimeError: broken")
    second = await stage.attach()
    await fail_five(second)
    assert second.why, "the first time its delay is none"
    third = await stage.attach()
    await fail_five(third)
    assert third.why == "", "from now on it is kept for a while: input may be at fault"


async def test_a_stage_that_rests_has_workers_wait_for_their_orders(make, caplog):
    stage = await make(unhealthy_after=0.0, batch=None)
    for _ in range(3):
        peer = await stage.attach()
        await stage.rig.clock.advance(1.0)
        for _ in range(5):
            await stage.rig.call(b"1")
            peer.fail()
    assert stage.rig.engine.state is State.FAILED
    assert "RuntimeError" in stage.rig.engine.reason
    waiting = await stage.attach(ready=False)
    await stage.rig.clock.advance(29.0)
    assert waiting.told is None
    assert "no worker from outside is ready" not in caplog.text, "the log has said why it has failed"
    await stage.rig.clock.advance(1.0)
    assert waiting.told is not None
    waiting.say(Kind.READY)
    assert stage.rig.engine.state is State.READY


async def test_a_worker_that_was_told_before_the_rest_may_not_serve_in_it(make):
    stage = await make(unhealthy_after=0.0, batch=None)
    late = await stage.attach(ready=False)
    for _ in range(3):
        peer = await stage.attach()
        await stage.rig.clock.advance(1.0)
        for _ in range(5):
            await stage.rig.call(b"1")
            peer.fail()
    late.say(Kind.READY)
    assert late.why == "the stage is paused"
    assert stage.rig.engine.state is State.FAILED


async def test_only_a_worker_that_said_so_is_asked_for_its_health_and_one_that_is_not_well_is_cut_off(make):
    stage = await make()
    deaf, well = await stage.attach(), await stage.attach(health=True)
    await stage.rig.clock.advance(10.0)
    assert (deaf.checked, well.checked) == (False, True)
    well.finish_check("no GPU")
    assert well.why.startswith("health check failed: RuntimeError: no GPU")
    assert len(stage.driver.workers) == 1


async def test_another_worker_ends_the_wait_for_the_one_that_was_not_well(make):
    stage = await make()
    first, second = await stage.attach(health=True), await stage.attach(health=True)
    await stage.rig.clock.advance(10.0)
    first.finish_check("no GPU")
    await stage.rig.clock.advance(20.0)
    assert not second.checked, "nobody is asked until there is another one"
    await stage.attach(health=True)
    await stage.rig.clock.advance(1.0)
    assert second.checked


async def test_a_worker_is_never_examined_even_where_there_are_examples(make):
    stage = await make(unhealthy_after=0.0, batch=None, examples=[3])
    peer = await stage.attach()
    for _ in range(5):
        await stage.rig.call(b"1")
        peer.fail()
    assert peer.frames == []
    assert peer.why.startswith("every batch fails")


# -- what it sends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payloads", "statuses", "why"),
    [
        ([b"9"], [4], "the worker sent the unknown status 4"),
        (
            [b""],
            [3],
            "the worker reported an item as expired that has no deadline: check that it uses the clock of this host",
        ),
        ([b"\x09"], [0], "the worker sent a result that is not valid json"),
        ([b""], [0], "the worker sent a result that is not valid json"),
        ([b"1, 2"], [0], "the worker sent a result that is not valid json"),
        ([b"9", b"9"], [0, 0], "the worker sent results of a batch that it does not have"),
        ([], [], "the worker sent results of a batch that it does not have"),
    ],
)
async def test_what_no_worker_should_send_is_a_death(make, caplog, payloads, statuses, why):
    stage = await make()
    first, second = await stage.attach(), await stage.attach()
    call = await stage.rig.call(b"3")
    frame = first.frames[0]
    frame.ids = frame.ids * len(payloads)
    first.answer(payloads, statuses)
    assert why in first.why
    assert f"worker 0 of stage 'square': {why}" in caplog.text
    await rest()
    second.answer([b"9"])
    assert call.ends == [b"9"]


async def test_other_ids_are_a_death(make):
    stage = await make()
    peer = await stage.attach()
    await stage.rig.call(b"3", b"4")
    peer.frames[0].ids = tuple(reversed(peer.frames[0].ids))
    peer.answer([b"9", b"16"])
    assert peer.why == "the worker sent results for other items than it received"


async def test_each_answer_is_held_to_the_format_of_its_item(make):
    stage = await make(accepts=("json", "msgpack", "raw"))
    peer = await stage.attach()
    engine, clock = stage.rig.engine, stage.rig.clock
    told = []
    for codec in (Codec.JSON, Codec.MSGPACK, Codec.RAW):
        engine.submit([b"3"], Codec.JSON, codec, clock.now() + 9, told.append)
    await rest()
    while peer.frames:
        codecs = peer.frames[0].codecs_out
        peer.answer([{1: b"9", 2: msgspec.msgpack.encode([9]), 3: b"\xff"}[codec] for codec in codecs])
        await rest()
    assert [bytes(outcome.payload) for (outcome,) in told] == [b"9", b"\x91\x09", b"\xff"]


async def test_who_calls_an_item_expired_before_its_time_has_another_clock(make):
    stage = await make()
    first, second = await stage.attach(), await stage.attach()
    call = await stage.rig.call(b"3", within=5.0)
    await stage.rig.clock.advance(2.0)
    first.answer([b""], [Status.EXPIRED])
    assert (
        first.why
        == "the worker reported an item as expired that has 3 s left: check that it uses the clock of this host"
    )
    await rest()
    second.answer([b"9"])
    assert call.ends == [b"9"]


# -- the log --------------------------------------------------------------------------------------------------------


async def test_workers_that_are_cut_off_fill_no_log(make, caplog):
    stage = await make()
    for _ in range(20):
        peer = await stage.attach()
        peer.say(Kind.READY)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    await stage.rig.clock.advance(1.0)
    (await stage.attach()).say(Kind.READY)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 2
    assert "(19 similar lines were suppressed" in lines[1]


# -- several stages -------------------------------------------------------------------------------------------------


async def test_between_stages_the_format_is_one_that_both_speak(make_rig):
    rig = make_rig(
        remote("a", accepts=("json", "msgpack")),
        remote("b", accepts=("npy", "json")),
        remote("c", accepts=("json",)),
    )
    await rig.engine.start()
    assert [(stage.codec_in, stage.codec_out) for stage in rig.engine.stages] == [
        (None, Codec.JSON),
        (Codec.JSON, Codec.JSON),
        (Codec.JSON, None),
    ]


async def test_a_stage_of_ours_between_two_of_others_is_started_and_sent_what_they_speak(make_rig):
    from penstock.runtime.spec import stage as ours

    rig = make_rig(remote("a"), ours(json.loads, name="b"), remote("c", accepts=("json",)))
    starting = await rig.begin()
    assert not starting.done(), "it waits for the stage of ours"
    rig.workers[0].become_ready()
    await starting
    assert [(stage.codec_in, stage.codec_out) for stage in rig.engine.stages] == [
        (None, Codec.MSGPACK),
        (Codec.MSGPACK, Codec.JSON),
        (Codec.JSON, None),
    ]
    assert rig.engine.state is State.STARTING


@pytest.mark.parametrize("busy", [False, True])
async def test_a_worker_from_outside_is_there_from_ready_until_it_wants_to_leave(make, busy):
    stage = await make(batch=Batch(max_size=4, max_wait="auto"))
    queue = stage.driver.queue
    assert queue.workers == 0
    peer = await stage.attach(ready=False)
    peer.obedient = False
    assert queue.workers == 0
    peer.say(Kind.READY)
    await rest()
    assert (queue.workers, queue._batches.free) == (1, 1)
    calls = [await stage.rig.call(b"3")] if busy else []
    peer.say(Kind.DETACH)
    await rest()
    assert (queue.workers, queue._batches.free) == (0, 0)
    other = await stage.attach()
    assert (queue.workers, queue._batches.free) == (1, 1), "who leaves takes no place"
    for call in calls:
        peer.answer([b"9"])
        assert call.ends == [b"9"]
    peer.die()
    await rest()
    assert (queue.workers, queue._batches.free) == (1, 1)
    call = await stage.rig.call(b"3")
    other.die()
    await rest()
    assert queue.workers == 0
    third = await stage.attach()
    assert (third.batches, queue._batches.free) == ([[b"3"]], 0)
    third.answer([b"9"])
    await rest()
    assert (call.ends, queue._batches.free) == ([b"9"], 1), "what the dead one had is forgotten"
