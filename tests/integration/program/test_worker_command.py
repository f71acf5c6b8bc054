"""`penstock worker run` as its user starts it, attached to a server that the test plays."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import queue
import re
import signal
import threading
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from attaching import LAUNCH, PATIENCE_SECONDS, Door, attached
from notes_and_gates import notes
from processes import descriptors, running
from served import run
from spoken import spoken
from waiting import until_now

from penstock.codec.formats import Codec
from penstock.core.abandonment import Abandonment
from penstock.transport.framing import VERSION, Kind, Status, encode_control
from penstock.worker.attached import AttachedWorker
from penstock.worker.attachment import Attachment
from penstock.worker.leaving import Leaving
from rows import named

SQUARE = f"""
import os, sys
sys.path.append({str(Path(__file__).parents[1])!r})
from notes_and_gates import note, wait_for
from pathlib import Path
import penstock as ps

note("imported", sorted(os.sched_getaffinity(0)))

class Square(ps.Stage):
    examples = [2.0]

    def setup(self, factor: float = 1.0):
        self.factor = factor
        note("setup", [self.worker.index, self.worker.count, self.worker.stage])

    def predict(self, x: float) -> float:
        note("predict", [x, list(ps.current_requests())])
        if x == 13.0:
            raise ValueError("thirteen")
        if x == 14.0:
            raise ps.InvalidItem("fourteen", path="$")
        if x == 15.0:
            wait_for(Path("open"))
        return self.factor * x * x

    def teardown(self):
        note("teardown", self.worker.index)
"""

TOGETHER = """
import penstock as ps

class Square(ps.Stage):
    batch = ps.Batch(max_size=4)

    def predict(self, xs: list[float]) -> list[float]:
        if 13.0 in xs:
            raise ValueError("thirteen")
        return [x * x for x in xs]

    def health(self):
        if ps.__name__ != "penstock":
            raise RuntimeError
        raise OSError("no card")
"""
SETUP_FAILS = """
import penstock as ps

class Square(ps.Stage):
    def setup(self):
        raise OSError("no weights")

    def predict(self, x: float) -> float:
        return x
"""


@pytest.fixture
def door(tmp_path):
    """The socket `s` in the test's folder."""
    with contextlib.closing(Door(tmp_path / "s")) as opened:
        yield opened


@pytest.fixture
def worker(tmp_path):
    """Starts `penstock worker run model:Square --connect s`; whatever is left of it is ended."""
    with contextlib.ExitStack() as running_ones:
        yield lambda source=SQUARE, *options, **more: running_ones.enter_context(
            attached(tmp_path, source, *options, **more)
        )


def ended(program, status):
    assert program.wait() == status, program.output
    return program.output


# -- serving ----------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_it_says_what_it_is_is_set_up_and_answers(worker, door, tmp_path):
    program = worker(SQUARE, "--stage", "square", "--setup", '{"factor": 3}')
    peer = door.accept()
    assert peer.launch(index=2) == {
        "version": VERSION,
        "pid": program.pid,
        "language": f"python {platform.python_version()}",
        "stage": "square",
        "codecs": ["json", "msgpack", "raw", "npy"],
        "health": False,
    }
    program.wait_for(
        r"INFO penstock\.worker \[square/2\]: attached to s as worker 2 of stage 'square' of service 'shop'"
    )
    peer.batch(1, b"2", request_ids=b"abc")
    peer.batch(2, b"\x03", codec=Codec.MSGPACK)
    assert peer.answers(1) == [(Status.OK, 12.0)]
    assert bytes(peer.expect(Kind.ANSWERS).payloads[0]) == b"\xcb" + b"\x40\x3b" + bytes(6)
    peer.half_close()
    peer.ended()
    assert notes(tmp_path / "setup") == [[2, 64, "square"]]
    assert notes(tmp_path / "predict") == [[2.0, []], [2.0, ["abc"]], [3.0, [""]]]


COUNTS = """
import penstock as ps

class Square(ps.Stage):
    def setup(self):
        ps.count("set_up")

    def predict(self, x: float) -> float:
        ps.count("squares", x, sign="+")
        return x * x

    def health(self):
        ps.count("checks")
"""


