"""One worker's slot: its states and moves, and what it does with the frames it is told."""

from __future__ import annotations

import asyncio
import logging
import math
from itertools import product

import msgspec
import pytest

from penstock.config import ServiceOptions
from penstock.core.abandonment import Abandonment
from penstock.core.dispatch import SentFrame
from penstock.core.item import Item, Request
from penstock.core.lanes import Lane
from penstock.core.moves import IllegalMove
from penstock.core.state import WorkerState
from penstock.core.supervision import WorkerHealth
from penstock.errors import ProtocolError
from penstock.runtime import slot_states
from penstock.runtime.incarnation import WorkerStart
from penstock.runtime.launching import launcher
from penstock.runtime.slot_states import SlotState
from penstock.runtime.spec import stage
from penstock.runtime.worker_slot import WorkerSlot
from penstock.testing.fake_workers import FakeWorkers
from penstock.testing.virtual_clock import VirtualClock, rest
from penstock.transport.framing import Kind, encode_answers, encode_batch, encode_control
from penstock.transport.messages import Counts, Hello, SeriesCount, pack
from rows import each

NAMES = ("START", "FILL", "BECOME_READY", "REPLACE", "LEAVE", "CLOSE", "STOP", "ABANDON", "END")
MOVES = {name: getattr(slot_states, name) for name in NAMES}


class Owner:
    """A stage that only remembers."""

    ending = "killed"
    recalls = True
    concurrency, window, in_turn = 1, 2, True

    def __init__(self) -> None:
        self.events: list[tuple] = []
        self.launched = 0
        self.wait = 0.0
        self.order = launcher("service", [stage(math.sqrt, name="double")], 0, ServiceOptions(), inline=True)

    def start_of(self, index):
        return WorkerStart("service", "double", index, None, frozenset({0}), {})

    def launch_of(self, index):
        self.launched += 1
        return pack(self.order(index))

    def launch_in(self):
        return self.wait

    def check_answers(self, sent, frame):
        if frame.payloads and bytes(frame.payloads[0]) == b"not asked for":
            raise ProtocolError("nobody asked for that")

    def disbelieved(self, worker, why):
        logging.getLogger("penstock.runtime").error("%s: %s; the worker is killed", worker, why)

    def answered(self, worker, sent, frame, now):
        self.events.append(("answered", sent.frame_id, [bytes(p) for p in frame.payloads]))

    def counted(self, worker, counts):
        self.events.append(("counted", counts))

    def checked(self, worker, problem):
        raise AssertionError("no stage of these tests has a health")

    def examined(self, worker, problem):
        self.events.append(("examined", problem))

    def abandoned(self, worker):
        self.events.append(("abandoned",))

    def worker_ready(self, worker):
        self.events.append(("ready",))

    def worker_detached(self, worker):
        self.events.append(("detached",))

    def worker_ended(self, worker, end):
        self.detached = end.detached
        self.events.append(("ended", end.reason, end.was_ready, end.innocent, len(end.frames)))
        self.problem = end.problem
        self.hung = end.hung


class Rig:
    """A slot with an owner that remembers, workers that are fakes, and a clock that stands still."""

    def __init__(self, *, timeout=None, abandonment=None, obedient=True) -> None:
        self.clock = VirtualClock()
        self.workers = FakeWorkers(obedient=obedient)
        self.owner = Owner()
        self.slot = WorkerSlot(
            self.owner,
            "double",
            0,
            timeout=timeout,
            abandonment=abandonment,
            health=WorkerHealth(),
            clock=self.clock,
            start_incarnation=self.workers.start,
        )

    @property
    def worker(self):
        return self.workers[-1]

    @property
    def state(self):
        return self.slot._state

    async def started(self):
        self.slot.start()
        await rest()
        return self

    async def ready(self):
        await self.started()
        self.worker.become_ready()
        return self

    def send(self, frame_id, *payloads):
        request = Request(payloads, 1, 1, math.inf, lambda outcomes: None, Lane.SINGLE)
        held = [Item(i, payload, len(payload), request, i) for i, payload in enumerate(payloads)]
        sent = SentFrame(frame_id, held, self.slot)
        n = len(payloads)
        ids, lengths = list(range(n)), [len(p) for p in payloads]
        self.slot.send(
            sent, encode_batch(frame_id, 0.0, ids, payloads, lengths, [1.0] * n, [1] * n, [1] * n), self.clock.now()
        )
        return sent


