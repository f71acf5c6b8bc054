"""One batch through a stage, driven with frames and no process: each item's failure is its own."""

from __future__ import annotations

import asyncio
import math
import pickle
import weakref
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest

from penstock.codec import pickle_
from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import EncodeFailed, ItemEncoder
from penstock.codec.example import Example, WrongAnswer
from penstock.codec.formats import Codec
from penstock.codec.type_check import ResultWatch
from penstock.config import StageOptions
from penstock.errors import InvalidItem
from penstock.transport.framing import FrameDecoder, Kind, Status, encode_batch
from penstock.transport.messages import Problem, unpack
from penstock.worker.runner import MOST_WELL_BYTES, Runner
from penstock.worker.stage import Stage, make_stage
from rows import each


class Clock:
    """Tells the time it was set to."""

    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


def runner(target, *, batched=False, bisect=True, item=Any, encoder=None, now=None, validates=False, **more):
    return Runner(
        make_stage(target),
        name="embed",
        batched=batched,
        options=StageOptions(bisect=bisect),
        decoder=ItemDecoder(item, validate=validates),
        encoder=encoder or ItemEncoder(Any),
        now=now or Clock(),
        validates=validates,
        **more,
    )


def through(wire):
    (frame,) = FrameDecoder().feed(b"".join(wire))
    return frame


def frame_of(payloads, *, remaining=None, codecs_in=None, codecs_out=None, sent=100.0):
    n = len(payloads)
    return through(
        encode_batch(
            5,
            sent,
            range(10, 10 + n),
            payloads,
            list(map(len, payloads)),
            remaining or [math.inf] * n,
            codecs_in or [Codec.JSON] * n,
            codecs_out or [Codec.JSON] * n,
        )
    )


def outcome(status, payload):
    """A JSON result as it is, a failure as its Problem, an expiry as its status."""
    if status == Status.OK:
        return msgspec.json.decode(payload)
    return Status.EXPIRED if status == Status.EXPIRED else (Status(status), unpack(payload, Problem))


def answers(target, payloads, *, remaining=None, codecs_in=None, **options):
    """What became of each payload (JSON), and how many calls it took."""
    frame = through(runner(target, **options).run(frame_of(payloads, remaining=remaining, codecs_in=codecs_in)))
    assert frame.kind is Kind.ANSWERS
    assert (frame.frame_id, frame.ids) == (5, tuple(range(10, 10 + len(payloads))))
    return [outcome(*pair) for pair in zip(frame.statuses, frame.payloads, strict=True)], frame.calls


def problem_of(target, payload=b"1", **options):
    """How the one item failed."""
    ((status, problem),), _ = answers(target, [payload], **options)
    return status, problem


class Double(Stage):
    def predict(self, x):
        return x * 2


class DoubleAll(Stage):
    def __init__(self):
        self.seen = []

    def predict(self, xs):
        self.seen.append(list(xs))
        if "bad" in xs:
            raise ValueError("a bad one")
        return [x * 2 for x in xs]


# -- results ----------------------------------------------------------------------------------------------------------


def test_a_single_item_is_passed_bare():
    assert answers(Double, [b"3"]) == ([6], 1)


def test_a_batch_is_passed_as_a_list_and_answered_in_order():
    assert answers(DoubleAll, [b"1", b"2", b"3"], batched=True) == ([2, 4, 6], 1)


def test_a_batch_of_one_is_still_a_list():
    assert answers(DoubleAll, [b"[1]"], batched=True) == ([[1, 1]], 1)


def test_a_frame_of_nothing_is_answered_with_nothing():
    assert answers(DoubleAll, [], batched=True) == ([], 0)


def test_each_item_is_decoded_and_encoded_in_its_own_format():
    payloads = [b"1", msgspec.msgpack.encode(2), pickle.dumps(3)]
    frame = frame_of(
        payloads,
        codecs_in=[Codec.JSON, Codec.MSGPACK, Codec.PICKLE],
        codecs_out=[Codec.PICKLE, Codec.JSON, Codec.MSGPACK],
    )
    first, second, third = through(runner(DoubleAll, batched=True).run(frame)).payloads
    assert (pickle.loads(first), bytes(second), msgspec.msgpack.decode(third)) == (2, b"4", 6)


def test_the_answer_tells_the_seconds_it_took():
    clock = Clock()

    def slow(x):
        clock.time += 0.5
        return x

    assert through(runner(slow, now=clock).run(frame_of([b"1"]))).seconds == 0.5


# -- decoding and preprocess ------------------------------------------------------------------------------------------


def test_an_item_that_cannot_be_decoded_fails_alone_and_predict_never_sees_it():
    stage = DoubleAll()
    (first, (status, problem), third), _ = answers(lambda xs: stage.predict(xs), [b"1", b"{", b"3"], batched=True)
    assert (first, third, status) == (2, 6, Status.INVALID)
    assert problem.message
    assert stage.seen == [[1, 3]]


def test_an_item_of_another_type_is_invalid_with_the_place():
    status, problem = problem_of(Double, b'{"a":["x"]}', item=dict[str, list[int]])
    assert (status, problem.path) == (Status.INVALID, "$[...][0]")
    assert problem.message == "expected `int`, got `str`"