def test_it_tells_what_its_stage_counts_where_the_service_takes_it_and_once(worker, door):
    worker(COUNTS)
    old = door.accept()
    old.launch()
    old.batch(1, b"2")
    assert old.answers(1) == [(Status.OK, 4.0)]
    old.half_close()
    old.ended()
    new = door.accept()
    new.message(Kind.HELLO)
    new.control(Kind.LAUNCH, {**LAUNCH, "counts": True})
    new.batch(1, b"3")
    new.control(Kind.CHECK, frame_id=2)
    new.half_close()
    others, totals = [], Counter()
    while frame := new.frame():  # when it tells depends on the time that all this takes
        if frame.kind is not Kind.COUNTS:
            others.append(frame.kind)
            continue
        for each in json.loads(bytes(frame.payloads[0]))["series"]:
            totals[each["name"], *each["labels"].items()] += each["n"]
    assert others == [Kind.READY, Kind.ANSWERS, Kind.CHECKED]
    assert totals == {("user_set_up",): 1.0, ("user_squares", ("sign", "+")): 5.0, ("user_checks",): 1.0}


def test_the_stage_may_be_left_out_and_npy_is_named_where_numpy_is(worker, door, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'numpy' else real(name, package)\n"
    )
    path = os.pathsep.join([str(blocked), *filter(None, [os.environ.get("PYTHONPATH")])])
    worker(SQUARE, env={"PYTHONPATH": path})
    hello = door.accept().launch()
    assert hello["stage"] is None
    assert hello["codecs"] == ["json", "msgpack", "raw"]


def test_failures_are_told_in_their_items_place_in_json(worker, door):
    worker(TOGETHER)
    peer = door.accept()
    peer.launch(batched=True, max_size=4)
    peer.batch(1, b"1", b"13", b'"x"', b"3")
    first, second, third, last = peer.answers(1)
    assert (first, last) == ((Status.OK, 1.0), (Status.OK, 9.0))
    status, failure = second
    assert (status, failure["type"], failure["message"]) == (Status.FAILED, "builtins.ValueError", "thirteen")
    assert failure["traceback"].startswith("Traceback")
    assert re.search(r"model\.py:\d+$", failure["raised_at"])
    assert third == (Status.INVALID, {"message": "expected `float`, got `str`"})


def test_a_stage_with_health_is_checked(worker, door):
    worker(TOGETHER)
    peer = door.accept()
    assert peer.launch(batched=True, max_size=4)["health"] is True
    peer.control(Kind.CHECK, frame_id=77)
    frame = peer.expect(Kind.CHECKED)
    assert frame.frame_id == 77
    assert json.loads(bytes(frame.payloads[0]))["message"] == "no card"


def test_results_are_checked_where_the_service_wants_it(worker, door):
    worker(
        "import math\nimport penstock as ps\n"
        "class Square(ps.Stage):\n    def predict(self, x: float) -> float:\n        return [math.nan, 'x'][int(x)]\n"
    )
    peer = door.accept()
    peer.launch(validate_results=True, allow_nan=True)
    peer.batch(1, b"0")
    peer.batch(2, b"1")
    assert peer.answers(1) == [(Status.OK, None)]
    ((status, failure),) = peer.answers(2)
    assert (status, failure["type"]) == (Status.FAILED, "penstock.codec.encode.ResultMismatch")


def test_a_function_can_be_a_stage_that_gets_batches(tmp_path, door, worker):
    worker("def Square(xs: list[float]) -> list[float]:\n    return [x * x for x in xs]\n")
    peer = door.accept()
    peer.launch(batched=True, max_size=4)
    peer.batch(1, b"2", b"3")
    assert peer.answers(1) == [(Status.OK, 4.0), (Status.OK, 9.0)]


# -- a stage that waits ------------------------------------------------------------------------------------------------


WAITS = f"""
import asyncio, contextlib, os, sys, threading
sys.path.append({str(Path(__file__).parents[1])!r})
from notes_and_gates import note, wait_for
from pathlib import Path
import penstock as ps

class Square(ps.Stage):
    examples = [2.0]

    async def setup(self, factor: float = 1.0):
        self.factor = factor
        self.opened = contextlib.AsyncExitStack()
        await self.opened.enter_async_context(asyncio.timeout(None))  # only the task that entered it can leave it
        self.asked = asyncio.Queue()
        self.beating = asyncio.create_task(self.beat())
        note("setup", self.worker.index)

    async def beat(self):
        while True:
            x, answer = await self.asked.get()
            if not answer.done():
                answer.set_result(self.factor * x * x)
            if x == 5.0:
                await asyncio.sleep(0)
                Path("between").touch()  # after the answer, and before the next batch

    async def predict(self, x: float) -> float:
        here = [asyncio.get_running_loop() is self.beating.get_loop(), threading.current_thread().name]
        note("predict", [x, list(ps.current_requests()), len(self.worker.remaining()), *here])
        if x == 13.0:
            raise ValueError("thirteen")
        if x == 14.0:
            raise ps.InvalidItem("fourteen", path="$")
        if x == 15.0:
            while not Path("open").exists():
                await asyncio.sleep(0.01)
        if x == 16.0:
            raise asyncio.CancelledError
        if x == 17.0:
            for task in asyncio.all_tasks() - {{self.beating}}:
                task.cancel()
        if x == 18.0:
            child = os.fork() or sys.exit(5)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            Path("status").write_text(str(os.waitstatus_to_exitcode(status)))
        answer = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((x, answer))
        return await answer

    async def health(self):
        await asyncio.sleep(0)
        raise OSError("no service")

    async def teardown(self):
        await self.opened.aclose()
        note("teardown", [self.worker.index, self.beating.done()])
"""


