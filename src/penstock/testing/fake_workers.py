"""Workers that are neither processes nor threads: a test says what each does, and when.

    workers = FakeWorkers()
    engine = Engine("service", specs, options, clock=VirtualClock(), start_incarnation=workers.start)
    starting = asyncio.ensure_future(engine.start())
    await rest()
    workers[0].become_ready()
    await starting
    engine.submit(...)
    await rest()
    workers[0].answer([b"4"])

Frames pass both ways as bytes, encoded and decoded as on a socket.  Where the engine has slabs, a fake worker reads and
writes them as a process would.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from penstock.core.payload import Handle, Payload, payload_size
from penstock.runtime.incarnation import IncarnationOwner, WorkerStart
from penstock.transport.framing import (
    Frame,
    FrameDecoder,
    Kind,
    Status,
    encode_answers,
    encode_control,
    encode_device_memory,
    encode_shortage,
    encode_slab_note,
    queue_frames,
)
from penstock.transport.messages import Hello, Launch, Lost, Problem, Well, pack, unpack
from penstock.worker.worker_slabs import WorkerSlabs

_pids = count(1)


class FakeIncarnation:
    """One life of a worker, as the runtime sees it; implements `penstock.runtime.incarnation.Incarnation`.

    `frames` are the batches, examinations and checks it was sent and has not answered, oldest first.  With `obedient`
    it ends as soon as it is asked or killed; otherwise the test ends it with `die`.  A worker of a waiting stage has
    begun the oldest `concurrency` of them, and answers a batch that it was told to cancel when the test has it do so.
    """

    def __init__(self, owner: IncarnationOwner, start: WorkerStart, *, obedient: bool = True) -> None:
        self.start = start
        self.pid: int | None = next(_pids)
        self.obedient = obedient
        self.launch: Launch | None = None
        """What it was told to be."""
        self.frames: list[Frame] = []
        self.orders: list[str] = []
        """What it was asked, in order: ``"close"``, ``"kill"``, ``"abandon"``."""
        self.suspects = 0
        """How often it was told that the item of the next batch is a suspect."""
        self.cancelled: list[int] = []
        """The ids of the batches that it was told to cancel, in order."""
        self.ended = False
        self.stack = ""
        """What it tells of its threads."""
        self._owner = owner
        self._slabs = WorkerSlabs()
        self._to_worker = FrameDecoder(readonly=True, slabs=True)
        self._to_coordinator = FrameDecoder(slabs=True)

    def __repr__(self) -> str:
        return f"<FakeIncarnation {self.start.stage} {self.start.index}>"

    # -- what the runtime asks of it ----------------------------------------------------------------------------

    def send(self, buffers: list[Any]) -> None:
        """Take a frame: the order to be a stage, or a batch."""
        if self.ended:
            return
        for frame in self._to_worker.feed(b"".join(buffers)):
            if frame.kind is Kind.LAUNCH:
                assert self.launch is None, f"{self} was launched twice"
                self.launch = unpack(frame.payloads[0], Launch)
                inputs, results = [os.dup(fd) if fd >= 0 else fd for fd in self.start.slabs]
                self._slabs = WorkerSlabs.of(self.launch.slabs, inputs, results)
            elif frame.kind is Kind.SUSPECT:
                self.suspects += 1
            elif frame.kind is Kind.RECALL:
                begun = max(1, self.launch.concurrency) if self.launch is not None else 1
                queue_frames(deque(self.frames[begun:]), [frame])
            elif frame.kind is Kind.CANCEL:
                self.cancelled.append(frame.frame_id)
            elif self._slabs.note(frame):
                if frame.kind is Kind.TRIM and not self.frames and self._slabs.keeps:
                    self._deliver(self._slabs.tell())
            else:
                assert frame.kind in (Kind.BATCH, Kind.EXAMINE, Kind.CHECK), frame.kind
                self.frames.append(frame)
                if len(self.frames) == 1:
                    self._slabs.open(frame)

    def close(self) -> None:
        """Asked to end in good order."""
        self.orders.append("close")
        if self.obedient:
            self.die("exit status 0")

    def kill(self, why: str | None) -> None:  # noqa: ARG002  # as of our own
        """Asked to end now."""
        self.orders.append("kill")
        if self.obedient:
            self.die("signal SIGKILL")

    def strike(self) -> None:
        """Killed by somebody else."""
        self.die("signal SIGKILL")

    def abandon(self) -> None:
        """Asked to end now, and to tell nothing."""
        self.orders.append("abandon")
        self.ended = True

    async def stacks(self) -> str:
        """What the test has set as its `stack`."""
        return self.stack

    @property
    def batches(self) -> list[list[bytes]]:
        """The payloads of each batch it holds, oldest first."""
        return [[bytes(payload) for payload in frame.payloads] for frame in self.frames if frame.kind is Kind.BATCH]

    @property
    def examined(self) -> bool:
        """Whether it is to run the stage's example, after the batches that it holds."""
        return any(frame.kind is Kind.EXAMINE for frame in self.frames)

    @property
    def checked(self) -> bool:
        """Whether it is to run the stage's `health`."""
        return any(frame.kind is Kind.CHECK for frame in self.frames)

    # -- what a test has it do ----------------------------------------------------------------------------------

    def say(self, kind: Kind, payload: bytes = b"") -> None:
        """Send a frame of the handshake, or what should not come."""
        self._deliver(encode_control(kind, payload))

    def greet(self) -> None:
        """Say HELLO."""
        self.say(Kind.HELLO, pack(Hello(self.pid or 0)))

    def become_ready(self) -> None:
        """Say HELLO, unless that was done, and READY."""
        if self.launch is None:
            self.greet()
        self.say(Kind.READY)

    def fail_setup(
        self,
        message: str = "no weights",
        type_name: str = "builtins.OSError",
        *,
        on_examples: bool = False,
        out_of_memory: bool = False,
    ) -> None:
        """Say why the stage cannot be set up, or does not run its examples, and end."""
        if self.launch is None:
            self.greet()
        trace = f"Traceback (most recent call last):\n{message}"
        problem = Problem(type_name, (type_name,), message, trace, on_examples=on_examples, out_of_memory=out_of_memory)
        self.say(Kind.FAILED, pack(problem))
        self.die("exit status 1")

    def answer(
        self,
        payloads: Sequence[Payload] | None = None,
        statuses: Sequence[int] | None = None,
        *,
        seconds: float = 0.0,
        calls: int = 1,
        place: int = 0,
    ) -> None:
        """Answer a batch, by default the oldest, and each item with its own payload unless it was taken back in time.

        `place` is that of the batch among `frames`.
        """
        frame = self.frames.pop(place)
        given: list[Payload] = list(frame.payloads) if payloads is None else list(payloads)
        how: list[int] = [Status.OK] * len(given) if statuses is None else list(statuses)
        for item in frame.recalled:
            given[item], how[item] = b"", Status.RECALLED
        handles = self._placed(given, how)
        # As the loop of a worker does: results that are views of inputs are copied, and the batch is let go of.
        answers = b"".join(encode_answers(frame.frame_id, seconds, calls, frame.ids, given, how, handles=handles))
        frame.payloads = []
        notes = self._slabs.tell()
        if self.frames:
            self._slabs.open(self.frames[0])  # as a worker, which reads the next one when it has answered
        self._deliver([*notes, answers])

    def _placed(self, given: list[Payload], how: Sequence[int]) -> dict[int, Handle]:
        """Put large results where a worker does, and return their handles."""
        handles: dict[int, Handle] = {}
        put = self._slabs.put
        if put is not None and self.launch is not None and self.launch.slabs is not None:
            for place, (payload, status) in enumerate(zip(given, how, strict=True)):
                nbytes = payload_size(payload)
                handle = put(payload, nbytes) if nbytes >= self.launch.slabs.least and status == Status.OK else None
                if handle is not None:
                    handles[place] = handle
                    given[place] = b""
        return handles

    def say_short(self, failed: int, ran: int) -> None:
        """Say, before the answer to the oldest batch, that there was no memory for `failed` items, and for `ran`."""
        self._deliver([encode_shortage(failed, ran)])

    def say_device_memory(self, nbytes: int) -> None:
        """Say that torch has reserved `nbytes` on devices."""
        self._deliver([encode_device_memory(nbytes)])

    def lose_device(
        self,
        payloads: Sequence[Payload] | None = None,
        statuses: Sequence[int] | None = None,
        well: bytes = b"",
        *,
        begun: bool = True,
    ) -> None:
        """Say that the device is lost, and answer the oldest batch: by default each item failed."""
        problem = Problem("torch.Error", ("torch.Error",), "no device", "Traceback:\nno device")
        known = Well(well, 0) if well else None
        self._deliver([encode_slab_note(Kind.LOST, pack(Lost(problem, known, begun)))])
        if statuses is None:
            self.fail("own error")
        else:
            self.answer(payloads, statuses)

    def fail(self, message: str = "broken", *, seconds: float = 0.0, place: int = 0) -> None:
        """Answer a batch, by default the oldest: each of its items failed."""
        problem = pack(Problem("builtins.RuntimeError", ("builtins.RuntimeError",), message))
        n = len(self.frames[place].ids)
        self.answer([problem] * n, [Status.FAILED] * n, seconds=seconds, place=place)

    def finish_examination(self, error: str = "") -> None:
        """Answer an examination, the oldest frame: the example ran well, or failed with a RuntimeError that says so."""
        self._finish(Kind.EXAMINED, error)

    def finish_check(self, error: str = "") -> None:
        """Answer a check, the oldest frame: `health` returned, or raised a RuntimeError that says so."""
        self._finish(Kind.CHECKED, error)

    def _finish(self, kind: Kind, error: str) -> None:
        frame = self.frames.pop(0)
        name = "builtins.RuntimeError"
        problem = pack(Problem(name, (name,), error, f"Traceback:\n{error}")) if error else b""
        self._deliver(encode_control(kind, problem, frame.frame_id))

    def die(self, reason: str = "signal SIGSEGV") -> None:
        """End, and drop the batches it holds.  The owner is told once."""
        if not self.ended:
            self.ended = True
            self.frames.clear()
            self._owner.ended(reason)

    def _deliver(self, buffers: list[Any]) -> None:
        assert not self.ended, f"{self} has ended"
        for frame in self._to_coordinator.feed(b"".join(buffers)):
            self._owner.frame_received(frame)


class FakeWorkers:
    """Starts fake incarnations and remembers them; `start` is what an engine takes as `start_incarnation`.

    `on_start` is called with each new incarnation, before its start has returned.  The start raises what it raises.
    """

    def __init__(self, on_start: Callable[[FakeIncarnation], None] = lambda _: None, *, obedient: bool = True) -> None:
        self.on_start = on_start
        self.obedient = obedient
        self.started: list[FakeIncarnation] = []
        """All that were ever started, in order."""

    async def start(self, owner: IncarnationOwner, start: WorkerStart) -> FakeIncarnation:
        """Start an incarnation."""
        made = FakeIncarnation(owner, start, obedient=self.obedient)
        self.on_start(made)
        self.started.append(made)
        return made

    def __getitem__(self, index: int) -> FakeIncarnation:
        """The incarnation that was started as number `index`, from 0."""
        return self.started[index]

    def __len__(self) -> int:
        return len(self.started)

    @property
    def alive(self) -> list[FakeIncarnation]:
        """Those that have not ended, in the order of their starts."""
        return [each for each in self.started if not each.ended]
