"""What every channel must do: subclass `ChannelSuite`, override `open`, and let pytest run it.

The coordinator's end is used on the event loop and never blocks.  The worker's end blocks, so it is used in a thread.
The suite needs pytest with an asyncio plugin that runs coroutine methods.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from penstock.errors import ProtocolError
from penstock.transport.channel import Channel, FrameSink, WorkerEnd
from penstock.transport.framing import (
    Frame,
    Kind,
    Status,
    encode_answers,
    encode_batch,
    encode_control,
    encode_recall,
    encode_slab_note,
)
from penstock.transport.worker_socket import LOOK_AGAIN_SECONDS

T = TypeVar("T")

PATIENCE_SECONDS = 20.0
"""Seconds until something that should have happened counts as not happening."""
LARGE = 8 * 1024 * 1024
MORE_THAN_ONE_WRITE_TAKES = 3000
"""Buffers in one frame: systems take about a thousand in one call."""


class ClosingWorkerEnd(WorkerEnd, Protocol):
    """A worker's end that can also end the stream."""

    def close(self) -> None:
        """Nothing more will be sent or read."""


class Recorder:
    """A sink that remembers what it was told."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.ends: list[Exception | None] = []
        self._changed = asyncio.Event()

    def frame_received(self, frame: Frame) -> None:
        """A frame has come; none may after the end."""
        assert not self.ends, "a frame came after the end"
        self.frames.append(frame)
        self._changed.set()

    def channel_ended(self, error: Exception | None) -> None:
        """The channel has ended."""
        self.ends.append(error)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` is true."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_frames(self, n: int) -> None:
        """Wait until `n` frames have come."""
        await self.until(lambda: len(self.frames) >= n)


async def in_thread(work: Callable[[], T]) -> T:
    """What `work` returns or raises in a thread of its own; a failed test does not wait for the thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # without an error there is a result

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  # whatever it is, the test is told
            loop.call_soon_threadsafe(settle, None, error)
        else:
            loop.call_soon_threadsafe(settle, result, None)

    threading.Thread(target=run, daemon=True).start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await future


def batch(frame_id: int, payloads: Sequence[bytes]) -> list[Any]:
    """The buffers of a BATCH with these payloads."""
    n = len(payloads)
    return encode_batch(frame_id, 0.0, range(n), payloads, list(map(len, payloads)), [1.0] * n, [1] * n, [1] * n)


def answers(frame_id: int, payloads: Sequence[bytes]) -> list[Any]:
    """The buffers of an ANSWERS with these payloads."""
    n = len(payloads)
    return encode_answers(frame_id, 0.0, 1, range(n), payloads, [Status.OK] * n)


def said(frame: Frame) -> tuple[int, list[bytes]]:
    """A frame's id and payloads."""
    return frame.frame_id, [bytes(payload) for payload in frame.payloads]


def receive_all(worker: WorkerEnd) -> list[Frame]:
    """What the worker reads until the stream ends."""
    frames = []
    while (frame := worker.receive()) is not None:
        frames.append(frame)
    return frames


def listen_to_all(worker: WorkerEnd, on_frame: Callable[[Frame], None] = lambda _: None) -> list[Any]:
    """Have an event loop of its own listen to the worker's end; the last that it returns is how the stream ended."""

    async def hear() -> list[Any]:
        loop = asyncio.get_running_loop()
        heard: list[Any] = []
        over = asyncio.Event()

        def receive(frame: Frame | Exception | None) -> None:
            heard.append(frame)
            if isinstance(frame, Frame):
                on_frame(frame)
            else:
                over.set()

        worker.listen(loop, receive)
        await over.wait()
        for _ in range(3):  # nothing may come after the end
            await asyncio.sleep(0)
        return heard

    return asyncio.run(hear())


def cancel(frame_id: int) -> list[Any]:
    """The buffers of a CANCEL."""
    return [encode_slab_note(Kind.CANCEL, b"", frame_id)]


FRAMES: list[tuple[int, list[bytes]]] = [
    (1, [b"one"]),
    (2, []),
    (3, [b"", b"x", b""]),
    (4, [b"a" * 5000, b"b", b"c" * 70_000]),
    (5, [bytes([i % 256]) * 100 for i in range(MORE_THAN_ONE_WRITE_TAKES)]),
    (6, [bytes(range(256)) * 4096]),
    *((7 + i, [b"many", b"small"]) for i in range(200)),
]