@pytest.mark.smoke
def test_a_waiting_stage_answers_in_one_event_loop_and_fails_an_item_alone(worker, door, tmp_path):
    program = worker(WAITS, "--setup", '{"factor": 3}')
    peer = door.accept()
    assert peer.launch(index=2)["health"] is True
    for n, x in enumerate([2, 13, 14, 16, 17, 3]):
        peer.batch(n, b"%d" % x, request_ids=b"r%d" % n)
    assert peer.answers(0) == [(Status.OK, 12.0)]
    failures = [peer.answers(n) for n in range(1, 5)]
    assert [[status for status, _ in answers] for answers in failures] == [
        [Status.FAILED], [Status.INVALID], [Status.FAILED], [Status.FAILED],
    ]  # fmt: skip
    assert [answers[0][1].get("type") for answers in failures] == [
        "builtins.ValueError", None, "asyncio.exceptions.CancelledError", "asyncio.exceptions.CancelledError",
    ]  # fmt: skip
    assert peer.answers(5) == [(Status.OK, 27.0)]
    peer.control(Kind.CHECK, frame_id=77)
    frame = peer.expect(Kind.CHECKED)
    assert (frame.frame_id, json.loads(bytes(frame.payloads[0]))["message"]) == (77, "no service")
    program.signal(signal.SIGTERM)
    peer.expect(Kind.DETACH)
    peer.half_close()
    ended(program, 0)
    assert notes(tmp_path / "setup") == [2]
    assert notes(tmp_path / "teardown") == [[2, False]]
    there = [1, True, "penstock-loop"]
    asked = [[x, [f"r{n}"], *there] for n, x in enumerate([2.0, 13.0, 14.0, 16.0, 17.0, 3.0])]
    assert notes(tmp_path / "predict") == [[2.0, [], *there], *asked]


def test_what_a_waiting_stage_has_started_goes_on_between_batches_and_servers(worker, door, tmp_path):
    program = worker(WAITS)
    peer = door.accept()
    peer.launch(index=1)
    peer.batch(1, b"5")
    assert peer.answers(1) == [(Status.OK, 25.0)]
    until_now(lambda: (tmp_path / "between").exists(), "the task of the stage")
    peer.half_close()
    peer.ended()
    peer = door.accept()
    peer.launch(index=0)
    peer.batch(1, b"4")
    assert peer.answers(1) == [(Status.OK, 16.0)]
    program.signal(signal.SIGTERM)
    peer.expect(Kind.DETACH)
    peer.half_close()
    ended(program, 0)
    assert (notes(tmp_path / "setup"), notes(tmp_path / "teardown")) == ([1], [[0, False]])


def test_a_waiting_stage_told_to_end_while_busy_answers_what_it_holds(worker, door, tmp_path):
    program = worker(WAITS)
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"15")
    peer.batch(2, b"3")
    until_now(lambda: len(notes(tmp_path / "predict")) == 2, "the batch that holds")
    program.signal(signal.SIGTERM)
    peer.expect(Kind.DETACH)
    peer.half_close()
    (tmp_path / "open").touch()
    assert peer.answers(1) == [(Status.OK, 225.0)]
    assert peer.answers(2) == [(Status.OK, 9.0)]
    ended(program, 0)
    assert notes(tmp_path / "teardown") == [[0, False]]


def test_a_waiting_stage_sent_away_while_its_predict_waits_ends_all_the_same(worker, door):
    program = worker(WAITS)
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"15")
    peer.control(Kind.FAILED, {"message": "a batch ran for 2 s"})
    peer.close()
    assert "the server at s rejected this worker: a batch ran for 2 s" in ended(program, 1)


def test_a_fork_that_comes_back_from_a_waiting_stage_ends(worker, door, tmp_path):
    worker(WAITS)
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"18")
    peer.batch(2, b"3")
    assert peer.answers(1) == [(Status.OK, 324.0)]
    assert peer.answers(2) == [(Status.OK, 9.0)]
    assert (tmp_path / "status").read_text() == "1"


