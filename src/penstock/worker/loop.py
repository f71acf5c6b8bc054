"""Be a worker: the handshake, then one frame after the other until the stream ends.

A worker process runs this function over a socket, a worker thread over memory.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import ItemEncoder
from penstock.codec.formats import Codec
from penstock.codec.schema import Signature, offers, type_name
from penstock.codec.type_check import misfit
from penstock.errors import ProtocolError
from penstock.hosting.guarded_log import guarded_logger
from penstock.transport.channel import WorkerEnd
from penstock.transport.framing import Frame, Kind, encode_control
from penstock.transport.messages import Hello, Launch, pack, unpack
from penstock.worker.current_call import CurrentCall, announce
from penstock.worker.declared import declaration_of, declared_signature
from penstock.worker.loading import import_target
from penstock.worker.problems import SINGLE_ITEM, USER_ERRORS, describe_error
from penstock.worker.runner import Runner
from penstock.worker.stage import WorkerInfo, make_stage

log = guarded_logger("penstock.worker")


def work(
    end: WorkerEnd,
    *,
    target: Any = None,
    on_launch: Callable[[Launch], None] = lambda _: None,
    on_loaded: Callable[[], None] = lambda: None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Work until the coordinator ends the stream.

    A worker thread is given its `target`; a process imports it.  `on_launch` is called before any user code runs,
    `on_loaded` once the stage's module is imported and again after `setup`, `on_ready` once the stage is warmed up.
    """
    end.send(encode_control(Kind.HELLO, pack(Hello(os.getpid()))))
    frame = end.receive()
    if frame is None:
        return
    launch = unpack(_expect(frame, Kind.LAUNCH).payloads[0], Launch)
    on_launch(launch)
    stage = None
    on_examples = False
    try:
        stage, runner, types = _prepare(launch, target, on_loaded)
        on_examples = True
        _warm_up(launch, stage, runner, types)
    except USER_ERRORS as error:
        problem = msgspec.structs.replace(describe_error(error), on_examples=on_examples)
        end.send(encode_control(Kind.FAILED, pack(problem)))
        return
    on_ready()
    end.send(encode_control(Kind.READY, b""))
    while (frame := end.receive()) is not None:
        if frame.kind is Kind.EXAMINE:
            end.send(encode_control(Kind.EXAMINED, _examine(runner, stage), frame.frame_id))
        elif frame.kind is Kind.CHECK:
            end.send(encode_control(Kind.CHECKED, _check(stage), frame.frame_id))
        else:
            end.send(runner.run(_expect(frame, Kind.BATCH)))
    try:
        stage.teardown()
    except USER_ERRORS as error:
        # Not `log.exception`: what a stage raises may be of any length.
        log.error("stage %r: teardown failed\n%s", launch.stage, describe_error(error).traceback.rstrip())  # noqa: TRY400


def _prepare(launch: Launch, target: Any, on_loaded: Callable[[], None]) -> tuple[Any, Runner, Signature]:
    if target is None:
        sys.path[:] = map(os.fsdecode, launch.sys_path)
        target = import_target(launch.ref)
    on_loaded()
    stage = make_stage(target)
    current = CurrentCall()
    stage.worker = WorkerInfo(launch.stage, launch.index, launch.count, launch.gpus, current.remaining)
    arguments = pickle.loads(launch.setup)  # noqa: S301  # written by our own coordinator
    declared = declaration_of(target, arguments)
    if declared.examples is not None:
        stage.examples = declared.examples
    types = declared_signature(target, declared, batched=launch.batched)
    runner = Runner(
        stage,
        name=launch.stage,
        batched=launch.batched,
        options=launch.options,
        decoder=ItemDecoder(types.item, validate=launch.validate and launch.first),
        encoder=ItemEncoder(types.result, validate=launch.validate_results and launch.last, allow_nan=launch.allow_nan),
        now=time.monotonic,
        validates=launch.validate and launch.first,
        current=current,
    )
    announce(runner.current, launch.service, launch.stage, launch.index)
    stage.setup(**arguments)
    on_loaded()
    return stage, runner, types


def _warm_up(launch: Launch, stage: Any, runner: Runner, types: Signature) -> None:
    examples = list(stage.examples)
    tells = launch.index == 0  # the other workers would say the same
    if tells:
        _tell_misfit(launch, types.item, examples)
    troubles = runner.warm_up(examples, launch.max_size, _formats(launch, types.result))
    if troubles and tells:
        others = f" (and {len(troubles) - 1} more of its examples)" if len(troubles) > 1 else ""
        log.warning("stage %r: not every caller can get the result of %s%s", launch.stage, troubles[0], others)


def _tell_misfit(launch: Launch, item: Any, examples: list[Any]) -> None:
    """Warn of the first example that is no item: `predict` may well fail on it, or be warmed up for nothing."""
    for index, example in enumerate(examples):
        reason = misfit(item, example)
        if reason:
            if not launch.batched and reason.startswith("expected `array`"):  # a batch policy may have been forgotten
                reason += f"; {SINGLE_ITEM}"
            log.warning("stage %r: examples[%d] does not fit `%s`: %s", launch.stage, index, type_name(item), reason)
            return


def _formats(launch: Launch, result: Any) -> tuple[Codec, ...]:
    """The formats that results of this type are asked for in."""
    if not launch.last:
        return (Codec.PICKLE,)  # between stages everything is pickled
    return offers(result) if launch.served else (Codec.PICKLE, *offers(result))  # calls in process get a pickle


def _examine(runner: Runner, stage: Any) -> bytes:
    """Run the stage's first example; nothing if that went well, else why it did not."""
    try:
        runner.warm_up(list(stage.examples[:1]), max_size=1)
    except USER_ERRORS as error:
        return pack(describe_error(error))
    return b""


def _check(stage: Any) -> bytes:
    """Run the stage's `health`; nothing if it returned, else what it raised."""
    try:
        stage.health()
    except USER_ERRORS as error:
        return pack(describe_error(error))
    return b""


def _expect(frame: Frame, kind: Kind) -> Frame:
    if frame.kind is not kind:
        raise ProtocolError(f"expected a {kind.name} frame, got {frame.kind.name}")
    return frame
