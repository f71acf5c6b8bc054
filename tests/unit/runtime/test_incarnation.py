"""One life of a worker: what it says reaches its owner in order, and its end is told once, and last.

The process is a fake; the socket between it and its incarnation is a real one.  The clock stands still.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import weakref
from functools import partial

import pytest

from penstock.runtime import incarnation, stack_memory
from penstock.runtime.incarnation import LINGER_SECONDS, NOT_ASKED, ProcessIncarnation, ThreadIncarnation, WorkerStart
from penstock.runtime.process import LAST_READ_SECONDS
from penstock.runtime.stack_memory import StackMemory
from penstock.testing.virtual_clock import VirtualClock, rest
from penstock.transport.framing import Kind, encode_control
from penstock.transport.sockets import SocketChannel
from penstock.worker.stacks import ASKING_SIGNALS

START = WorkerStart("service", "stage", 3, None, frozenset({0}), {"ROLE": "test"})


def frame(payload: bytes) -> bytes:
    return b"".join(encode_control(Kind.HELLO, payload))


class Owner:
    """Notes what it is told, in order: the payload of each frame, and how the incarnation ended."""

    def __init__(self) -> None:
        self.told: list[bytes | str] = []

    def frame_received(self, frame) -> None:
        self.told.append(bytes(frame.payloads[0]))

    def ended(self, reason: str) -> None:
        self.told.append(reason)


class FakeProcess:
    """A worker process; `socket` is its end of the channel, and a test says when it ends."""

    def __init__(self, label, *, child_socket, cores, env, on_exit, slabs) -> None:
        self.started_as = (label, cores, env, slabs)
        self.socket = child_socket.dup()
        self.pid = 4711
        self.exit_reason = "exit status 0"
        self.orders: list[str] = []
        self.may_be_killed = True
        self.exiting = False
        self.stack_memory = None
        self._on_exit = on_exit

    def kill(self) -> bool:
        self.orders.append("kill")
        return self.may_be_killed

    def reap(self) -> None:
        self.orders.append("reap")

    def abandon(self) -> None:
        self.orders.append("abandon")

    def end(self, reason: str, *, channel_stays: bool = False) -> None:
        """End; something it started may still have its end of the channel."""
        self.exit_reason = reason
        if self.stack_memory is not None:
            self.stack_memory.close()
        if not channel_stays:
            self.socket.close()
        self._on_exit()


class Life:
    """An incarnation of a fake process, and who owns it."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.clock = VirtualClock()
        self.process: FakeProcess
        self.incarnation: ProcessIncarnation

    async def start(self) -> None:
        self.incarnation = await ProcessIncarnation.start(self.clock, self.owner, START)
        await rest()


@pytest.fixture
async def life(monkeypatch):
    made = Life()

    def start(*args, **kwargs) -> FakeProcess:
        made.process = FakeProcess(*args, **kwargs)
        return made.process

    monkeypatch.setattr(incarnation.WorkerProcess, "start", start)
    yield made
    if hasattr(made, "process"):
        made.process.end("the end of the test")
        await rest()
    assert made.clock.waiting == [], "no timer outlives a worker"


async def test_a_process_is_started_as_its_slot_says(life):
    await life.start()
    assert life.process.started_as == (("service", "stage", 3), frozenset({0}), {"ROLE": "test"}, (-1, -1))
    assert life.incarnation.pid == 4711
    assert life.owner.told == []


async def test_frames_pass_both_ways(life):
    await life.start()
    life.incarnation.send([b"he", b"llo"])
    life.process.socket.sendall(frame(b"one") + frame(b"two"))
    await rest()
    assert life.process.socket.recv(100) == b"hello"
    assert life.owner.told == [b"one", b"two"]


async def test_a_process_that_was_killed_and_stays_is_told_of_once_and_waited_for(life, caplog):
    await life.start()
    life.incarnation.kill("why")
    await life.clock.advance(LINGER_SECONDS - 0.001)
    assert not caplog.records
    await life.clock.advance(0.001)
    (line,) = caplog.messages
    assert "was killed 10 s ago but has not exited" in line
    await life.clock.advance(100.0)
    assert (life.owner.told, len(caplog.records)) == ([], 1)
    life.process.end("signal SIGKILL")
    await rest()
    assert life.owner.told == ["signal SIGKILL"]