HOOKS = """
import asyncio, threading
import penstock as ps

class Square(ps.Stage):
    batch = ps.Batch(max_size=4)
    examples = [2.0]

    def setup(self):
        self.thread = threading.get_ident()
        self.together = asyncio.Barrier(3)

    async def preprocess(self, x: float) -> float:
        if x > 10.0:
            await self.together.wait()
        return x

    def predict(self, xs: list[float]) -> list[float]:
        if threading.get_ident() != self.thread or threading.current_thread() is not threading.main_thread():
            raise RuntimeError("another thread")
        if 13.0 in xs:
            raise ValueError("thirteen")
        return [x * x for x in xs]

    def health(self):
        if threading.get_ident() != self.thread:
            raise RuntimeError("another thread")
"""


def test_async_hooks_of_a_batch_run_together_around_a_predict_in_the_main_thread(worker, door):
    worker(HOOKS)
    peer = door.accept()
    peer.launch(batched=True, max_size=4)
    peer.batch(1, b"11", b"12", b"14", b'"x"')  # alone, one of the three would wait for ever
    assert peer.answers(1) == [
        (Status.OK, 121.0), (Status.OK, 144.0), (Status.OK, 196.0),
        (Status.INVALID, {"message": "expected `float`, got `str`"}),
    ]  # fmt: skip
    peer.control(Kind.CHECK, frame_id=77)
    assert bytes(peer.expect(Kind.CHECKED).payloads[0]) == b""


def test_a_waiting_function_that_fails_on_its_setup_or_examples_is_told_and_ends(worker, door):
    program = worker(WAITS.replace("examples = [2.0]", "examples = [13.0]"))
    peer = door.accept()
    peer.expect(Kind.HELLO)
    peer.control(Kind.LAUNCH, LAUNCH)
    assert peer.message(Kind.FAILED)["message"] == "thirteen"
    assert "stage 'square': setup failed" in ended(program, 1)


def test_an_async_function_is_a_stage(worker, door):
    worker("async def Square(x: float) -> float:\n    return x * x\n")
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"3")
    assert peer.answers(1) == [(Status.OK, 9.0)]


# -- the end ----------------------------------------------------------------------------------------------------------


LIKE_SIGTERM = [pytest.param(number, marks=pytest.mark.night) for number in (signal.SIGINT, signal.SIGQUIT)]


@pytest.mark.parametrize("number", [signal.SIGTERM, *LIKE_SIGTERM])
def test_told_to_end_while_busy_it_detaches_answers_what_it_holds_and_ends_well(worker, door, tmp_path, number):
    program = worker()
    peer = door.accept()
    peer.launch(index=5)
    peer.batch(1, b"15")
    peer.batch(2, b"3")
    until_now(lambda: len(notes(tmp_path / "predict")) == 2, "the batch that holds")
    program.signal(number)
    # The server hears of it while `predict` still runs, and sends nothing more.
    assert bytes(peer.expect(Kind.DETACH).payloads[0]) == b""
    peer.half_close()
    (tmp_path / "open").touch()
    assert peer.answers(1) == [(Status.OK, 225.0)]
    assert peer.answers(2) == [(Status.OK, 9.0)]
    peer.ended()
    ended(program, 0)
    assert notes(tmp_path / "teardown") == [5]


def test_a_second_signal_ends_it_at_once(worker, door, tmp_path):
    program = worker()
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"15")
    until_now(lambda: len(notes(tmp_path / "predict")) == 2, "the batch that holds")
    program.signal(signal.SIGTERM)
    peer.expect(Kind.DETACH)
    program.signal(signal.SIGQUIT)
    assert "SIGQUIT: forcing exit" in ended(program, 128 + signal.SIGQUIT)


BLOCKED = """
import ctypes, os
import penstock as ps

class Square(ps.Stage):
    def predict(self, x: float) -> float:
        ctypes.CDLL(None).pause()  # no Python runs in the main thread from now on
        while True:
            ctypes.CDLL(None).sleep(1000)
"""


def test_it_detaches_while_predict_runs_no_python(worker, door):
    program = worker(BLOCKED)
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"1")
    program.signal(signal.SIGTERM)
    peer.expect(Kind.DETACH)
    program.signal(signal.SIGQUIT)
    ended(program, 128 + signal.SIGQUIT)


LOOPING = """
import os, signal
import penstock as ps
from pathlib import Path

class Square(ps.Stage):
    def predict(self, x: float) -> float:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd({there})
        Path("began").touch()
        while not Path("open").exists():
            pass
        return x
"""