# -- the table --------------------------------------------------------------------------------------------------------


@each(("name", "state"), list(product(MOVES, SlotState)))
def test_a_move_is_legal_or_one_error_that_names_move_and_state(name, state):
    try:
        after = MOVES[name][state]
    except IllegalMove as error:
        words = f"cannot {name.lower().replace('_', ' ')} a worker that is {state.name.lower().replace('_', ' ')}"
        assert str(error) == words  # noqa: PT017  # most moves are legal
    else:
        assert after in SlotState


@pytest.mark.parametrize("name", ["STOP", "ABANDON"])
def test_a_slot_may_be_stopped_in_every_state(name):
    assert {MOVES[name][state] for state in SlotState} <= {SlotState.DOOMED, SlotState.STOPPING, SlotState.STOPPED}


# -- life -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("greets_early", [False, True])
async def test_a_worker_that_cannot_be_told_what_to_do_is_ended_as_one_that_could_not_be_set_up(greets_early):
    rig = Rig()
    order = msgspec.structs.replace(rig.owner.order(0), service="\ud800")  # no UTF-8 can carry it
    rig.owner.order = lambda _: order
    if greets_early:
        rig.workers.on_start = lambda worker: worker.greet()
    await rig.started()
    if not greets_early:
        rig.worker.greet()
    assert rig.worker.orders == ["kill"]
    assert rig.owner.events == [("ended", "signal SIGKILL", False, False, 0)]
    assert rig.owner.problem.type_name == "builtins.UnicodeEncodeError"
    assert rig.owner.problem.message.startswith("cannot send the launch order to the worker: 'utf-8' codec")


async def test_a_worker_is_launched_when_it_greets_and_takes_batches_once_it_is_ready():
    rig = Rig()
    assert (rig.slot.state, rig.slot.alive, rig.slot.pid) == (WorkerState.DOWN, False, None)
    rig.slot.start()
    assert (rig.slot.state, rig.slot.alive) == (WorkerState.DOWN, True)
    await rest()
    assert rig.slot.state is WorkerState.STARTING
    assert rig.slot.pid == rig.worker.pid
    rig.worker.greet()
    assert rig.worker.launch is not None
    assert rig.owner.launched == 1
    assert not rig.slot.ready
    rig.worker.say(Kind.READY)
    assert rig.slot.ready
    assert rig.slot.tried
    assert rig.slot.state is WorkerState.IDLE
    assert rig.owner.events == [("ready",)]
    rig.send(1, b"a")
    assert rig.slot.state is WorkerState.BUSY


async def test_a_worker_that_cannot_be_started_has_ended():
    rig = Rig()

    def refuse(worker):
        raise OSError("no processes left")

    rig.workers.on_start = refuse
    await rig.started()
    assert rig.owner.events == [("ended", "failed to start the process: no processes left", False, False, 0)]
    assert (rig.slot.tried, rig.slot.alive, rig.state) == (True, False, SlotState.EMPTY)


async def test_a_restart_comes_after_its_delay_and_forgets_the_last_life():
    rig = await Rig().ready()
    rig.slot.recycle("it is sick")
    assert rig.owner.events[1:] == [("ended", "signal SIGKILL", True, True, 0)]
    rig.slot.restart_in(2.0)
    await rig.clock.advance(1.999)
    assert len(rig.workers) == 1
    await rig.clock.advance(0.001)
    assert len(rig.workers) == 2
    assert rig.slot.restarts == 1
    rig.worker.fail_setup()
    assert rig.owner.events[2:] == [("ended", "exit status 1", False, False, 0)]


async def test_the_device_memory_of_a_worker_is_known_until_it_ends():
    rig = await Rig().started()
    rig.worker.greet()
    rig.worker.say_device_memory(100)
    rig.worker.say(Kind.READY)
    assert rig.slot.device_memory == 100
    rig.worker.say_device_memory(0)
    assert rig.slot.device_memory == 0
    rig.worker.die()
    assert rig.slot.device_memory is None