def test_a_batch_without_a_valid_item_is_not_run():
    stage, clock = DoubleAll(), Clock()
    clock.time = 200.0
    found, calls = answers(lambda xs: stage.predict(xs), [b"{", b"2"], batched=True, remaining=[101, 1], now=clock)
    assert (found[0][0], found[1], calls, stage.seen) == (Status.INVALID, Status.EXPIRED, 0, [])


def test_between_our_own_processes_what_cannot_be_decoded_is_no_callers_fault():
    status, problem = problem_of(Double, b"\x80nothing", codecs_in=[Codec.PICKLE])
    assert status == Status.FAILED
    assert "unpickled" in problem.message
    status, problem = problem_of(Double, b"\x80nothing", codecs_in=[Codec.PICKLE], validates=True)
    assert status == Status.INVALID


class Around(Stage):
    """Preprocess and postprocess that fail when asked."""

    def preprocess(self, x):
        if x == "raise":
            raise ValueError("in preprocess")
        if x == "invalid":
            raise InvalidItem("not that", path="$.x")
        if x == "return":
            return KeyError("instead")
        if x == "return invalid":
            return InvalidItem("instead")
        return x

    def predict(self, xs):
        return [x * 2 for x in xs]

    def postprocess(self, y):
        if y == 26:
            raise ValueError("in postprocess")
        if y == 28:
            return InvalidItem("instead")
        return {"y": y}


@pytest.mark.parametrize(
    ("payload", "status", "type_name", "message"),
    [
        (b'"raise"', Status.FAILED, "builtins.ValueError", "in preprocess"),
        (b'"invalid"', Status.INVALID, "", "not that"),
        (b'"return"', Status.FAILED, "builtins.KeyError", "'instead'"),
        (b'"return invalid"', Status.INVALID, "", "instead"),
        (b"13", Status.FAILED, "builtins.ValueError", "in postprocess"),
        (b"14", Status.INVALID, "", "instead"),
    ],
)
def test_an_item_that_fails_around_predict_fails_alone(payload, status, type_name, message):
    (first, (found, problem), last), calls = answers(Around, [b"1", payload, b"2"], batched=True)
    assert (first, last, calls) == ({"y": 2}, {"y": 4}, 1)
    assert (found, problem.type_name, problem.message) == (status, type_name, message)


def test_postprocess_with_two_arguments_also_gets_what_preprocess_made():
    class Pair(Around):
        def preprocess(self, x):
            return x + 100

        def postprocess(self, y, pre):
            return [y, pre]

    assert answers(Pair, [b"1", b"2"], batched=True) == ([[202, 101], [204, 102]], 1)


def test_without_preprocess_postprocess_gets_the_item():
    class Pair(Double):
        def postprocess(self, y, pre):
            return [y, pre]

    assert answers(Pair, [b"1"]) == ([[2, 1]], 1)


# -- predict ----------------------------------------------------------------------------------------------------------


def raises(x):
    raise LookupError("no such thing")


def test_what_predict_raises_travels_as_text():
    status, problem = problem_of(raises)
    assert status == Status.FAILED
    assert (problem.type_name, problem.message) == ("builtins.LookupError", "no such thing")
    assert problem.mro == ("builtins.LookupError", "builtins.Exception", "builtins.BaseException", "builtins.object")
    assert problem.traceback.startswith("Traceback (most recent call last):")
    assert problem.traceback.endswith("LookupError: no such thing\n")


def test_an_invalid_item_keeps_its_reason_and_path_and_no_traceback():
    def predict(x):
        raise InvalidItem("too long", path="$.text")

    status, problem = problem_of(predict)
    assert status == Status.INVALID
    assert problem == Problem("", (), "too long", path="$.text")


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("mine"), Status.FAILED), (InvalidItem("mine"), Status.INVALID)]
)
def test_an_exception_in_an_items_place_fails_that_item_alone(error, status):
    (first, (found, problem), last), calls = answers(lambda xs: [1, error, 3], [b"1", b"2", b"3"], batched=True)
    assert (first, last, calls) == (1, 3, 1)
    assert (found, problem.message) == (status, "mine")


def test_a_batch_that_raises_is_bisected():
    (first, (status, problem), third, fourth), calls = answers(DoubleAll, [b"1", b'"bad"', b"3", b"4"], batched=True)
    assert (first, third, fourth, calls) == (2, 6, 8, 5)
    assert (status, problem.message) == (Status.FAILED, "a bad one")


def test_without_bisection_the_whole_batch_fails_in_one_call():
    found, calls = answers(DoubleAll, [b"1", b'"bad"', b"3"], batched=True, bisect=False)
    assert [(status, problem.message) for status, problem in found] == [(Status.FAILED, "a bad one")] * 3
    assert calls == 1


def test_a_wrong_number_of_results_names_the_stage_and_both_lengths():
    found, calls = answers(lambda xs: xs[1:], [b"1", b"2", b"3"], batched=True)
    messages = {problem.message for _, problem in found}
    assert messages == {"stage 'embed': predict returned 2 results for 3 items"}
    assert calls == 1


