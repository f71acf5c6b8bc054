"""What is written of failures: each once, in few lines, and none is lost."""

from __future__ import annotations

import json
import logging
import re

import pytest

from penstock.codec.text import cut_middle
from penstock.core.fault_lines import FaultKind
from penstock.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidItem,
    NotReady,
    Overloaded,
    RequestError,
    StageFailed,
    WorkerLost,
)
from penstock.hosting.fault_log import LINE_BYTES, BatchFaults, FaultLog
from penstock.hosting.logs import JsonLines
from penstock.testing.virtual_clock import VirtualClock


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def faults(clock):
    return FaultLog(clock)


def failed(message="bad 1", at="model.py:12", traceback=None):
    trace = f"Traceback\n  line 12\nValueError: {message}\n" if traceback is None else traceback
    return StageFailed(message, stage="price", type_name="builtins.ValueError", traceback=trace, raised_at=at)


def test_a_failure_is_written_once_with_its_traceback_under_its_id(faults, caplog):
    faults.report(failed("too cold"), ("abc",))
    (record,) = caplog.records
    assert logging.Formatter().format(record) == (
        "abc: stage 'price' raised builtins.ValueError at model.py:12\n\nTraceback\n  line 12\nValueError: too cold"
    )
    assert (record.name, record.levelname) == ("penstock.server", "ERROR")
    assert (record.request_ids, record.stage, record.error) == (("abc",), "price", "builtins.ValueError")


def test_in_json_a_failure_has_its_ids_and_its_traceback_as_the_line_of_a_stage_has_them(faults, caplog):
    faults.report(failed("too cold"), ("abc:3", "abc:5"))
    faults.report(failed(), [f"{'i' * 128}:{n}" for n in range(99_990, 99_999)] + ["i"] * 5, 30_000)
    faults.report(WorkerLost(stage="price"), ("b",))
    first, second, third = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert first["message"] == "abc:3, abc:5: stage 'price' raised builtins.ValueError at model.py:12"
    assert first["traceback"] == "Traceback\n  line 12\nValueError: too cold"
    assert first["request_ids"] == ["abc:3", "abc:5"]
    assert (len(second["request_ids"]), second["request_ids_left_out"]) == (10, 29_990)
    assert third["request_ids"] == ["b"]
    assert not {"traceback", "request_ids_left_out"} & third.keys()
    assert not any("request_id" in found for found in (first, second, third))


def test_a_level_above_errors_leaves_out_failures(clock, caplog):
    logger = logging.getLogger("penstock.tests.silent")
    logger.setLevel(logging.CRITICAL)
    FaultLog(clock, logger).report(failed(), ("abc",))
    assert not caplog.records


async def test_who_reports_learns_how_many_ids_a_line_names(faults):
    told = [faults.report(failed(), ("a",)) for _ in range(30)]
    assert told == [1] * 11 + [0] * 19
    assert faults.report(WorkerLost(stage="price"), [f"{'i' * 128}:{n}" for n in range(20)], 30) == 3
    assert faults.report(WorkerLost(stage="price"), [f"{n}" for n in range(20)], 30) == 10
    assert faults.report(InvalidItem(), ("a",)) == 0
    faults.flush()


def test_a_log_that_leaves_out_failures_names_no_id(clock):
    logger = logging.getLogger("penstock.tests.quiet")
    logger.setLevel(logging.CRITICAL)
    quiet = FaultLog(clock, logger)
    assert (quiet.report(failed(), ("abc",)), quiet.writes, FaultLog(clock).writes) == (0, False, True)


def test_the_same_failure_again_is_one_line(faults, caplog):
    faults.report(failed("one"), ("a",))
    faults.report(failed("two\nthree"), ("b",))
    assert caplog.messages[1] == "b: stage 'price' raised builtins.ValueError at model.py:12: two"


