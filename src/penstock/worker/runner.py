"""Run one batch through a stage: decode, preprocess, predict, postprocess, encode.  A failure fails its item alone.

The runner reads no channel, and is told the time by a function, so that a test drives it with frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from penstock.codec import pickle_
from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder
from penstock.codec.example import check_answer, input_of
from penstock.codec.formats import Codec
from penstock.codec.text import cut_middle
from penstock.codec.type_check import ResultWatch
from penstock.config import StageOptions
from penstock.core.payload import Buffer, Handle, Payload, any_large, join_payload, payload_size
from penstock.errors import InvalidItem
from penstock.hosting.guarded_log import guarded_logger
from penstock.transport.framing import Frame, Status, encode_answers
from penstock.transport.messages import MESSAGE_BYTES, Problem, Well, pack
from penstock.worker.bisect import Bisection
from penstock.worker.current_call import CurrentCall
from penstock.worker.device_errors import device_is_lost, let_go, ran_out_of_memory
from penstock.worker.problems import (
    USER_ERRORS,
    UnfitResult,
    WrongLength,
    describe_error,
    describe_invalid,
    not_awaited,
    note_single_item,
)
from penstock.worker.stage import wants_pre

log = guarded_logger("penstock.worker")

WATCHED_RESULTS: Final = 100
"""How many results of each worker are looked at for their type."""

PlaceResults: TypeAlias = Callable[[Payload, int], Handle | None]
"""Puts a result of so many bytes into a slab; None where there is no room."""
EXAMINATION_INTERVAL_SECONDS: Final = 1.0
"""A batch of one that fails is followed by an examination at most once in so long."""
MOST_WELL_BYTES: Final = 1024 * 1024
"""Largest item that is kept to be run again."""


NO_VALUE: Final = object()
"""Stands for the value of an item that has ended before it had one."""


class BatchWork:
    """The items of one frame, in its order, and their answers as they come.  It is the `Items` of a bisection."""

    __slots__ = ("deadlines", "frame", "payloads", "runner", "statuses")

    def __init__(self, runner: Runner, frame: Frame) -> None:
        self.runner = runner
        self.frame = frame
        self.deadlines = [frame.seconds + left for left in frame.remaining]
        n = len(frame.ids)
        self.statuses: list[int] = [Status.OK] * n
        self.payloads: list[Any] = [b""] * n

    def expire(self, i: int) -> None:
        """Answer that item `i` was not run because its deadline had passed."""
        self.statuses[i] = Status.EXPIRED

    def leave_out_recalled(
        self, rows: Iterable[tuple[int, memoryview, int, float]]
    ) -> list[tuple[int, memoryview, int, float]]:
        """Answer that the items which were taken back were not run; returns the other rows."""
        for i in self.frame.recalled:
            if i < len(self.statuses):
                self.statuses[i] = Status.RECALLED
        return [row for row in rows if row[0] not in self.frame.recalled]

    def end(self, i: int, error: BaseException) -> None:
        """Answer that item `i` ended with `error`."""
        self.statuses[i], self.payloads[i] = self.runner.answer_of(error)

    def again(self, places: list[int]) -> tuple[list[int], list[Any]]:
        return self.runner.inputs(self, places)

    def tell(self, places: list[int], values: list[Any], results: list[Any], *, last: bool) -> None:
        self.runner.outputs(self, places, values, results, last=last)

    def fail(self, places: list[int], error: BaseException) -> None:
        answer = self.runner.failure(error)
        for i in places:
            self.statuses[i], self.payloads[i] = answer


def is_error(value: Any) -> bool:
    """Whether a stage returned `value` as the error of an item.

    `isinstance` would read `__class__` of the value, which is the user's code: that of a dead `weakref.proxy` raises,
    and a mock of an error says that it is one.
    """
    return issubclass(type(value), BaseException)


class Runner:
    """Runs batches through one stage object, with the codecs of its items and results."""

    def __init__(
        self,
        stage: Any,
        *,
        name: str,
        batched: bool,
        options: StageOptions,
        decoder: ItemDecoder,
        encoder: ItemEncoder,
        now: Callable[[], float],
        validates: bool = False,
        behind: str = "",
        current: CurrentCall | None = None,
        write: Callable[[Problem], bytes] = pack,
        place: PlaceResults | None = None,
        place_from: int = 0,
        examines: bool = False,
        well: Well | None = None,
        watch: ResultWatch | None = None,
    ) -> None:
        # `write` makes the payload of an answer that failed.
        self.current = CurrentCall(now) if current is None else current
        """What the stage is called for now."""
        self._stage = stage
        self._name = name
        self._batched = batched
        self._options = options
        self._decode = decoder.decode
        self._encode = encoder.encode
        self._now = now
        self._validates = validates
        self._write = write
        self._place = place
        """Puts large results where they are named and not sent; None where all are sent."""
        self.lost: Problem | None = None
        """Why the device is lost, as far as the last batch has shown that; then its answers are of no use."""
        self.begun = True
        """Whether anything of the last batch was run: False only where the device was lost before it."""
        self.well = well
        """An item that ended well, where the stage has no examples to be examined by."""
        self.suspect = False
        """Whether a worker ended under the item of the next batch."""
        self._examines = examines
        """Whether this worker can be replaced, so that it matters whether its device is lost."""
        self._keeps_well = False
        self._well_kept_at = -math.inf
        self._failed_in_a_row = 0
        self._in_doubt = False
        """Whether an item failed since the device was seen to be well: it may have lost it."""
        self._examine_from = -math.inf
        self.shortages: list[tuple[int, int]] = []
        """For how many items at once there was no memory in the last call, and for how many there was."""
        self._place_from = place_from
        """The size from which on a result is large, in bytes."""
        self._watch = watch
        """Looks at the first results; None once it is over."""
        self._behind = behind
        """The remote stage whose results are the items; "" where there is none."""
        self._preprocess: Callable[..., Any] | None = getattr(stage, "preprocess", None)
        self._postprocess: Callable[..., Any] | None = getattr(stage, "postprocess", None)
        self._wants_pre = self._postprocess is not None and wants_pre(self._postprocess)

    def run(self, frame: Frame) -> list[Any]:
        """The buffers of the ANSWERS to a BATCH frame: one answer for each item, in order."""
        self.lost = None
        if self.suspect and self._in_doubt:
            self.lost = self.examine()
            if self.lost is not None:
                return self._not_begun(frame, self.lost)
        started = self._now()
        work = BatchWork(self, frame)
        self.current.frame = frame
        rows: Iterable[tuple[int, memoryview, int, float]] = zip(
            range(len(frame.ids)), frame.payloads, frame.codecs_in, work.deadlines, strict=True
        )
        if frame.recalled:
            rows = work.leave_out_recalled(rows)
        places, values = self._read(work, rows, started)
        calls = failed_last = 0
        if places and self._batched:
            bisection = Bisection(self._stage.predict, enabled=self._options.bisect)
            bisection.run(places, values, work)
            calls, failed_last = bisection.calls, bisection.failed_last
            if bisection.short_of_memory:
                self.shortages.append((bisection.short_of_memory, bisection.most_ran))
        elif places:
            calls = len(places)
            self._run_singles(work, places, values)
        self.current.over()
        ended = self._now()
        seconds = ended - started
        if self._examines:
            self._look_at_device(work, failed_last, ended)
        lengths = [payload_size(payload) for payload in work.payloads]
        handles = None
        if self._place is not None and any_large(lengths, self._place_from):
            handles = self._placed(work, lengths, self._place)
        return encode_answers(frame.frame_id, seconds, calls, frame.ids, work.payloads, work.statuses, lengths, handles)

    def _placed(self, work: BatchWork, lengths: list[int], place: PlaceResults) -> dict[int, Handle]:
        """Put the large results of `work` where the coordinator finds them; returns the handles by their places."""
        handles: dict[int, Handle] = {}
        for i, nbytes in enumerate(lengths):
            if nbytes >= self._place_from and work.statuses[i] == Status.OK:
                handle = place(work.payloads[i], nbytes)
                if handle is not None:
                    handles[i] = handle
                    work.payloads[i] = b""
        return handles

    def _not_begun(self, frame: Frame, problem: Problem) -> list[Any]:
        """The answers to `frame`, of which nothing is run, because an item before it has lost the device."""
        self.begun = False
        n = len(frame.ids)
        return encode_answers(frame.frame_id, 0.0, 0, frame.ids, [self._write(problem)] * n, [Status.FAILED] * n)

    def _look_at_device(self, work: BatchWork, failed_last: int, now: float) -> None:
        """Examine the device where nothing of `work`, or of its last `failed_last` calls, has ended well.

        That is done before `work` is answered.  A single call that fails after others that returned says nothing: an
        item at fault ends alone.  A caller's item that fails alone costs no example each time: only the second such in
        a row, once a second.
        """
        suspect, self.suspect = self.suspect, False
        statuses = work.statuses
        self._in_doubt = Status.FAILED in statuses
        if Status.OK in statuses:
            self._failed_in_a_row = 0
            if self._keeps_well:
                self._keep_well(work, now)
            if failed_last < 2:
                return
        elif self._in_doubt:
            self._failed_in_a_row += 1
        if self.lost is None and self._in_doubt:
            if len(statuses) == 1 and not suspect:
                if self._failed_in_a_row == 1 or now < self._examine_from:
                    return
                self._examine_from = now + EXAMINATION_INTERVAL_SECONDS
            self.lost = self.examine()
            self._in_doubt = False

    def _keep_well(self, work: BatchWork, now: float) -> None:
        """Keep an item of `work` that has ended well; a new one once a second, because it is copied."""
        if now - self._well_kept_at < EXAMINATION_INTERVAL_SECONDS:
            return
        place = work.statuses.index(Status.OK)
        payload = work.frame.payloads[place]
        if payload.nbytes <= MOST_WELL_BYTES:
            self._well_kept_at = now
            self.well = None  # first: two items of a megabyte are never in memory at once
            self.well = Well(bytes(payload), work.frame.codecs_in[place])

    def examine(self) -> Problem | None:
        """Run the stage's first example, or else the item that ended well last; why that failed, if it did."""
        try:
            examples = list(self._stage.examples[:1])
            if examples:
                (result,) = self._rehearse([copy_of_example(input_of(examples[0]))])
                check_answer(examples[0], result, "examples[0]")
            elif self.well is not None:
                self._rehearse([self._decode(self.well.codec, memoryview(self.well.payload))])
        except USER_ERRORS as error:
            return describe_error(error)
        return None

    def warm_up(
        self, examples: list[Any], max_size: int, formats: Sequence[Codec] = (), *, tells: bool = True
    ) -> list[str]:
        """Run `examples` one by one and, for a batched stage, as a full batch; raises what the stage raises.

        Each run gets copies of the examples, where they can be copied, because a stage may change its input.  What
        each example gave alone is also written in each of `formats`, and dropped.  The answer is why some of them
        cannot carry it, one sentence for each example of which that is true.  With `tells`, the log says of a result
        that is not of its declared type.

        Raises:
            WrongAnswer: an example has another answer than it must, alone or in the batch.
            EncodeFailed: a result can be written in none of `formats`.
        """
        self._keeps_well = self._examines and not examples and self._options.retry and self._options.bisect
        troubles = []
        for index, example in enumerate(examples):
            (result,) = self._rehearse([copy_of_example(input_of(example))])
            check_answer(example, result, f"examples[{index}]")
            self.look_at(result, tells=tells, counts=False)
            trouble = self.try_formats(f"examples[{index}]", result, formats)
            if trouble:
                troubles.append(trouble)
        if examples and self._batched:
            self._rehearse_full(examples, max_size)
        return troubles

    def _rehearse_full(self, examples: list[Any], size: int) -> None:
        """Run `size` of the examples at once, or half as many, and so on, where there is no memory for more."""
        while size > 1:
            places = [i % len(examples) for i in range(size)]
            try:
                results = self._rehearse([copy_of_example(input_of(examples[place])) for place in places])
            except USER_ERRORS as error:
                if not ran_out_of_memory(error):
                    raise
                shortage = error
            else:
                for place, result in zip(places, results, strict=True):
                    check_answer(examples[place], result, f"examples[{place}] in a batch of {size}")
                return
            let_go(shortage)
            del shortage
            failed, size = size, (size + 1) // 2
            self.shortages.append((failed, size))

    # -- the steps ----------------------------------------------------------------------------------------------

    def inputs(self, work: BatchWork, places: list[int]) -> tuple[list[int], list[Any]]:
        """The values for `predict` of the items at `places`, decoded and preprocessed once more, and their places.

        Items that expire or fail on the way are left out.
        """
        frame = work.frame
        rows = [(i, frame.payloads[i], frame.codecs_in[i], work.deadlines[i]) for i in places]
        return self._read(work, rows, self._now())

    def _read(
        self, work: BatchWork, rows: Iterable[tuple[int, memoryview, int, float]], now: float
    ) -> tuple[list[int], list[Any]]:
        """Decode and preprocess the items of `rows`, which have the place, payload, codec and deadline of each.

        The next call of a batched `predict` gets what this returns.
        """
        live, values = [], []
        preprocess = self._preprocess
        self.current.places = []
        for i, payload, codec, deadline in rows:
            if now >= deadline:
                work.expire(i)
                continue
            try:
                value = self._decode(codec, payload)
            except InvalidItem as error:
                work.end(i, self._blame(error, codec))
                continue
            except USER_ERRORS as error:  # from a type's own checks, which are user code
                work.end(i, error)
                continue
            if preprocess is not None:
                self.current.places = [i]
                try:
                    value = preprocess(value)
                except USER_ERRORS as error:
                    work.end(i, error)
                    continue
                if is_error(value):
                    work.end(i, value)
                    continue
            live.append(i)
            values.append(value)
        self.current.places = live
        return live, values

    def _run_singles(self, work: BatchWork, places: list[int], values: list[Any]) -> None:
        """Run items one by one, and encode each result before the next run, which may overwrite its memory."""
        alone = len(places) == 1
        for i, value in zip(places, values, strict=True):
            self.current.places = [i]
            try:
                result = self._stage.predict(value)
            except USER_ERRORS as error:
                note_single_item(error, value)
                work.end(i, error)
                continue
            self.outputs(work, [i], [value], [result], last=alone)

    def outputs(self, work: BatchWork, places: list[int], pres: list[Any], results: list[Any], *, last: bool) -> None:
        """Postprocess and encode what `predict` returned.

        An encoded array stays in the stage's own memory until the frame is sent.  It is copied if the stage is called
        again before that, for another part of the batch or to postprocess another item: such a call may overwrite it.
        """
        encode = self._encode if self._watch is None else self._encode_watched
        codecs = work.frame.codecs_out
        postprocesses = self._postprocess is not None
        shared = last and (not postprocesses or len(places) == 1)
        for i, pre, result in zip(places, pres, results, strict=True):
            value = result
            if postprocesses and not is_error(value):
                self.current.places = [i]
                try:
                    value = self._finish(value, pre)
                except USER_ERRORS as error:
                    work.end(i, error)
                    continue
            if is_error(value):
                work.end(i, value)
                continue
            try:
                payload = encode(codecs[i], value)
            except USER_ERRORS as error:  # EncodeFailed, or what pickling raised that is no Exception
                work.end(i, not_awaited(value, "predict") or error)
                continue
            work.payloads[i] = payload if shared else join_payload(payload)

    def _encode_watched(self, codec: int, value: Any) -> bytes | list[Buffer]:
        """As the encoder; a result that is not of its declared type is told besides."""
        self.look_at(value, tells=True, counts=True)
        return self._encode(codec, value)

    def look_at(self, value: Any, *, tells: bool, counts: bool) -> None:
        """Look at one of the first results; with `tells`, the log says where it is not of its declared type."""
        watch = self._watch
        if watch is not None:
            words = watch.look(value, counts=counts)
            if words and tells:
                log.warning("stage %r: %s; the item does not fail; logged once", self._name, words)
            if watch.over:
                self._watch = None

    def _finish(self, result: Any, pre: Any) -> Any:
        """What `postprocess` makes of `result`, which `predict` made of `pre`; `result` where there is none."""
        postprocess = self._postprocess
        if postprocess is None:
            return result
        return postprocess(result, pre) if self._wants_pre else postprocess(result)

    def failure(self, error: BaseException) -> tuple[int, bytes]:
        """The answer of items whose batch raised `error`."""
        if type(error) is WrongLength:
            return self.answer_of(WrongLength(f"stage {self._name!r}: {error}"))
        return self.answer_of(error)

    def answer_of(self, error: BaseException) -> tuple[int, bytes]:
        """The answer of an item that ended with `error`."""
        if issubclass(type(error), InvalidItem):
            return Status.INVALID, self._write(describe_invalid(error))
        problem = describe_error(error)
        if self._examines and device_is_lost(error):
            self.lost = problem
        return Status.FAILED, self._write(problem)

    def _blame(self, error: InvalidItem, codec: int) -> BaseException:
        """The error of an item that cannot be decoded; what no caller has written is no caller's fault."""
        if self._behind:
            unfit = UnfitResult(
                f"the result of stage {self._behind!r} is not a valid item of stage {self._name!r}: {error}"
            )
            unfit.__cause__ = error.__cause__
            return unfit
        if codec == Codec.PICKLE and not self._validates and error.__cause__ is not None:
            return error.__cause__
        return error

    def _rehearse(self, values: list[Any]) -> list[Any]:
        """The results of one run of the whole stage."""
        current = self.current
        current.places = [0]
        try:
            pres = values if self._preprocess is None else [checked(self._preprocess(value)) for value in values]
            if self._batched:
                current.places = list(range(len(pres)))
                results = Bisection(self._stage.predict, enabled=False).call(pres)
                current.places = [0]
            else:
                results = [self._predict_one(value) for value in pres]
            return [checked(self._finish(checked(result), pre)) for result, pre in zip(results, pres, strict=True)]
        finally:
            current.over()

    def _predict_one(self, value: Any) -> Any:
        try:
            return self._stage.predict(value)
        except USER_ERRORS as error:
            note_single_item(error, value)
            raise

    # -- for the worker of a waiting stage ----------------------------------------------------------------------

    def value_of(self, work: BatchWork, i: int, now: float) -> Any:
        """The value of item `i` of `work`; NO_VALUE where it has expired or cannot be decoded, by which it ends."""
        if now >= work.deadlines[i]:
            work.expire(i)
            return NO_VALUE
        codec = work.frame.codecs_in[i]
        try:
            return self._decode(codec, work.frame.payloads[i])
        except InvalidItem as error:
            work.end(i, self._blame(error, codec))
        except USER_ERRORS as error:  # from a type's own checks, which are user code
            work.end(i, error)
        return NO_VALUE

    def put_result(self, work: BatchWork, i: int, value: Any) -> None:
        """Answer item `i` of `work` with `value`, or with the error that it is.

        The answer is a copy: another call of the stage may overwrite an array before it is sent.
        """
        if is_error(value):
            work.end(i, value)
            return
        encode = self._encode if self._watch is None else self._encode_watched
        try:
            work.payloads[i] = join_payload(encode(work.frame.codecs_out[i], value))
        except USER_ERRORS as error:  # EncodeFailed, or what pickling raised that is no Exception
            work.end(i, not_awaited(value, "predict") or error)

    # -- examples -----------------------------------------------------------------------------------------------

    def try_formats(self, example: str, result: Any, formats: Sequence[Codec]) -> str:
        """Why some of `formats` cannot carry the `result` of `example`, or ""; EncodeFailed if none can."""
        failed: dict[str, list[str]] = {}  # the formats that share a reason, by that reason
        n = 0
        for codec in formats:
            try:
                self._encode(codec, result)
            except EncodeFailed as error:
                n += 1
                names = failed.setdefault(cut_middle(error.reason or str(error), MESSAGE_BYTES), [])
                if error.reason:
                    names.append(codec.name)
        if not failed:
            return ""
        each = [
            f"the result cannot be written as {' or '.join(names)}: {why}" if names else why
            for why, names in failed.items()
        ]
        text = f"{example}: {'; '.join(each)}"
        if n == len(formats):
            raise EncodeFailed(f"cannot write the result in any format: {text}")
        return text


def checked(value: Any) -> Any:
    """`value`, which a stage returned; raises it where it is the error of an item."""
    if is_error(value):
        raise value
    return value


def copy_of_example(example: Any) -> Any:
    """A writable copy of an example, as it would arrive from another process; the example if it cannot be pickled."""
    try:
        payload = pickle_.dumps(example)
        return pickle_.loads(bytearray(join_payload(payload)))
    except USER_ERRORS:
        return example
