"""Run one batch through a stage: decode, preprocess, predict, postprocess, encode; each item's failure its own.

The runner reads no channel and no clock of its own, so that a test drives it with frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder
from penstock.codec.formats import Codec
from penstock.errors import InvalidItem
from penstock.transport.framing import Frame, Status, encode_answers
from penstock.transport.messages import pack
from penstock.worker.bisect import DROPPED, Bisection, Failed
from penstock.worker.problems import USER_ERRORS, WrongLength, describe, describe_invalid
from penstock.worker.stage import wants_pre


class _Answers:
    """The answers of one batch as they come, in the order of its items."""

    __slots__ = ("payloads", "statuses")

    def __init__(self, n: int) -> None:
        self.statuses: list[int] = [Status.OK] * n
        self.payloads: list[Any] = [b""] * n

    def expire(self, i: int) -> None:
        """Item `i` was not run: its deadline had passed."""
        self.statuses[i] = Status.EXPIRED

    def fail(self, i: int, error: BaseException, *, skip_frames: int = 0) -> None:
        """Item `i` ended with `error`; `skip_frames` of its traceback are ours."""
        if isinstance(error, InvalidItem):
            self.statuses[i] = Status.INVALID
            self.payloads[i] = pack(describe_invalid(error))
        else:
            self.statuses[i] = Status.FAILED
            self.payloads[i] = pack(describe(error, skip_frames=skip_frames))


class Runner:
    """A set-up stage object and the codecs around it."""

    def __init__(
        self,
        stage: Any,
        *,
        name: str,
        batched: bool,
        bisect: bool,
        decoder: ItemDecoder,
        encoder: ItemEncoder,
        now: Callable[[], float],
        validates: bool = False,
    ) -> None:
        self._stage = stage
        self._name = name
        self._batched = batched
        self._bisect = bisect
        self._decode = decoder.decode
        self._encode = encoder.encode
        self._now = now
        self._validates = validates
        self._preprocess: Callable[..., Any] | None = getattr(stage, "preprocess", None)
        self._postprocess: Callable[..., Any] | None = getattr(stage, "postprocess", None)
        self._wants_pre = self._postprocess is not None and wants_pre(self._postprocess)

    def run(self, frame: Frame) -> list[Any]:
        """Answer a BATCH frame: the buffers of its ANSWERS, one answer for each item, in order."""
        started = self._now()
        deadlines = [frame.seconds + left for left in frame.remaining]
        answers = _Answers(len(frame.ids))
        live, values = self._inputs(frame, deadlines, started, answers)
        calls = 0
        if live:
            results, calls = self._results(values, [deadlines[i] for i in live])
            self._outputs(frame.codecs_out, live, values, results, answers)
        seconds = self._now() - started
        return encode_answers(frame.frame_id, seconds, calls, frame.ids, answers.payloads, answers.statuses)

    def warm_up(self, examples: list[Any], max_size: int) -> None:
        """Run `examples` one by one and, for a batched stage, as a full batch; raises what the stage raises."""
        for example in examples:
            self._rehearse([example])
        if examples and self._batched and max_size > 1:
            self._rehearse([examples[i % len(examples)] for i in range(max_size)])

    # -- the steps ----------------------------------------------------------------------------------------------

    def _inputs(
        self, frame: Frame, deadlines: list[float], now: float, answers: _Answers
    ) -> tuple[list[int], list[Any]]:
        """What `predict` will see: the places of the items that got so far, and their values."""
        live, values = [], []
        preprocess = self._preprocess
        for i, (payload, codec, deadline) in enumerate(zip(frame.payloads, frame.codecs_in, deadlines, strict=True)):
            if now >= deadline:
                answers.expire(i)
                continue
            try:
                value = self._decode(codec, payload)
            except InvalidItem as error:
                answers.fail(i, self._blame(error, codec))
                continue
            except SystemExit as error:  # from a type's own checks, which are user code
                answers.fail(i, error)
                continue
            if preprocess is not None:
                try:
                    value = preprocess(value)
                except USER_ERRORS as error:
                    answers.fail(i, error, skip_frames=1)
                    continue
                if isinstance(value, Exception):
                    answers.fail(i, value)
                    continue
            live.append(i)
            values.append(value)
        return live, values

    def _results(self, values: list[Any], deadlines: list[float]) -> tuple[list[Any], int]:
        """What `predict` made of each value, or why not; and the number of calls it took."""
        if self._batched:
            bisection = Bisection(self._stage.predict, enabled=self._bisect)
            return bisection.run(values, lambda k: self._now() >= deadlines[k]), bisection.calls
        results: list[Any] = []
        for value in values:
            try:
                results.append(self._stage.predict(value))
            except USER_ERRORS as error:
                results.append(Failed(error))
        return results, len(values)

    def _outputs(
        self, codecs: tuple[int, ...], live: list[int], pres: list[Any], results: list[Any], answers: _Answers
    ) -> None:
        """Postprocess and encode what there is, and end the rest."""
        postprocess, encode = self._postprocess, self._encode
        for i, pre, result in zip(live, pres, results, strict=True):
            if isinstance(result, (Failed, Exception)) or result is DROPPED:
                self._end(i, result, answers)
                continue
            value = result
            if postprocess is not None:
                try:
                    value = postprocess(value, pre) if self._wants_pre else postprocess(value)
                except USER_ERRORS as error:
                    answers.fail(i, error, skip_frames=1)
                    continue
                if isinstance(value, Exception):
                    answers.fail(i, value)
                    continue
            try:
                answers.payloads[i] = encode(codecs[i], value)
            except EncodeFailed as error:
                answers.fail(i, error, skip_frames=1)

    def _end(self, i: int, result: Any, answers: _Answers) -> None:
        """Item `i` has no result: it was dropped, it failed, or the stage put an exception in its place."""
        if result is DROPPED:
            answers.expire(i)
        elif not isinstance(result, Failed):
            answers.fail(i, result)
        elif isinstance(result.error, WrongLength):
            answers.fail(i, WrongLength(f"stage {self._name!r}: {result.error}"))
        else:
            answers.fail(i, result.error, skip_frames=2 if self._batched else 1)

    def _blame(self, error: InvalidItem, codec: int) -> BaseException:
        """What an item that cannot be decoded failed with: between our own processes that is no caller's fault."""
        if codec == Codec.PICKLE and not self._validates and error.__cause__ is not None:
            return error.__cause__
        return error

    def _rehearse(self, values: list[Any]) -> None:
        pres = values if self._preprocess is None else [_checked(self._preprocess(value)) for value in values]
        if self._batched:
            results = Bisection(self._stage.predict, enabled=False).run(list(pres), lambda _: False)
        else:
            results = [self._stage.predict(value) for value in pres]
        for result, pre in zip(results, pres, strict=True):
            value = _checked(result)
            if self._postprocess is not None:
                value = self._postprocess(value, pre) if self._wants_pre else self._postprocess(value)
            _checked(value)


def _checked(value: Any) -> Any:
    if isinstance(value, Failed):
        raise value.error
    if isinstance(value, Exception):
        raise value
    return value