async def test_a_worker_counts_from_its_start_to_its_end_and_not_before_it_has_said_hello():
    rig = await Rig(obedient=False).started()
    rig.worker.greet()
    counts = Counts([SeriesCount("user_hits", {}, 2.0)])
    rig.worker.say(Kind.COUNTS, pack(counts))
    rig.worker.say(Kind.READY)
    rig.slot.close()
    rig.worker.say(Kind.COUNTS, pack(counts))
    assert [event for event in rig.owner.events if event[0] == "counted"] == [("counted", counts)] * 2
    early = await Rig().started()
    early.worker.say(Kind.COUNTS, pack(counts))
    assert early.worker.orders == ["kill"]


async def test_a_worker_that_was_ready_is_asked_to_close_and_one_that_was_not_is_killed():
    ready = await Rig(obedient=False).ready()
    ready.slot.close()
    assert ready.worker.orders == ["close"]
    assert not ready.slot.ready
    assert ready.slot.state is WorkerState.IDLE
    ready.slot.close()
    assert ready.worker.orders == ["close", "kill"]
    loading = await Rig(obedient=False).started()
    loading.slot.close()
    assert loading.worker.orders == ["kill"]
    for rig in (ready, loading):
        assert rig.slot.alive
        rig.worker.die("gone")
        assert (rig.state, rig.slot.alive) == (SlotState.STOPPED, False)


async def test_a_slot_killed_while_it_waits_for_its_restart_is_never_started():
    rig = await Rig().ready()
    rig.worker.die()
    rig.slot.restart_in(5.0)
    rig.slot.kill()
    assert rig.clock.waiting == []
    await rig.clock.advance(10.0)
    assert len(rig.workers) == 1
    rig.slot.start()
    assert (rig.state, len(rig.workers)) == (SlotState.STOPPED, 1)


async def test_a_slot_killed_while_its_worker_is_being_started_kills_it_as_soon_as_it_is_there():
    rig = Rig()
    rig.slot.start()
    rig.slot.kill()
    assert rig.state is SlotState.DOOMED
    await rest()
    assert rig.worker.orders == ["kill"]
    assert rig.state is SlotState.STOPPED


@pytest.mark.parametrize("end", ["kill", "abandon"])
async def test_a_slot_ended_while_a_start_fails_is_stopped(end):
    rig = Rig()

    def refuse(worker):
        raise OSError("no processes left")

    rig.workers.on_start = refuse
    rig.slot.start()
    getattr(rig.slot, end)()
    await rest()
    assert rig.state is SlotState.STOPPED


async def test_an_abandoned_worker_tells_its_end_without_harm(caplog):
    rig = await Rig(timeout=3.0).ready()
    rig.send(1, b"a")
    rig.slot.abandon()
    assert (rig.worker.orders, rig.slot.alive) == (["abandon"], False)
    await rig.clock.advance(3.0)  # the thread that abandons cannot cancel the timer of a hang
    assert caplog.records == []
    assert rig.worker.orders == ["abandon"]
    assert rig.state is SlotState.STOPPED
    rig.slot.ended("its thread has finished")
    assert rig.state is SlotState.STOPPED
    assert rig.owner.events[-1][0] == "ended"


async def test_an_empty_slot_can_be_abandoned():
    rig = Rig()
    rig.slot.abandon()
    assert rig.state is SlotState.STOPPED


# -- frames -----------------------------------------------------------------------------------------------------------


async def broken(rig, caplog, words):
    """Whether the slot has ended its worker for what it said."""
    assert words in caplog.text
    assert "the worker is killed" in caplog.text
    assert rig.worker.orders == ["kill"]
    assert not rig.slot.ready