NOT_EXCEPTIONS = [SystemExit, KeyboardInterrupt, asyncio.CancelledError, type("Panic", (BaseException,), {})]


@each("kind", NOT_EXCEPTIONS)
@each("where", ["preprocess", "predict", "postprocess"])
def test_what_is_no_exception_ends_the_item_and_not_the_worker(kind, where):
    def fail(self, x):
        if x == "bad":
            raise kind("here")
        return x

    target = type("T", (Stage,), {"predict": lambda self, x: x, where: fail})
    (first, (status, problem), last), _ = answers(target, [b"1", b'"bad"', b"3"])
    assert (first, last, status) == (1, 3, Status.FAILED)
    assert problem.type_name.endswith(kind.__qualname__)
    assert problem.message == "here"


@each("kind", NOT_EXCEPTIONS)
@each("where", ["preprocess", "predict", "postprocess"])
def test_what_is_no_exception_fails_its_item_when_it_stands_in_its_place(kind, where):
    put = lambda self, x: kind("here") if x == "bad" else x  # noqa: E731
    target = type("T", (Stage,), {"predict": lambda self, x: x, where: put})
    (first, (status, problem)), _ = answers(target, [b"1", b'"bad"'])
    assert (first, status, problem.message) == (1, Status.FAILED, "here")


class Unwritable:
    """Ends whoever pickles it."""

    def __reduce__(self):
        raise KeyboardInterrupt("while pickling")


class Unreadable:
    """Ends whoever unpickles it."""

    def __reduce__(self):
        return stop, ()


def stop():
    raise KeyboardInterrupt("while unpickling")


def test_what_is_no_exception_fails_its_item_when_it_comes_from_pickling():
    frame = frame_of(
        [pickle.dumps(1), pickle.dumps(Unreadable()), pickle.dumps("bad")],
        codecs_in=[Codec.PICKLE] * 3,
        codecs_out=[Codec.PICKLE] * 3,
    )
    found = through(runner(lambda x: Unwritable() if x == "bad" else x).run(frame))
    assert found.statuses == (Status.OK, Status.FAILED, Status.FAILED)
    messages = [unpack(payload, Problem).message for payload in found.payloads[1:]]
    assert messages == ["while unpickling", "while pickling"]


# -- one call does not see another ------------------------------------------------------------------------------------


def test_a_stage_that_changes_its_input_and_then_raises_is_given_fresh_items():
    class AddsInPlace(Stage):
        def preprocess(self, x):
            return [*x, 0]

        def predict(self, xs):
            for x in xs:
                x[0] += 1
                x.append("seen")
            if any(x[0] == 6 for x in xs):
                raise ValueError("five")
            return [list(x) for x in xs]

        def postprocess(self, y, pre):
            assert y == pre
            return y

    found, calls = answers(AddsInPlace, [b"[%d]" % i for i in range(8)], batched=True)
    assert found[5][0] == Status.FAILED
    assert [y for i, y in enumerate(found) if i != 5] == [[i + 1, 0, "seen"] for i in range(8) if i != 5]
    assert calls > 3


def test_an_item_whose_preprocess_fails_the_second_time_fails_with_that():
    class Once(Stage):
        def __init__(self):
            self.seen = set()

        def preprocess(self, x):
            if x == 0 and x in self.seen:
                raise LookupError("only once")
            self.seen.add(x)
            return x

        def predict(self, xs):
            if len(xs) > 1:
                raise ValueError("too many")
            return xs

    (first, *others), _ = answers(Once, [b"0", b"1", b"2"], batched=True)
    assert (first[1].type_name, first[1].message) == ("builtins.LookupError", "only once")
    assert others == [1, 2]


SIZE = 4096


def arrays_of(target, values, *, batched=True):
    """What comes of arrays that travel pickled: results, or None for a failure."""
    payloads = [pickle.dumps(value) for value in values]
    n = len(payloads)
    frame = frame_of(payloads, codecs_in=[Codec.PICKLE] * n, codecs_out=[Codec.PICKLE] * n)
    found = through(runner(target, batched=batched).run(frame))
    pairs = zip(found.statuses, found.payloads, strict=True)
    return [pickle_.loads(payload)[0] if status == Status.OK else None for status, payload in pairs]


class Reuses(Stage):
    """Writes its results into a buffer it keeps."""

    def __init__(self):
        self.out = np.zeros((8, SIZE))

    def predict(self, xs):
        if not isinstance(xs, list):
            self.out[0] = xs
            return self.out[0]
        out = self.out[: len(xs)]
        out[:] = np.array(xs)[:, None]
        if 5 in xs:
            raise ValueError("five")
        return out


class ReusesAfter(Stage):
    """Its postprocess does."""

    def __init__(self):
        self.out = np.zeros(SIZE)

    def predict(self, xs):
        return xs

    def postprocess(self, y):
        self.out[:] = y
        return self.out


def test_results_of_one_call_are_kept_when_a_later_one_writes_where_they_lie():
    assert arrays_of(Reuses, range(8)) == [0, 1, 2, 3, 4, None, 6, 7]
    assert arrays_of(Reuses, range(4), batched=False) == [0, 1, 2, 3]


