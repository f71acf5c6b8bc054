"""Measure one stage of a service in this process, which has no other stage in it: its memory, and its times by size.

The stage goes through the loop of a worker, whose other end is here.  A batch is decoded, run and encoded as in
service, and one that finds no memory is halved.  A waiting stage has one batch at a time in progress.  Items and
results are pickles, as between two stages.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from penstock.cli.find_service import load_service
from penstock.cli.findings import (
    BatchRan,
    Done,
    Finding,
    MeasuringOrder,
    Memory,
    MemoryShort,
    Report,
    SetupTook,
    StageToMeasure,
    Step,
    results_not_kept,
)
from penstock.cli.measurements import begins, runs_again, sizes_up_to
from penstock.cli.memory_taken import await_devices, forget_peak, taken_at_most, taken_now
from penstock.codec.example import inputs_of
from penstock.codec.formats import Codec
from penstock.codec.pickle_ import dumps
from penstock.config import ArtifactOptions
from penstock.core.payload import join_payload, payload_size
from penstock.errors import StartFailed
from penstock.hosting.freed_memory import trim_heap
from penstock.hosting.malloc_thresholds import keep_large_blocks
from penstock.runtime.affinity import allowed_cores, pin
from penstock.runtime.gpus import gpus_here
from penstock.runtime.launching import launcher, worker_cores
from penstock.runtime.stage_failures import short_reason
from penstock.runtime.worker_failures import read_failure
from penstock.service import Service
from penstock.transport.channel import Receive
from penstock.transport.framing import (
    Frame,
    FrameDecoder,
    Kind,
    Status,
    control_frame,
    encode_batch,
    written_statuses,
)
from penstock.transport.messages import Launch, Problem, pack, unpack
from penstock.worker.loop import work
from penstock.worker.problems import USER_ERRORS, describe_error
from penstock.worker.stage_life import freeze_model

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

Tell: TypeAlias = Callable[[Report], None]


def stages_to_measure(service: Service) -> Iterator[StageToMeasure]:
    """The stages of `service`, each with how the process of its first worker would be started.

    Raises:
        ConfigError: a stage is pinned to cores that this process may not use, or there is no such GPU.
    """
    here, allowed = gpus_here(os.environ), allowed_cores()
    fed = [spec.external is None and not spec.examples for spec in service.stages]
    given = False
    """Whether the stage before gives items to one that has no examples."""
    for index, spec in enumerate(service.stages):
        given = spec.external is None and (bool(spec.examples) or given)
        if spec.external is not None:
            yield StageToMeasure(spec.name, "its workers are remote")
        elif not given:
            yield StageToMeasure(spec.name, "it has no examples, and the stage before it gives it no items")
        else:
            cores, threads = worker_cores(spec, allowed)
            # Threads have the environment and the cores of their process.
            extra = {} if service.inline else spec.environments(here)[0]
            yield StageToMeasure(
                spec.name,
                max_size=spec.policy.max_size,
                batched=spec.batch is not None,
                concurrency=spec.concurrency,
                fed=fed[index],
                feeds=any(fed[index + 1 : index + 2]),
                variables=[os.fsencode(f"{key}={value}") for key, value in extra.items()],
                threads=threads[0],
                cores=[] if service.inline else sorted(cores[0]),
            )


def measure(name: str, tell: Tell, artifact: ArtifactOptions, order: MeasuringOrder) -> None:
    """Measure a stage of the service `name`; PenstockError, or what the module raised, if there is none."""
    what = f"measuring stage {order.stage}"
    tell(Step(f"{what}: import"))
    if order.cores:
        pin(order.cores)
    service = load_service(name, artifact)
    logging.getLogger("penstock").setLevel(logging.CRITICAL)  # what goes wrong is reported instead
    index = [spec.name for spec in service.stages].index(order.stage)
    spec = service.stages[index]
    try:
        inputs = list(map(_pickled, inputs_of(spec.examples))) if order.inputs < 0 else _read_payloads(order.inputs)
    except ValueError as error:
        tell(Finding(what, f"cannot send its examples to a worker: {error}"))
        tell(Done())
        return
    launch = launcher(service.name, service.stages, index, service.options, inline=True)(0)
    # A full batch of examples would be warmed up before anything is measured, and one that fails would be run in
    # halves: those who look for the item at fault have looked before.
    launch = msgspec.structs.replace(launch, max_size=1, options=dataclasses.replace(launch.options, bisect=False))
    keep_large_blocks(os.environ)
    end = _MeasuringEnd(what, launch, inputs, spec.policy.max_size, tell, results=order.results)
    tell(Step(f"{what}: setup and examples"))
    work(end, target=spec.target, on_loaded=end.loaded, on_ready=freeze_model)
    tell(Done())


class _MeasuringEnd:
    """The end of a worker's channel that gives it the batches to measure, one when the one before is answered.

    `results` is the descriptor of a file for what the stage gives for each of its inputs, or -1.
    """

    def __init__(
        self, what: str, launch: Launch, inputs: Sequence[bytes], max_size: int, tell: Tell, *, results: int
    ) -> None:
        self._what = what
        self._stage = launch.stage
        self._inputs = inputs
        self._max_size = max_size
        self._tell = tell
        self._results_file = results
        self._results: list[bytes] | None = None
        """Results of the inputs that have run, while they are collected."""
        self._frames = self._schedule(launch)
        self._decoder = FrameDecoder(readonly=True)
        self._at_import: Memory | None = None
        """Memory that was taken before the stage was set up."""
        self._size = 0
        """That of the batch in hand."""
        self._began = 0.0
        self._seconds = 0.0
        """How long the last batch ran."""
        self._peak = Memory(0)
        self._over = False
        """Whether the stage or a batch failed, or found no memory."""
        self._loop: AbstractEventLoop | None = None
        """That of a waiting stage, where `_listener` hears of each frame."""
        self._listener: Receive | None = None

    def loaded(self) -> None:
        """The worker's module is imported; at the second call its stage is set up."""
        if self._at_import is None:
            _tidy()
            self._at_import = taken_now()
            return
        await_devices()
        self._tell(SetupTook(_grown(self._at_import, taken_now())))

    def receive(self) -> Frame | None:
        """The next frame for the worker, or None where there is no more; the time of its batch begins."""
        frame = next(self._frames, None)
        self._began = time.monotonic()
        return frame

    def listen(self, loop: AbstractEventLoop, receive: Receive) -> None:
        """Give `receive` one frame at a time, as `self.receive` does."""
        self._loop, self._listener = loop, receive
        loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        if self._listener is None:
            return
        frame: Frame | Exception | None
        try:
            frame = self.receive()
        except Exception as error:  # noqa: BLE001  # the loop would log it, and the stage wait for ever
            frame = error
        self._listener(frame)

    def send(self, buffers: list[Any]) -> None:
        """Take what the worker answers: the time of its batch ends, and its peak of memory is read."""
        lost: BaseException | None = None
        try:
            await_devices()
        except USER_ERRORS as error:  # what has failed there fails wherever it is waited for, again and again
            lost = error
        self._seconds = time.monotonic() - self._began
        self._peak = taken_at_most()
        statuses = written_statuses(buffers)
        answered = statuses is not None
        # Large results are not copied, which would need memory.
        if statuses is None or self._results is not None or any(statuses):
            for frame in FrameDecoder(slabs=True).feed(b"".join(buffers)):
                self._read(frame)
                answered = answered or frame.kind is Kind.ANSWERS
        if lost is not None and not self._over:
            self._over = True
            found = describe_error(lost)
            words = f"the device failed: {found.type_name}: {found.message}"
            self._tell(Finding(self._step() if self._size else self._what, words))
        if self._loop is not None and answered:
            self._loop.call_soon(self._hand_over)

    def _read(self, frame: Frame) -> None:
        if frame.kind is Kind.FAILED:
            self._over = True
            problem = unpack(frame.payloads[0], Problem)
            failed = "failed on its examples" if problem.on_examples else "could not be set up"
            error = StartFailed(f"it {failed}: {short_reason(problem)}", traceback=problem.traceback)
            self._tell(Finding(self._what, str(error)))
        elif frame.kind is Kind.SHORTAGE:
            self._over = True
            self._tell(MemoryShort(self._size))
        elif frame.kind is Kind.ANSWERS:
            for status, payload in zip(frame.statuses, frame.payloads, strict=True):
                if status != Status.OK:
                    self._over = True
                    self._tell(Finding(self._step(), str(read_failure(self._stage, status, payload))))
                    return
            if self._results is not None:
                self._results += map(bytes, frame.payloads)

    def _schedule(self, launch: Launch) -> Iterator[Frame]:
        """The frames that the worker gets; what came of one is known when the next is asked for."""
        yield control_frame(Kind.LAUNCH, pack(launch))
        if self._results_file >= 0 and not self._over:
            yield from self._collect()
        if not self._over:
            yield from self._climb()
        self._tell(Step(f"{self._what}: teardown"))

    def _collect(self) -> Iterator[Frame]:
        """Run each input alone, and write down what came of it; nothing where one fails."""
        results: list[bytes] = []
        self._results = results
        for payload in self._inputs:
            yield self._batch([payload])
            if self._over:
                return
        self._results = None
        try:
            _write_payloads(self._results_file, results)  # now: a larger batch may end the process
        except (OSError, ValueError) as error:
            os.truncate(self._results_file, 0)  # the next stage finds nothing, and is skipped
            self._tell(results_not_kept(self._what, error))

    def _climb(self) -> Iterator[Frame]:
        began = time.monotonic()
        for size in sizes_up_to(self._max_size):
            if not begins(size, time.monotonic() - began):
                return
            payloads = [self._inputs[place % len(self._inputs)] for place in range(size)]
            _tidy()
            before = taken_now()
            yield self._batch(payloads)
            peak, warm = self._peak, time.monotonic()
            seconds: list[float] = []
            while not self._over and runs_again(size, len(seconds), time.monotonic() - warm, time.monotonic() - began):
                yield self._batch(payloads)
                seconds.append(self._seconds)
                peak = max(peak, self._peak, key=lambda memory: (memory.on_device, memory.nbytes))
            if self._over:
                return
            median = statistics.median(seconds) if seconds else None
            self._tell(BatchRan(size, median, len(seconds), before, peak))

    def _batch(self, payloads: Sequence[bytes]) -> Frame:
        """A batch as it comes to a worker, and from here on a new peak of memory."""
        n = self._size = len(payloads)
        self._tell(Step(self._step()))
        codecs, ids = [Codec.PICKLE] * n, list(range(n))
        lengths = list(map(payload_size, payloads))
        buffers = encode_batch(1, time.monotonic(), ids, payloads, lengths, [math.inf] * n, codecs, codecs)
        frames: list[Frame] = []
        for buffer in buffers:  # not joined, which would need as much memory once more
            frames += self._decoder.feed(buffer)
        forget_peak()
        return frames.pop()

    def _step(self) -> str:
        return f"{self._what}: batch of {self._size}"


def _tidy() -> None:
    """Give back what is free, so that what is taken is in use."""
    gc.collect()
    trim_heap()


def _grown(before: Memory, now: Memory) -> Memory:
    taken = before.nbytes if before.on_device == now.on_device else 0
    return Memory(max(0, now.nbytes - taken), on_device=now.on_device)


def _pickled(example: Any) -> bytes:
    return bytes(join_payload(dumps(example)))


def _read_payloads(fd: int) -> list[bytes]:
    with open(fd, "rb") as file:
        file.seek(0)  # whoever wrote it has left the file's one position at its end
        return msgspec.msgpack.decode(file.read(), type=list[bytes])


def _write_payloads(fd: int, payloads: Sequence[bytes]) -> None:
    with open(fd, "wb", closefd=False) as file:
        file.write(msgspec.msgpack.encode(payloads))
