"""A worker's life as its coordinator sees it, told frame by frame."""

from __future__ import annotations

import logging
import math
import os
import pickle
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import penstock as ps
from launches import launch_of
from penstock.codec.example import Example
from penstock.codec.formats import Codec
from penstock.errors import ProtocolError
from penstock.transport.framing import (
    SLAB_VERSION,
    FrameDecoder,
    Kind,
    Status,
    encode_batch,
    encode_control,
    encode_slab_note,
    read_device_memory,
    read_shortage,
)
from penstock.transport.messages import Counts as Counted
from penstock.transport.messages import Hello, Lost, Problem, StageRef, pack, unpack
from penstock.worker.device_memory import INTERVAL_SECONDS
from penstock.worker.loop import counting_over, work
from penstock.worker.stage import Stage, WorkerInfo


class ScriptedEnd:
    """A worker's end that reads what the test wrote down and remembers what was sent."""

    def __init__(self, *wires):
        self._frames = FrameDecoder(slabs=True).feed(b"".join(b"".join(wire) for wire in wires))
        self.sent = []

    def receive(self):
        return self._frames.pop(0) if self._frames else None

    def send(self, buffers):
        self.sent += FrameDecoder(slabs=True).feed(b"".join(buffers))


def launch(**fields):
    return encode_control(Kind.LAUNCH, pack(launch_of(**fields)))


def batch(frame_id, *values):
    payloads = [pickle.dumps(value) for value in values]
    n = len(values)
    codecs = [Codec.PICKLE] * n
    return encode_batch(frame_id, 0.0, range(n), payloads, list(map(len, payloads)), [math.inf] * n, codecs, codecs)


def kinds(end):
    return [frame.kind for frame in end.sent]


class Recorded(Stage):
    """Keeps what happened to it, for the test to read."""

    log: list = []

    def setup(self, **arguments):
        self.log.append(("setup", arguments, self.worker))

    def predict(self, x):
        self.log.append(("predict", x))
        return x

    def teardown(self):
        self.log.append(("teardown",))


@pytest.fixture
def log():
    Recorded.log = []
    return Recorded.log


def test_a_worker_greets_is_set_up_works_and_tears_down(log):
    end = ScriptedEnd(launch(setup={"a": 1}), batch(7, 1), batch(8, 2))
    work(end, target=Recorded)
    assert kinds(end) == [Kind.HELLO, Kind.READY, Kind.ANSWERS, Kind.ANSWERS]
    assert unpack(end.sent[0].payloads[0], Hello) == Hello(os.getpid(), SLAB_VERSION)
    assert [frame.frame_id for frame in end.sent[2:]] == [7, 8]
    assert log == [
        ("setup", {"a": 1}, WorkerInfo("embed", 1, 3)),
        ("predict", 1),
        ("predict", 2),
        ("teardown",),
    ]


def test_a_stage_knows_its_gpus_from_setup_on(log):
    work(ScriptedEnd(launch(gpus=(1, "GPU-2"))), target=Recorded)
    assert log[0] == ("setup", {}, WorkerInfo("embed", 1, 3, (1, "GPU-2")))


def test_a_worker_whose_coordinator_leaves_before_launch_ends_quietly(log):
    end = ScriptedEnd()
    work(end, target=Recorded)
    assert kinds(end) == [Kind.HELLO]
    assert log == []


def test_a_worker_runs_its_examples_before_it_is_ready():
    seen = []

    class Warm(Stage):
        examples = [1, 2, 3]

        def predict(self, xs):
            seen.append(list(xs))
            return xs

    end = ScriptedEnd(launch(batched=True))
    work(end, target=Warm)
    assert kinds(end) == [Kind.HELLO, Kind.READY]
    assert seen == [[1], [2], [3], [1, 2, 3, 1]]


def test_a_worker_that_answers_an_example_wrongly_is_not_ready_and_says_which_what_was_wanted_and_what_came():
    kept = {"examples": [1, Example({"x": 1}, {"x": 2})], "predict": lambda self, x: x}
    end = ScriptedEnd(launch())
    work(end, target=type("Wrong", (Stage,), kept))
    assert kinds(end) == [Kind.HELLO, Kind.FAILED]
    problem = unpack(end.sent[1].payloads[0], Problem)
    assert (problem.message, problem.on_examples) == ("examples[1]: expected 2, got 1 at `$.x`", True)


