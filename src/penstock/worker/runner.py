"""Run one batch through a stage: decode, preprocess, predict, postprocess, encode; each item's failure its own.

The runner reads no channel and no clock of its own, so that a test drives it with frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder, ResultMismatch
from penstock.codec.formats import Codec
from penstock.errors import InvalidItem
from penstock.transport.framing import Frame, Status, encode_answers
from penstock.transport.messages import Problem, pack
from penstock.worker.bisect import DROPPED, Bisection, Failed
from penstock.worker.problems import USER_ERRORS, WrongLength, describe
from penstock.worker.stage import wants_pre


class _Entry:
    """One item while its batch runs."""

    __slots__ = ("answer", "codec_out", "pre", "status", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.pre: Any = None
        self.codec_out = 0
        self.status: Status | None = None
        self.answer: Any = b""

    def fail(self, error: BaseException, *, skip_frames: int = 0) -> None:
        """End this item with `error`."""
        if isinstance(error, InvalidItem):
            self.status = Status.INVALID
            self.answer = pack(Problem("", (), error.reason, path=error.path))
        else:
            self.status = Status.FAILED
            self.answer = pack(describe(error, skip_frames=skip_frames))


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
    ) -> None:
        self._stage = stage
        self._name = name
        self._batched = batched
        self._bisect = bisect
        self._decoder = decoder
        self._encoder = encoder
        self._now = now
        self._preprocess: Callable[..., Any] | None = getattr(stage, "preprocess", None)
        self._postprocess: Callable[..., Any] | None = getattr(stage, "postprocess", None)
        self._wants_pre = self._postprocess is not None and wants_pre(self._postprocess)

    def run(self, frame: Frame) -> list[Any]:
        """Answer a BATCH frame: the buffers of its ANSWERS, one answer for each item, in order."""
        started = self._now()
        deadlines = [frame.seconds + left for left in frame.remaining]
        entries = [_Entry() for _ in frame.ids]
        for entry, payload, codec_in, codec_out, deadline in zip(
            entries, frame.payloads, frame.codecs_in, frame.codecs_out, deadlines, strict=True
        ):
            entry.codec_out = codec_out
            if started >= deadline:
                entry.status = Status.EXPIRED
            else:
                self._decode(entry, codec_in, payload)
        live = [i for i, entry in enumerate(entries) if entry.status is None]
        calls = self._predict(entries, live, deadlines) if live else 0
        for i in live:
            if entries[i].status is None:
                self._encode(entries[i])
        return encode_answers(
            frame.frame_id,
            self._now() - started,
            calls,
            frame.ids,
            [entry.answer for entry in entries],
            [entry.status or Status.OK for entry in entries],
        )

    def warm_up(self, examples: list[Any], max_size: int) -> None:
        """Run `examples` one by one and, for a batched stage, as a full batch; raises what the stage raises."""
        for example in examples:
            self._rehearse([example])
        if examples and self._batched and max_size > 1:
            self._rehearse([examples[i % len(examples)] for i in range(max_size)])

    # -- the steps ----------------------------------------------------------------------------------------------

    def _decode(self, entry: _Entry, codec_in: int, payload: Any) -> None:
        try:
            value = self._decoder.decode(Codec(codec_in), payload)
        except InvalidItem as error:
            entry.fail(error)
            return
        if self._preprocess is not None:
            try:
                value = self._preprocess(value)
            except USER_ERRORS as error:
                entry.fail(error, skip_frames=1)
                return
            if isinstance(value, Exception):
                entry.fail(value)
                return
            entry.pre = value
        entry.value = value

    def _predict(self, entries: list[_Entry], live: list[int], deadlines: list[float]) -> int:
        """Replace each live entry's value by its result, or end it; the number of calls it took."""
        if not self._batched:
            for i in live:
                try:
                    self._settle(entries[i], self._stage.predict(entries[i].value))
                except USER_ERRORS as error:
                    entries[i].fail(error, skip_frames=1)
            return len(live)
        bisection = Bisection(self._stage.predict, enabled=self._bisect)
        results = bisection.run(
            [entries[i].value for i in live],
            lambda k: self._now() >= deadlines[live[k]],
        )
        for i, result in zip(live, results, strict=True):
            self._settle(entries[i], result)
        return bisection.calls

    def _settle(self, entry: _Entry, result: Any) -> None:
        if isinstance(result, Failed):
            ours = 1 if isinstance(result.error, WrongLength) else 2
            entry.fail(self._named(result.error), skip_frames=ours)
        elif result is DROPPED:
            entry.status = Status.EXPIRED
        elif isinstance(result, Exception):
            entry.fail(result)
        else:
            entry.value = result

    def _encode(self, entry: _Entry) -> None:
        value = entry.value
        if self._postprocess is not None:
            try:
                value = self._postprocess(value, entry.pre) if self._wants_pre else self._postprocess(value)
            except USER_ERRORS as error:
                entry.fail(error, skip_frames=1)
                return
            if isinstance(value, Exception):
                entry.fail(value)
                return
        try:
            entry.answer = self._encoder.encode(Codec(entry.codec_out), value)
        except (EncodeFailed, ResultMismatch) as error:
            entry.fail(error, skip_frames=1)

    def _named(self, error: BaseException) -> BaseException:
        if isinstance(error, WrongLength):
            return WrongLength(f"stage {self._name!r}: {error}")
        return error

    def _rehearse(self, values: list[Any]) -> None:
        pres = values if self._preprocess is None else [_checked(self._preprocess(value)) for value in values]
        if self._batched:
            bisection = Bisection(self._stage.predict, enabled=False)
            results = bisection.run(list(pres), lambda _: False)
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