async def test_the_end_is_told_once_after_the_last_frame(life):
    await life.start()
    life.process.socket.sendall(frame(b"last words"))
    life.process.end("signal SIGSEGV")
    await rest()
    assert life.owner.told == [b"last words", "signal SIGSEGV"]
    assert life.process.orders == []
    await life.clock.advance(LAST_READ_SECONDS)
    assert life.owner.told == [b"last words", "signal SIGSEGV"]


async def test_the_channel_of_a_dead_worker_is_read_for_a_while_where_another_process_keeps_it_open(life):
    await life.start()
    life.process.end("exit status 1", channel_stays=True)
    await rest()
    await life.clock.advance(LAST_READ_SECONDS - 0.001)
    life.process.socket.sendall(frame(b"late"))
    await rest()
    assert life.owner.told == [b"late"]
    await life.clock.advance(0.001)
    assert life.owner.told == [b"late", "exit status 1"]


async def test_a_worker_that_speaks_no_more_is_killed_and_told_of_when_it_has_ended(life):
    await life.start()
    life.process.socket.close()
    await rest()
    assert life.process.orders == ["kill", "reap"]
    assert life.owner.told == []
    life.process.end("signal SIGKILL")
    assert life.owner.told == ["killed because it closed its channel (signal SIGKILL)"]


@pytest.mark.parametrize("unread", [False, True])
async def test_a_worker_whose_channel_ends_as_it_dies_has_only_died(life, unread):
    await life.start()
    if unread:  # then the end of the channel is an error
        life.incarnation.send([b"never read"])
    life.process.exiting = True
    life.process.socket.close()
    await rest()
    life.process.end("signal SIGKILL")
    assert life.owner.told == ["signal SIGKILL"]


async def test_the_channel_of_a_worker_whose_end_was_ordered_is_no_reason(life):
    await life.start()
    life.incarnation.kill("it is to end")
    life.process.socket.close()
    await rest()
    life.process.end("signal SIGKILL")
    assert life.owner.told == ["signal SIGKILL"]


async def test_a_worker_that_was_asked_to_end_takes_the_time_it_needs(life):
    await life.start()
    life.incarnation.close()
    await rest()
    assert life.process.socket.recv(100) == b"", "it reads the end of the channel"
    life.process.socket.close()
    await rest()
    assert life.process.orders == []
    life.process.end("exit status 0")
    assert life.owner.told == ["exit status 0"]


async def test_what_is_no_frame_ends_the_worker_and_is_part_of_the_reason(life):
    await life.start()
    life.process.socket.sendall(b"x" * 100)
    await rest()
    assert life.process.orders == ["kill", "reap"]
    life.process.end("signal SIGKILL")
    (reason,) = life.owner.told
    assert reason.endswith(" (signal SIGKILL)")
    assert len(reason) > len(" (signal SIGKILL)")


ORDERS = {"kill": ("it is to end",), "abandon": (), "close": ()}


@pytest.mark.parametrize("order", ["kill", "abandon"])
async def test_an_order_to_end_reaches_the_process(life, order):
    await life.start()
    getattr(life.incarnation, order)(*ORDERS[order])
    assert life.process.orders == [order]


async def test_a_process_is_struck_as_by_anybody(life, monkeypatch):
    struck = []
    monkeypatch.setattr(os, "kill", lambda *given: struck.append(given))
    await life.start()
    life.incarnation.strike()
    assert (struck, life.process.orders) == ([(life.process.pid, signal.SIGKILL)], [])
    life.process.end("signal SIGKILL")
    await rest()
    life.incarnation.strike()
    assert len(struck) == 1, "its id may be another's by now"


