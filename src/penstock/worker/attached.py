"""Be a worker from outside: attach to a server, serve until it has gone, and attach to the next.

The stage is set up once, after the first LAUNCH, and kept.  A server that comes back may number its workers otherwise
and take other batches, so each connection has a `Runner` of its own, and the examples run again where batches differ.
"""

from __future__ import annotations

import math
import os
import platform
import socket
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder
from penstock.codec.formats import CODEC_NAMES, Codec
from penstock.codec.schema import accepts
from penstock.codec.text import cut_middle, one_line
from penstock.codec.type_check import ResultWatch
from penstock.config import StageOptions
from penstock.core.abandonment import Abandonment
from penstock.core.payload import payload_size
from penstock.errors import ConfigError, PenstockError, ProtocolError
from penstock.hosting.guarded_log import guarded_logger
from penstock.hosting.thread_stacks import STACKS_BYTES, stacks_of_threads
from penstock.transport.external_messages import (
    ExternalHello,
    ExternalLaunch,
    codecs_of,
    pack_json,
    unpack_json,
    write_failure,
)
from penstock.transport.framing import VERSION, Frame, FrameDecoder, Kind, Status, encode_answers, encode_control
from penstock.transport.messages import counts_payloads
from penstock.worker.attached_end import AttachedEnd, CutOff
from penstock.worker.attachment import Attachment
from penstock.worker.counting import Counted, Counting
from penstock.worker.current_call import CallOfContext, CurrentCall, announce
from penstock.worker.declared import declaration_of, declared_signature
from penstock.worker.leaving import AttachedPhase, Leaving
from penstock.worker.problems import USER_ERRORS, describe_error
from penstock.worker.runner import WATCHED_RESULTS, Runner
from penstock.worker.stage import WorkerInfo, has_health, make_stage, waiting_methods
from penstock.worker.stage_life import check_health, freeze_model, tear_down, tell_failed_teardown, warm_up_stage

if TYPE_CHECKING:  # a plain stage needs no asyncio
    from penstock.worker.attached_loop import AttachedLoop, RunnerInLoop

log = guarded_logger("penstock.worker")

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
"""Between two attempts to attach; the pause doubles until the worker is READY."""
WENT_WELL: Final = 0
FAILED: Final = 1
LANGUAGE: Final = f"python {platform.python_version()}"
_ANSWERS_RECORD_BYTES: Final = 17
"""What the columns of an ANSWERS take for each item."""


class _SetupFailed(Exception):
    """The stage cannot be made to serve; the server knows why, and the log has it."""


