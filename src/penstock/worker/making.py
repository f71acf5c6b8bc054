"""Make what a worker of ours runs its batches with, as its launch order says.  Both kinds of worker begin so."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import ItemEncoder
from penstock.codec.formats import Codec
from penstock.codec.schema import Signature, offers
from penstock.codec.type_check import ResultWatch
from penstock.errors import ProtocolError
from penstock.transport.channel import WorkerEnd
from penstock.transport.framing import Frame, Kind, encode_control, encode_shortage
from penstock.transport.messages import Launch, pack
from penstock.worker.current_call import CurrentCall
from penstock.worker.declared import declaration_of, declared_signature
from penstock.worker.device_errors import ran_out_of_memory
from penstock.worker.loading import import_target
from penstock.worker.problems import describe_error
from penstock.worker.runner import WATCHED_RESULTS, Runner
from penstock.worker.stage import WorkerInfo, make_stage
from penstock.worker.worker_slabs import WorkerSlabs


class Made(NamedTuple):
    """A stage that is not set up yet, and what runs its batches."""

    stage: Any
    runner: Runner
    types: Signature
    arguments: dict[str, Any]
    """The arguments of `setup`."""


def make_runner(
    launch: Launch,
    target: Any,
    on_loaded: Callable[[], None],
    current: CurrentCall,
    slabs: WorkerSlabs,
    *,
    examines: bool,
) -> Made:
    """Make the stage of `launch` and its runner; raises what user code raises.

    `target` is None in a process, which imports it.  `on_loaded` is called once that is done.
    """
    if target is None:
        sys.path[:] = map(os.fsdecode, launch.sys_path)
        target = import_target(launch.ref)
    on_loaded()
    stage = make_stage(target)
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
        behind=launch.behind,
        current=current,
        watch=None if launch.validate_results and launch.last else ResultWatch(types.result, WATCHED_RESULTS),
        place=slabs.put,
        place_from=0 if launch.slabs is None else launch.slabs.least,
        examines=examines,
        well=launch.well,
    )
    return Made(stage, runner, types, arguments)


def formats_asked_for(launch: Launch, result: Any) -> tuple[Codec, ...]:
    """The formats that results of this type are asked for in."""
    if not launch.last:
        return (launch.crossing,)
    return offers(result) if launch.served else (Codec.PICKLE, *offers(result))  # calls in process get a pickle


def tell_failed(end: WorkerEnd, error: BaseException, *, on_examples: bool) -> None:
    """Send why the stage could not be set up, or does not run its examples."""
    problem = msgspec.structs.replace(
        describe_error(error), on_examples=on_examples, out_of_memory=ran_out_of_memory(error)
    )
    end.send(encode_control(Kind.FAILED, pack(problem)))


def tell_shortages(end: WorkerEnd, runner: Runner) -> None:
    """Send for how many items there was no memory, and for how many there was."""
    for failed, ran in runner.shortages:
        end.send([encode_shortage(failed, ran)])
    runner.shortages.clear()


def expect_kind(frame: Frame, kind: Kind) -> Frame:
    """`frame`, which has to be of `kind`; else ProtocolError."""
    if frame.kind is not kind:
        raise ProtocolError(f"expected a {kind.name} frame, got {frame.kind.name}")
    return frame