@pytest.mark.parametrize("tamper", ["none held", "another frame", "other number"])
async def test_a_worker_that_answers_what_it_does_not_hold_is_killed(tamper, caplog):
    rig = await Rig(obedient=False).ready()
    if tamper != "none held":
        rig.send(1, b"a")
    rig.worker.frames.clear()
    frame_id, n = {"none held": (1, 1), "another frame": (2, 1), "other number": (1, 2)}[tamper]
    rig.worker._deliver(encode_answers(frame_id, 0.0, 1, range(n), [b"A"] * n, [0] * n))
    await broken(rig, caplog, "the worker sent results of a batch that it does not have")


async def test_nothing_is_believed_of_a_worker_that_said_what_no_worker_says(caplog):
    rig = await Rig(obedient=False).ready()
    rig.send(1, b"a")
    rig.worker.say(Kind.LAUNCH)
    await broken(rig, caplog, "the worker sent an unexpected LAUNCH frame")
    rig.worker.answer([b"A"])
    assert rig.owner.events == [("ready",)]
    rig.worker.die("signal SIGKILL")
    assert rig.owner.events[1:] == [("ended", "signal SIGKILL", True, False, 1)]


@pytest.mark.parametrize("greets_early", [False, True], ids=["after its start", "before its start returns"])
async def test_a_worker_of_another_version_is_killed(greets_early, caplog):
    rig = Rig(obedient=False)
    other = pack(Hello(1, version=99))
    if greets_early:
        rig.workers.on_start = lambda worker: worker.say(Kind.HELLO, other)
    await rig.started()
    if not greets_early:
        rig.worker.say(Kind.HELLO, other)
    await broken(rig, caplog, "the worker uses protocol version 99, the coordinator version 5")


@pytest.mark.parametrize("words", [("HELLO", "HELLO"), ("READY",), ("HELLO", "READY", "READY")])
async def test_a_worker_that_says_a_word_of_the_handshake_out_of_turn_is_killed(words, caplog):
    rig = await Rig(obedient=False).started()
    for word in words:
        rig.worker.say(Kind[word], pack(Hello(1)) if word == "HELLO" else b"")
    await broken(rig, caplog, f"the worker sent an unexpected {words[-1]} frame")


async def test_a_worker_that_becomes_ready_while_it_is_being_ended_takes_no_batch():
    rig = await Rig(obedient=False).started()
    rig.worker.greet()
    rig.slot.kill()
    rig.worker.say(Kind.READY)
    assert not rig.slot.ready
    assert rig.owner.events == []
    rig.worker.die()
    assert rig.owner.events == [("ended", "signal SIGSEGV", True, False, 0)]


# -- hang -------------------------------------------------------------------------------------------------------------


async def test_each_frame_has_the_time_to_itself_and_the_one_that_takes_longer_ends_the_worker(caplog):
    rig = await Rig(timeout=5.0, obedient=False).ready()
    rig.send(1, b"a")
    await rig.clock.advance(4.0)
    rig.send(2, b"b")
    await rig.clock.advance(0.999)
    rig.worker.answer()
    await rig.clock.advance(4.999)
    assert rig.worker.orders == []
    await rig.clock.advance(0.001)
    assert rig.worker.orders == ["kill"]
    assert "worker 0 of stage 'double': a batch ran longer than 5 s; the worker is killed" in caplog.text
    assert not rig.slot.ready
    assert rig.slot.state is WorkerState.STARTING
    rig.worker.die()
    assert rig.owner.events[-1] == ("ended", "signal SIGSEGV", True, False, 1)
    assert rig.owner.hung


async def test_a_batch_that_is_answered_after_all_hung_nobody():
    rig = await Rig(timeout=5.0, obedient=False).ready()
    rig.send(1, b"a")
    rig.send(2, b"b")
    await rig.clock.advance(5.0)
    assert rig.worker.orders == ["kill"]
    rig.worker.answer()  # it was on its way
    rig.worker.die()
    assert rig.owner.events[-1] == ("ended", "signal SIGSEGV", True, False, 1)
    assert not rig.owner.hung


async def test_the_next_incarnation_has_not_hung():
    rig = await Rig(timeout=5.0).ready()
    rig.send(1, b"a")
    await rig.clock.advance(5.0)
    assert rig.owner.hung
    rig.slot.start()
    await rest()
    rig.worker.become_ready()
    rig.send(2, b"b")
    rig.worker.die()
    assert not rig.owner.hung