def test_a_failure_without_a_traceback_is_a_line_with_its_message(faults, caplog):
    faults.report(failed("gone", at="", traceback=""), ("a",))
    faults.report(WorkerLost(stage="price"), ("b",))
    faults.report(RequestError("odd"), ("c:3",))
    faults.report(StageFailed("model says no", stage="price"), ("d",))
    assert caplog.messages == [
        "a: stage 'price' raised builtins.ValueError: gone",
        "b: The worker process died, or hung, while it ran this item.",
        "c:3: odd",
        "d: stage 'price' raised an error without a class: model says no",
    ]
    assert [record.request_ids for record in caplog.records] == [("a",), ("b",), ("c:3",), ("d",)]
    assert caplog.records[1].stage == "price"


def test_of_a_result_that_cannot_be_encoded_nothing_is_said_to_be_raised(faults, caplog):
    faults.report(StageFailed("no", stage="price", type_name="penstock.codec.encode.EncodeFailed"), ("a",))
    assert caplog.messages == ["a: stage 'price' returned a result that cannot be encoded: no"]


@pytest.mark.parametrize("error", [InvalidItem(), Overloaded(), DeadlineExceeded(), NotReady(), Cancelled()], ids=repr)
def test_what_is_no_fault_is_not_written(faults, caplog, error):
    faults.report(error, ("a",))
    batch = BatchFaults()
    batch.add(error, "a:0")
    batch.report(faults)
    assert not caplog.records


async def test_of_a_thousand_in_a_second_each_is_named_or_counted(faults, clock, caplog):
    for n in range(1000):
        faults.report(failed(f"bad {n}"), (f"id{n}",))
        if n % 100 == 99:
            await clock.advance(0.1)
    await clock.advance(1.0)
    assert clock.waiting == []
    named = [text for text in caplog.messages if text.startswith("id")]
    counted = [re.search(r"(\d+) more failures", text) for text in caplog.messages if not text.startswith("id")]
    assert len(named) + sum(int(found[1]) for found in counted) == 1000
    assert sum(bool(record.exc_text) for record in caplog.records) == 1
    assert len(caplog.messages) <= 1 + 2 * 10 + 2


async def test_a_count_says_of_what_how_many_and_is_a_line_a_second(faults, clock, caplog):
    for _ in range(11):
        faults.report(failed(), ("a",))
    faults.report(failed(), ("a", "b"), 412)
    caplog.clear()
    await clock.advance(1.0)
    (record,) = caplog.records
    assert record.getMessage() == (
        "stage 'price': 412 more failures of the kind builtins.ValueError at model.py:12 in the last second"
    )
    assert (record.stage, record.error, record.failures) == ("price", "builtins.ValueError", 412)


async def test_two_kinds_are_each_counted_in_their_own_second(faults, clock, caplog):
    for at, pause in (("a.py:1", 0.5), ("b.py:2", 0.0)):
        for _ in range(12):
            faults.report(failed(at=at), ("a",))
        await clock.advance(pause)
    caplog.clear()
    await clock.advance(0.5)
    assert ["a.py:1" in text for text in caplog.messages] == [True]
    await clock.advance(0.5)
    assert ["b.py:2" in text for text in caplog.messages] == [False, True]
    assert clock.waiting == []


async def test_a_flush_writes_what_is_counted_and_leaves_no_timer(faults, clock, caplog):
    for _ in range(15):
        faults.report(failed(), ("a",))
    caplog.clear()
    faults.flush()
    faults.flush()
    assert [text.split()[2] for text in caplog.messages] == ["4"]
    assert clock.waiting == []


async def test_kinds_that_are_not_told_apart_are_counted_as_other_kinds(faults, clock, caplog):
    for n in range(115):
        faults.report(failed(at=f"m.py:{n}"), ("a",))
    caplog.clear()
    await clock.advance(1.0)
    assert caplog.messages == ["4 more failures of other kinds in the last second"]


async def test_the_count_of_a_loop_that_has_ended_is_written_with_the_next_failure(faults, clock, caplog):
    for _ in range(12):
        faults.report(failed(), ("a",))
    faults._timer.cancel()  # as it is where its loop was closed: it never rings
    await clock.advance(2.5)
    for _ in range(11):
        faults.report(failed(), ("a",))
    await clock.advance(1.0)
    counts = [text.split()[2] for text in caplog.messages if "more failures" in text]
    assert sum(map(int, counts)) == 2


