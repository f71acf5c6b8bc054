"""Be a worker: the handshake, then one frame after the other until the stream ends.

A worker process runs this function over a socket, a worker thread over memory.  The worker of a waiting stage goes on
in `worker.waiting_loop`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from penstock.codec.schema import Signature
from penstock.transport.channel import WorkerEnd
from penstock.transport.framing import Frame, Kind, encode_control, encode_slab_note
from penstock.transport.messages import Hello, Launch, Lost, counts_payloads, pack, unpack
from penstock.worker.counting import Counted, Counting, flush_counts
from penstock.worker.current_call import CurrentCall, announce
from penstock.worker.device_memory import DeviceMemory
from penstock.worker.making import expect_kind, formats_asked_for, make_runner, tell_failed, tell_shortages
from penstock.worker.problems import USER_ERRORS
from penstock.worker.runner import Runner
from penstock.worker.stage_life import check_health, tear_down, warm_up_stage
from penstock.worker.worker_slabs import WorkerSlabs


def work(
    end: WorkerEnd,
    *,
    target: Any = None,
    on_launch: Callable[[Launch], None] = lambda _: None,
    on_loaded: Callable[[], None] = lambda: None,
    on_ready: Callable[[], None] = lambda: None,
    slab_descriptors: tuple[int, int] = (-1, -1),
    examines: bool = False,
) -> None:
    """Work until the coordinator ends the stream.

    A worker thread is given its `target`; a process imports it.  `slab_descriptors` are those that a process has
    inherited: of its inputs and of its results.  `on_launch` is called before any user code runs,
    `on_loaded` once the stage's module is imported and again after `setup`, `on_ready` once the stage is warmed up.
    With `examines` it ends where its device is lost, and the coordinator has another process do the work.
    """
    end.send(encode_control(Kind.HELLO, pack(Hello(os.getpid()))))
    frame = end.receive()
    if frame is None:
        return
    launch = unpack(expect_kind(frame, Kind.LAUNCH).payloads[0], Launch)
    on_launch(launch)
    if launch.concurrency:
        from penstock.worker.waiting_loop import work_in_event_loop  # a plain worker never imports asyncio

        work_in_event_loop(end, launch, target=target, on_loaded=on_loaded, on_ready=on_ready)
    else:
        _work_in_turn(end, launch, target, on_loaded, on_ready, slab_descriptors, examines=examines)


def _work_in_turn(
    end: WorkerEnd,
    launch: Launch,
    target: Any,
    on_loaded: Callable[[], None],
    on_ready: Callable[[], None],
    slab_descriptors: tuple[int, int],
    *,
    examines: bool,
) -> None:
    """Work as `launch` says: answer one frame before the next is read."""
    slabs = WorkerSlabs()
    stage = None
    on_examples = False
    try:
        slabs = WorkerSlabs.of(launch.slabs, *slab_descriptors)
        stage, runner, types = _prepare(launch, target, on_loaded, slabs, examines=examines)
        on_examples = True
        _warm_up(launch, stage, runner, types)
    except USER_ERRORS as error:
        tell_failed(end, error, on_examples=on_examples)
        return
    on_ready()
    tell_shortages(end, runner)
    memory = DeviceMemory()
    end.send([*memory.notes(time.monotonic()), *encode_control(Kind.READY, b"")])
    while (frame := end.receive()) is not None:
        if frame.kind is not Kind.BATCH:
            _obey(end, frame, stage, runner, slabs)
            continue
        named = bool(frame.handles)
        if named:
            slabs.open(frame)
        answers = runner.run(frame)
        frame = None  # and with it its views: those that are left are the stage's
        if runner.shortages:
            tell_shortages(end, runner)
        lost = runner.lost
        if lost is not None:
            flush_counts()  # it is killed once it has answered
            end.send([encode_slab_note(Kind.LOST, pack(Lost(lost, runner.well, runner.begun)))])
        if named or slabs.keeps:
            # First: a result that is a view of an input is none that the stage keeps.
            answers = [b"".join(answers)]
            answers = [*slabs.tell(), *answers]
        if "torch" in sys.modules:  # few stages have it, and to the others this is all that it costs
            answers = [*memory.notes(time.monotonic()), *answers]
        end.send(answers)
        answers = []  # the results of a batch go before the next one comes
        if lost is not None:
            # A write to a closed channel fails, and with it what is not read yet: the coordinator ends it.
            while end.receive() is not None:
                pass
            return  # without `teardown`, which would need the device
    tear_down(stage, launch.stage)


def counting_over(end: WorkerEnd, *, whole_process: bool) -> Counting:
    """The counting of a worker of ours: what its stage counts is sent through `end`."""

    def send(counted: Counted) -> Counted:
        with contextlib.suppress(OSError):  # the coordinator has gone, and nobody is left to be told
            for payload, _ in counts_payloads(counted, pack):
                end.send(encode_control(Kind.COUNTS, payload))
        return []

    return Counting(send, whole_process=whole_process)


def _obey(end: WorkerEnd, frame: Frame, stage: Any, runner: Runner, slabs: WorkerSlabs) -> None:
    """Do what a frame says that is no BATCH."""
    if frame.kind is Kind.EXAMINE:
        problem = runner.examine()
        end.send(encode_control(Kind.EXAMINED, b"" if problem is None else pack(problem), frame.frame_id))
    elif frame.kind is Kind.CHECK:
        end.send(encode_control(Kind.CHECKED, _check(stage), frame.frame_id))
    elif frame.kind is Kind.SUSPECT:
        runner.suspect = True
    elif not slabs.note(frame):
        expect_kind(frame, Kind.BATCH)
    elif frame.kind is Kind.TRIM and slabs.keeps and (notes := slabs.tell()):
        end.send(notes)


def _prepare(
    launch: Launch, target: Any, on_loaded: Callable[[], None], slabs: WorkerSlabs, *, examines: bool
) -> tuple[Any, Runner, Signature]:
    made = make_runner(launch, target, on_loaded, CurrentCall(), slabs, examines=examines)
    announce(made.runner.current, launch.service, launch.stage, launch.index)
    made.stage.setup(**made.arguments)
    on_loaded()
    return made.stage, made.runner, made.types


def _warm_up(launch: Launch, stage: Any, runner: Runner, types: Signature) -> None:
    warm_up_stage(
        stage,
        runner,
        launch.stage,
        item=types.item,
        batched=launch.batched,
        max_size=launch.max_size,
        formats=formats_asked_for(launch, types.result),
        tells=launch.index == 0,  # the other workers would say the same
    )


def _check(stage: Any) -> bytes:
    """Run the stage's `health`; nothing if it returned, else what it raised."""
    problem = check_health(stage)
    return b"" if problem is None else pack(problem)