async def test_a_worker_that_may_not_be_killed_loses_its_channel_and_the_log_says_so(life, caplog):
    await life.start()
    life.process.may_be_killed = False
    life.incarnation.kill("it is to end")
    await rest()
    assert life.process.socket.recv(100) == b"", "its channel is closed"
    life.incarnation.kill("it is to end")
    (record,) = caplog.records
    assert record.getMessage() == (
        "worker 3 of stage 'stage': no permission to kill it (pid 4711); closing its lifeline and its channel, "
        "which ends it"
    )
    life.process.end("signal SIGKILL")
    assert life.owner.told == ["signal SIGKILL"]


async def test_after_its_end_every_order_is_harmless(life):
    await life.start()
    life.process.end("exit status 0")
    await rest()
    for order, words in ORDERS.items():
        getattr(life.incarnation, order)(*words)
    life.incarnation.send([b"to nobody"])
    assert life.incarnation.pid is None
    assert life.process.orders == []
    assert life.owner.told == ["exit status 0"]


async def test_an_ended_incarnation_keeps_neither_process_nor_channel(life):
    await life.start()
    process = weakref.ref(life.process)
    life.process.end("exit status 0")
    await rest()
    del life.process
    gc.collect()
    assert process() is None


@pytest.mark.parametrize("which", ["the process", "the channel", "both"])
async def test_what_ends_during_the_start_is_told_after_it(life, monkeypatch, which):
    """The owner first gets its incarnation, and then hears of it."""
    opened = SocketChannel.open

    async def end_meanwhile(sock, sink):
        channel = await opened(sock, sink)
        if which == "the channel":
            life.process.socket.close()
        else:
            life.process.end("exit status 1", channel_stays=which == "the process")
        await rest()
        assert life.owner.told == []
        assert life.process.orders == []
        return channel

    monkeypatch.setattr(SocketChannel, "open", end_meanwhile)
    made = await ProcessIncarnation.start(life.clock, life.owner, START)
    assert life.owner.told == []
    assert made.pid == 4711
    await rest()
    if which == "the channel":
        assert life.process.orders == ["kill", "reap"]
        life.process.end("exit status 1")
    await life.clock.advance(LAST_READ_SECONDS)
    assert life.owner.told == ["exit status 1"]


@pytest.mark.parametrize("error", [OSError("no process left"), ValueError("a null byte")])
async def test_a_process_that_cannot_be_started_leaves_no_socket_open(life, monkeypatch, error):
    pair = socket.socketpair()
    monkeypatch.setattr(incarnation.socket, "socketpair", lambda: pair)

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(incarnation.WorkerProcess, "start", refuse)
    with pytest.raises(type(error), match=str(error)):
        await ProcessIncarnation.start(life.clock, life.owner, START)
    assert [end.fileno() for end in pair] == [-1, -1]
    assert life.owner.told == []


async def test_the_child_s_end_of_the_channel_is_closed_here(life, monkeypatch):
    """Otherwise the end of the worker would never be the end of the channel."""
    pair = socket.socketpair()
    monkeypatch.setattr(incarnation.socket, "socketpair", lambda: pair)
    await life.start()
    assert pair[1].fileno() == -1
    assert not os.get_blocking(pair[0].fileno())