@pytest.mark.parametrize("there", ["writer", "-1"])
def test_it_hears_of_signals_while_an_event_loop_of_the_stage_hears_of_them_first(worker, door, tmp_path, there):
    program = worker(LOOPING.format(there=there))
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"4")
    until_now(lambda: (tmp_path / "began").exists(), "the batch")
    program.signal(signal.SIGTERM)
    peer.expect(Kind.DETACH)
    (tmp_path / "open").touch()
    assert peer.answers(1) == [(Status.OK, 4.0)]
    peer.half_close()
    ended(program, 0)  # a signal that is heard twice would have ended it at once


def test_while_it_waits_for_a_server_it_ends_at_once(worker):
    program = worker()
    program.wait_for("no server is listening at s; retrying until one is")
    program.signal(signal.SIGTERM)
    ended(program, 0)


def test_while_it_waits_for_its_launch_it_ends_at_once(worker, door, tmp_path):
    program = worker()
    peer = door.accept()
    peer.expect(Kind.HELLO)
    program.signal(signal.SIGTERM)
    peer.ended()
    ended(program, 0)
    assert notes(tmp_path / "setup") == []


def test_while_it_is_set_up_it_ends_at_once(worker, door, tmp_path):
    program = worker(SQUARE.replace('note("setup"', 'note("setup", 1); wait_for(Path("never")); note("setup"'))
    peer = door.accept()
    peer.expect(Kind.HELLO)
    peer.control(Kind.LAUNCH, LAUNCH)
    until_now(lambda: notes(tmp_path / "setup"), "the setup")
    program.signal(signal.SIGTERM)
    peer.ended()
    ended(program, 0)


def test_while_its_module_is_imported_it_ends_at_once(worker, tmp_path):
    program = worker(SQUARE + '\nwait_for(Path("never"))\n')
    until_now(lambda: notes(tmp_path / "imported"), "the import")
    program.signal(signal.SIGTERM)
    ended(program, 0)


def test_threads_that_the_stage_leaves_do_not_keep_it(worker, door):
    program = worker(
        SQUARE + "\nimport threading\nthreading.Thread(target=threading.Event().wait, name='mine').start()\n"
    )
    peer = door.accept()
    peer.launch()
    program.signal(signal.SIGTERM)
    peer.expect(Kind.DETACH)
    peer.half_close()
    assert "mine" in ended(program, 0)


# -- the server goes --------------------------------------------------------------------------------------------------


def test_it_tries_again_after_a_tenth_of_a_second_which_doubles_to_five(tmp_path):
    waits = []

    class Told(Leaving):
        def wait(self, seconds):
            waits.append(seconds)
            if len(waits) == 9:
                assert not self.ask()

    never = mock.Mock(side_effect=AssertionError)
    attachment = Attachment(str(tmp_path / "nobody"))
    worker = AttachedWorker(abs, attachment, Told(), on_launch=never, on_loaded=never, end_process=never)
    assert worker.run() == 0
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


@pytest.mark.smoke
def test_when_the_server_is_back_it_attaches_again_without_a_second_setup(worker, door, tmp_path):
    program = worker()
    peer = door.accept()
    peer.launch(index=1)
    peer.batch(1, b"15")
    peer.batch(2, b"3")
    until_now(lambda: len(notes(tmp_path / "predict")) == 2, "the batch that holds")
    door.close()
    (tmp_path / "open").touch()
    program.wait_for("lost the connection to the server at s; reconnecting")
    program.wait_for("no server is listening at s; retrying until one is")
    door.open()
    peer = door.accept()
    peer.launch(index=0, service="other", batched=False)
    peer.batch(1, b"4")
    assert peer.answers(1) == [(Status.OK, 16.0)]
    assert notes(tmp_path / "setup") == [[1, 64, "square"]]
    # The second batch of the first server was dropped, and the examples did not run again.
    assert [x for x, _ in notes(tmp_path / "predict")] == [2.0, 15.0, 4.0]
    program.wait_for("attached to s as worker 0 of stage 'square' of service 'other'")
    program.signal(signal.SIGTERM)
    peer.expect(Kind.DETACH)
    peer.half_close()
    ended(program, 0)
    assert notes(tmp_path / "teardown") == [0]


def test_a_server_that_goes_inside_a_frame_has_gone(worker, door):
    program = worker(SQUARE, "--once")
    peer = door.accept()
    peer.launch()
    peer.sock.sendall(b"PS\x04\x05\x01")
    peer.close()
    assert "the server at s closed the connection" in ended(program, 0)