def test_results_are_kept_when_the_next_items_postprocess_writes_where_they_lie():
    assert arrays_of(ReusesAfter, range(4)) == [0, 1, 2, 3]


def test_results_are_copied_only_where_somebody_may_write_over_them():
    out = np.zeros((8, 20_000))
    plain = lambda xs: out[: len(xs)]  # noqa: E731
    posted = type("T", (Stage,), {"predict": lambda self, xs: out[: len(xs)], "postprocess": lambda self, y: y})
    for target, n, shared in ((plain, 8, 8), (posted, 1, 1), (posted, 8, 0)):
        frame = frame_of([pickle.dumps(3)] * n, codecs_in=[Codec.PICKLE] * n, codecs_out=[Codec.PICKLE] * n)
        buffers = [np.frombuffer(b, np.uint8) for b in runner(target, batched=True).run(frame) if len(b)]
        assert sum(np.shares_memory(buffer, out) for buffer in buffers) == shared


# -- deadlines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("recalled", [{1}, {0, 1, 2}, {2, 9}])
def test_items_that_were_taken_back_are_not_run(batched, recalled):
    frame = frame_of([b"1", b"2", b"3"])
    frame.recalled = frozenset(recalled)
    back = through(runner(DoubleAll if batched else Double, batched=batched).run(frame))
    left = [place for place in range(3) if place not in recalled]
    assert back.statuses == tuple(Status.OK if place in left else Status.RECALLED for place in range(3))
    assert [bytes(back.payloads[place]) for place in left] == [b"%d" % (2 * place + 2) for place in left]
    assert back.calls == (min(1, len(left)) if batched else len(left))


def test_expired_items_of_a_frame_that_lay_waiting_are_not_run():
    stage, clock = DoubleAll(), Clock()
    clock.time = 101.0
    found, calls = answers(
        lambda xs: stage.predict(xs), [b"1", b"2", b"3"], batched=True, remaining=[0.5, 1.0, 1.5], now=clock
    )
    assert found == [Status.EXPIRED, Status.EXPIRED, 6]
    assert (calls, stage.seen) == (1, [[3]])


def test_items_that_expire_during_bisection_are_not_run_again_and_each_has_a_deadline_of_its_own():
    clock = Clock()

    def predict(xs):
        clock.time += 1.0
        if 14 in xs:
            raise ValueError("fourteen")
        return xs

    found, _ = answers(predict, [b"{", b"12", b"13", b"14"], batched=True, remaining=[0.5, 9.0, 0.5, 9.0], now=clock)
    assert found[0][0] == Status.INVALID
    assert found[1:3] == [12, Status.EXPIRED]
    assert found[3][0] == Status.FAILED


# -- encoding ---------------------------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_encoded_fails_alone():
    (first, (status, problem), nan), _ = answers(lambda xs: [1, object(), math.nan], [b"1", b"2", b"3"], batched=True)
    assert (first, status) == (1, Status.FAILED)
    assert problem.type_name.endswith("EncodeFailed")
    assert nan[0] == Status.FAILED


# -- failures must travel, whatever they are --------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("where", ["preprocess", "predict", "postprocess"])
def test_a_traceback_begins_at_the_users_code(where, batched):
    def fail(*args):
        raise ValueError("here")

    target = type("T", (Stage,), {"predict": lambda self, x: x, where: fail})
    _, problem = problem_of(target, b"1", batched=batched)
    assert problem.traceback.splitlines()[1].startswith(f'  File "{__file__}"')


def test_a_traceback_of_a_bisected_batch_begins_at_the_users_code():
    found, _ = answers(DoubleAll, [b"1", b'"bad"'], batched=True)
    assert found[1][1].traceback.splitlines()[1].startswith(f'  File "{__file__}"')


def deeper(x):
    return raises(x)


@pytest.mark.parametrize("batched", [False, True])
def test_no_frame_of_the_users_code_is_left_out(batched):
    _, problem = problem_of(deeper, batched=batched)
    assert problem.traceback.splitlines()[1].endswith("in deeper")


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("cannot")


class Silent(InvalidItem):
    def __init__(self):
        pass


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (Mute(), Status.FAILED, "<Mute with an unprintable message: RuntimeError>"),
        (ValueError("a\udc80b"), Status.FAILED, "a\\udc80b"),
        (InvalidItem("\udc80"), Status.INVALID, "\\udc80"),
        (InvalidItem(7), Status.INVALID, "7"),
        (InvalidItem(ValueError("why")), Status.INVALID, "why"),
        (InvalidItem("x", path=3), Status.INVALID, "x"),
        (InvalidItem(Mute()), Status.INVALID, "<Mute with an unprintable message: RuntimeError>"),
    ],
    ids=repr,
)
def test_a_failure_reaches_its_caller_whatever_its_message(error, status, message):
    found, problem = problem_of(lambda x: error)
    assert (found, problem.message) == (status, message)


def test_an_invalid_item_that_kept_its_reason_to_itself_still_is_one():
    status, _ = problem_of(lambda x: Silent())
    assert status == Status.INVALID


# -- warm-up ----------------------------------------------------------------------------------------------------------


def test_warm_up_of_a_batch_of_one_runs_it_once():
    stage = DoubleAll()
    runner(lambda xs: stage.predict(xs), batched=True).warm_up([1], 1)
    assert stage.seen == [[1]]