async def test_a_start_that_is_cancelled_before_the_channel_is_open_leaves_no_process(life, monkeypatch):
    async def open_never(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(SocketChannel, "open", open_never)
    starting = asyncio.ensure_future(ProcessIncarnation.start(life.clock, life.owner, START))
    await rest()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert life.process.orders == ["abandon"]


# -- threads ------------------------------------------------------------------------------------------------------


class Threads:
    """Incarnations in threads, whose work a test chooses."""

    def __init__(self, monkeypatch) -> None:
        self._monkeypatch = monkeypatch
        self.owner = Owner()
        self.ended = asyncio.Event()
        self.owner.ended = self._ended
        self.ended_as: list[str] = []

    def _ended(self, reason: str) -> None:
        self.ended_as.append(reason)
        self.ended.set()

    async def start(self, work) -> ThreadIncarnation:
        self._monkeypatch.setattr(incarnation, "work", work)
        return await ThreadIncarnation.start(self.owner, START)


@pytest.fixture
def threads(monkeypatch):
    return Threads(monkeypatch)


async def test_a_thread_speaks_and_ends_like_a_process(threads):
    def work(end, *, target):
        got = end.receive()
        end.send([frame(bytes(got.payloads[0]) + b" and out")])
        while end.receive() is not None:
            pass

    made = await threads.start(work)
    assert made.pid is None
    made.send([frame(b"in")])
    made.close()
    await threads.ended.wait()
    assert threads.owner.told == [b"in and out"]
    assert threads.ended_as == ["the thread ended"]


@pytest.mark.parametrize(("raised", "reason"), [(KeyError("x"), "KeyError: 'x'"), (SystemExit(3), "SystemExit: 3")])
async def test_what_ends_a_thread_is_the_reason(threads, raised, reason):
    def work(end, *, target):
        raise raised

    await threads.start(work)
    await threads.ended.wait()
    assert threads.ended_as == [reason]


async def test_a_thread_is_named_for_its_worker_and_keeps_no_program_alive(threads):
    seen = []

    def work(end, *, target):
        seen.append((threading.current_thread().name, threading.current_thread().daemon, target))

    await threads.start(work)
    await threads.ended.wait()
    assert seen == [("penstock service stage 3", True, None)]


async def test_a_killed_thread_is_over_at_once_and_what_it_does_later_is_for_nobody(threads):
    go, gone = threading.Event(), threading.Event()

    def work(end, *, target):
        go.wait()
        try:
            end.send([frame(b"late")])
        finally:
            gone.set()

    made = await threads.start(work)
    made.kill("it is to end")
    await threads.ended.wait()
    go.set()
    await asyncio.get_running_loop().run_in_executor(None, partial(gone.wait, 10))
    made._thread.join(20)
    assert not made._thread.is_alive()
    await rest()
    assert threads.owner.told == []
    assert threads.ended_as == ["the thread ended"]


async def test_an_abandoned_thread_ends_when_it_next_listens(threads):
    def work(end, *, target):
        while end.receive() is not None:
            pass

    made = await threads.start(work)
    made.abandon()
    await threads.ended.wait()
    assert threads.ended_as == ["the thread ended"]


class Memory:
    """What a worker writes its stacks into: `main` when it is asked, and `others` when it is asked for all."""

    def __init__(self, main: str = "", others: str = "") -> None:
        self.main = main
        self.others = others
        self.text = ""
        self.asked: list[tuple[str, int]] = []

    def ask(self, pid: int) -> bool:
        self.asked.append(("main", pid))
        self.text = self.main
        return self.main != "no handler"

    def ask_for_all(self, pid: int) -> None:
        self.asked.append(("all", pid))
        self.text += self.others

    def read(self) -> str:
        return self.text

    def close(self) -> None:
        """What was written is forgotten."""
        self.text = ""


async def asked(life, memory):
    """A worker that has said HELLO and is being asked."""
    await life.start()
    life.process.stack_memory = memory
    life.process.socket.sendall(frame(b"hello"))
    await rest()
    asking = asyncio.ensure_future(life.incarnation.stacks())
    await rest()
    return asking


async def test_a_worker_that_has_said_nothing_yet_is_not_asked(life):
    await life.start()
    life.process.stack_memory = memory = Memory("Thread 1")
    assert await life.incarnation.stacks() == ""
    assert memory.asked == []


async def test_the_main_thread_is_asked_for_and_when_it_is_there_all_of_them(life):
    memory = Memory("Thread 1\n", "Thread 2\nThread 1\n")
    asking = await asked(life, memory)
    assert memory.asked == [("main", 4711)]
    other = asyncio.ensure_future(life.incarnation.stacks())
    await rest()
    other.cancel()
    await life.clock.advance(0.1)
    assert await asking == "Thread 1\nThread 2\nThread 1\n"
    assert memory.asked == [("main", 4711), ("all", 4711)], "who asks meanwhile gets the same answer"


async def test_what_is_still_being_written_is_waited_for(life):
    memory = Memory("Thr")
    asking = await asked(life, memory)
    memory.text = "Thread 1"
    await life.clock.advance(0.02)
    assert memory.asked == [("main", 4711)]
    await life.clock.advance(0.1)
    assert await asking == "Thread 1"


async def test_a_worker_that_writes_no_stacks_is_given_up_after_half_a_second(life):
    asking = await asked(life, Memory())
    await life.clock.advance(0.49)
    assert not asking.done()
    await life.clock.advance(0.01)
    assert await asking == ""
    assert life.clock.waiting == []


async def test_a_worker_that_the_signal_would_end_says_so_in_place_of_its_stacks(life):
    asking = await asked(life, Memory("no handler"))
    assert await asking == NOT_ASKED
    assert life.clock.waiting == []


async def test_a_caller_who_gives_up_asking_harms_nobody(life):
    asking = await asked(life, Memory("Thread 1"))
    asking.cancel()
    await life.clock.advance(0.1)
    assert asking.cancelled()
    assert life.clock.waiting == []


# -- a worker that ends between two looks, with the memory that is really used -----------------------------------------


@pytest.fixture
def shared(monkeypatch):
    """Memory that a worker would write into at once, its main thread and then all of them."""
    memory = StackMemory.make()
    if memory is None:
        pytest.skip("this system has no such memory")
    texts = dict(zip(ASKING_SIGNALS, (b"Thread 1\n", b"Thread 2\nThread 1\n"), strict=True))
    monkeypatch.setattr(stack_memory, "_handles", lambda _pid, _number: True)
    monkeypatch.setattr(stack_memory, "_send", lambda _pid, number: os.write(memory.fd, texts[number]))
    yield memory
    assert memory.fd == -1, "its end closes it"


@pytest.mark.parametrize("channel_stays", [False, True], ids=["all of it", "what it started stays"])
@pytest.mark.parametrize(
    ("looked", "told"),
    [(0.0, "Thread 1\n"), (0.02, "Thread 1\n"), (0.04, "Thread 1\nThread 2\nThread 1\n")],
    ids=["after the first look", "asked for all", "before the last look"],
)
async def test_a_worker_that_ends_between_two_looks_has_told_what_was_read(life, shared, looked, told, channel_stays):
    asking = await asked(life, shared)
    await life.clock.advance(looked + 0.01)
    assert not asking.done()
    life.process.end("signal SIGKILL", channel_stays=channel_stays)
    await rest()
    await life.clock.advance(LAST_READ_SECONDS)
    assert asking.done()
    assert await asking == told
    assert life.owner.told == [b"hello", "signal SIGKILL"]
    assert life.clock.waiting == []


@pytest.mark.parametrize("channel_stays", [False, True], ids=["all of it", "what it started stays"])
async def test_a_worker_that_ends_before_it_has_written_anything_has_told_nothing(
    life, shared, monkeypatch, channel_stays
):
    monkeypatch.setattr(stack_memory, "_send", lambda _pid, _number: None)
    asking = await asked(life, shared)
    await life.clock.advance(0.05)
    life.process.end("signal SIGKILL", channel_stays=channel_stays)
    await rest()
    await life.clock.advance(LAST_READ_SECONDS)
    assert asking.done()
    assert await asking == ""
    assert life.clock.waiting == []


async def test_a_worker_that_has_ended_and_is_still_read_tells_nothing(life, shared):
    """Its process id has been given back: no signal may be sent to it, and `shared` could not be written either."""
    await life.start()
    life.process.stack_memory = shared
    life.process.socket.sendall(frame(b"hello"))
    await rest()
    life.process.end("signal SIGKILL", channel_stays=True)
    await rest()
    asking = asyncio.ensure_future(life.incarnation.stacks())
    await life.clock.advance(LAST_READ_SECONDS)
    assert await asking == ""
    assert life.clock.waiting == []


async def test_who_asks_a_worker_that_ends_leaves_nothing_of_it(life, shared):
    asking = await asked(life, shared)
    process = weakref.ref(life.process)
    life.process.end("signal SIGKILL", channel_stays=True)
    await rest()
    await life.clock.advance(LAST_READ_SECONDS)
    await asking
    life.process.socket.close()
    del life.process
    gc.collect()
    assert process() is None
