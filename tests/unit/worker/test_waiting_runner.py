"""How the items of the frames of a waiting stage end: each as in the worker of a plain one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import math
import pickle
import threading
import weakref

import numpy as np
import pytest

from penstock.codec import pickle_
from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import ItemEncoder
from penstock.codec.formats import Codec
from penstock.config import StageOptions
from penstock.errors import InvalidItem
from penstock.transport.framing import FrameDecoder, Status, encode_batch
from penstock.worker.bisect import call_limit
from penstock.worker.current_call import CallOfContext, announce, current_requests
from penstock.worker.plain_calls import PlainCalls
from penstock.worker.runner import Runner
from penstock.worker.stage import Stage, WorkerInfo
from penstock.worker.waiting_runner import WaitingRunner
from waiting_coordinator import PATIENCE_SECONDS, ended


@pytest.fixture
def plain():
    """The main thread of a worker."""
    calls = PlainCalls()
    thread = threading.Thread(target=calls.serve)
    thread.start()
    yield calls
    calls.stop()
    thread.join()


class Running:
    """A runner of frames that starts none by itself."""

    def __init__(self, stage, plain, *, batched=False, now=lambda: 0.0, **options):
        current = CallOfContext(now)
        self.options = StageOptions(**options)
        stage.worker = WorkerInfo("s", 0, 1, (), current.remaining)
        self.runner = Runner(
            stage,
            name="s",
            batched=batched,
            options=self.options,
            decoder=ItemDecoder(object),
            encoder=ItemEncoder(object),
            now=now,
            current=current,
        )
        self.waiting = WaitingRunner(
            stage, self.runner, plain, name="s", batched=batched, options=self.options, now=now
        )
        announce(current, "svc", "s", 0)

    def begin(self, *values, left=math.inf, payloads=None, names=b"", recalled=()):
        payloads = [pickle.dumps(value) for value in values] if payloads is None else payloads
        n = len(payloads)
        codecs = [Codec.PICKLE] * n
        lefts = left if isinstance(left, list) else [left] * n
        wire = encode_batch(1, 0.0, range(n), payloads, list(map(len, payloads)), lefts, codecs, codecs, names)
        (frame,) = FrameDecoder(readonly=True).feed(b"".join(wire))
        frame.recalled = frozenset(recalled)
        work = self.waiting.work_of(frame)
        work.task = asyncio.get_running_loop().create_task(self._answers(work))
        return work

    async def _answers(self, work):
        (frame,) = FrameDecoder().feed(b"".join(await self.waiting.run(work)))
        return frame

    async def run(self, *values, **how):
        """How the items of one frame ended."""
        return ended(await self.frame(*values, **how))

    async def frame(self, *values, **how):
        return await self.begin(*values, **how).task


FAILED = Status.FAILED


# -- the endings of an item ------------------------------------------------------------------------------------------


def endings(x):
    """What user code does with `x`."""
    if x == "invalid":
        raise InvalidItem("no good", path="$.x")
    if x == "given":
        return InvalidItem("given back")
    if x == "fails":
        raise ValueError("it fails")
    if x == "error":
        return ValueError("an error")
    if x == "exits":
        raise SystemExit("leaves")
    return x


ENDINGS = {
    "well": "well",
    "invalid": (Status.INVALID, "no good"),
    "given": (Status.INVALID, "given back"),
    "fails": (FAILED, "it fails"),
    "error": (FAILED, "an error"),
    "exits": (FAILED, "leaves"),
}


def asynchronous(function):
    async def later(self, x):
        await asyncio.sleep(0)
        return function(self, x)

    return later


def stage_with(*, ends_in, is_async, batched):
    """A stage in which one of the three methods does what its item says; always one of them is async."""

    def method(name):
        def each(self, x):
            return endings(x) if name == ends_in else x

        def all_at_once(self, xs):
            return [endings(x) for x in xs] if name == ends_in else xs

        chosen = all_at_once if batched and name == "predict" else each
        return asynchronous(chosen) if is_async or name != ends_in else chosen

    return type("Ends", (Stage,), {name: method(name) for name in ("preprocess", "predict", "postprocess")})()


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("where", ["preprocess", "predict", "postprocess"])
async def test_each_item_ends_as_its_own_user_code_says(plain, where, batched, is_async):
    running = Running(stage_with(ends_in=where, is_async=is_async, batched=batched), plain, batched=batched)
    if batched:
        assert await running.run(*ENDINGS) == list(ENDINGS.values())
    for x, how in ENDINGS.items():
        assert await running.run(x) == [how]


async def test_items_that_expired_were_recalled_or_cannot_be_read_are_not_run(plain):
    seen = []

    class Seen(Stage):
        async def predict(self, xs):
            seen.append(xs)
            return xs

    running = Running(Seen(), plain, batched=True)
    payloads = [pickle.dumps(i) for i in range(4)]
    payloads[2] = b"no pickle"
    found = await running.run(payloads=payloads, left=[1.0, -1.0, 1.0, 1.0], recalled=[3])
    assert found[:2] == [0, (Status.EXPIRED, "")]
    assert found[2][0] is FAILED
    assert found[3] == (Status.RECALLED, "")
    assert seen == [[0]]
    assert await running.run(1, 2, left=-1.0) == [(Status.EXPIRED, "")] * 2
    assert seen == [[0]]


async def test_a_result_that_cannot_be_written_fails_its_item(plain):
    class Bad(Stage):
        async def predict(self, xs):
            return [threading.Lock() if x == 1 else x for x in xs]

    found = await Running(Bad(), plain, batched=True).run(0, 1, 2)
    assert (found[0], found[1][0], found[2]) == (0, FAILED, 2)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([1], "stage 's': predict returned 1 results for 2 items"),
        (None, "stage 's': predict must return a list of 2 results, got NoneType"),
        ("ab", "stage 's': predict must return a list of 2 results, got str"),
    ],
)
async def test_another_number_of_results_fails_the_batch_at_once(plain, returned, words):
    class Short(Stage):
        async def predict(self, xs):
            return returned

    frame = await Running(Short(), plain, batched=True).frame(1, 2)
    assert (ended(frame), frame.calls) == ([(FAILED, words)] * 2, 1)


async def test_a_list_given_to_what_takes_one_item_is_noted(plain):
    class One(Stage):
        async def predict(self, x):
            return len(x)

    frame = await Running(One(), plain).frame(5)
    assert b"this stage has no batch policy, so predict receives one item" in bytes(frame.payloads[0])


class Client:
    """An object in the place of a method, which is async though it is no function."""

    async def __call__(self, x):
        return x + 1


async def test_an_object_whose_call_is_async_is_awaited(plain):
    class Calls(Stage):
        predict = Client()

    assert await Running(Calls(), plain).run(1) == [2]


async def test_postprocess_may_take_what_preprocess_made(plain):
    class Both(Stage):
        async def preprocess(self, x):
            return x * 10

        def predict(self, xs):
            return [x + 1 for x in xs]

        async def postprocess(self, y, pre):
            return (y, pre)

    assert await Running(Both(), plain, batched=True).run(1, 2) == [(11, 10), (21, 20)]


async def test_results_are_copied_before_another_call_may_write_over_them(plain):
    class Reuses(Stage):
        def __init__(self):
            self.out = np.zeros(1000)

        async def predict(self, x):
            self.out[:] = x
            return self.out

    running = Running(Reuses(), plain)
    first, second = running.begin(1), running.begin(2)
    frames = [await first.task, await second.task]
    assert [pickle_.loads(frame.payloads[0])[0] for frame in frames] == [1, 2]


# -- what was not awaited --------------------------------------------------------------------------------------------


async def coroutine():
    return 1


class Awaitable:
    def __await__(self):
        yield


UNAWAITED = {"coroutine": coroutine, "Awaitable": Awaitable, "Future": concurrent.futures.Future}


@pytest.mark.parametrize("kind", UNAWAITED)
@pytest.mark.parametrize("batched", [True, False])
async def test_a_plain_predict_that_returns_what_has_to_be_awaited_is_told_so(plain, kind, batched):
    class Forgets(Stage):
        async def preprocess(self, x):
            return x

        def predict(self, x):
            return UNAWAITED[kind]()

    frame = await Running(Forgets(), plain, batched=batched).frame(1)
    words = f"predict returned {kind!r}, which is never awaited: write `async def`, and `await` the call"
    assert (ended(frame), frame.calls) == ([(FAILED, words)], 1)


@pytest.mark.parametrize("batched", [True, False])
async def test_so_is_a_hook_and_an_item_of_a_batch(plain, batched):
    class Forgets(Stage):
        def preprocess(self, x):
            return coroutine() if x == "hook" else x

        async def predict(self, x):
            return [coroutine() if each == "item" else each for each in x] if batched else x

    running = Running(Forgets(), plain, batched=batched)
    assert (await running.run("hook"))[0][1].startswith("preprocess returned 'coroutine'")
    if batched:
        found = await running.run("item", "b")
        assert found[0][1].startswith("predict returned 'coroutine'")
        assert found[1] == "b"


# -- batches that fail -----------------------------------------------------------------------------------------------


class Culprits(Stage):
    """Raises on a batch with any of the bad."""

    bad = {3, 5}

    def __init__(self):
        self.batches = []
        self.running = 0
        self.ids = []

    async def predict(self, xs):
        assert self.running == 0, "two calls of one batch at once"
        self.running += 1
        self.batches.append(list(xs))
        self.ids.append(current_requests())
        await asyncio.sleep(0)
        self.running -= 1
        found = sorted(self.bad.intersection(xs))
        if found:
            raise ValueError(f"cannot take {found}")
        return [x * 10 for x in xs]


async def test_an_async_batch_that_fails_is_run_in_halves_one_after_the_other(plain):
    stage = Culprits()
    names = b" ".join(b"r%d" % i for i in range(16))
    frame = await Running(stage, plain, batched=True).frame(*range(16), names=names)
    assert ended(frame) == [(FAILED, f"cannot take [{i}]") if i in stage.bad else i * 10 for i in range(16)]
    assert frame.calls == len(stage.batches) <= call_limit(16)
    assert stage.batches[:2] == [list(range(16)), list(range(8))]
    assert stage.ids == [tuple(f"r{i}" for i in batch) for batch in stage.batches]


async def test_without_bisection_the_batch_fails_as_one(plain):
    stage = Culprits()
    found = await Running(stage, plain, batched=True, bisect=False).run(2, 3, 4)
    assert (found, len(stage.batches)) == ([(FAILED, "cannot take [3]")] * 3, 1)


@pytest.mark.parametrize("is_async", [True, False])
async def test_where_memory_is_short_halves_run_and_that_is_told(plain, is_async):
    class Small(Stage):
        async def preprocess(self, x):
            return x

        def predict(self, xs):
            if len(xs) > 2:
                raise MemoryError
            return xs

    class AsyncSmall(Small):
        async def predict(self, xs):
            return Small.predict(self, xs)

    running = Running(AsyncSmall() if is_async else Small(), plain, batched=True)
    assert await running.run(*range(8)) == list(range(8))
    assert running.runner.shortages == [(8, 2)]


# -- hooks that overlap ----------------------------------------------------------------------------------------------


class Meeting(Stage):
    """Hooks of all items of a batch meet; those of the next batch come while `predict` computes."""

    def __init__(self, n):
        self.before, self.after = asyncio.Barrier(n), asyncio.Barrier(n)
        self.computes, self.goes_on = threading.Event(), threading.Event()
        self.next_came = asyncio.Event()
        self.calls = 0

    async def preprocess(self, x):
        if x == "next":
            self.next_came.set()
        else:
            await self.before.wait()
        return x

    def predict(self, xs):
        self.calls += 1
        if "next" not in xs:
            self.computes.set()
            assert self.goes_on.wait(PATIENCE_SECONDS)
        return xs

    async def postprocess(self, y):
        if y != "next":
            await self.after.wait()
        return y


async def test_the_hooks_of_a_batch_run_together_and_those_of_the_next_while_predict_computes(plain):
    stage = Meeting(8)
    running = Running(stage, plain, batched=True)
    first = running.begin(*range(8))
    assert await asyncio.to_thread(stage.computes.wait, PATIENCE_SECONDS)
    second = running.begin("next")
    await stage.next_came.wait()
    assert not first.task.done()
    stage.goes_on.set()
    assert ended(await first.task) == list(range(8))
    assert ended(await second.task) == ["next"]
    assert stage.calls == 2


async def test_plain_calls_are_never_two_at_once(plain):
    class Alone(Stage):
        lock = threading.Lock()

        async def preprocess(self, x):
            return x

        def predict(self, x):
            assert self.lock.acquire(blocking=False)
            self.lock.release()
            return threading.current_thread().name

    running = Running(Alone(), plain)
    works = [running.begin(i) for i in range(50)]
    names = {ended(await work.task)[0] for work in works}
    assert len(names) == 1
    assert names != {threading.current_thread().name}


# -- stops -----------------------------------------------------------------------------------------------------------


async def test_a_cancel_before_the_first_step_runs_nothing(plain):
    stage = Culprits()
    work = Running(stage, plain, batched=True).begin(1)
    work.cancel()
    assert ended(await work.task) == [(Status.EXPIRED, "")]
    assert stage.batches == []


async def test_a_cancel_reaches_every_hook_and_the_frame_ends_after_the_last_of_them(plain):
    ends = []

    class Hooks(Stage):
        async def preprocess(self, x):
            if x == "invalid":
                raise InvalidItem("no")
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ends.append(x)

        async def predict(self, xs):
            raise AssertionError

    work = Running(Hooks(), plain, batched=True).begin(1, 2, "invalid")
    for _ in range(3):
        await asyncio.sleep(0)
    work.cancel()
    expired = (Status.EXPIRED, "")
    assert ended(await work.task) == [expired, expired, (Status.INVALID, "no")]
    assert sorted(ends) == [1, 2]


async def test_a_cancelled_frame_ends_once_its_plain_predict_has_ended_and_one_that_waits_for_it_at_once(plain):
    begun, goes_on, seen = threading.Event(), threading.Event(), []

    class Slow(Stage):
        async def preprocess(self, x):
            return x

        def predict(self, x):
            seen.append(x)
            begun.set()
            assert goes_on.wait(PATIENCE_SECONDS)
            return x

    running = Running(Slow(), plain)
    first, second, third = running.begin(1), running.begin(2), running.begin(3)
    await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    first.cancel()
    second.cancel()
    assert ended(await second.task) == [(Status.EXPIRED, "")]
    assert not first.task.done()
    goes_on.set()
    assert ended(await first.task) == [(Status.EXPIRED, "")]
    assert ended(await third.task) == [3]
    assert seen == [1, 3]


async def test_a_cancel_amid_the_halves_runs_no_further_half(plain):
    class Halves(Culprits):
        async def predict(self, xs):
            if len(self.batches) == 1:
                self.work.cancel()
            return await super().predict(xs)

    stage = Halves()
    stage.work = Running(stage, plain, batched=True).begin(*range(8))
    assert ended(await stage.work.task) == [(Status.EXPIRED, "")] * 8
    assert len(stage.batches) == 2


async def test_items_that_ended_before_the_time_was_over_keep_their_end(plain):
    class Late(Stage):
        def preprocess(self, x):
            return endings(x)

        async def predict(self, xs):
            self.work.time_out()
            await asyncio.sleep(0)

    stage = Late()
    stage.work = Running(stage, plain, batched=True, timeout=2.0).begin("well", "invalid")
    late = (FAILED, "exceeded the stage's timeout of 2 s; cancelled")
    assert ended(await stage.work.task) == [late, (Status.INVALID, "no good")]


# -- what is let go of -----------------------------------------------------------------------------------------------


class Held:
    """An input that a test looks after."""

    made: list

    def __init__(self, x):
        self.x = x

    def __reduce__(self):
        return remake, (self.x,)


def remake(x):
    held = Held(x)
    Held.made.append(weakref.ref(held))
    return held


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("kind", ["async", "plain", "hook"])
async def test_the_inputs_of_a_frame_are_let_go_of_when_it_is_answered(plain, kind, fails, batched):
    class Some(Stage):
        async def preprocess(self, x):
            await asyncio.sleep(0)
            if fails and kind == "hook":
                raise ValueError("no")
            return x

        def predict(self, x):
            if fails:
                raise ValueError("no")
            return [1] * len(x) if batched else 1

    class Async(Some):
        async def predict(self, x):
            await asyncio.sleep(0)
            return Some.predict(self, x)

    Held.made = []
    running = Running(Async() if kind == "async" else Some(), plain, batched=batched)
    gc.disable()
    try:
        found = await running.run(Held(1))
        await asyncio.to_thread(lambda: None)
        assert (found == [1]) is not fails
        assert Held.made
        assert [ref for ref in Held.made if ref() is not None] == []
    finally:
        gc.enable()