def test_once_it_ends_well_when_the_server_has_gone(worker, door, tmp_path):
    program = worker(SQUARE, "--once")
    peer = door.accept()
    peer.launch()
    peer.half_close()
    peer.ended()
    ended(program, 0)
    assert notes(tmp_path / "teardown") == [0]


def test_once_what_is_no_stage_and_a_server_that_took_nobody_are_failures(worker, door, tmp_path):
    found = spoken(tmp_path, "worker", "run", "pathlib:Path", "--connect", "t", "--once")
    assert (found.status, "Path is not a stage" in found.refusal) == (1, True)
    program = worker(SQUARE, "--once")
    peer = door.accept()
    peer.expect(Kind.HELLO)
    peer.close()
    assert "the server at s closed the connection before it accepted this worker" in ended(program, 1)


@pytest.mark.parametrize("when", ["instead of a launch", "between batches"])
def test_sent_away_it_says_why_and_fails(worker, door, tmp_path, when):
    program = worker()
    peer = door.accept()
    if when == "between batches":
        peer.launch()
    else:
        peer.expect(Kind.HELLO)
    peer.control(Kind.FAILED, {"message": "the 65th"})
    peer.close()
    assert "the server at s rejected this worker: the 65th" in ended(program, 1)
    assert notes(tmp_path / "teardown") == []


@pytest.mark.parametrize("source", [SQUARE, BLOCKED], ids=["Python", "a call in C"])
def test_sent_away_while_predict_hangs_it_ends_all_the_same(worker, door, source):
    program = worker(source)
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"15")
    peer.batch(2, b"15")
    peer.control(Kind.FAILED, {"message": "a batch ran for 2 s"})
    peer.close()
    assert "the server at s rejected this worker: a batch ran for 2 s" in ended(program, 1)


@pytest.mark.parametrize("half_a_frame", [True, False])
def test_a_batch_that_goes_on_without_a_server_ends_the_worker(door, caplog, half_a_frame):
    begun, stuck, ends = threading.Event(), threading.Event(), queue.SimpleQueue()

    def square(_: float) -> float:
        begun.set()
        stuck.wait(PATIENCE_SECONDS)
        return 0.0

    leaving = Leaving()
    worker = AttachedWorker(
        square,
        Attachment(str(door.path)),
        leaving,
        on_launch=mock.Mock(),
        on_loaded=mock.Mock(),
        end_process=ends.put,
    )
    worker._abandonment = Abandonment(0.05, has_examples=False)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        peer = door.accept()
        peer.launch()
        peer.batch(1, b"3")
        assert begun.wait(PATIENCE_SECONDS)
        if half_a_frame:  # a batch of more than a socket holds, before what the server has to say
            peer.sock.sendall(b"".join(encode_control(Kind.BATCH, bytes(1000)))[:500])
        peer.close()
        assert ends.get(timeout=PATIENCE_SECONDS) == 1
        assert "lost the connection to the server and an abandoned batch keeps running" in caplog.text
        assert "<locals>.square" in caplog.text
    finally:
        leaving.ask()
        stuck.set()
        running.join(PATIENCE_SECONDS)


def test_without_a_server_a_batch_has_as_long_as_one_that_nobody_waits_for_and_a_setup_any_time(tmp_path):
    leaving, never = Leaving(), mock.Mock(side_effect=AssertionError)
    attachment = Attachment(str(tmp_path / "nobody"))
    worker = AttachedWorker(abs, attachment, leaving, on_launch=never, on_loaded=never, end_process=never)
    assert worker._patience() == math.inf
    leaving.serve(mock.Mock(), mock.Mock())
    assert worker._patience() == Abandonment(None, has_examples=False).limit(start_seconds=0.0, has_answered=False)


FOOLISH = {
    "a launch that is none": lambda peer: peer.control(Kind.LAUNCH, {"stage": 4}),
    "a pickle": lambda peer: peer.batch(1, b"\x80\x05.", codec=Codec.PICKLE),
    "an unknown format": lambda peer: peer.batch(1, b"1", codec=9),
    "a check where there is no health": lambda peer: peer.control(Kind.CHECK),
    "no frame": lambda peer: peer.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(30)),
}


def test_a_foolish_server_is_left_and_tried_again(worker, door, tmp_path):
    program = worker()
    for n, (name, send) in enumerate(FOOLISH.items()):
        with named(name):
            peer = door.accept()
            if "launch" in name:
                peer.expect(Kind.HELLO)
            else:
                peer.launch()
            send(peer)
            peer.ended()
            program.wait_for("(?s)" + "protocol error from the server at s, disconnecting: .*" * (n + 1))
    assert "invalid JSON in a LAUNCH: Expected `str`, got `int` - at `$.stage`" in program.output
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"2")
    assert peer.answers(1) == [(Status.OK, 4.0)]
    assert len(notes(tmp_path / "setup")) == 1