async def test_time_in_which_the_event_loop_stood_still_does_not_count(caplog):
    rig = await Rig(timeout=5.0, obedient=False).ready()
    rig.send(1, b"a")
    rig.clock._now += 7.0
    await rig.clock.advance(0)
    assert rig.worker.orders == []
    rig.worker.answer()  # it had come long before, and could not be read
    assert rig.clock.waiting == []
    rig.send(2, b"b")
    rig.clock._now += 7.0
    await rig.clock.advance(1.999)
    assert rig.worker.orders == []
    await rig.clock.advance(0.001)
    assert rig.worker.orders == ["kill"]
    assert caplog.text.count("a batch ran longer than 5 s") == 1


async def test_a_long_standstill_gives_a_batch_its_time_once_more_and_no_more_than_that():
    rig = await Rig(timeout=5.0, obedient=False).ready()
    rig.send(1, b"a")
    rig.clock._now += 1000.0
    await rig.clock.advance(0)
    assert rig.clock.waiting == [5.0]
    rig.clock._now += 1000.0
    await rig.clock.advance(0)
    assert rig.worker.orders == ["kill"]


async def test_a_timer_that_rings_a_little_late_is_no_standstill():
    rig = await Rig(timeout=5.0, obedient=False).ready()
    rig.send(1, b"a")
    rig.clock._now += 5.09
    await rig.clock.advance(0)
    assert rig.worker.orders == ["kill"]


@pytest.mark.parametrize("order", ["close", "kill"])
async def test_a_worker_that_is_ended_is_no_longer_timed(order):
    rig = await Rig(timeout=5.0, obedient=False).ready()
    rig.send(1, b"x")
    assert rig.clock.waiting == [5.0]
    getattr(rig.slot, order)()
    assert rig.clock.waiting == []
    assert rig.worker.orders == [order]


async def test_a_slot_keeps_the_task_of_its_start_until_it_is_over():
    rig = Rig()
    rig.slot.start()
    assert isinstance(rig.slot._starting, asyncio.Task)
    await rest()
    assert rig.slot._starting is None


# -- what nobody waits for --------------------------------------------------------------------------------------------


def limit(seconds):
    return Abandonment(seconds, has_examples=True)


def desert(sent):
    """Settle every item of a frame without its answer."""
    for _ in sent.items:
        sent.settled()


async def test_a_worker_that_goes_on_with_a_deserted_batch_is_told_of_and_then_killed(caplog):
    rig = await Rig(abandonment=limit(30.0)).ready()
    rig.worker.stack = "File model.py, line 7 in predict"
    sent = rig.send(1, b"a", b"b")
    behind = rig.send(2, b"c")
    await rig.clock.advance(5.0)
    assert rig.clock.waiting == [], "somebody waits"
    desert(sent)
    await rig.clock.advance(9.9)
    assert caplog.text == ""
    await rig.clock.advance(0.1)
    assert "for 10.0 s it has been running an abandoned batch; it keeps running for now\nFile model.py" in caplog.text
    await rig.clock.advance(19.9)
    assert rig.worker.orders == []
    await rig.clock.advance(0.1)
    assert rig.worker.orders == ["kill"]
    assert "for 30.0 s it has been running an abandoned batch; the worker is killed\nFile model.py" in caplog.text
    assert rig.owner.events[1:] == [("abandoned",), ("ended", "signal SIGKILL", True, True, 2)]
    assert rig.clock.waiting == []
    assert behind.unsettled == 1


async def test_a_batch_that_was_deserted_before_it_ran_counts_from_when_it_runs():
    rig = await Rig(abandonment=limit(30.0)).ready()
    rig.send(1, b"a")
    desert(rig.send(2, b"b"))
    await rig.clock.advance(100.0)
    rig.worker.answer()
    await rig.clock.advance(29.9)
    assert rig.worker.orders == []
    await rig.clock.advance(0.1)
    assert rig.worker.orders == ["kill"]