async def test_a_fork_does_not_write_what_its_parent_has_counted(faults, caplog, monkeypatch):
    for _ in range(12):
        faults.report(failed(), ("a",))
    caplog.clear()
    monkeypatch.setattr("penstock.hosting.fault_log.os.getpid", lambda: -1)
    faults._at_exit()
    assert caplog.messages == []
    monkeypatch.undo()
    faults._at_exit()
    assert len(caplog.messages) == 1
    faults.flush()


@pytest.mark.parametrize(("n", "named"), [(1, 1), (10, 10), (11, 10), (400, 10)])
def test_a_line_names_ten_ids_and_says_how_many_more(faults, caplog, n, named):
    ids = [f"id:{i}" for i in range(min(n, 20))]
    faults.report(failed(), ids, n)
    who = caplog.messages[0].partition(": stage")[0]
    assert who.count("id:") == named
    assert who.endswith(f" and {n - named} more") == (n > named)


def test_no_line_is_longer_than_a_kibibyte_and_each_keeps_an_id(faults, caplog):
    faults.report(failed("é" * 5000), ("x",))
    longest = "i" * 128
    faults.report(failed("é" * 5000), [f"{longest}:{n}" for n in range(10)], 100_000)
    line = caplog.messages[1]
    assert len(line.encode()) <= LINE_BYTES
    assert line.startswith(f"{longest}:0, {longest}:1, {longest}:2 and 99997 more: stage 'price'")


def test_a_line_says_how_long_a_message_was_before_it_was_cut_for_the_first_time(faults, caplog):
    message = cut_middle("m" * 100_000, 8192)
    for _ in range(2):
        faults.report(failed(message), ("x",))
    assert "[... cut: 100000 characters in all ...]" in caplog.messages[1]


# -- a client batch ---------------------------------------------------------------------------------------------------


def test_what_many_items_share_is_written_once(faults, caplog):
    batch = BatchFaults()
    for n in range(300):
        batch.add(failed("broken"), f"r:{n}")
    assert batch.report(faults) == {f"r:{n}" for n in range(10)}
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("r:0, r:1, r:2, r:3, r:4, r:5, r:6, r:7, r:8, r:9 and 290 more: stage")


async def test_texts_that_differ_are_lines_of_their_own_as_long_as_there_are_lines(faults, clock, caplog):
    batch = BatchFaults()
    for n in range(100_000):
        batch.add(failed(f"bad {n}"), f"r:{n}")
    assert batch.report(faults) == {f"r:{n}" for n in range(11)}
    assert [text.partition(":")[2].split(":")[0] for text in caplog.messages] == [f"{n}" for n in range(11)]
    await clock.advance(1.0)
    assert "99989 more failures" in caplog.messages[-1]
    assert len(caplog.messages) == 12


# -- workers that do not start ----------------------------------------------------------------------------------------


async def test_starts_that_fail_again_are_lines_and_their_traceback_comes_once(clock, caplog):
    faults = FaultLog(clock, logging.getLogger("penstock.runtime"))
    kind = FaultKind("price", "builtins.OSError", "model.py:3")
    what = "worker 0 could not be set up"
    for _ in range(3):
        faults.report_start(kind, what, f"{what}: OSError: gone", "Traceback\nOSError: gone")
    faults.report_start(FaultKind("price", "", ""), what, "worker 0 ended before it was ready: exit status 3", "")
    assert caplog.messages == [
        "worker 0 could not be set up: builtins.OSError at model.py:3",
        "worker 0 could not be set up: OSError: gone",
        "worker 0 could not be set up: OSError: gone",
        "worker 0 ended before it was ready: exit status 3",
    ]
    assert [record.exc_text for record in caplog.records] == ["\nTraceback\nOSError: gone", None, None, None]
    assert {record.name for record in caplog.records} == {"penstock.runtime"}
    for _ in range(20):
        faults.report_start(kind, what, "again", "Traceback")
    await clock.advance(1.0)
    assert "12 more failures" in caplog.messages[-1]