def test_connections_that_come_and_go_leave_nothing_open(worker, door):
    program = worker()
    seen = []
    for _ in range(5):
        peer = door.accept()
        peer.launch()
        seen.append((descriptors(program.pid), len(list(Path(f"/proc/{program.pid}/task").iterdir()))))
        peer.half_close()
        peer.ended()
    assert len(set(seen)) == 1, seen


# -- the setup --------------------------------------------------------------------------------------------------------


def test_a_setup_that_fails_is_told_to_the_server_and_ends_it(worker, door):
    program = worker(SETUP_FAILS)
    peer = door.accept()
    peer.expect(Kind.HELLO)
    peer.control(Kind.LAUNCH, LAUNCH)
    failure = peer.message(Kind.FAILED)
    assert (failure["type"], failure["message"]) == ("builtins.OSError", "no weights")
    peer.ended()
    output = ended(program, 1)
    assert failure["traceback"].rstrip() in output
    assert "stage 'square': setup failed" in output


def test_an_example_that_fails_is_told_too(worker, door):
    worker(SQUARE.replace("examples = [2.0]", "examples = [13.0]"))
    peer = door.accept()
    peer.expect(Kind.HELLO)
    peer.control(Kind.LAUNCH, LAUNCH)
    assert peer.message(Kind.FAILED)["message"] == "thirteen"


def test_a_class_that_takes_batches_refuses_a_service_that_gives_single_items(worker, door):
    program = worker(TOGETHER)
    peer = door.accept()
    peer.expect(Kind.HELLO)
    peer.control(Kind.LAUNCH, LAUNCH)
    assert "receives one item at a time, but Square has a batch policy" in peer.message(Kind.FAILED)["message"]
    ended(program, 1)


def test_a_class_for_single_items_refuses_a_service_that_gives_batches(worker, door):
    program = worker(SQUARE)
    peer = door.accept()
    peer.expect(Kind.HELLO)
    peer.control(Kind.LAUNCH, {**LAUNCH, "batched": True, "max_size": 4})
    assert "list" in peer.message(Kind.FAILED)["message"]
    ended(program, 1)


# -- the process ------------------------------------------------------------------------------------------------------


def test_sighup_does_nothing_and_sigusr1_tells_the_stacks(worker, door, tmp_path):
    program = worker()
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"15")
    until_now(lambda: len(notes(tmp_path / "predict")) == 2, "the batch that holds")
    program.signal(signal.SIGHUP)
    program.signal(signal.SIGUSR1)
    program.wait_for(r"SIGUSR1: the threads of this worker:\n(?s:.*) in Square\.predict")
    (tmp_path / "open").touch()
    assert peer.answers(1) == [(Status.OK, 225.0)]


def test_what_the_stage_forks_has_the_defaults_and_keeps_no_connection(worker, door, tmp_path):
    program = worker(
        """
import os, signal
from pathlib import Path
import penstock as ps

class Square(ps.Stage):
    def predict(self, x: float) -> int:
        child = os.fork()
        if not child:
            Path("forked").touch()
            while True:
                signal.pause()
        return child
"""
    )
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"1")
    ((_, child),) = peer.answers(1)
    until_now(lambda: (tmp_path / "forked").exists(), "the child")
    os.kill(program.pid, signal.SIGKILL)
    peer.ended()
    assert running(child)
    os.kill(child, signal.SIGTERM)
    until_now(lambda: not running(child), "the end of the child")


@pytest.mark.parametrize("where", ["setup", "predict"])
def test_a_fork_that_comes_back_from_the_stage_ends(worker, door, tmp_path, where):
    program = worker(
        f"""
import os, sys
from pathlib import Path
import penstock as ps

def fork(where):
    if where == {where!r}:
        child = os.fork()
        if not child:
            sys.exit(5)
        Path("child.new").write_text(str(child))
        os.rename("child.new", "child")
        Path("status").write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))

class Square(ps.Stage):
    def setup(self):
        fork("setup")

    def predict(self, x: float) -> float:
        fork("predict")
        return x * x
"""
    )
    peer = door.accept()
    peer.launch()
    peer.batch(1, b"3")
    assert peer.answers(1) == [(Status.OK, 9.0)]
    assert (tmp_path / "status").read_text() == "1"
    program.signal(signal.SIGTERM)
    peer.expect(Kind.DETACH)
    peer.half_close()
    assert "could not be set up" not in ended(program, 0)


