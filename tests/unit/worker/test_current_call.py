"""Which requests a stage is told that it works for, and what time they have left."""

from __future__ import annotations

import copy
import math
import pickle
import threading

import pytest

from penstock.codec.decode import ItemDecoder
from penstock.codec.encode import ItemEncoder
from penstock.codec.formats import Codec
from penstock.config import StageOptions
from penstock.transport.framing import FrameDecoder, encode_batch
from penstock.worker.current_call import CurrentCall, announce, current_marks, current_requests
from penstock.worker.runner import Runner
from penstock.worker.stage import Stage, WorkerInfo


def batch_of(payloads, remaining, *, names=b"", sent=0.0):
    """The frame of a batch, as a worker receives it."""
    n = len(payloads)
    codecs = [Codec.JSON] * n
    wire = encode_batch(1, sent, range(n), payloads, list(map(len, payloads)), remaining, codecs, codecs, names)
    (frame,) = FrameDecoder().feed(b"".join(wire))
    return frame


def runner_of(stage, *, batched, now, current=None):
    return Runner(
        stage,
        name="s",
        batched=batched,
        options=StageOptions(),
        decoder=ItemDecoder(int),
        encoder=ItemEncoder(int),
        now=now,
        current=current,
    )


@pytest.fixture
def run():
    """Run a stage on items with ids, in this thread, which is nobody's worker before and after."""

    def run(stage, ids, payloads, *, batched=False, remaining=None, rehearse=()):
        names = " ".join(ids).encode() if any(ids) else b""
        frame = batch_of(payloads, remaining or [math.inf] * len(payloads), names=names)
        runner = runner_of(stage, batched=batched, now=lambda: 0.0)
        announce(runner.current, "svc", "s", 2)
        runner.warm_up(list(rehearse), 2)
        runner.run(frame)

    yield run
    announce(CurrentCall(), "", "", 0)


class Asking(Stage):
    """Notes at each call what it is told; raises on a 3."""

    def __init__(self):
        self.told = []

    def note(self, where, x):
        self.told.append((where, x, current_requests()))


class All(Asking):
    def predict(self, xs):
        self.note("predict", xs)
        if 3 in xs:
            raise ValueError("three")
        return xs


class Each(Asking):
    def preprocess(self, x):
        self.note("preprocess", x)
        return x

    def predict(self, x):
        self.note("predict", x)
        return x

    def postprocess(self, y):
        self.note("postprocess", y)
        return y


class AllAndEach(Each):
    def predict(self, xs):
        self.note("predict", xs)
        return xs


def test_a_batch_has_the_ids_of_its_items_in_order(run):
    run(stage := All(), ["a", "b:7+2", ""], [b"1", b"2", b"4", b"5"], batched=True)
    assert stage.told == [("predict", [1, 2, 4, 5], ("a", "b:7", "b:8", ""))]


def test_each_part_of_a_batch_that_is_run_again_has_its_own(run):
    run(stage := All(), ["a", "b", "c", "d"], [b"1", b"2", b"3", b"4"], batched=True)
    assert stage.told == [
        ("predict", [1, 2, 3, 4], ("a", "b", "c", "d")),
        ("predict", [1, 2], ("a", "b")),
        ("predict", [3, 4], ("c", "d")),
        ("predict", [3], ("c",)),
        ("predict", [4], ("d",)),
    ]


def test_an_item_that_is_not_run_is_not_among_them(run):
    run(stage := All(), ["a", "b", "c"], [b"1", b"nonsense", b"2"], batched=True, remaining=[-1.0, 9.0, 9.0])
    assert stage.told == [("predict", [2], ("c",))]


@pytest.mark.parametrize("rehearse", [(), (7,)])
def test_what_is_called_for_one_item_has_the_id_of_that_item(run, rehearse):
    run(stage := Each(), ["a", "b"], [b"1", b"2"], rehearse=rehearse)
    warm = [(where, 7, ()) for where in ("preprocess", "predict", "postprocess")] if rehearse else []
    assert stage.told == [
        *warm,
        ("preprocess", 1, ("a",)),
        ("preprocess", 2, ("b",)),
        ("predict", 1, ("a",)),
        ("postprocess", 1, ("a",)),
        ("predict", 2, ("b",)),
        ("postprocess", 2, ("b",)),
    ]


def test_a_batch_between_steps_for_single_items_has_them_all(run):
    run(stage := AllAndEach(), ["a", "b"], [b"1", b"2"], batched=True)
    assert [ids for where, _, ids in stage.told if where == "predict"] == [("a", "b")]
    assert [ids for where, _, ids in stage.told if where == "postprocess"] == [("a",), ("b",)]