def fails(where):
    def fail(self, *args, **kwargs):
        raise OSError("no weights\udc80")

    def predict(self, x):
        return x

    return type("Fails", (Stage,), {"examples": [1], "predict": predict, where: fail})


@pytest.mark.parametrize("where", ["__init__", "setup", "preprocess", "predict", "postprocess"])
def test_a_stage_that_cannot_be_set_up_tells_why_and_the_worker_ends(where):
    end = ScriptedEnd(launch(), batch(7, 1))
    work(end, target=fails(where))
    assert kinds(end) == [Kind.HELLO, Kind.FAILED]
    problem = unpack(end.sent[1].payloads[0], Problem)
    assert (problem.type_name, problem.message) == ("builtins.OSError", "no weights\\udc80")
    assert "OSError: no weights" in problem.traceback
    assert problem.on_examples is (where not in {"__init__", "setup"})


@pytest.mark.parametrize("error", [MemoryError("4 GiB"), OSError("4 GiB")])
@pytest.mark.parametrize("where", ["setup", "predict"])
def test_a_start_without_memory_is_told_as_that(where, error):
    def fail(self, *args):
        raise error

    target = type("Large", (Stage,), {"examples": [1], "predict": lambda self, x: x, where: fail})
    end = ScriptedEnd(launch())
    work(end, target=target)
    assert unpack(end.sent[-1].payloads[0], Problem).out_of_memory is isinstance(error, MemoryError)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("where", ["setup", "preprocess", "predict", "postprocess"])
def test_the_traceback_of_a_failed_start_begins_at_the_users_code(where, batched):
    end = ScriptedEnd(launch(batched=batched))
    work(end, target=fails(where))
    problem = unpack(end.sent[1].payloads[0], Problem)
    assert problem.traceback.splitlines()[1].startswith(f'  File "{__file__}"')