def test_warm_up_of_a_stage_without_batches_runs_each_example():
    seen = []
    runner(seen.append).warm_up([1, 2], 8)
    assert seen == [1, 2]


@pytest.mark.parametrize("make", [lambda: [0], lambda: np.zeros(1), lambda: np.zeros(2000)])
def test_a_stage_that_changes_its_input_is_warmed_up_with_a_fresh_one_in_each_place(make):
    seen = []

    def predict(xs):
        for x in xs:
            x[0] += 1
            seen.append(x[0])
        return xs

    example = make()
    runner(predict, batched=True).warm_up([example], 4)
    assert seen == [1] * 5
    assert example[0] == 0


def test_an_example_that_cannot_be_copied_is_used_itself():
    class Unpicklable:
        def __reduce__(self):
            raise KeyboardInterrupt

    seen, examples = [], [Unpicklable(), lambda: 1]
    runner(lambda xs: seen.extend(xs) or xs, batched=True).warm_up(examples, 2)
    assert seen == examples * 2


def test_warm_up_fails_where_an_example_has_another_answer_than_it_must():
    examples = [1, Example(2, 4.0), Example([1.0], [1.0, 1.0], tolerance=0.1)]
    runner(lambda x: x * 2).warm_up(examples, 8)
    with pytest.raises(WrongAnswer, match=r"^examples\[1\]: expected 4.0, got 6; floats may differ by 1e-05 of "):
        runner(lambda x: x * 3).warm_up(examples, 8)


def test_warm_up_fails_where_an_answer_is_wrong_only_in_a_full_batch():
    def predict(xs):
        return [x * 2 for x in xs] if len(xs) == 1 else [0 for x in xs]

    with pytest.raises(WrongAnswer, match=r"^examples\[0\] in a batch of 4: expected 4, got 0$"):
        runner(predict, batched=True).warm_up([Example(2, 4)], 4)


def watched(type_, target, **more):
    """A runner that looks at its first three results."""
    return runner(target, watch=ResultWatch(type_, 3), encoder=ItemEncoder(type_), **more)


TOLD = (
    "stage 'embed': a result is not `dict[str, float]`: expected `float`, got `str` at `$[...]`; the item does not "
    "fail; logged once"
)


def test_a_first_result_that_is_not_as_declared_is_told_once_and_sent_all_the_same(caplog):
    made = watched(dict[str, float], lambda x: {"score": x})
    frame = through(made.run(frame_of([b"1.0", b'"high"', b'"low"'])))
    assert list(map(bytes, frame.payloads)) == [b'{"score":1.0}', b'{"score":"high"}', b'{"score":"low"}']
    made.run(frame_of([b'"low"']))
    (line,) = caplog.messages
    assert line.startswith(TOLD)


def test_after_so_many_results_no_further_one_is_looked_at(caplog):
    made = watched(float, lambda x: x)
    for payload in (b"1.0", b"2.0", b"3.0", b'"high"'):
        made.run(frame_of([payload]))
    assert caplog.messages == []


@pytest.mark.parametrize("tells", [True, False])
def test_what_the_warm_up_gave_is_told_by_the_worker_that_tells_and_looked_at_no_more_by_all(caplog, tells):
    made = watched(float, lambda x: str(x))
    made.warm_up([1, 2], 1, tells=tells)
    made.run(frame_of([b"3"]))
    words = "stage 'embed': a result is not `float`: expected `float`, got `str`; the item does not fail; logged once"
    assert caplog.messages == [words] * tells


def test_results_of_the_warm_up_are_none_of_the_first_ones(caplog):
    made = watched(float, lambda x: x)
    made.warm_up([1.0] * 5, 1)
    made.run(frame_of([b'"high"']))
    assert len(caplog.messages) == 1


def test_without_examples_there_is_no_warm_up():
    runner(raises).warm_up([], 8)


def test_warm_up_goes_through_preprocess_and_postprocess():
    class Pair(Around):
        def postprocess(self, y, pre):
            seen.append((y, pre))

    seen = []
    runner(Pair, batched=True).warm_up([1], 2)
    assert seen == [(2, 1)] * 3
    runner(Around, batched=True).warm_up([1], 2)


@pytest.mark.parametrize(
    ("target", "kind", "batched"),
    [
        (raises, LookupError, False),
        (raises, LookupError, True),
        (lambda x: ValueError("instead"), ValueError, False),
        (lambda xs: [ValueError("instead")], ValueError, True),
        (lambda xs: [], Exception, True),
    ],
)
def test_warm_up_raises_what_the_stage_raises_or_returns_as_an_exception(target, kind, batched):
    with pytest.raises(kind):
        runner(target, batched=batched).warm_up([1], 4)


@pytest.mark.parametrize("example", ["raise", "return", 13, 14])
def test_warm_up_raises_what_goes_wrong_around_predict(example):
    with pytest.raises((ValueError, KeyError, InvalidItem)):
        runner(Around, batched=True).warm_up([example], 4)