class AttachedWorker:
    """A worker of `target`, which is imported already.

    `on_launch` is told the service, the stage and the index before anything of the stage runs; `on_loaded` is called
    after `setup`.  `end_process` ends this process at once with a status; another thread calls it.
    """

    def __init__(
        self,
        target: Any,
        attachment: Attachment,
        leaving: Leaving,
        *,
        on_launch: Callable[[str, str, int], None],
        on_loaded: Callable[[], None],
        end_process: Callable[[int], None],
    ) -> None:
        self._target = target
        self._waits = bool(waiting_methods(target))
        self._attachment = attachment
        self._leaving = leaving
        self._on_launch = on_launch
        self._on_loaded = on_loaded
        self._end_process = end_process
        self._codecs = tuple(name for name, codec in CODEC_NAMES.items() if codec is not Codec.NPY or _has_numpy())
        self._known = frozenset(map(int, codecs_of(self._codecs)))
        self._health = has_health(target)
        self._current = CallOfContext() if self._waits else CurrentCall()
        self._stage: Any = None
        """The stage, once it is set up."""
        self._loop: AttachedLoop | None = None
        """The event loop of a waiting stage, from its first setup on."""
        self._in_loop: RunnerInLoop | None = None
        """The calls of a waiting stage, for the last server; None for a plain one."""
        self._name = ""
        self._warmed: object = None
        """For what batches the examples have run."""
        self._pause = FIRST_PAUSE_SECONDS
        self._told_waiting = False
        self._has_served = False
        self._pid = os.getpid()
        self._abandonment = Abandonment(None, has_examples=bool(getattr(target, "examples", ())))
        self._start_seconds = 0.0
        """How long `setup` took."""
        self._has_answered = False
        self._counting = Counting(self._send_counts, whole_process=True)
        self._counts_to: AttachedEnd | None = None
        """The connection, where it takes counts."""

    def run(self) -> int:
        """Serve until told to leave; the exit status.

        Raises:
            PenstockError: the path leads to no socket that can be connected to, or with `once` nobody listens.
        """
        with self._counting:
            try:
                return self._run()
            finally:
                if self._loop is not None:
                    self._loop.close()

    def _run(self) -> int:
        while self._leaving.enter(AttachedPhase.WAITING):
            sock = self._connect()
            if sock is not None:
                status = self._attach(sock)
                if status is not None:
                    return status
            if not self._leaving.asked:
                self._leaving.wait(self._pause)
                self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        self._tear_down()
        return WENT_WELL

    def _connect(self) -> socket.socket | None:
        """A connection; None while nobody listens."""
        path = self._attachment.path
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(True)  # whatever default timeout the stage's module has set
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            sock.close()
            if _is_something_else(path):
                raise PenstockError(f"cannot connect to {path}: not a socket") from None
            if self._attachment.once:
                raise PenstockError(f"cannot connect to {path}: no server is listening") from None
            if not self._told_waiting:
                self._told_waiting = True
                log.info("no server is listening at %s; retrying until one is", path)
            return None
        except OSError as error:
            sock.close()
            raise PenstockError(f"cannot connect to {path}: {error.strerror or error}") from None
        self._told_waiting = False
        return sock

    def _attach(self, sock: socket.socket) -> int | None:
        """Serve over one connection to its end; the exit status, or None to go on."""
        end = AttachedEnd(sock, self._cut_off_while_busy, patience=self._patience, stuck=self._end_stuck)
        try:
            if self._leaving.enter(AttachedPhase.WAITING, end):
                self._serve(end)
        except CutOff as cut:
            self._tell_cut(str(cut))
            return FAILED
        except _SetupFailed:
            return FAILED
        except ProtocolError as error:
            log.warning("protocol error from the server at %s, disconnecting: %s", self._attachment.path, error)
            return FAILED if self._attachment.once else None
        except OSError:  # the server has gone: what this worker holds is dropped
            self._end_if_forked()
        finally:
            self._counts_to = None
            self._leaving.enter(AttachedPhase.WAITING)
            end.close()
        if self._leaving.asked:
            log.info("disconnected from %s", self._attachment.path)
            return None
        if self._attachment.once:
            return self._end_once()
        log.warning("lost the connection to the server at %s; reconnecting", self._attachment.path)
        return None

    def _end_once(self) -> int:
        """The exit status after the only connection."""
        if not self._has_served:
            raise PenstockError(
                f"the server at {self._attachment.path} closed the connection before it accepted this worker"
            )
        log.info("the server at %s closed the connection", self._attachment.path)
        self._tear_down()
        return WENT_WELL

    def _serve(self, end: AttachedEnd) -> None:
        hello = ExternalHello(VERSION, os.getpid(), LANGUAGE, self._attachment.stage, self._codecs, self._health)
        end.send(encode_control(Kind.HELLO, pack_json(hello)))
        frame = end.receive()
        if frame is None:
            return
        launch = unpack_json(_expected(frame, Kind.LAUNCH).payloads[0], ExternalLaunch)
        if launch.max_size < 1:
            raise ProtocolError(f"a LAUNCH has max_size {launch.max_size}")
        end.launched()
        if launch.counts:
            self._counts_to = end
        if not self._leaving.enter(AttachedPhase.PREPARING, end):
            return
        runner = self._prepare(end, launch)
        if not self._leaving.serve(end, lambda: end.send(encode_control(Kind.READY, b""))):
            return
        self._has_served = True
        self._pause = FIRST_PAUSE_SECONDS
        where = (self._attachment.path, launch.index, launch.stage, launch.service)
        log.info("attached to %s as worker %d of stage %r of service %r", *where)
        while (frame := end.receive()) is not None:
            if frame.kind is Kind.CHECK and self._health:
                problem = check_health(self._stage) if self._in_loop is None else self._in_loop.check_health()
                payload = b"" if problem is None else write_failure(problem)
                end.send(encode_control(Kind.CHECKED, payload, frame.frame_id))
            else:
                end.send(self._answers(runner, _expected(frame, Kind.BATCH), launch.max_body))
        self._counting.flush()  # the server reads on until this worker closes

    def _prepare(self, end: AttachedEnd, launch: ExternalLaunch) -> Runner | RunnerInLoop:
        self._on_launch(launch.service, launch.stage, launch.index)
        announce(self._current, launch.service, launch.stage, launch.index)
        try:
            return self._made_ready(launch)
        except USER_ERRORS as error:
            self._end_if_forked()
            self._counting.flush()
            problem = describe_error(error)
            # Before the line: the server may be about to end too, and nobody else has told it.
            try:
                end.send(encode_control(Kind.FAILED, write_failure(problem)))
            except OSError:
                log.warning("lost the connection to the server; it did not receive the following error")
            log.error("stage %r: setup failed\n%s", launch.stage, problem.traceback.rstrip())  # noqa: TRY400
            raise _SetupFailed from None

    def _made_ready(self, launch: ExternalLaunch) -> Runner | RunnerInLoop:
        """What runs the batches of `launch`; raises what the stage raises, or ConfigError if it cannot be called so."""
        setup = dict(self._attachment.setup)
        declared = declaration_of(self._target, setup)
        policy = getattr(self._target, "batch", None) if declared.batch is None else declared.batch
        if policy is not None and not launch.batched:
            raise ConfigError(
                f"stage {launch.stage!r} receives one item at a time, but {self._target.__qualname__} has a batch "
                "policy: add one to the stage, as in penstock.external(..., batch=penstock.Batch())"
            )
        types = declared_signature(self._target, declared, batched=launch.batched)
        accepts(types.item)  # raises where no request can bring such an item
        stage = self._stage if self._stage is not None else make_stage(self._target)
        stage.worker = WorkerInfo(launch.stage, launch.index, launch.count, (), self._current.remaining)
        if declared.examples is not None:
            stage.examples = declared.examples
        runner: Runner | RunnerInLoop
        runner = plain = Runner(
            stage,
            name=launch.stage,
            batched=launch.batched,
            options=StageOptions(),
            decoder=ItemDecoder(types.item, validate=True),
            encoder=ItemEncoder(types.result, validate=launch.validate_results, allow_nan=launch.allow_nan),
            now=time.monotonic,
            validates=True,
            current=self._current,
            write=write_failure,
            examines=not self._waits,
            watch=None if launch.validate_results else ResultWatch(types.result, WATCHED_RESULTS),
        )
        if self._waits:
            runner = self._in_loop = self._put_in_loop(stage, plain, launch)
        if self._stage is None:
            begun = time.monotonic()
            if self._in_loop is None:
                stage.setup(**setup)
            else:
                self._in_loop.set_up(setup)
            self._start_seconds = time.monotonic() - begun
            self._stage, self._name = stage, launch.stage
            self._on_loaded()
        batches = (launch.batched, launch.max_size, launch.accepts, launch.validate_results, launch.allow_nan)
        if self._warmed != batches:
            warm_up_stage(
                stage,
                runner,
                launch.stage,
                item=types.item,
                batched=launch.batched,
                max_size=launch.max_size,
                formats=[CODEC_NAMES[name] for name in launch.accepts if name in self._codecs],
                tells=launch.index == 0,  # the other workers would say the same
            )
            self._warmed = batches
            freeze_model()
        return runner

    def _put_in_loop(self, stage: Any, runner: Runner, launch: ExternalLaunch) -> RunnerInLoop:
        """Have the batches of `launch` run in the event loop, which begins with the first server."""
        from penstock.worker.attached_loop import AttachedLoop, RunnerInLoop

        if self._loop is None:
            self._loop = AttachedLoop(launch.stage, self._end_if_forked)

        async def announce_there() -> None:
            announce(self._current, launch.service, launch.stage, launch.index)

        self._loop.run(announce_there())
        return RunnerInLoop(self._loop, stage, runner, name=launch.stage, batched=launch.batched)

    def _answers(self, runner: Runner | RunnerInLoop, frame: Frame, max_body: int) -> list[Any]:
        """The ANSWERS to a BATCH, of at most `max_body` bytes.

        Raises:
            ProtocolError: the frame names a format that this worker does not speak; pickle is one.
        """
        strange = {*frame.codecs_in, *frame.codecs_out} - self._known
        if strange:
            raise ProtocolError(f"a batch has items in formats that were not negotiated: {sorted(strange)}")
        begun = time.monotonic()
        buffers = runner.run(frame)
        self._abandonment.answered(time.monotonic() - begun)
        self._has_answered = True
        if runner.lost is not None:
            self._counting.flush()
            # Unanswered: the server has another worker run these items.
            log.error("device lost: %s\n%s", one_line(runner.lost.message), runner.lost.traceback.rstrip())
            self._end_process(FAILED)
        # The header is counted too: it makes no answer wrong that is so near to the bound.
        return buffers if payload_size(buffers) <= max_body else _bounded(buffers, max_body)

    def _send_counts(self, counted: Counted) -> Counted:
        """Send what was counted, perhaps in another thread; returns what this connection did not take."""
        end, left = self._counts_to, counted
        if end is not None:
            for payload, n in counts_payloads(counted, pack_json):
                if not end.send_aside(encode_control(Kind.COUNTS, payload)):
                    break
                left = left[n:]
        return left

    # -- the end ------------------------------------------------------------------------------------------------

    def _tear_down(self) -> None:
        if self._stage is None:
            return
        if self._in_loop is None:
            tear_down(self._stage, self._name)
            return
        try:
            self._in_loop.tear_down()
        except USER_ERRORS as error:
            tell_failed_teardown(self._name, error)

    def _cut_off_while_busy(self, why: str) -> None:
        self._tell_cut(why)
        self._end_process(FAILED)

    def _end_if_forked(self) -> None:
        """End a child that the stage has forked, and that comes back from it: the server is none of its own."""
        if os.getpid() != self._pid:
            self._end_process(FAILED)

    def _patience(self) -> float:
        """How many seconds a batch may run on after the server has gone; a setup is kept, so it may take its time."""
        if not self._leaving.serves:
            return math.inf
        return self._abandonment.limit(start_seconds=self._start_seconds, has_answered=self._has_answered)

    def _end_stuck(self) -> None:
        stacks = cut_middle(stacks_of_threads(), STACKS_BYTES)
        log.error("lost the connection to the server and an abandoned batch keeps running; exiting\n%s", stacks)
        self._end_process(FAILED)

    def _tell_cut(self, why: str) -> None:
        log.error("the server at %s rejected this worker: %s", self._attachment.path, why)