async def test_without_a_limit_that_ends_the_log_tells_and_nothing_else_happens(caplog):
    rig = await Rig(abandonment=limit(math.inf)).ready()
    desert(rig.send(1, b"a"))
    await rig.clock.advance(10.0)
    assert "The worker did not report its stacks." in caplog.text
    assert rig.clock.waiting == []
    rig.worker.answer()


async def test_nothing_watches_a_thread_or_a_worker_that_is_being_ended():
    rig = await Rig().ready()
    desert(rig.send(1, b"a"))
    assert rig.clock.waiting == []
    rig = await Rig(abandonment=limit(30.0), obedient=False).ready()
    sent = rig.send(1, b"a")
    rig.slot.kill()
    desert(sent)
    assert rig.clock.waiting == []


async def test_a_worker_that_answers_while_it_is_asked_for_its_stacks_is_not_killed(caplog):
    rig = await Rig(abandonment=limit(30.0)).ready()
    asked = asyncio.Event()

    async def slowly():
        await asked.wait()
        return "late"

    rig.worker.stacks = slowly
    desert(rig.send(1, b"a"))
    await rig.clock.advance(30.0)
    rig.worker.answer()
    asked.set()
    await rest()
    assert rig.worker.orders == []
    assert "nobody waits" not in caplog.text


async def test_a_slot_that_is_stopped_asks_for_no_more_stacks():
    rig = await Rig(abandonment=limit(30.0)).ready()
    rig.worker.stacks = asyncio.Event().wait
    desert(rig.send(1, b"a"))
    await rig.clock.advance(10.0)
    asking = rig.slot._asking
    rig.slot.kill()
    await rest()
    assert asking.cancelled()


async def test_a_worker_tells_how_long_it_has_been_busy():
    rig = await Rig().ready()
    assert rig.slot.busy_seconds is None
    rig.send(1, b"a")
    rig.send(2, b"b")
    await rig.clock.advance(3.0)
    assert rig.slot.busy_seconds == 3.0
    rig.worker.answer()
    await rig.clock.advance(1.0)
    assert rig.slot.busy_seconds == 1.0
    rig.worker.answer()
    assert rig.slot.busy_seconds is None


async def test_the_time_of_its_start_and_its_first_answer_are_of_each_life():
    rig = Rig(abandonment=Abandonment(None, has_examples=False))

    async def left(frame_id):
        desert(rig.send(frame_id, b"a"))
        await rig.clock.advance(10.0)
        return rig.clock.waiting

    await rig.started()
    await rig.clock.advance(400.0)
    rig.worker.become_ready()
    assert await left(1) == [390.0]
    rig.worker.answer()
    assert await left(2) == [390.0]
    rig.worker.die()
    await rig.started()
    await rig.clock.advance(2.0)
    rig.worker.become_ready()
    assert await left(3) == [290.0], "it has not answered yet"
    rig.worker.answer()
    assert await left(4) == [20.0]
    rig.worker.answer()


# -- examinations -----------------------------------------------------------------------------------------------------


def examine(rig, frame_id):
    rig.slot.send(SentFrame(frame_id, [], rig.slot), encode_control(Kind.EXAMINE, b"", frame_id), rig.clock.now())


async def test_an_examination_is_told_after_the_batches_before_it():
    rig = await Rig(abandonment=limit(30.0)).ready()
    rig.send(1, b"a")
    examine(rig, 2)
    assert rig.clock.waiting == []
    rig.worker.answer()
    assert rig.clock.waiting == [10.0], "it may take no longer than an abandoned batch"
    rig.worker.finish_examination()
    examine(rig, 3)
    rig.worker.finish_examination("no memory")
    assert [what for what, *_ in rig.owner.events] == ["ready", "answered", "examined", "examined"]
    assert rig.owner.events[2] == ("examined", None)
    assert rig.owner.events[3][1].message == "no memory"


async def test_an_example_that_runs_on_and_on_is_told_as_what_it_is(caplog):
    rig = await Rig(abandonment=limit(3.0)).ready()
    examine(rig, 1)
    await rig.clock.advance(3.0)
    assert "for 1.5 s it has been running an example; it keeps running for now" in caplog.text
    assert "for 3.0 s it has been running an example; the worker is killed" in caplog.text
    assert rig.worker.orders == ["kill"]