ALL_FORMATS = (Codec.PICKLE, Codec.JSON, Codec.MSGPACK)
NAN = "the result has NaN or infinity at `$`, which JSON does not support; set nan_as_null=True to write null"


@pytest.mark.parametrize("codec", [Codec.JSON, Codec.MSGPACK, Codec.RAW])
def test_an_item_of_an_external_stage_that_cannot_be_read_fails_and_its_mates_do_not(codec):
    good = {Codec.JSON: b"2", Codec.MSGPACK: b"\x02", Codec.RAW: b"x"}[codec]
    frame = frame_of([b"\xc1", good], codecs_in=[codec] * 2)
    (answer,) = [through(runner(lambda x: 1, item=int, behind="out").run(frame))]
    status, problem = outcome(answer.statuses[0], answer.payloads[0])
    assert status is Status.FAILED
    assert problem.type_name == "penstock.worker.problems.UnfitResult"
    assert problem.message.startswith("the result of stage 'out' is not a valid item of stage 'embed': ")
    assert answer.statuses[1] == (Status.FAILED if codec is Codec.RAW else Status.OK)


class Picky(msgspec.Struct):
    x: int

    def __post_init__(self):
        raise InvalidItem("too picky")


class Faulty(msgspec.Struct):
    x: int

    def __post_init__(self):
        raise FileNotFoundError(2, "no such file", "/srv/secret/vocab.txt")


@each(("codec", "payload", "how"), [(Codec.JSON, b'{"x":1}', {}), (Codec.PICKLE, pickle.dumps({"x": 1}), {})])
def test_a_fault_in_a_check_of_the_type_fails_its_item_as_the_stages_own(codec, payload, how):
    status, problem = problem_of(Double, payload, item=Faulty, codecs_in=[codec], validates=codec is Codec.PICKLE)
    assert status == Status.FAILED
    assert problem.type_name == "builtins.FileNotFoundError"
    assert problem.raised_at.startswith(__file__)
    assert "in __post_init__" in problem.traceback


def test_a_check_of_the_type_that_calls_such_an_item_invalid_blames_no_caller_either():
    frame = frame_of([b'{"x":1}'])
    answer = through(runner(lambda x: 1, item=Picky, behind="out").run(frame))
    assert answer.statuses[0] == Status.FAILED
    assert through(runner(lambda x: 1, item=Picky).run(frame_of([b'{"x":1}']))).statuses[0] == Status.INVALID


def test_warm_up_tells_of_each_example_whose_result_some_formats_cannot_carry():
    troubles = runner(lambda x: x).warm_up([1.0, math.nan, {1j}], 1, ALL_FORMATS)
    assert troubles[0] == f"examples[1]: {NAN}"
    kind = "`builtins.complex` cannot be written as JSON or MessagePack"
    assert troubles[1] == f"examples[2]: the result cannot be written as JSON or MSGPACK: an object of type {kind}"
    assert len(troubles) == 2


def test_warm_up_fails_where_no_format_can_carry_a_result():
    with pytest.raises(EncodeFailed) as refused:
        runner(lambda x: lambda: x).warm_up([1], 1, ALL_FORMATS)
    message = str(refused.value)
    assert message.startswith(
        "cannot write the result in any format: examples[0]: the result cannot be written as PICKLE: "
    )
    assert "; the result cannot be written as JSON or MSGPACK: " in message


def test_warm_up_says_a_reason_that_all_formats_share_once():
    checked = runner(lambda x: str(x), item=int, encoder=ItemEncoder(int, validate=True))
    with pytest.raises(EncodeFailed) as refused:
        checked.warm_up([1], 1, ALL_FORMATS)
    assert str(refused.value) == (
        "cannot write the result in any format: examples[0]: the result is not `int`: expected `int`, got `str`"
    )


def test_warm_up_writes_a_result_before_the_next_run_which_may_overwrite_it():
    buffer = np.zeros(1)

    def fill(xs):
        buffer[0] = xs[0]
        return [buffer]

    filling = runner(fill, batched=True, encoder=ItemEncoder(np.ndarray))
    troubles = filling.warm_up([math.nan, 1.0], 1, [Codec.JSON, Codec.NPY])
    assert [trouble.partition(":")[0] for trouble in troubles] == ["examples[0]"]


def test_warm_up_without_formats_writes_nothing():
    assert runner(lambda x: lambda: x).warm_up([1], 1) == []


def test_a_list_taking_predict_without_a_policy_is_told_what_it_gets():
    _, problem = problem_of(lambda xs: list(xs))
    assert problem.message == "'int' object is not iterable"
    assert problem.traceback.endswith(
        "TypeError: 'int' object is not iterable\nthis stage has no batch policy, so predict receives one item\n"
    )
    with pytest.raises(TypeError) as raised:
        runner(lambda xs: xs[0]).warm_up([1], 1)
    assert raised.value.__notes__ == ["this stage has no batch policy, so predict receives one item"]


def test_a_batched_predict_is_not_told_that_it_takes_one_item():
    _, problem = problem_of(lambda xs: list(xs[0]), batched=True)
    assert "no batch policy" not in problem.traceback


# -- values that claim to be something else ---------------------------------------------------------------------------