def test_cores_are_pinned_before_the_module_is_imported(worker, door, tmp_path):
    core = min(os.sched_getaffinity(0))
    worker(SQUARE, "--cpus", f"{core}")
    door.accept().launch()
    assert notes(tmp_path / "imported") == [[core]]


def test_lines_say_who_writes_them(worker, door):
    program = worker(
        """
import logging
import penstock as ps

class Square(ps.Stage):
    def predict(self, x: float) -> float:
        print("printed", x)
        logging.getLogger("mine").info("logged %s", x)
        return x
""",
        *("--log-format", "json", "--log-level", "warning,mine=info"),
    )
    peer = door.accept()
    peer.launch(index=3)
    peer.batch(1, b"1", request_ids=b"abc")
    peer.answers(1)
    program.wait_for("logged")
    program.wait_for("printed")
    lines = {line["logger"]: line for line in map(json.loads, program.output.splitlines())}
    assert set(lines) == {"mine", "sys.stdout"}
    for line in lines.values():
        assert (line["service"], line["stage"], line["worker"]) == ("shop", "square", 3)
        assert line["request_ids"] == ["abc"]


@pytest.mark.parametrize(
    ("target", "options", "status", "words"),
    [
        ("model:Square", ("--setup", "{"), 2, "--setup must be a JSON object, such as '{\"factor\": 2}', got '{'"),
        ("model:Square", ("--cpus", "first"), 2, "--cpus must be numbers of cores, such as 0,1, got 'first'"),
        ("model:Square", ("--stage", ""), 2, "--stage must be the name of a stage"),
        (
            "model:Square",
            ("--connect", "s" * 200),
            2,
            "--connect: the path of a socket has at most 107 bytes, got 'sss",
        ),
        ("model:Square", ("--connect", ""), 2, "--connect must be the path of a socket"),
        ("model:Square", ("--log-format", "xml"), 2, "--log-format (or PENSTOCK_LOG_FORMAT) must be one of"),
        ("model:Square", ("--onse",), 2, "did you mean --once?"),
        ("model:Square", ("--cpus", "4000"), 1, "are not among the allowed cores"),
        ("model:Square", ("--setup", '{"a": 1}'), 1, "setup() got an unexpected keyword argument 'a'"),
        ("model:Squares", (), 1, "model has no 'Squares'; it has model:Square, model:Broken"),
        ("model", (), 1, "'model' does not name a stage: write model:Square or model:Broken"),
        ("model:service", (), 1, "model:service is a service: a worker needs the class itself"),
        ("model:spec", (), 1, "model:spec is a description of a stage"),
        ("model:Broken", (), 1, "Broken has no predict method"),
        ("model:number", (), 1, "a stage is a class or a function, got 4"),
        (".", (), 1, "'.' does not name a stage: write module:Square, or model.py:Square"),
        ("./out", (), 1, "a worker needs a stage, as in module:Square"),
        ("fails:Square", (), 1, "ValueError: at import"),
        (
            "model:Square",
            ("--connect", "model.py"),
            1,
            "cannot connect to model.py: not a socket",
        ),
        ("model:Square", ("--connect", "nothing", "--once"), 1, "cannot connect to nothing: no server is listening"),
        (
            "model:Square",
            ("--setup", '{"faktor": 2}'),
            1,
            "it takes factor, passed as penstock.stage(..., setup={...}), or",
        ),
        ("model:Square", ("--connect", "model.py/s"), 1, "cannot connect to model.py/s: Not a directory"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(tmp_path, target, options, status, words):
    (tmp_path / "model.py").write_text(
        SQUARE + "\nservice = ps.Service(Square)\nspec = ps.stage(Square)\nnumber = 4\nclass Broken(ps.Stage): pass\n"
    )
    (tmp_path / "fails.py").write_text("raise ValueError('at import')\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").touch()
    found = spoken(tmp_path, "worker", "run", target, "--connect", "s", *options)
    assert (found.status, found.out, words in found.err) == (status, "", True), found.err
    assert "src/penstock" not in found.err


def test_what_cannot_be_is_an_object_where_lines_are(tmp_path):
    (tmp_path / "fails.py").write_text("raise ValueError('at import')\n")
    status, output = run(tmp_path, "worker", "run", "fails:Square", "--connect", "s", "--log-format", "json")
    (line,) = map(json.loads, output.splitlines())
    assert (status, line["message"]) == (1, "ValueError: at import")
    assert 'fails.py", line 1' in line["traceback"]


def test_the_socket_must_be_named(tmp_path):
    found = spoken(tmp_path, "worker", "run", "model:Square")
    assert (found.status, "--connect" in found.refusal) == (2, True)