async def test_a_worker_that_was_not_examined_and_says_so_is_killed(caplog):
    rig = await Rig(obedient=False).ready()
    rig.worker.say(Kind.EXAMINED)
    await broken(rig, caplog, "the worker sent an unexpected EXAMINED frame")


async def test_a_worker_that_answers_a_batch_as_an_examination_is_killed(caplog):
    rig = await Rig(obedient=False).ready()
    rig.send(1, b"a")
    rig.worker.finish_examination()
    await broken(rig, caplog, "the worker sent an unexpected EXAMINED frame")


async def test_a_worker_that_answers_an_examination_as_a_batch_is_killed(caplog):
    rig = await Rig(obedient=False).ready()
    examine(rig, 1)
    rig.worker.answer([])
    await broken(rig, caplog, "the worker sent results of a batch that it does not have")


async def test_a_worker_that_leaves_answers_what_it_holds_and_is_sent_nothing_more():
    rig = Rig(obedient=False)
    await rig.ready()
    rig.send(1, b"a")
    rig.worker.say(Kind.DETACH)
    assert (rig.state, rig.slot.ready, rig.slot.leaving) == (SlotState.LEAVING, False, True)
    assert rig.worker.orders == ["close"], "it reads what was sent, and then the end"
    assert rig.slot.state is WorkerState.LEAVING


async def test_a_worker_that_leaves_twice_is_ended():
    rig = Rig(obedient=False)
    await rig.ready()
    rig.worker.say(Kind.DETACH)
    rig.worker.say(Kind.DETACH)
    assert rig.worker.orders == ["close", "kill"]


async def test_a_worker_that_leaves_before_it_is_ready_is_ended(caplog):
    rig = await Rig().started()
    rig.worker.greet()
    rig.worker.say(Kind.DETACH)
    assert rig.worker.orders == ["kill"]
    assert "the worker sent an unexpected DETACH frame" in caplog.text


async def test_a_worker_that_is_being_ended_may_say_that_it_leaves():
    rig = Rig(obedient=False)
    await rig.ready()
    rig.slot.recycle("it is sick")
    rig.worker.say(Kind.DETACH)
    assert rig.worker.orders == ["kill"]
    assert ("detached",) not in rig.owner.events


async def test_a_stop_lets_a_worker_that_leaves_go():
    rig = Rig(obedient=False)
    await rig.ready()
    rig.worker.say(Kind.DETACH)
    rig.slot.close()
    assert rig.worker.orders == ["close", "close"]
    rig.worker.die("it closed its connection")
    assert rig.state is SlotState.STOPPED


async def test_a_worker_that_has_gone_gets_no_orders():
    rig = Rig()
    rig.owner.wait = 3.0
    await rig.started()
    rig.worker.greet()
    rig.worker.die("it closed its connection")
    await rig.clock.advance(3.0)
    assert (rig.owner.launched, rig.state) == (0, SlotState.EMPTY)


async def test_a_worker_is_struck_as_by_anybody():
    rig = Rig()
    rig.slot.strike()
    await rig.ready()
    rig.send(1, b"a")
    rig.slot.strike()
    assert rig.worker.orders == []
    assert rig.owner.events[-1] == ("ended", "signal SIGKILL", True, False, 1)


async def test_a_worker_that_is_ended_while_it_waits_for_its_orders_gets_none():
    rig = Rig(obedient=False)
    rig.owner.wait = 3.0
    await rig.started()
    rig.worker.greet()
    rig.worker.say(Kind.DETACH)
    assert rig.worker.orders == ["kill"]
    await rig.clock.advance(3.0)
    assert (rig.owner.launched, rig.worker.launch) == (0, None)


async def test_a_worker_that_was_abandoned_while_it_left_is_left_alone():
    rig = Rig(obedient=False)
    await rig.ready()
    rig.worker.say(Kind.DETACH)
    rig.slot.abandon()
    await rig.clock.advance(20.0)
    assert rig.worker.orders == ["close", "abandon"]
    assert rig.state is SlotState.STOPPED