def _bounded(buffers: list[Any], max_body: int) -> list[Any]:
    """An ANSWERS in which the largest answers, as many as there must be, say that they are too large."""
    (frame,) = FrameDecoder().feed(b"".join(bytes(buffer) for buffer in buffers))
    payloads: list[Any] = list(frame.payloads)
    statuses = list(frame.statuses)
    # A payload may be padded by up to 63 bytes.
    size = sum(map(len, payloads)) + len(payloads) * (_ANSWERS_RECORD_BYTES + 63)
    for i in sorted(range(len(payloads)), key=lambda i: len(payloads[i]), reverse=True):
        if size <= max_body:
            break
        n = len(payloads[i])
        error = EncodeFailed(f"the result has {n} bytes, and its batch exceeds the server's limit of {max_body} bytes")
        statuses[i], payloads[i] = Status.FAILED, write_failure(describe_error(error))
        size += len(payloads[i]) - n
    return encode_answers(frame.frame_id, frame.seconds, frame.calls, frame.ids, payloads, statuses)


def _is_something_else(path: str) -> bool:
    """Whether there is a file or a folder at `path`, so that no socket will be."""
    return Path(path).exists() and not Path(path).is_socket()


def _expected(frame: Frame, kind: Kind) -> Frame:
    if frame.kind is not kind:
        raise ProtocolError(f"expected a {kind.name} frame, got {frame.kind.name}")
    return frame


def _has_numpy() -> bool:
    return find_spec("numpy") is not None