def test_of_an_import_that_fails_only_the_users_frames_are_shown(tmp_path, monkeypatch):
    (tmp_path / "halfway.py").write_text("import no_such_module_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    end = ScriptedEnd(launch(ref=StageRef("halfway", "M")))
    work(end)
    lines = unpack(end.sent[1].payloads[0], Problem).traceback.splitlines()
    assert lines[1:3] == [f'  File "{tmp_path}/halfway.py", line 1, in <module>', "    import no_such_module_at_all"]


def test_a_start_that_fails_by_what_examples_gave_shows_no_frames():
    end = ScriptedEnd(launch(batched=True, served=True))
    work(end, target=type("Short", (Stage,), {"examples": [1], "predict": lambda self, xs: []}))
    problem = unpack(end.sent[1].payloads[0], Problem)
    words = "predict returned 0 results for 1 items"
    assert (problem.message, problem.traceback) == (words, f"penstock.worker.problems.WrongLength: {words}\n")


def test_a_class_that_is_not_there_is_told_like_a_failed_setup():
    end = ScriptedEnd(launch(ref=StageRef("penstock.worker.stage", "Missing")))
    work(end)
    assert kinds(end) == [Kind.HELLO, Kind.FAILED]
    assert "penstock.worker.stage has no Missing" in unpack(end.sent[1].payloads[0], Problem).message


def test_logging_is_told_of_the_launch_before_user_code_runs_and_whenever_it_has(log):
    def heard(what):
        return lambda *_: log.append(what)

    end = ScriptedEnd(launch())
    work(
        end,
        target=Recorded,
        on_launch=lambda order: log.append(order.stage),
        on_loaded=heard("loaded"),
        on_ready=heard("ready"),
    )
    assert [entry if isinstance(entry, str) else entry[0] for entry in log] == [
        "embed",
        "loaded",
        "setup",
        "loaded",
        "ready",
        "teardown",
    ]


def test_a_worker_imports_its_stage_with_the_coordinators_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    end = ScriptedEnd(launch(ref=StageRef("math", "sqrt")), batch(1, 9.0))
    work(end)
    assert pickle.loads(end.sent[-1].payloads[0]) == 3.0


def test_a_teardown_that_raises_is_logged_and_the_worker_ends(caplog):
    def fail(self):
        raise ValueError("no")

    end = ScriptedEnd(launch())
    with caplog.at_level(logging.ERROR, "penstock.worker"):
        work(end, target=type("T", (Stage,), {"predict": lambda self, x: x, "teardown": fail}))
    assert "stage 'embed': teardown failed" in caplog.text


@pytest.mark.parametrize(
    ("wires", "reason"),
    [
        ((encode_control(Kind.READY, b""),), "expected a LAUNCH frame, got READY"),
        ((encode_control(Kind.LAUNCH, b"nonsense"),), "not a Launch"),
        ((launch(), encode_control(Kind.HELLO, b"")), "expected a BATCH frame, got HELLO"),
    ],
)
def test_a_worker_takes_frames_in_their_turn_only(wires, reason, log):
    with pytest.raises(ProtocolError, match=reason):
        work(ScriptedEnd(*wires), target=Recorded)


def giving(result):
    return type("Gives", (Stage,), {"examples": [1, 2], "predict": lambda self, x: result})


def warned(caplog, target, **fields):
    """Whether a worker of `target` becomes ready, and what it warns of."""
    caplog.clear()
    end = ScriptedEnd(launch(**fields))
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        work(end, target=target)
    return kinds(end)[1], [record.getMessage() for record in caplog.records]


def test_the_first_worker_warns_of_a_result_that_some_callers_cannot_get(caplog):
    ready, lines = warned(caplog, giving(math.nan), index=0)
    assert ready is Kind.READY
    (line,) = lines
    assert line == (
        "stage 'embed': cannot write the result in every format: examples[0]: the result has NaN or infinity at "
        "`$`, which JSON does not support; set nan_as_null=True to write null (and 1 more of its examples)"
    )
    assert warned(caplog, giving(math.nan), index=1) == (Kind.READY, [])
    assert warned(caplog, giving(math.nan), index=0, allow_nan=True) == (Kind.READY, [])
    assert warned(caplog, giving(1.0), index=0) == (Kind.READY, [])


def test_a_worker_looks_at_its_first_results_unless_it_checks_them_all(caplog):
    def mistaken(self, x) -> float:
        return "high"

    def lines(**fields):
        caplog.clear()
        work(ScriptedEnd(launch(**fields), batch(7, 1), batch(8, 2)), target=type("M", (Stage,), {"predict": mistaken}))
        return [text.partition(";")[0] for text in caplog.messages]

    words = "stage 'embed': a result is not `float`: expected `float`, got `str`"
    assert lines() == lines(index=1) == lines(validate_results=True, last=False) == [words]
    assert lines(validate_results=True) == []


def taking(item, *examples):
    def predict(self, x):
        return "well"

    predict.__annotations__ = {"x": item}
    return type("Takes", (Stage,), {"examples": examples, "predict": predict})


def test_the_first_worker_warns_of_the_first_example_that_does_not_fit(caplog):
    words = "stage 'embed': examples[1] does not fit `str`: expected `str`, got `int`"
    assert warned(caplog, taking(str, "a", 1, 2), index=0) == (Kind.READY, [words])
    assert warned(caplog, taking(str, "a", 1, 2), index=1) == (Kind.READY, [])
    assert warned(caplog, taking(str, "a"), index=0) == (Kind.READY, [])
    words = "examples[0] does not fit `list[str]`: expected `array`, got `str`; this stage has no batch policy, so"
    assert warned(caplog, taking(list[str], "a"), index=0)[1][0].startswith(f"stage 'embed': {words}")


def test_a_result_that_no_caller_can_get_fails_the_start():
    end = ScriptedEnd(launch())
    work(end, target=giving(lambda: 1))
    assert kinds(end) == [Kind.HELLO, Kind.FAILED]
    assert "cannot write the result in any format: examples[0]" in unpack(end.sent[1].payloads[0], Problem).message


def test_a_result_that_cannot_cross_to_an_external_stage_fails_the_start(caplog):
    assert warned(caplog, giving({1j}), index=0, last=False) == (Kind.READY, [])
    assert warned(caplog, giving({1j}), index=0, last=False, crossing=Codec.MSGPACK)[0] is Kind.FAILED
    assert warned(caplog, giving(math.nan), index=0, last=False, crossing=Codec.JSON)[0] is Kind.FAILED
    assert warned(caplog, giving(math.nan), index=0, last=False, crossing=Codec.MSGPACK) == (Kind.READY, [])


@pytest.mark.parametrize(("behind", "status"), [("out", Status.FAILED), ("", Status.INVALID)])
def test_what_an_external_stage_gave_and_cannot_be_read_is_nobodys_invalid_item(behind, status):
    def double(x: int) -> int:
        return 2 * x

    codecs = [Codec.MSGPACK] * 2
    wire = encode_batch(7, 0.0, [1, 2], [b"\x03", b"\xa1a"], [1, 2], [math.inf] * 2, codecs, codecs)
    end = ScriptedEnd(launch(first=not behind, behind=behind), wire)
    work(end, target=double)
    answers = end.sent[-1]
    assert list(answers.statuses) == [Status.OK, status]
    assert bytes(answers.payloads[0]) == b"\x06"


@pytest.mark.parametrize(
    ("options", "statuses"),
    [
        ({}, [Status.OK, Status.OK]),
        ({"validate": True}, [Status.INVALID, Status.OK]),
        ({"validate": True, "first": False}, [Status.OK, Status.OK]),
        ({"validate_results": True}, [Status.OK, Status.FAILED]),
        ({"validate_results": True, "last": False}, [Status.OK, Status.OK]),
    ],
)
def test_items_are_checked_before_the_first_stage_and_results_after_the_last(options, statuses):
    def is_text(x: int) -> str:
        return "x" if isinstance(x, str) else x

    end = ScriptedEnd(launch(**options), batch(7, "not a number", 1))
    work(end, target=is_text)
    assert list(end.sent[-1].statuses) == statuses


def test_where_every_caller_comes_over_http_a_result_that_only_pickle_carries_fails_the_start(caplog):
    assert warned(caplog, giving({1j}), index=0, served=True)[0] is Kind.FAILED
    assert warned(caplog, giving({1j}), index=0, served=True, last=False) == (Kind.READY, [])
    ready, lines = warned(caplog, giving({1j}), index=0)
    assert ready is Kind.READY
    assert lines[0].startswith("stage 'embed': cannot write the result in every format: examples[0]: ")
    assert warned(caplog, giving(math.nan), index=0, served=True)[0] is Kind.READY


def test_what_a_stage_gives_to_the_next_one_has_to_be_pickled_and_no_more(caplog):
    assert warned(caplog, giving({1j}), index=0, last=False) == (Kind.READY, [])
    assert warned(caplog, giving(lambda: 1), index=0, last=False)[0] is Kind.FAILED


def test_an_examination_writes_no_result():
    """It judges the model, and has the time of one run."""

    class Turns(Stage):
        examples = [1]
        results = [1, lambda: 1]

        def predict(self, x):
            return self.results.pop(0)

    end = ScriptedEnd(launch(), encode_control(Kind.EXAMINE, b"", 8))
    work(end, target=Turns)
    assert [bytes(payload) for payload in end.sent[2].payloads] == [b""]


class Examined(Recorded):
    examples = (5, 6)


def test_a_worker_that_is_examined_runs_the_first_example_after_the_batches_before(log):
    end = ScriptedEnd(launch(), batch(7, 1), encode_control(Kind.EXAMINE, b"", 8), batch(9, 2))
    work(end, target=Examined)
    assert kinds(end) == [Kind.HELLO, Kind.READY, Kind.ANSWERS, Kind.EXAMINED, Kind.ANSWERS]
    assert [frame.frame_id for frame in end.sent[2:]] == [7, 8, 9]
    assert [what[1] for what in log if what[0] == "predict"] == [5, 6, 1, 5, 2]
    assert [bytes(payload) for payload in end.sent[3].payloads] == [b""]


def test_a_worker_tells_why_the_example_failed_and_works_on(log):
    class Fails(Examined):
        def predict(self, x):
            if len(log) > 3:
                raise SystemExit("out of memory")
            return super().predict(x)

    end = ScriptedEnd(launch(), batch(7, 1), encode_control(Kind.EXAMINE, b"", 8), batch(9, 2))
    work(end, target=Fails)
    assert kinds(end)[3:] == [Kind.EXAMINED, Kind.ANSWERS]
    problem = unpack(end.sent[3].payloads[0], Problem)
    assert (problem.type_name, problem.message) == ("builtins.SystemExit", "out of memory")
    assert "raise SystemExit" in problem.traceback
    assert "/worker/loop.py" not in problem.traceback


def test_a_worker_that_is_checked_runs_health_between_batches(log):
    class Checked(Recorded):
        def health(self):
            log.append(("health",))

    end = ScriptedEnd(launch(), batch(7, 1), encode_control(Kind.CHECK, b"", 8), batch(9, 2))
    work(end, target=Checked)
    assert kinds(end) == [Kind.HELLO, Kind.READY, Kind.ANSWERS, Kind.CHECKED, Kind.ANSWERS]
    assert [frame.frame_id for frame in end.sent[2:]] == [7, 8, 9]
    assert [what[0] for what in log if what[0] in ("predict", "health")] == ["predict", "health", "predict"]
    assert [bytes(payload) for payload in end.sent[3].payloads] == [b""]


@pytest.mark.parametrize("error", [RuntimeError("the lamp is out"), SystemExit("the lamp is out")])
def test_a_worker_tells_what_its_health_raised_and_works_on(log, error):
    class Unwell(Recorded):
        def health(self):
            raise error

    end = ScriptedEnd(launch(), encode_control(Kind.CHECK, b"", 8), batch(9, 2))
    work(end, target=Unwell)
    assert kinds(end)[2:] == [Kind.CHECKED, Kind.ANSWERS]
    problem = unpack(end.sent[2].payloads[0], Problem)
    assert problem.message == "the lamp is out"
    assert "raise error" in problem.traceback


# -- its device -------------------------------------------------------------------------------------------------------


class Fragile(Recorded):
    examples = (1,)

    def predict(self, x):
        if any(entry == ("predict", "poison") for entry in self.log):
            raise OSError("no device")
        return super().predict(x)


def test_a_worker_whose_device_is_lost_says_so_with_its_answer_and_ends_without_teardown(log):
    suspect = [encode_slab_note(Kind.SUSPECT, b"")]
    end = ScriptedEnd(launch(), batch(7, "poison"), suspect, batch(8, 2), batch(9, 3))
    work(end, target=Fragile, examines=True)
    assert kinds(end) == [Kind.HELLO, Kind.READY, Kind.ANSWERS, Kind.LOST, Kind.ANSWERS]
    assert unpack(end.sent[3].payloads[0], Lost).problem.message == "no device"
    assert (end.sent[4].frame_id, end.sent[4].statuses) == (8, (Status.FAILED,))
    assert ("teardown",) not in log
    assert end.receive() is None, "its answers could be lost where it closed the channel before its coordinator does"


class Tight(Stage):
    examples = (1,)

    def predict(self, xs):
        if len(xs) > 1:
            raise MemoryError
        return xs


def test_a_worker_tells_for_how_many_items_it_had_no_memory_before_it_is_ready_and_before_its_answer(log):
    end = ScriptedEnd(launch(batched=True, max_size=3), batch(7, 1, 2))
    work(end, target=Tight)
    assert kinds(end) == [Kind.HELLO, Kind.SHORTAGE, Kind.SHORTAGE, Kind.READY, Kind.SHORTAGE, Kind.ANSWERS]
    assert [read_shortage(frame) for frame in end.sent if frame.kind is Kind.SHORTAGE] == [(3, 2), (2, 1), (2, 1)]


def test_a_worker_keeps_no_result_while_it_waits_for_the_next_batch():
    alive = []

    class GivesArrays(Stage):
        def predict(self, x):
            found = np.zeros(1 << 20)
            alive.append(weakref.ref(found))
            return found

    class Watching(ScriptedEnd):
        def receive(self):
            assert [ref for ref in alive if ref() is not None] == []
            return super().receive()

    end = Watching(launch(), batch(7, 0), batch(8, 0))
    work(end, target=GivesArrays)
    assert len(alive) == 2
    assert kinds(end) == [Kind.HELLO, Kind.READY, Kind.ANSWERS, Kind.ANSWERS]


class ImportsTorch(Stage):
    """Finds a torch that has reserved 8 bytes, whose CUDA `predict` initialises.  An item is how long it takes."""

    now = 0.0

    def setup(self):
        self.initialised = False
        cuda = SimpleNamespace(is_initialized=lambda: self.initialised, device_count=lambda: 1)
        cuda.get_allocator_backend, cuda.memory_reserved = lambda: "native", lambda device: 8
        sys.modules["torch"] = SimpleNamespace(cuda=cuda)

    def predict(self, seconds):
        self.initialised = True
        ImportsTorch.now += seconds
        return seconds


def test_a_worker_tells_of_device_memory_with_its_answers_once_its_stage_has_initialised_cuda(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("penstock.worker.loop.time", SimpleNamespace(monotonic=lambda: ImportsTorch.now))
    end = ScriptedEnd(launch(), batch(7, INTERVAL_SECONDS), batch(8, 0.0))
    work(end, target=ImportsTorch)
    assert kinds(end) == [Kind.HELLO, Kind.READY, Kind.DEVICE_MEMORY, Kind.ANSWERS, Kind.ANSWERS]
    assert read_device_memory(end.sent[2]) == 8


def test_a_worker_tells_of_device_memory_that_its_setup_has_taken_before_it_is_ready(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)

    class Initialises(ImportsTorch):
        def setup(self):
            super().setup()
            self.initialised = True

    end = ScriptedEnd(launch())
    work(end, target=Initialises)
    assert kinds(end) == [Kind.HELLO, Kind.DEVICE_MEMORY, Kind.READY]


# -- what it counts ---------------------------------------------------------------------------------------------------


class Counts(Fragile):
    examples = ()

    def setup(self, fails=False):
        ps.count("set_up")
        if fails:
            raise OSError("no weights")

    def predict(self, x):
        ps.count("runs")
        return super().predict(x)

    def teardown(self):
        ps.count("torn_down")


def count_and_work(end, **options):
    """Work as a worker thread does; what each frame of counts tells."""
    with counting_over(end, whole_process=False):
        work(end, target=Counts, **options)
    told = [unpack(frame.payloads[0], Counted).series for frame in end.sent if frame.kind is Kind.COUNTS]
    return [{each.name: each.n for each in series} for series in told]


def test_a_worker_that_ends_in_order_has_told_of_all_that_it_counted(log):
    end = ScriptedEnd(launch(), batch(7, 1), batch(8, 2))
    assert count_and_work(end) == [{"user_set_up": 1.0, "user_runs": 2.0, "user_torn_down": 1.0}]
    assert kinds(end) == [Kind.HELLO, Kind.READY, Kind.ANSWERS, Kind.ANSWERS, Kind.COUNTS]


def test_a_worker_that_cannot_be_set_up_tells_what_it_counted():
    end = ScriptedEnd(launch(setup={"fails": True}))
    assert count_and_work(end) == [{"user_set_up": 1.0}]


def test_a_worker_whose_device_is_lost_tells_what_it_counted_before_it_is_killed(log):
    suspect = [encode_slab_note(Kind.SUSPECT, b"")]
    end = ScriptedEnd(launch(), batch(7, 1), batch(8, "poison"), suspect, batch(9, 2))
    count_and_work(end, examines=True)
    assert kinds(end)[-3:] == [Kind.COUNTS, Kind.LOST, Kind.ANSWERS]
