"""A service in a thread of its own: who waits there, and who is told when nobody waits any more."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
import warnings

import pytest
import uvloop

from penstock.blocking import BlockingService
from penstock.codec.formats import Codec
from penstock.core.lanes import Lane
from penstock.core.state import State
from penstock.errors import ConfigError, InvalidItem, NotReady, Overloaded
from penstock.runtime.caller_formats import CallerFormats


class MemoryService:
    """A service whose `predict` answers when a test says so; `stop` ends what is left."""

    name = "here"

    def __init__(self, engine=None, calls=None) -> None:
        self.engine = engine
        self.calls = calls
        self.began = threading.Event()
        self.cancelled: list = []
        self.waiting: dict = {}
        self.left: list = []
        self.start_error: Exception | None = None
        self.stops = 0

    async def start(self):
        if self.start_error is not None:
            raise self.start_error
        if self.calls is not None:
            self.calls.connect(self.engine, asyncio.get_running_loop())

    async def stop(self):
        self.stops += 1
        self.left = list(self.waiting)
        for future in self.waiting.values():
            future.set_exception(NotReady("stopped"))
        if self.engine is not None:
            for submission in self.engine.submissions:
                submission.settle(*(NotReady("stopped") for _ in submission.items))

    async def predict(self, x, *, timeout, wait, urgency=3, tenant=""):
        if callable(x):
            return x()
        if x != "wait":
            return (x, timeout, wait)
        self.waiting[x] = asyncio.get_running_loop().create_future()
        self.began.set()
        try:
            return await self.waiting[x]
        except asyncio.CancelledError:
            self.cancelled.append(x)
            raise
        finally:
            del self.waiting[x]

    async def predict_many(self, xs, *, timeout, wait, return_exceptions, urgency=3, tenant=""):
        return [xs, timeout, wait, return_exceptions]


@pytest.fixture
def served(engine, make_calls):
    """A blocking service over the engine of this test."""
    calls = make_calls(None, max_in_flight=6)
    return BlockingService(MemoryService(engine, calls), calls, calls.disconnect)


@pytest.fixture
def service():
    return MemoryService()


@pytest.fixture
def blocking(service, make_calls):
    calls = make_calls(None)
    return BlockingService(service, calls, calls.disconnect)


def test_calls_are_those_of_the_service_waited_for_in_this_thread(blocking):
    with blocking as s:
        assert s.predict(1, timeout=2.0, wait=False) == (1, 2.0, False)
        assert s.predict_many(iter([1, 2]), return_exceptions=True) == [[1, 2], None, True, True]


def test_an_interrupt_in_the_waiting_thread_cancels_the_call(blocking, service, monkeypatch):
    wait = concurrent.futures.Future.result

    def interrupted(future, timeout=None):
        monkeypatch.setattr(concurrent.futures.Future, "result", wait)
        assert service.began.wait(20)
        raise KeyboardInterrupt

    with blocking as s:
        monkeypatch.setattr(concurrent.futures.Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            s.predict("wait")
    assert service.cancelled == ["wait"]
    assert service.left == []


def test_a_service_that_is_not_started_takes_no_calls(blocking):
    with pytest.raises(NotReady, match="service 'here' is not started: use `with`"):
        blocking.predict(1)
    with pytest.raises(NotReady, match="service 'here' is not started: use `with`"):
        list(blocking.stream([1]))


def test_a_service_is_started_once(blocking):
    with blocking as s, pytest.raises(ConfigError, match="service 'here' is already started"):
        s.__enter__()


def test_of_two_threads_that_enter_at_once_one_does(blocking, monkeypatch):
    making, go_on, made = threading.Event(), threading.Event(), []
    make = uvloop.new_event_loop

    def make_slowly():
        made.append(1)
        making.set()
        assert go_on.wait(20)
        return make()

    monkeypatch.setattr("penstock.hosting.loop_thread.uvloop.new_event_loop", make_slowly)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(blocking.__enter__)
        assert making.wait(20)
        second = pool.submit(blocking.__enter__)
        go_on.set()
        assert first.result(20) is blocking
        with pytest.raises(ConfigError, match="is already started"):
            second.result(20)
    assert made == [1]
    blocking.__exit__(None, None, None)


def test_a_start_that_fails_leaves_no_thread(blocking, service):
    service.start_error = ConfigError("no")
    before = threading.active_count()
    with pytest.raises(ConfigError, match="no"):
        blocking.__enter__()
    assert threading.active_count() == before
    service.start_error = None
    with blocking as s:
        assert s.predict(1) == (1, None, True)


def test_a_call_that_interrupts_a_call_of_the_same_thread_is_answered(blocking, monkeypatch):
    submit, answers = asyncio.run_coroutine_threadsafe, []

    def interrupted(coroutine, loop):
        """Submit, but first do what a signal handler or a finalizer may do there."""
        monkeypatch.setattr("penstock.blocking.asyncio.run_coroutine_threadsafe", submit)
        answers.append(s.predict(1))
        return submit(coroutine, loop)

    with blocking as s:
        monkeypatch.setattr("penstock.blocking.asyncio.run_coroutine_threadsafe", interrupted)
        assert s.predict(2) == (2, None, True)
    assert answers == [(1, None, True)]


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.predict(1),
        lambda s: s.predict_many([1]),
        lambda s: next(s.stream([1])),
        lambda s: s.__exit__(None, None, None),
    ],
    ids=["predict", "predict_many", "stream", "exit"],
)
def test_in_the_thread_of_the_loop_each_call_is_refused_and_does_not_wait_for_itself(served, call):
    with served as s:
        with pytest.raises(ConfigError, match="service 'here' was called from its own event loop thread"):
            s.predict(lambda: call(s))
        assert s.predict(1) == (1, None, True)


def test_a_thread_that_cannot_be_started_leaves_no_open_loop(blocking, monkeypatch):
    loops, make = [], uvloop.new_event_loop

    def cannot_start(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr("penstock.hosting.loop_thread.uvloop.new_event_loop", lambda: loops.append(make()) or loops[-1])
        full.setattr(threading.Thread, "start", cannot_start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            blocking.__enter__()
    assert [loop.is_closed() for loop in loops] == [True]
    with blocking as s:
        assert s.predict(1) == (1, None, True)


def test_a_call_that_was_submitted_before_the_end_is_refused_and_not_left_waiting(blocking, service):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with blocking as s:
            call = pool.submit(s.predict, "wait")
            assert service.began.wait(20)
        with pytest.raises(NotReady, match="stopped"):
            call.result(20)


def test_a_stream_answers_in_order(served, engine):
    engine.answer = lambda item: item * 2
    with served as s:
        assert list(s.stream(range(20), timeout=5.0)) == [i * 2 for i in range(20)]
    assert {(s.items[0], s.deadline, s.lane, s.wait) for s in engine.submissions} == {
        (i, 1005.0, Lane.BULK, True) for i in range(20)
    }


def settle_at_third(engine, settle):
    """Call `settle` with the three oldest submissions when the third comes, then with the next three, and so on."""
    submit = engine.submit

    def counted(*arguments, **options):
        submission = submit(*arguments, **options)
        if len(engine.submissions) % 3 == 0:
            settle(engine.submissions[-3:])
        return submission

    engine.submit = counted


def test_a_stream_writes_its_items_in_the_format_of_workers_from_outside(engine, make_calls):
    engine.answer = lambda item: item + b"0"
    calls = make_calls(None, formats=CallerFormats(Codec.JSON, Codec.JSON, "last"))
    with BlockingService(MemoryService(engine, calls), calls, calls.disconnect) as s:
        assert list(s.stream([1, {1j}, 2], return_exceptions=True))[::2] == [10, 20]


def test_a_stream_reads_no_further_than_its_share(served, engine):
    ahead, answers = [], []

    def source():
        for i in range(9):
            ahead.append(i - len(answers))
            yield i

    settle_at_third(engine, lambda three: [submission.settle(submission.items[0]) for submission in three])
    with served as s:
        for answer in s.stream(source()):
            answers.append(answer)
    assert answers == list(range(9))
    assert max(ahead) == 2


def test_leaving_a_stream_takes_back_what_has_no_answer(served, engine):
    settle_at_third(engine, lambda three: three[0].settle("first"))
    with served as s:
        stream = s.stream(range(9))
        assert next(stream) == "first"
        stream.close()
        s.predict("whatever")  # when this is answered the loop has seen to what came before it
        assert [submission.items for submission in engine.cancelled] == [[1], [2]]


def test_a_failure_in_a_stream_is_raised_in_its_place_or_stands_there(served, engine):
    engine.answer = lambda item: Overloaded() if item == 2 else item
    with served as s:
        stream = s.stream([1, 2, 3])
        assert next(stream) == 1
        with pytest.raises(Overloaded):
            next(stream)
        one, two, three = s.stream([1, 2, 3], return_exceptions=True)
        assert (one, three) == (1, 3)
        assert isinstance(two, Overloaded)


def test_a_source_that_fails_is_seen_after_the_answers_before_it(served, engine):
    def source():
        yield 1
        raise LookupError("no more")

    engine.answer = lambda item: item
    with served as s:
        stream = s.stream(source())
        assert next(stream) == 1
        with pytest.raises(LookupError, match="no more"):
            next(stream)


# -- what ends the loop, and what does not ----------------------------------------------------------------------------


def raises(error: BaseException):
    raise error


@pytest.mark.parametrize(
    ("disturb", "told"),
    [
        (lambda: raises(SystemExit("out")), SystemExit),
        (lambda: raises(KeyboardInterrupt("out")), KeyboardInterrupt),
        (lambda: asyncio.get_running_loop().stop(), None),
    ],
    ids=["SystemExit", "KeyboardInterrupt", "stop"],
)
def test_what_one_call_does_to_the_loop_is_told_to_that_caller_alone(blocking, service, disturb, told):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with blocking as s:
            other = pool.submit(s.predict, "wait")
            assert service.began.wait(20)
            if told is None:
                assert s.predict(disturb) is None
            else:
                with pytest.raises(told):
                    s.predict(disturb)
            assert not other.done()
            assert s.predict(1) == (1, None, True)
        with pytest.raises(NotReady, match="stopped"):
            other.result(20)


@pytest.fixture
def broken(blocking, service, monkeypatch):
    """A service whose loop an error has ended, while a caller waited; the pool of that caller, and its call."""
    loops = []

    class Loop(uvloop.Loop):
        def __init__(self):
            super().__init__()
            loops.append(self)

        def run_forever(self):
            super().run_forever()
            raise MemoryError("no more")

    monkeypatch.setattr("penstock.hosting.loop_thread.uvloop.new_event_loop", Loop)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        blocking.__enter__()
        waiting = pool.submit(blocking.predict, "wait")
        assert service.began.wait(20)
        loops[0].call_soon_threadsafe(loops[0].stop)
        yield blocking, waiting
    monkeypatch.setattr(Loop, "run_forever", uvloop.Loop.run_forever)
    tasks = asyncio.all_tasks(loops[0])
    for task in tasks:
        task.cancel()
    loops[0].run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loops[0].close()


def test_an_error_that_ends_the_loop_is_told_to_who_waits_and_to_who_comes(broken):
    s, waiting = broken
    words = "^service 'here': its event loop stopped with MemoryError: no more$"
    with pytest.raises(NotReady, match=words):
        waiting.result(20)
    with pytest.raises(NotReady, match=words):
        s.predict(1)
    with pytest.raises(NotReady, match=words):
        list(s.stream([1]))
    s.__exit__(None, None, None)


def test_a_service_whose_loop_has_ended_is_stopped_all_the_same(broken, service):
    s, waiting = broken
    waiting.exception(10)
    stopped = []
    service.stop = lambda: stop(stopped)
    s.__exit__(None, None, None)
    assert stopped == ["stopped"]
    with pytest.raises(NotReady, match="is not started"):
        s.predict(1)


async def stop(stopped):
    stopped.append("stopped")


def test_a_service_that_is_dropped_without_leaving_is_stopped_and_its_thread_ends(service, make_calls):
    calls = make_calls(None)
    s = BlockingService(service, calls, calls.disconnect).__enter__()
    thread = s._thread._thread
    with pytest.warns(ResourceWarning, match="'here' was started but never stopped"):
        del s
    thread.join(20)
    assert not thread.is_alive()
    assert service.stops == 1


def test_a_dropped_service_is_stopped_though_warnings_are_errors(blocking, service):
    s = blocking.__enter__()
    thread = s._thread._thread
    with warnings.catch_warnings(action="error"), pytest.raises(ResourceWarning, match="never stopped"):
        s.__del__()
    thread.join(20)
    assert service.stops == 1
    s._thread = None


def test_at_the_end_of_the_interpreter_each_call_is_refused_at_once(blocking, service, monkeypatch):
    with blocking as s:
        thread = s._thread
        with monkeypatch.context() as end:
            end.setattr("penstock.blocking.sys.is_finalizing", lambda: True)
            with pytest.raises(NotReady, match=r"^service 'here': the interpreter is shutting down$"):
                s.predict(1)
            s.__exit__(None, None, None)
        assert service.stops == 0
        s._thread = thread


# -- after a fork -----------------------------------------------------------------------------------------------------


@pytest.fixture
def forked(served, engine, monkeypatch):
    """A blocking service that was entered in another process, whose other thread held the lock at the fork."""
    engine.state = State.READY
    with served as s, monkeypatch.context() as child:
        stream = s.stream([1, 2])
        with s._thread._lock:
            child.setattr("penstock.calls.os.getpid", lambda: -1)
            yield s, stream
        child.undo()


@pytest.mark.parametrize(
    "call",
    [
        lambda s, _: s.predict(1),
        lambda s, _: s.predict_many(iter(int, 1)),  # without end: it is not read
        lambda s, _: next(s.stream([1])),
        lambda _, begun: next(begun),
        lambda s, _: s.__enter__(),
    ],
    ids=["predict", "predict_many", "stream", "begun stream", "enter"],
)
def test_in_a_fork_each_call_is_refused_before_it_takes_the_lock(forked, call):
    s, begun = forked
    with pytest.raises(
        ConfigError, match=f"^service 'here' was started in process {s._process}, before a fork; start it after"
    ):
        call(s, begun)


def test_a_fork_that_leaves_the_block_drops_its_copy_and_leaves_the_thread_alone(served, monkeypatch):
    with served as s:
        thread, process = s._thread, s._process
        with thread._lock, monkeypatch.context() as child:
            child.setattr("penstock.calls.os.getpid", lambda: -1)
            s.__exit__(None, None, None)
            with pytest.raises(NotReady, match="is not started"):
                s.predict(1)
        assert thread._thread.is_alive()
        assert s._service.left == []
        s._thread, s._process = thread, process


def test_a_fork_enters_again_once_the_service_was_dropped(served, monkeypatch):
    with served as s:
        kept = s._thread, s._process
        with monkeypatch.context() as child:
            child.setattr("penstock.calls.os.getpid", lambda: -1)
            s._calls.disconnect()
            with pytest.raises(ConfigError, match=f"was started in process {kept[1]}"):
                s.predict(1)
            with s:
                assert s.predict(1) == (1, None, True)
        s._thread, s._process = kept


class Reason(InvalidItem):
    """An error that only this test raises."""


def fail():
    raise Reason("no")


def failing_source():
    yield from ()
    fail()


@pytest.mark.parametrize(
    "ask",
    [lambda s: s.predict(fail), lambda s: list(s.stream(failing_source())), lambda s: list(s.stream([1]))],
    ids=["call", "source", "answer"],
)
def test_a_call_that_fails_leaves_nothing_to_the_cycle_collector(served, engine, ask):
    engine.answer = lambda _: Reason("no")
    gc.disable()
    try:
        with served as s, contextlib.suppress(Reason):
            ask(s)
        engine.submissions.clear()
        assert not [found for found in gc.get_objects() if type(found) is Reason]
    finally:
        gc.enable()