def test_items_of_calls_in_process_have_empty_ids(run):
    run(stage := All(), ["", ""], [b"1", b"2"], batched=True)
    assert stage.told == [("predict", [1, 2], ("", ""))]


def test_a_worker_has_marks_and_ids_while_it_works_and_another_thread_has_neither(run):
    found = []

    def note():
        found.append((current_marks(), current_requests()))

    class Marked(Stage):
        def predict(self, x):
            note()
            other = threading.Thread(target=note)
            other.start()
            other.join()
            return x

    run(Marked(), ["a"], [b"1"])
    assert found == [({"service": "svc", "stage": "s", "worker": 2, "request_ids": ("a",)}, ("a",)), ({}, ())]
    assert current_requests() == ()


# -- the time that is left --------------------------------------------------------------------------------------------


@pytest.fixture
def timed():
    """Run a stage on items with deadlines; its clock begins at 100.0, and the frame was sent at `sent`."""

    def timed(stage, remaining, *, batched=False, sent=100.0, rehearse=(), payloads=None):
        clock = stage.clock = [100.0]
        current = CurrentCall(lambda: clock[0])
        stage.worker = WorkerInfo("s", 0, 1, left=current.remaining)
        frame = batch_of(payloads or [b"%d" % i for i in range(len(remaining))], remaining, sent=sent)
        runner = runner_of(stage, batched=batched, now=lambda: clock[0], current=current)
        assert stage.worker.remaining() == []
        runner.warm_up(list(rehearse), 3)
        assert stage.worker.remaining() == []
        runner.run(frame)
        assert stage.worker.remaining() == []
        return stage.told

    return timed


class Left(Stage):
    """Notes at each call the time that is left, and takes a second for each."""

    def __init__(self):
        self.told = []

    def note(self, where):
        self.told.append((where, self.worker.remaining()))
        self.clock[0] += 1.0


class LeftAlone(Left):
    def preprocess(self, x):
        self.note("preprocess")
        return x

    def predict(self, x):
        self.note("predict")
        return x

    def postprocess(self, y):
        self.note("postprocess")
        return y


class LeftTogether(LeftAlone):
    def predict(self, xs):
        self.note("predict")
        if 3 in xs:
            raise ValueError("three")
        return xs


def test_each_call_for_one_item_is_told_the_time_left_of_that_item_at_that_moment(timed):
    assert timed(LeftAlone(), [10.0, math.inf]) == [
        ("preprocess", [10.0]),
        ("preprocess", [math.inf]),
        ("predict", [8.0]),
        ("postprocess", [7.0]),
        ("predict", [math.inf]),
        ("postprocess", [math.inf]),
    ]


def test_a_batch_is_told_the_time_left_of_each_of_its_items_in_order(timed):
    told = timed(LeftTogether(), [10.0, math.inf, 20.0], batched=True)
    assert [left for where, left in told if where == "predict"] == [[7.0, math.inf, 17.0]]
    assert [left for where, left in told if where == "postprocess"] == [[6.0], [math.inf], [14.0]]


def test_the_time_that_a_batch_lay_in_the_channel_is_gone(timed):
    assert timed(LeftAlone(), [10.0], sent=97.0)[0] == ("preprocess", [7.0])


def test_no_more_than_all_of_the_time_is_gone(timed):
    assert timed(LeftAlone(), [1.5]) == [("preprocess", [1.5]), ("predict", [0.5]), ("postprocess", [0.0])]


def test_examples_have_no_deadline_and_are_told_of_one_by_one_and_together(timed):
    together = timed(LeftTogether(), [5.0], batched=True, rehearse=[7])
    ends = [math.inf]
    assert [left for where, left in together if where == "predict"][:2] == [ends, 3 * ends]
    assert all(left == ends for where, left in together[:9] if where != "predict")
    assert timed(LeftAlone(), [5.0], rehearse=[7])[:3] == [
        ("preprocess", ends),
        ("predict", ends),
        ("postprocess", ends),
    ]


def test_a_thread_of_the_stage_may_ask_too(timed):
    class Threads(Left):
        def predict(self, x):
            other = threading.Thread(target=self.note, args=("thread",))
            other.start()
            other.join()
            return x

    assert timed(Threads(), [4.0]) == [("thread", [4.0])]


def test_a_copy_of_what_a_stage_knows_of_its_worker_tells_of_nothing(timed):
    class Copies(Left):
        def predict(self, x):
            self.told += pickle.loads(pickle.dumps(self.worker)).remaining()
            self.told += copy.deepcopy(self.worker).remaining()
            self.told.append(copy.deepcopy(self.worker) == self.worker)
            return x

    assert timed(Copies(), [4.0]) == [True]
    assert WorkerInfo("s", 0, 1).remaining() == []
    assert "left" not in repr(WorkerInfo("s", 0, 1))