class Lazy:
    """Its class cannot be asked for, as that of a lazy object that cannot be loaded."""

    @property
    def __class__(self):
        raise ConnectionError("it cannot be loaded")


class LazyError(Exception):
    @property
    def __class__(self):
        raise ConnectionError("it cannot be loaded")


def dead():
    return weakref.proxy(Stage())


def odd(value):
    """What the item `value` stands for; every other item stands for itself."""
    made = {"dead": dead, "lazy": Lazy, "mock": lambda: mock.Mock(spec=ValueError), "error": LazyError}
    return made[value]() if value in made else value


def raise_odd(value):
    found = odd(value)
    if found is not value:
        raise found
    return value


class In(Stage):
    def preprocess(self, x):
        return odd(x)

    def predict(self, xs):
        return [x if type(x) is str else pickle.dumps(x) for x in xs]


class Predicted(Stage):
    def predict(self, xs):
        return [odd(x) for x in xs]


class Out(Stage):
    def predict(self, xs):
        return xs

    def postprocess(self, y):
        return odd(y)


class Raises(Stage):
    def predict(self, xs):
        return [raise_odd(x) for x in xs]


@each(
    ("target", "value"),
    [(target, value) for target in (In, Predicted, Out) for value in ("dead", "lazy", "mock", "error")]
    + [(Raises, "error")],
)
def test_a_value_that_claims_to_be_something_else_fails_its_item_alone(target, value):
    items = [b'"a"', f'"{value}"'.encode(), b'"b"']
    (first, failed, last), _ = answers(target, items, batched=True)
    assert (first, last) == ("a", "b")
    assert failed[0] is Status.FAILED


@pytest.mark.parametrize("value", [dead, Lazy, lambda: mock.Mock(spec=ValueError)])
def test_warm_up_takes_a_value_that_claims_to_be_something_else_as_a_result(value):
    runner(lambda _: value()).warm_up([1], max_size=1)


def test_a_result_that_cannot_be_encoded_is_told_by_its_message_alone():
    _, problem = problem_of(lambda x: {1j})
    assert problem.message.startswith("the result cannot be written as JSON: ")
    assert problem.traceback == f"penstock.codec.encode.EncodeFailed: {problem.message}\n"


def test_a_failure_is_written_as_whoever_reads_it_wants_it():
    def refuse(x):
        raise InvalidItem("no") if x else ValueError("bad")

    told = runner(refuse, write=lambda problem: problem.message.encode())
    frame = through(told.run(frame_of([b"0", b"1"])))
    assert list(map(bytes, frame.payloads)) == [b"bad", b"no"]
    assert frame.statuses == (Status.FAILED, Status.INVALID)


# -- whether the device is lost ---------------------------------------------------------------------------------------


class Device(Stage):
    """Doubles while it is not lost; "poison" loses it, and "bad" fails."""

    def __init__(self):
        self.lost = False
        self.calls = []

    def predict(self, x):
        self.calls.append(x)
        self.lost = self.lost or x == "poison"
        if self.lost or x == "bad":
            raise OSError("no device")
        return x * 2


class DeviceForAll(Device):
    def predict(self, xs):
        return [super(DeviceForAll, self).predict(x) for x in xs]


class Examined:
    """A runner that examines its device, and the stage of it."""

    def __init__(self, target=Device, *, examples=(), well=None, **options):
        self.clock = Clock()
        self.stage = make_stage(target)
        self.stage.examples = list(examples)
        self.runner = Runner(
            self.stage,
            name="embed",
            batched=target is DeviceForAll,
            options=StageOptions(**options),
            decoder=ItemDecoder(Any),
            encoder=ItemEncoder(Any),
            now=self.clock,
            examines=True,
            well=well,
        )
        self.runner.warm_up(self.stage.examples, 1)
        self.stage.calls.clear()

    def run(self, *items, suspect=False):
        """Run a batch: what the stage was called with, and why the device is lost."""
        self.runner.suspect = suspect
        self.back = through(self.runner.run(frame_of([msgspec.json.encode(item) for item in items])))
        called, self.stage.calls = self.stage.calls, []
        return called, self.runner.lost and self.runner.lost.message


def test_a_batch_of_which_nothing_ends_well_is_followed_by_the_first_example():
    tried = Examined(DeviceForAll, examples=[7, 8])
    assert tried.run("bad", "bad") == (["bad", "bad", "bad", 7], None)
    assert tried.run("bad", 1) == (["bad", "bad", 1], None)
    assert tried.run("poison", 1) == (["poison", "poison", 1, 7], "no device")


def test_a_batch_whose_last_calls_fail_is_followed_by_the_first_example_though_others_ended_well():
    tried = Examined(DeviceForAll, examples=[7])
    batch = ["bad", 0, 1, "poison", 2, 3, 4, 5]
    called = ["bad", "bad", 2, 3, 4, 5, "bad", 1, "poison", "bad", 0, 1, "poison", 7]
    assert tried.run(*batch) == (called, "no device")
    well = Examined(DeviceForAll, examples=[7])
    assert well.run(1, "bad", 2, "bad") == ([1, "bad", 1, "bad", 2, "bad", 1, "bad", 2, "bad"], None)
    assert well.run(1, 2, 3, "bad") == ([1, 2, 3, "bad", 1, 2, 3, "bad", 3, "bad"], None)
    assert well.run(1, 2, "bad", "bad")[0][-3:] == ["bad", "bad", 7]