class ChannelSuite:
    """The tests; each opens a channel of its own."""

    async def open(self, sink: FrameSink) -> tuple[Channel, ClosingWorkerEnd]:
        """The two ends of a new channel."""
        raise NotImplementedError

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Channel, ClosingWorkerEnd, Recorder]]:
        """A channel and what its coordinator's end tells; dropped at the end, which also frees a waiting worker."""
        sink = Recorder()
        channel, worker = await self.open(sink)
        try:
            yield channel, worker, sink
        finally:
            channel.abort()
            await sink.until(lambda: sink.ends)
            worker.close()
        assert len(sink.ends) == 1, f"the end was told {len(sink.ends)} times"

    async def test_frames_reach_the_worker_whole_and_in_order(self) -> None:
        """Small, empty, large, and of more buffers than one write takes."""
        async with self.opened() as (channel, worker, _):
            for frame_id, payloads in FRAMES:
                channel.send(batch(frame_id, payloads))
            channel.close()
            assert list(map(said, await in_thread(lambda: receive_all(worker)))) == FRAMES

    async def test_frames_reach_the_coordinator_whole_and_in_order(self) -> None:
        """The same the other way."""

        def work() -> None:
            for frame_id, payloads in FRAMES:
                worker.send(answers(frame_id, payloads))

        async with self.opened() as (_, worker, sink):
            await in_thread(work)
            await sink.until_frames(len(FRAMES))
            assert list(map(said, sink.frames)) == FRAMES

    async def test_a_worker_that_answers_frame_by_frame_is_answered_in_turn(self) -> None:
        """A hundred round trips."""

        def work() -> None:
            while (frame := worker.receive()) is not None:
                worker.send(answers(frame.frame_id, [bytes(payload) for payload in frame.payloads]))

        async with self.opened() as (channel, worker, sink):
            working = asyncio.ensure_future(in_thread(work))
            for i in range(100):
                channel.send(batch(i, [b"%d" % i]))
                await sink.until_frames(i + 1)
            channel.close()
            await working
            assert list(map(said, sink.frames)) == [(i, [b"%d" % i]) for i in range(100)]

    async def test_payloads_are_writable_at_the_coordinators_end_and_nowhere_else(self) -> None:
        """A worker may have to run a batch again, as it came; results are their receiver's.  Small and large."""
        payloads = [b"small", b"L" * 500_000]
        async with self.opened() as (channel, worker, sink):
            channel.send(batch(1, payloads))
            frame = await in_thread(worker.receive)
            assert frame is not None
            await in_thread(lambda: worker.send(answers(1, payloads)))
            await sink.until_frames(1)
            assert [payload.readonly for payload in frame.payloads] == [True, True]
            for payload in sink.frames[0].payloads:
                payload[0] = 0

    async def test_a_batch_that_was_taken_back_before_it_is_begun_says_so(self) -> None:
        """The worker has read it already, together with the one that it runs."""

        def begin() -> Frame | None:
            time.sleep(2 * LOOK_AGAIN_SECONDS)  # the run of the one before
            return worker.receive()

        async with self.opened() as (channel, worker, _):
            for frame_id in (1, 2, 3):
                channel.send(batch(frame_id, [b"a", b"b"]))
            frames = [await in_thread(worker.receive)]
            channel.send([encode_recall(1, [0])])  # too late
            channel.send([encode_recall(3, [1])])
            for _ in range(3):  # an event loop may write only at the end of its turn
                await asyncio.sleep(0)
            frames += [await in_thread(begin), await in_thread(begin)]
            read = [frame for frame in frames if frame is not None]
            assert [(frame.frame_id, list(frame.recalled)) for frame in read] == [(1, []), (2, []), (3, [1])]

    async def test_large_frames_pass_both_ways_at_once(self) -> None:
        """Neither end waits for the other to read first."""

        def work() -> list[Frame]:
            for frame_id in (1, 2):
                worker.send(answers(frame_id, [b"w" * LARGE]))
            return receive_all(worker)

        async with self.opened() as (channel, worker, sink):
            for frame_id in (1, 2):
                channel.send(batch(frame_id, [b"c" * LARGE]))
            channel.close()
            received = await in_thread(work)
            await sink.until_frames(2)
            assert [frame.payloads[0] == b"c" * LARGE for frame in received] == [True, True]
            assert [frame.payloads[0] == b"w" * LARGE for frame in sink.frames] == [True, True]

    # -- an event loop that listens to the worker's end -------------------------------------------------------------

    async def test_an_event_loop_hears_each_frame_whole_and_in_order_and_then_the_end(self) -> None:
        """The end is told once."""
        async with self.opened() as (channel, worker, _):
            listening = asyncio.ensure_future(in_thread(lambda: listen_to_all(worker)))
            for frame_id, payloads in FRAMES:
                channel.send(batch(frame_id, payloads))
            channel.close()
            *heard, end = await listening
            assert list(map(said, heard)) == FRAMES
            assert end is None

    async def test_an_event_loop_hears_what_was_read_before_it_listened_and_of_each_cancel_and_recall(self) -> None:
        """They come in the order in which they were sent."""
        async with self.opened() as (channel, worker, _):
            for frame_id in (1, 2, 3):
                channel.send(batch(frame_id, [b"a", b"b"]))
            first = await in_thread(worker.receive)  # perhaps it has read the others with it
            assert first is not None
            listening = asyncio.ensure_future(in_thread(lambda: listen_to_all(worker)))
            channel.send([encode_recall(3, [1])])
            channel.send(cancel(2))
            channel.close()
            *heard, end = await listening
            batches = [(Kind.BATCH, frame_id) for frame_id in (1, 2, 3)]
            assert [(frame.kind, frame.frame_id) for frame in [first, *heard]] == [
                *batches,
                (Kind.RECALL, 3),
                (Kind.CANCEL, 2),
            ]
            assert end is None

    async def test_an_event_loop_hears_frames_that_come_byte_by_byte(self) -> None:
        """Neither a batch nor a cancel needs to come in one piece."""
        async with self.opened() as (channel, worker, _):
            listening = asyncio.ensure_future(in_thread(lambda: listen_to_all(worker)))
            for byte in b"".join([*batch(1, [b"a" * 40]), *cancel(1), *batch(2, [])]):
                channel.send([bytes([byte])])
                await asyncio.sleep(0)
            channel.close()
            *heard, end = await listening
            assert [(frame.kind, frame.frame_id) for frame in heard] == [
                (Kind.BATCH, 1),
                (Kind.CANCEL, 1),
                (Kind.BATCH, 2),
            ]
            assert end is None

    async def test_an_event_loop_answers_what_it_hears(self) -> None:
        """A hundred round trips."""

        def answer(frame: Frame) -> None:
            worker.send(answers(frame.frame_id, [bytes(payload) for payload in frame.payloads]))

        async with self.opened() as (channel, worker, sink):
            listening = asyncio.ensure_future(in_thread(lambda: listen_to_all(worker, answer)))
            for i in range(100):
                channel.send(batch(i, [b"%d" % i]))
                await sink.until_frames(i + 1)
            channel.close()
            await listening
            assert list(map(said, sink.frames)) == [(i, [b"%d" % i]) for i in range(100)]

    async def test_an_event_loop_hears_that_what_came_is_not_a_frame(self) -> None:
        """That is the end, and so is a stream that ends inside a frame."""
        for wire in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", encode_control(Kind.HELLO, b"hello")[0][:-1]):
            async with self.opened() as (channel, worker, _):
                channel.send(batch(1, [b"good"]))
                first = await in_thread(worker.receive)
                channel.send([wire])
                channel.close()
                *heard, end = await in_thread(lambda: listen_to_all(worker))
                assert first is not None
                assert heard == []
                assert isinstance(end, ProtocolError)

    async def test_an_event_loop_learns_that_its_channel_was_aborted(self) -> None:
        """It hears nothing but the end, which may be that of a broken connection."""
        async with self.opened() as (channel, worker, sink):
            listening = asyncio.ensure_future(in_thread(lambda: listen_to_all(worker)))
            channel.abort()
            await sink.until(lambda: sink.ends)
            (end,) = await listening
            assert end is None or isinstance(end, (ConnectionResetError, ProtocolError))

    # -- ends -------------------------------------------------------------------------------------------------------

    async def test_after_close_the_worker_reads_what_was_sent_and_then_the_end(self) -> None:
        """The worker reads the end again as often as it asks."""
        async with self.opened() as (channel, worker, _):
            channel.send(batch(1, [b"last"]))
            channel.close()
            frames = [await in_thread(worker.receive) for _ in range(3)]
            assert frames[0] is not None
            assert frames[1:] == [None, None]

    async def test_after_close_the_workers_answers_still_come_and_then_the_end(self) -> None:
        """A worker that is asked to end finishes what it holds."""

        def work() -> None:
            receive_all(worker)
            worker.send(answers(1, [b"still"]))
            worker.close()

        async with self.opened() as (channel, worker, sink):
            channel.send(batch(1, [b"last"]))
            channel.close()
            await in_thread(work)
            await sink.until(lambda: sink.ends)
            assert list(map(said, sink.frames)) == [(1, [b"still"])]
            assert sink.ends == [None]

    async def test_what_is_sent_after_close_is_dropped(self) -> None:
        """There is no error, and to close again changes nothing."""
        async with self.opened() as (channel, worker, _):
            channel.close()
            channel.send(batch(1, [b"late"]))
            channel.close()
            assert await in_thread(lambda: receive_all(worker)) == []

    async def test_a_worker_that_has_gone_is_told_once_after_its_last_frame(self) -> None:
        """What is sent to it then is dropped, and both ways to end it are harmless."""

        def work() -> None:
            worker.send(answers(1, [b"bye"]))
            worker.close()

        async with self.opened() as (channel, worker, sink):
            await in_thread(work)
            await sink.until(lambda: sink.ends)
            assert list(map(said, sink.frames)) == [(1, [b"bye"])]
            for _ in range(2):
                channel.send(batch(2, [b"nobody"]))
                channel.close()
                channel.abort()
            await asyncio.sleep(0)
            assert len(sink.ends) == 1

    async def test_the_last_frame_of_a_worker_that_has_gone_comes_though_more_is_sent_to_it(self) -> None:
        """It was not read before that, and the worker had not read all that it was sent."""
        async with self.opened() as (channel, worker, sink):
            for frame_id in (1, 2):
                channel.send(batch(frame_id, [b"x"]))
            await in_thread(worker.receive)
            channel.send(batch(3, [b"x"]))
            for _ in range(3):  # an event loop may write only at the end of its turn
                await asyncio.sleep(0)
            worker.send(answers(1, [b"bye"]))  # not in a thread: the loop must not read it before the next is sent
            worker.close()
            channel.send(batch(4, [b"x"]))
            await sink.until(lambda: sink.ends)
            assert list(map(said, sink.frames)) == [(1, [b"bye"])]

    async def test_an_aborted_channel_ends_once_and_delivers_nothing_more(self) -> None:
        """Neither what is unread nor what is sent later is delivered."""
        async with self.opened() as (channel, worker, sink):
            worker.send(answers(1, [b"unread"]))  # not in a thread: the loop must not read it before the abort
            channel.abort()
            channel.abort()
            channel.close()
            channel.send(batch(1, [b"nobody"]))
            await sink.until(lambda: sink.ends)
            assert sink.frames == []

    async def test_an_aborted_channel_drops_what_the_worker_had_not_taken(self) -> None:
        """That is so even where part of it was on its way already."""

        def read() -> list[Frame]:
            frames: list[Frame] = []
            try:
                while (frame := worker.receive()) is not None:
                    frames.append(frame)
            except (ConnectionResetError, ProtocolError):
                pass
            return frames

        async with self.opened() as (channel, worker, sink):
            for frame_id in (1, 2):
                channel.send(batch(frame_id, [b"c" * LARGE]))
            channel.abort()
            await sink.until(lambda: sink.ends)
            assert await in_thread(read) == []

    async def test_a_worker_learns_that_its_channel_was_aborted(self) -> None:
        """Reading ends, or fails as a broken connection does; writing fails."""

        def read() -> list[Frame]:
            try:
                return receive_all(worker)
            except (ConnectionResetError, ProtocolError):
                return []

        def write() -> bool:
            try:
                worker.send(answers(1, [b"for nobody"]))
            except (BrokenPipeError, ConnectionResetError):
                return True
            return False

        async with self.opened() as (channel, worker, sink):
            waiting = asyncio.ensure_future(in_thread(read))
            channel.abort()
            await sink.until(lambda: sink.ends)
            assert await waiting == []
            assert await in_thread(write)

    # -- what is not a frame ----------------------------------------------------------------------------------------

    async def test_what_is_not_a_frame_ends_the_channel_with_the_reason(self) -> None:
        """The worker sends it, and the worker's stream ends too."""

        def work() -> list[Frame]:
            worker.send([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
            try:
                return receive_all(worker)
            except ConnectionResetError:
                return []

        async with self.opened() as (_, worker, sink):
            await in_thread(lambda: worker.send(answers(1, [b"good"])))
            await sink.until_frames(1)
            assert await in_thread(work) == []
            await sink.until(lambda: sink.ends)
            assert list(map(said, sink.frames)) == [(1, [b"good"])]
            assert isinstance(sink.ends[0], ProtocolError)

    async def test_a_stream_that_ends_inside_a_frame_says_so(self) -> None:
        """This is a worker that died while it wrote."""

        def work() -> None:
            whole = b"".join(answers(1, [b"x" * 1000]))
            worker.send([whole[:-1]])
            worker.close()

        async with self.opened() as (_, worker, sink):
            await in_thread(work)
            await sink.until(lambda: sink.ends)
            assert sink.frames == []
            assert isinstance(sink.ends[0], ProtocolError)

    async def test_a_worker_refuses_what_is_not_a_frame(self) -> None:
        """It raises ProtocolError, and so it does where its stream ends inside a frame."""

        def refused() -> bool:
            try:
                worker.receive()
            except ProtocolError:
                return True
            return False

        for wire in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", encode_control(Kind.HELLO, b"hello")[0][:-1]):
            async with self.opened() as (channel, worker, _):
                channel.send([wire])
                channel.close()
                assert await in_thread(refused)
