"""The life of the worker of a waiting stage, told frame by frame."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import subprocess
import sys
import threading
from random import Random

import pytest

import penstock as ps
from penstock.cli.findings import BatchRan, Finding
from penstock.cli.measuring import _MeasuringEnd
from penstock.config import StageOptions
from penstock.errors import ProtocolError
from penstock.testing.channels import Recorder
from penstock.transport.framing import Kind, Status, encode_control
from penstock.transport.memory import MemoryChannel
from penstock.transport.messages import Counts as Counted
from penstock.transport.messages import Problem, pack, unpack
from penstock.worker.current_call import current_requests
from penstock.worker.loop import counting_over, work
from penstock.worker.stage import Stage
from waiting_coordinator import PATIENCE_SECONDS, Coordinator, batch_of, ended, problem_of, waiting_launch


@pytest.fixture
def start():
    """Start workers, which end with the test."""
    begun = []

    def start(target, **fields):
        begun.append(Coordinator(target, **fields))
        return begun[-1]

    yield start
    for coordinator in begun:
        coordinator.leave()


class Doors:
    """Doors that tasks wait at, by name, and that a test opens; thread-safe."""

    def __init__(self):
        self._lock = threading.Condition()
        self._waiting = {}
        self._open = set()
        self.came = []

    async def wait(self, name):
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self.came.append(name)
            self._lock.notify_all()
            if name in self._open:
                return
            self._waiting.setdefault(name, []).append((loop, event))
        await event.wait()

    def open(self, name):
        with self._lock:
            self._open.add(name)
            for loop, event in self._waiting.pop(name, []):
                loop.call_soon_threadsafe(event.set)

    def until_came(self, *names):
        with self._lock:
            assert self._lock.wait_for(lambda: set(names) <= set(self.came), PATIENCE_SECONDS), self.came


@pytest.fixture
def doors():
    At.doors = Doors()
    return At.doors


class At(Stage):
    """Each item waits at the door that it names."""

    doors: Doors

    async def predict(self, x):
        await self.doors.wait(x)
        return f"{x}!"


# -- answers in any order --------------------------------------------------------------------------------------------


def test_each_frame_is_answered_when_it_is_done(start, doors):
    worker = start(At).started()
    for frame_id, name in enumerate("abc"):
        worker.batch(frame_id, name)
    doors.until_came(*"abc")
    for name, frame_id in (("c", 2), ("a", 0), ("b", 1)):
        doors.open(name)
        assert worker.answers() == {frame_id: [f"{name}!"]}
    assert worker.close() == []
    assert worker.raised is None


def test_at_most_so_many_are_in_progress_and_those_behind_begin_in_order(start, doors):
    worker = start(At, concurrency=2).started()
    for frame_id, name in enumerate("abcd"):
        worker.batch(frame_id, name)
    worker.check(9)  # a stage without `health` fails it, and by then all was read
    assert worker.next().kind is Kind.CHECKED
    assert doors.came == ["a", "b"]
    doors.open("b")
    assert worker.answers() == {1: ["b!"]}
    doors.until_came("c")
    assert doors.came == ["a", "b", "c"]
    for name in "acd":
        doors.open(name)
    assert worker.answers(3) == {0: ["a!"], 2: ["c!"], 3: ["d!"]}


def test_items_behind_may_be_taken_back(start, doors):
    worker = start(At, concurrency=1).started()
    worker.batch(1, "a")
    worker.batch(2, "b")
    worker.batch(3, "c")
    worker.recall(2, 0)
    worker.recall(1, 0)  # too late
    worker.check(9)
    assert worker.next().kind is Kind.CHECKED  # by then all was read
    doors.open("a")
    doors.open("c")
    assert worker.answers(3) == {1: ["a!"], 2: [(Status.RECALLED, "")], 3: ["c!"]}


def test_what_expired_behind_is_not_run(start, doors):
    worker = start(At).started()
    worker.batch(1, "a", left=-1.0)
    assert worker.answers() == {1: [(Status.EXPIRED, "")]}
    assert doors.came == []


# -- cancel ----------------------------------------------------------------------------------------------------------


class Cancelled(At):
    """Notes what it was told."""

    told: list

    async def predict(self, x):
        try:
            return await super().predict(x)
        except asyncio.CancelledError:
            self.told.append(x)
            if x == "stubborn":
                return await super().predict("late")
            raise


@pytest.fixture
def told(doors):
    Cancelled.told = []
    return Cancelled.told


def test_a_frame_that_is_cancelled_is_answered_and_no_other_is_touched(start, doors, told):
    worker = start(Cancelled).started()
    worker.batch(1, "a")
    worker.batch(2, "b")
    doors.until_came("a", "b")
    worker.cancel(2)
    assert worker.answers() == {2: [(Status.EXPIRED, "")]}
    assert told == ["b"]
    worker.cancel(2)  # it has ended, and so has one that never was
    worker.cancel(7)
    doors.open("a")
    assert worker.answers() == {1: ["a!"]}


def test_a_frame_that_is_cancelled_behind_was_taken_back(start, doors, told):
    worker = start(Cancelled, concurrency=1).started()
    worker.batch(1, "a")
    worker.batch(2, "b")
    worker.cancel(2)
    assert worker.answers() == {2: [(Status.RECALLED, "")]}
    doors.open("a")
    assert worker.answers() == {1: ["a!"]}
    assert (doors.came, told) == (["a"], [])


def test_what_swallows_the_cancel_keeps_its_place_until_it_ends(start, doors, told):
    worker = start(Cancelled, concurrency=1).started()
    worker.batch(1, "stubborn")
    worker.batch(2, "b")
    doors.until_came("stubborn")
    worker.cancel(1)
    doors.until_came("late")
    worker.check(9)
    assert worker.next().kind is Kind.CHECKED
    assert "b" not in doors.came
    doors.open("late")
    assert worker.answers() == {1: [(Status.EXPIRED, "")]}
    doors.open("b")
    assert worker.answers() == {2: ["b!"]}


def test_a_cancel_right_behind_its_batch_finds_it(start, doors, told):
    worker = start(Cancelled).started()
    for _ in range(3):
        worker.batch(1, "a")
        worker.cancel(1)
        assert worker.answers() == {1: [(Status.EXPIRED, "")]}


def test_a_frame_whose_task_the_stage_cancels_before_it_has_begun_is_run_all_the_same(start):
    class CancelsAll(Stage):
        async def predict(self, x):
            if x == "all":
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
            return x

    worker = start(CancelsAll).started()
    worker.write([b"".join(batch_of(frame_id, x)) for frame_id, x in enumerate(["all", "a", "b"])])
    assert worker.answers(3) == {0: ["all"], 1: ["a"], 2: ["b"]}
    assert worker.close() == []


def test_a_stage_that_raises_cancelled_error_fails_its_item_and_not_the_worker(start):
    class Odd(Stage):
        async def predict(self, x):
            if x == "itself":
                asyncio.current_task().cancel()
                await asyncio.sleep(0)
            if x == "all":
                for task in asyncio.all_tasks():
                    task.cancel()
                await asyncio.sleep(0)
            raise asyncio.CancelledError("mine") if x == "raise" else SystemExit(x)

    worker = start(Odd).started()
    for frame_id, x in enumerate(["raise", "itself", "exit", "all"]):
        worker.batch(frame_id, x)
        ((status, _),) = worker.answers()[frame_id]
        assert status is Status.FAILED
    assert worker.close() == []
    assert worker.raised is None


def test_system_exit_in_a_task_that_the_stage_started_does_not_end_the_worker(start, caplog):
    class Exits(Stage):
        async def predict(self, x):
            async def leave():
                raise SystemExit(3)

            await asyncio.gather(asyncio.create_task(leave()), return_exceptions=True)
            return x

    worker = start(Exits).started()
    for frame_id in (1, 2):
        worker.batch(frame_id, "a")
        assert list(worker.answers()) == [frame_id]
    assert worker.close() == []
    assert worker.raised is None
    assert "raised SystemExit; the worker keeps running" in caplog.text


# -- timeout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", ["a", "stubborn"])
def test_what_takes_longer_than_the_timeout_is_cancelled_and_fails_by_a_timeout_error(start, doors, told, x):
    worker = start(Cancelled, options=StageOptions(timeout=0.05)).started()
    doors.open("late")
    worker.batch(1, x)
    frame = worker.next()
    assert [Status(status) for status in frame.statuses] == [Status.FAILED]
    problem = problem_of(frame)
    assert problem.type_name == "builtins.TimeoutError"
    assert "builtins.TimeoutError" in problem.mro
    assert problem.message == "exceeded the stage's timeout of 0.05 s; cancelled"
    assert told == [x]
    if x == "a":
        assert "await event.wait()" in problem.traceback  # where it stood
    doors.open("b")
    worker.batch(2, "b")
    assert worker.answers() == {2: ["b!"]}


# -- the life --------------------------------------------------------------------------------------------------------


class Lived(Stage):
    """Keeps which loop and thread each method ran in."""

    examples = [1]
    log: list

    def note(self, where):
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        self.log.append((where, loop, threading.current_thread().name))


class AllAsync(Lived):
    async def setup(self, *, url):
        self.note(url)

    async def preprocess(self, x):
        self.note("preprocess")
        return x

    async def predict(self, x):
        self.note("predict")
        return x

    async def postprocess(self, y):
        self.note("postprocess")
        return y

    async def health(self):
        self.note("health")

    async def teardown(self):
        self.note("teardown")


class OnlyHooks(Lived):
    """Everything else is plain, and so is one of the hooks."""

    def setup(self, *, url):
        self.note(url)

    async def preprocess(self, x):
        self.note("preprocess")
        return x

    def predict(self, x):
        self.note("predict")
        return x

    def postprocess(self, y):
        self.note("postprocess")
        return y

    def health(self):
        self.note("health")

    def teardown(self):
        self.note("teardown")


STEPS = ["http://x", *["preprocess", "predict", "postprocess"] * 2, "health", "teardown"]


def lived(start, target):
    target.log = log = []
    worker = start(target, setup={"url": "http://x"}).started()
    worker.batch(1, 5)
    assert worker.answers() == {1: [5]}
    worker.check(3)
    frame = worker.next()
    assert (frame.kind, frame.frame_id, bytes(frame.payloads[0])) == (Kind.CHECKED, 3, b"")
    assert worker.close() == []
    assert worker.raised is None
    assert [where for where, _, _ in log] == STEPS
    return worker, log


def test_all_that_is_async_runs_in_one_loop_from_setup_to_teardown(start):
    _, log = lived(start, AllAsync)
    assert len({loop for _, loop, _ in log}) == 1
    assert {name for _, _, name in log} == {"penstock-loop"}


def test_what_is_plain_runs_in_the_main_thread_and_plain_hooks_in_the_loop(start):
    worker, log = lived(start, OnlyHooks)
    for where, loop, name in log:
        in_loop = where in {"preprocess", "postprocess"}
        assert (loop is not None, name) == (in_loop, "penstock-loop" if in_loop else worker.thread.name)


@pytest.mark.parametrize("where", ["setup", "preprocess", "predict", "postprocess"])
@pytest.mark.parametrize("batched", [False, True])
def test_a_start_that_fails_tells_why_from_the_users_code_on(start, where, batched):
    async def fail(self, *args):
        raise OSError("no service")

    async def predict(self, x):
        return x

    target = type("Fails", (Stage,), {"examples": [1], "predict": predict, where: fail})
    worker = start(target, batched=batched)
    frame = worker.next()
    assert frame.kind is Kind.FAILED
    problem = unpack(frame.payloads[0], Problem)
    assert (problem.type_name, problem.message) == ("builtins.OSError", "no service")
    assert problem.on_examples is (where != "setup")
    assert problem.traceback.splitlines()[1].startswith(f'  File "{__file__}"')
    assert worker.next() is None


def test_examples_run_alone_and_as_a_full_batch_and_must_have_their_answers(start):
    seen = []

    class Warm(Stage):
        examples = [1, 2, ps.Example(3, 3)]

        async def predict(self, xs):
            seen.append((list(xs), current_requests(), len(self.worker.remaining())))
            return xs

    worker = start(Warm, batched=True).started()
    assert seen == [([1], (), 1), ([2], (), 1), ([3], (), 1), ([1, 2, 3, 1], (), 4)]
    worker.close()
    Warm.examples = [ps.Example(1, 2)]
    assert problem_of(start(Warm, batched=True).next()).message == "examples[0]: expected 2, got 1"


def test_health_that_raises_says_why_while_tasks_go_on(start, doors):
    class Sick(At):
        async def health(self):
            raise OSError("not well")

    worker = start(Sick).started()
    worker.batch(1, "a")
    doors.until_came("a")
    worker.check(4)
    frame = worker.next()
    assert (frame.kind, frame.frame_id, problem_of(frame).message) == (Kind.CHECKED, 4, "not well")
    doors.open("a")
    assert worker.answers() == {1: ["a!"]}


# -- the end ---------------------------------------------------------------------------------------------------------


def test_at_the_end_of_the_stream_tasks_are_cancelled_and_then_comes_teardown(start, doors, told):
    class Ends(Cancelled):
        async def teardown(self):
            self.told.append("teardown")

    worker = start(Ends, concurrency=2).started()
    for frame_id, x in enumerate("abc"):
        worker.batch(frame_id, x)
    doors.until_came("a", "b")
    assert sorted(frame.frame_id for frame in worker.close()) == [0, 1]
    assert (told, doors.came) == (["a", "b", "teardown"], ["a", "b"])
    assert worker.raised is None


def test_a_task_that_does_not_end_keeps_no_worker(start, doors, told):
    worker = start(Cancelled).started()
    worker.batch(1, "stubborn")
    doors.until_came("stubborn")
    worker.close()
    assert worker.raised is None


def test_teardown_that_fails_is_logged(start, caplog):
    class Bad(Stage):
        async def predict(self, x):
            return x

        async def teardown(self):
            raise ValueError("not now")

    worker = start(Bad).started()
    assert worker.close() == []
    assert "teardown failed" in caplog.text
    assert "ValueError: not now" in caplog.text


def test_a_worker_whose_coordinator_has_gone_ends(start, doors):
    worker = start(At).started()
    worker.batch(1, "a")
    doors.until_came("a")
    worker.leave()
    assert isinstance(worker.raised, OSError)


@pytest.mark.parametrize("kind", [Kind.EXAMINE, Kind.READY])
def test_a_frame_that_no_waiting_worker_gets_ends_it(start, kind):
    worker = start(At).started()
    worker.write(encode_control(kind, b""))
    assert worker.next() is None
    worker.thread.join(PATIENCE_SECONDS)
    assert isinstance(worker.raised, ProtocolError)


def test_what_the_stage_has_left_is_cancelled_after_teardown(start):
    told = []

    class Leaves(Stage):
        async def setup(self):
            self.task = asyncio.create_task(self.run())

        async def run(self):
            try:
                await asyncio.Event().wait()
            finally:
                told.append("left")

        async def predict(self, x):
            return x

        async def teardown(self):
            told.append("teardown")

    worker = start(Leaves).started()
    assert worker.close() == []
    assert told == ["teardown", "left"]


def test_nothing_is_left_of_a_worker_that_has_ended(start, doors):
    before = set(threading.enumerate())
    worker = start(At).started()
    doors.open("a")
    worker.batch(1, "a")
    assert worker.answers() == {1: ["a!"]}
    worker.close()
    assert set(threading.enumerate()) <= before


# -- whose call it is ------------------------------------------------------------------------------------------------


class Told(Stage):
    """All items meet, so that all are in progress at once, and then each says what it is told."""

    n: int
    inherited = contextvars.ContextVar("inherited", default="none")

    async def setup(self):
        self.met = asyncio.Barrier(self.n)

    async def preprocess(self, x):
        assert self.inherited.get() == "none", "a task has seen the variables of another"
        self.inherited.set(str(x))
        return x

    async def predict(self, x):
        await self.met.wait()
        in_task = await asyncio.create_task(self.tell())
        in_thread = await asyncio.to_thread(current_requests)
        return (x, current_requests(), self.worker.remaining(), in_task, in_thread)

    async def tell(self):
        await asyncio.sleep(0)
        return current_requests()


def test_64_tasks_at_once_are_each_told_of_their_own_request(start):
    Told.n = 64
    worker = start(Told).started()
    for i in range(64):
        worker.batch(i, i, left=1000.0 * (i + 1), names=b"id-%d" % i)
    found = worker.answers(64)
    for i in range(64):
        ((x, ids, (left,), in_task, in_thread),) = found[i]
        mine = (f"id-{i}",)
        assert (x, ids, in_task, in_thread) == (i, mine, mine, mine)
        assert 1000.0 * i < left <= 1000.0 * (i + 1)


def test_a_plain_predict_is_told_of_its_batch_and_each_hook_of_its_item(start):
    seen = []

    class Mixed(Stage):
        async def preprocess(self, x):
            await asyncio.sleep(0)
            seen.append(("pre", x, current_requests(), len(self.worker.remaining())))
            return x

        def predict(self, xs):
            seen.append(("predict", xs, current_requests(), len(self.worker.remaining())))
            return xs

        def postprocess(self, y):
            seen.append(("post", y, current_requests(), len(self.worker.remaining())))
            return y

    worker = start(Mixed, batched=True).started()
    worker.batch(1, 1, 2, 3, names=b"a b c")
    assert worker.answers() == {1: [1, 2, 3]}
    pairs = [(1, ("a",)), (2, ("b",)), (3, ("c",))]
    assert seen == [
        *[("pre", x, ids, 1) for x, ids in pairs],
        ("predict", [1, 2, 3], ("a", "b", "c"), 3),
        *[("post", x, ids, 1) for x, ids in pairs],
    ]


def test_a_task_that_outlives_its_frame_is_told_of_nothing(start, doors):
    class Outlives(At):
        async def predict(self, x):
            if x == "begin":
                self.task = asyncio.create_task(self.ask())
                return current_requests()
            self.doors.open("asked")
            return await self.task

        async def ask(self):
            await self.doors.wait("asked")
            return current_requests(), self.worker.remaining()

    worker = start(Outlives).started()
    worker.batch(1, "begin", names=b"one")
    assert worker.answers() == {1: [("one",)]}
    worker.batch(2, "end", names=b"two")
    assert worker.answers() == {2: [((), [])]}


# -- imports ---------------------------------------------------------------------------------------------------------


def test_a_plain_worker_never_imports_asyncio():
    code = "import sys, penstock.worker.loop, penstock.transport.worker_socket; print('asyncio' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


# -- stages that do to the loop what they should not -----------------------------------------------------------------


def test_a_check_whose_task_the_stage_cancels_before_it_has_begun_is_answered(start):
    class CancelsAll(Stage):
        async def health(self):
            pass

        async def predict(self, x):
            if x == "cancel all":
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
            return x

    worker = start(CancelsAll, concurrency=2).started()
    frames = [batch_of(1, "cancel all"), batch_of(2, "b"), encode_control(Kind.CHECK, b"", 9), batch_of(3, "c")]
    worker.write([b"".join(frame) for frame in frames])  # they are read at once
    found = [worker.next() for _ in range(4)]
    assert {frame.frame_id: ended(frame) for frame in found if frame.kind is Kind.ANSWERS} == {
        1: ["cancel all"],
        2: ["b"],
        3: ["c"],
    }
    assert [problem_of(frame) for frame in found if frame.kind is Kind.CHECKED] == [None]
    assert worker.close() == []


def test_a_stage_may_set_a_task_factory_that_takes_no_context(start):
    class Factory(Stage):
        async def setup(self):
            loop = asyncio.get_running_loop()
            loop.set_task_factory(lambda loop, coroutine: asyncio.Task(coroutine, loop=loop))

        async def predict(self, x):
            return await asyncio.create_task(asyncio.sleep(0, x))

    worker = start(Factory).started()
    worker.batch(1, "a")
    assert worker.answers() == {1: ["a"]}
    assert worker.close() == []
    assert worker.raised is None


def test_setup_may_replace_methods_as_in_a_plain_stage(start):
    class Compiles(Stage):
        async def preprocess(self, x):
            return x

        def setup(self):
            before = self.predict
            self.predict = lambda x: f"compiled {before(x)}"

        def predict(self, x):
            return x

    worker = start(Compiles).started()
    worker.batch(1, "a")
    assert worker.answers() == {1: ["compiled a"]}
    assert worker.close() == []


def test_the_wait_for_the_main_thread_is_not_the_time_of_a_batch(start):
    class InTurn(Stage):
        begun = {name: threading.Event() for name in "abc"}
        gates = {name: threading.Event() for name in "abc"}

        async def preprocess(self, x):
            if x == "probe":
                await asyncio.Event().wait()
            return x

        def predict(self, x):
            self.begun[x].set()
            assert self.gates[x].wait(PATIENCE_SECONDS)
            return x

    def until_time_is_over_of_all_that_begins_now(frame_id):
        worker.batch(frame_id, "probe")
        assert [*worker.answers()] == [frame_id]

    worker = start(InTurn, options=StageOptions(timeout=0.1)).started()
    for frame_id, x in enumerate("abc"):
        worker.batch(frame_id, x)
    assert InTurn.begun["a"].wait(PATIENCE_SECONDS)
    until_time_is_over_of_all_that_begins_now(3)
    InTurn.gates["b"].set()
    InTurn.gates["a"].set()
    late = "exceeded the stage's timeout of 0.1 s; cancelled"
    assert worker.answers(2) == {0: [(Status.FAILED, late)], 1: ["b"]}
    assert InTurn.begun["c"].wait(PATIENCE_SECONDS)
    until_time_is_over_of_all_that_begins_now(4)
    InTurn.gates["c"].set()
    assert worker.answers() == {2: [(Status.FAILED, late)]}
    assert worker.close() == []


def test_a_check_takes_a_place_as_the_coordinator_counts_it(start, doors):
    class Checked(At):
        async def health(self):
            await self.doors.wait("health")

    worker = start(Checked, concurrency=2).started()
    worker.check(9)
    for frame_id, x in enumerate("abc"):
        worker.batch(frame_id, x)
    doors.until_came("health", "a")
    worker.cancel(1)
    assert worker.answers() == {1: [(Status.RECALLED, "")]}, "it had not begun"
    doors.open("health")
    assert worker.next().kind is Kind.CHECKED
    doors.until_came("c")
    doors.open("a")
    doors.open("c")
    assert worker.answers(2) == {0: ["a!"], 2: ["c!"]}
    assert worker.close() == []


# -- in a program ----------------------------------------------------------------------------------------------------


async def test_a_worker_that_is_a_thread_does_the_same_over_memory_and_what_it_counts_is_sent():
    class Counts(Stage):
        async def setup(self):
            self.both = asyncio.Barrier(2)

        async def predict(self, x):
            ps.count("seen", 2)
            await self.both.wait()
            return x

    sink = Recorder()
    channel = MemoryChannel(sink)
    end = channel.worker_end

    def run():
        with counting_over(end, whole_process=False):
            work(end, target=Counts)
        end.close()

    thread = threading.Thread(target=run)
    thread.start()
    channel.send(encode_control(Kind.LAUNCH, pack(waiting_launch())))
    await sink.until_frames(2)
    for frame_id in (1, 2):
        channel.send(batch_of(frame_id, frame_id))
    await sink.until(lambda: [frame.kind for frame in sink.frames].count(Kind.ANSWERS) == 2)
    channel.close()
    await sink.until(lambda: sink.ends)
    await asyncio.to_thread(thread.join)
    found = {frame.frame_id: ended(frame) for frame in sink.frames if frame.kind is Kind.ANSWERS}
    assert found == {1: [1], 2: [2]}
    counted = [unpack(frame.payloads[0], Counted) for frame in sink.frames if frame.kind is Kind.COUNTS]
    assert sum(series.n for counts in counted for series in counts.series) == 4
    assert sink.ends == [None]


def test_a_stage_is_measured_with_one_batch_at_a_time():
    class Measured(Stage):
        running = 0

        async def predict(self, xs):
            self.running += 1
            assert self.running == 1
            await asyncio.sleep(0)
            self.running -= 1
            return xs

    found = []
    order = waiting_launch(batched=True, max_size=1)
    end = _MeasuringEnd("stage", order, [pickle.dumps(1)], 4, found.append, results=-1)
    work(end, target=Measured, on_loaded=end.loaded)
    assert [report.size for report in found if isinstance(report, BatchRan)] == [1, 2, 4]
    assert [report for report in found if isinstance(report, Finding)] == []


# -- histories -------------------------------------------------------------------------------------------------------


class Turns(Stage):
    """Waits for as many turns of the loop as it is told, and ends as it is told."""

    async def preprocess(self, x):
        await asyncio.sleep(0)
        return x

    async def predict(self, x):
        turns, how = x
        if how == "ask":
            return len(asyncio.all_tasks())
        for _ in range(turns):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if how != "stubborn":
                    raise
        if how == "fails":
            raise ValueError(how)
        return current_requests()


@pytest.mark.parametrize("seed", range(4))
def test_each_frame_of_a_random_history_is_answered_once_and_nothing_is_left(start, seed):
    random = Random(seed)
    worker = start(Turns, concurrency=random.choice([1, 3, 64])).started()
    hows, cancelled, recalled, found = {}, set(), set(), {}
    for frame_id in range(400):
        hows[frame_id] = how = random.choice(["well", "well", "fails", "stubborn"])
        worker.batch(frame_id, (random.randrange(20), how), names=b"r%d" % frame_id)
        other = random.randrange(frame_id + 1)
        if random.random() < 0.3:
            cancelled.add(other)
            worker.cancel(other)
        elif random.random() < 0.1:
            recalled.add(other)
            worker.recall(other, 0)
        while len(hows) - len(found) > random.randrange(1, 100):
            found |= worker.answers()
    found |= worker.answers(len(hows) - len(found))
    assert sorted(found) == list(range(400))
    for frame_id, (how,) in found.items():
        wanted = [(f"r{frame_id}",)] if hows[frame_id] != "fails" else [(Status.FAILED, "fails")]
        if frame_id in cancelled:
            wanted += [(Status.EXPIRED, ""), (Status.RECALLED, "")]
        if frame_id in recalled:
            wanted.append((Status.RECALLED, ""))
        assert how in wanted
    worker.batch(1000, (0, "ask"))
    assert worker.answers() == {1000: [2]}  # this task, and the worker's own
    assert worker.close() == []
    assert worker.raised is None