def test_an_item_that_fails_alone_is_followed_by_an_example_the_second_time_once_a_second():
    tried = Examined(examples=[7])
    assert [len(tried.run("bad")[0]) for _ in range(3)] == [1, 2, 1]
    tried.clock.time += 1.0
    assert tried.run("bad") == (["bad", 7], None)
    assert tried.run(1) == ([1], None)
    tried.clock.time += 1.0
    assert tried.run("bad") == (["bad"], None)
    assert tried.run("bad", suspect=True) == ([7, "bad", 7], None)
    assert tried.run("poison") == (["poison", 7], "no device")


def test_a_suspect_is_not_begun_where_an_item_before_it_has_lost_the_device():
    tried = Examined(examples=[7])
    assert tried.run("bad") == (["bad"], None)
    assert tried.run(1, suspect=True) == ([7, 1], None)
    assert tried.run(2, suspect=True) == ([2], None)
    assert tried.run("poison") == (["poison"], None)
    assert tried.run(3, suspect=True) == ([7], "no device")
    assert tried.back.statuses == (Status.FAILED,)
    assert tried.runner.begun is False


def test_without_examples_it_is_the_item_that_ended_well_last():
    tried = Examined(DeviceForAll)
    assert tried.run("bad", "bad") == (["bad", "bad", "bad"], None)
    assert tried.run("bad", 3) == (["bad", "bad", 3], None)
    assert tried.run(4) == ([4], None)
    assert tried.run("bad", "bad") == (["bad", "bad", "bad", 3], None)  # a new one is kept once a second
    tried.clock.time += 1.0
    tried.run(4)
    assert tried.run("poison", "bad") == (["poison", "poison", "bad", 4], "no device")
    assert (bytes(tried.runner.well.payload), tried.runner.well.codec) == (b"4", Codec.JSON)
    follower = Examined(DeviceForAll, well=tried.runner.well)
    assert follower.run("bad", suspect=True) == (["bad", 4], None)


@each("options", [{"retry": False}, {"bisect": False}])
def test_no_item_is_run_twice_to_examine_a_device_where_none_may_be(options):
    tried = Examined(DeviceForAll, **options)
    tried.run(3)
    assert tried.runner.well is None
    assert tried.run("poison", 3)[1] is None


def test_an_item_of_more_than_a_mebibyte_is_not_kept():
    tried = Examined()
    tried.run("x" * MOST_WELL_BYTES)
    assert tried.runner.well is None
    tried.run("x" * (MOST_WELL_BYTES - 2))
    assert len(tried.runner.well.payload) == MOST_WELL_BYTES


class Cuda(Stage):
    def predict(self, xs):
        if "poison" in xs and len(xs) <= self.lost_from:
            (x for x in xs).throw(RuntimeError("CUDA error: misaligned address\nand more"))  # without a `raise`
        if "poison" in xs:
            raise ValueError("bad")
        return xs


@each(("lost_from", "calls", "statuses"), [(4, 1, [2, 2, 2, 2]), (2, 3, [0, 0, 2, 2])])
def test_words_that_say_that_the_device_is_lost_end_the_batch_and_need_no_example(lost_from, calls, statuses):
    tried = runner(Cuda, batched=True, examines=True)
    tried._stage.lost_from = lost_from
    back = through(tried.run(frame_of([b"1", b"2", b'"poison"', b"4"])))
    assert (back.calls, list(back.statuses)) == (calls, statuses)
    assert tried.lost.message.startswith("CUDA error: misaligned address")
    assert through(tried.run(frame_of([b"1"]))).statuses == (Status.OK,)
    assert tried.lost is None


# -- want of memory ---------------------------------------------------------------------------------------------------


class Fits(Stage):
    def predict(self, xs):
        if len(xs) > 3:
            raise MemoryError
        return xs


def test_what_there_was_no_memory_for_is_told_with_what_ran():
    tried = runner(Fits, batched=True, bisect=False)
    back = through(tried.run(frame_of([b"%d" % i for i in range(9)])))
    assert back.statuses == (Status.OK,) * 9
    assert tried.shortages == [(9, 3)]
    tried.shortages.clear()
    tried.warm_up([1, 2], max_size=9)
    assert tried.shortages == [(9, 5), (5, 3)]
    with pytest.raises(ValueError, match="a bad one"):
        runner(DoubleAll, batched=True).warm_up(["bad"], max_size=4)


# -- what was not awaited ---------------------------------------------------------------------------------------------


async def later():
    return 1


@each(("returned", "batched"), [(later, False), (later, True), (lambda: [later()], True)])
def test_a_coroutine_in_place_of_a_result_is_told_as_what_it_is(returned, batched):
    forgets = type("Forgets", (Stage,), {"predict": lambda self, x: returned()})
    _, problem = problem_of(forgets, batched=batched)
    words = "predict returned 'coroutine', which is never awaited: write `async def`, and `await` the call"
    assert (problem.message, problem.type_name) == (words, "penstock.worker.problems.NotAwaited")
