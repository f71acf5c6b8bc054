"""How log lines look."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys

import pytest

from penstock.hosting.logs import TEXT, JsonLines, StageLines, TextLines, dropped_notice, set_up_logging


def line(message, *args, exc_info=None, **extra):
    record = logging.getLogger("penstock.server").makeRecord(
        "penstock.server", logging.ERROR, __file__, 1, message, args, exc_info, extra=extra
    )
    text = JsonLines().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_record_is_one_json_object_with_its_extras():
    found = line("%s: gone\nreally", "abc", request_id="abc", status=500)
    assert found["message"] == "abc: gone\nreally"
    assert (found["level"], found["logger"]) == ("error", "penstock.server")
    assert (found["request_id"], found["status"]) == ("abc", 500)
    assert found["time"].endswith("+00:00")
    assert set(found) == {"time", "level", "logger", "message", "request_id", "status"}


def test_an_exception_is_a_field_of_its_own():
    try:
        raise ValueError("boom")
    except ValueError:
        found = line("failed", exc_info=sys.exc_info())
    assert "ValueError: boom" in found["traceback"]


def test_a_stack_is_a_field_of_its_own():
    record = logging.LogRecord("a", logging.INFO, "", 1, "here", (), None, sinfo="Stack (most recent call last):\n  x")
    assert json.loads(JsonLines().format(record))["stack"] == "Stack (most recent call last):\n  x"


def test_what_json_cannot_carry_is_written_all_the_same():
    found = line("bad \ud800", thing=object, text="\udfff")
    assert found["message"] == "bad \\ud800"
    assert found["thing"] == "<class 'object'>"
    assert found["text"] == "\\udfff"


class Shy:
    def __repr__(self):
        raise RuntimeError("not for you")


class Text(str):
    __slots__ = ()


class Ids(tuple):
    __slots__ = ()


def holds_itself():
    found = []
    found.append(found)
    return found


def nested(depth=100_000):
    found = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Shy(), "<Shy: cannot be shown>"),
        ([1, Shy()], [1, "<Shy: cannot be shown>"]),
        ({Shy(): 1, (1, 2): 3}, {"<Shy: cannot be shown>": 1, "(1, 2)": 3}),
        ({"a": ["\ud800"]}, "{'a': ['\\ud800']}"),
        ({"\ud800": 1}, "{'\\ud800': 1}"),
        (holds_itself(), "[[...]]"),
        (nested(), "<list: cannot be shown>"),
        (10**30, 10**30),
        (10**5000, "<int: cannot be shown>"),
        (float("nan"), None),
        ([Text("plain"), Text("\ud800")], ["plain", "\\ud800"]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_field_that_json_cannot_carry_costs_no_other_field(value, shown):
    found = line("whole", fuel=0.5, odd=value, request_ids=("a",))
    assert (found["message"], found["fuel"], found["request_ids"]) == ("whole", 0.5, ["a"])
    assert found["odd"] == shown


@pytest.mark.parametrize("name", ["\ud800", 1, (1, 2)])
def test_a_field_with_an_odd_name_is_written(name):
    record = logging.makeLogRecord({"msg": "x", "levelname": "INFO"})
    vars(record)[name] = object  # as `extra={name: object}` would
    found = json.loads(JsonLines().format(record))
    assert (found["message"], list(found.values())[-1]) == ("x", "<class 'object'>")


@pytest.mark.parametrize("given", [7, "mine", ["a"], ("a", 1), Ids("ab"), (Text("a"),), Shy(), holds_itself()])
def test_request_ids_of_the_user_are_written_as_any_extra(given):
    found = line("x", request_ids=given)
    assert "request_ids_left_out" not in found
    assert found["message"] == "x"
    assert "request_ids" in found
    record = logging.makeLogRecord({"name": "my", "levelname": "INFO", "msg": "x", "stage": "M", "worker": 1})
    record.request_ids = given
    assert StageLines(TEXT).format(record).endswith(" INFO my [M/1]: x")


def test_a_text_line_is_not_lost_for_what_stands_in_the_place_of_a_mark():
    record = logging.makeLogRecord({"name": "my", "levelname": "INFO", "msg": "x", "stage": Shy(), "worker": Shy()})
    assert StageLines(TEXT).format(record).endswith(" [<Shy: cannot be shown>/<Shy: cannot be shown>]: x")


def test_an_extra_with_the_name_of_a_field_of_ours_is_written_beside_it():
    found = line("x", level="theirs", logger="theirs", time=7, traceback="theirs", extra_level="too")
    assert (found["level"], found["logger"], found["traceback"]) == ("error", "penstock.server", "theirs")
    assert (found["extra_level"], found["extra_logger"], found["extra_time"]) == ("theirs", "theirs", 7)
    assert found["extra_extra_level"] == "too"
    found = line("x", exc_info=(ValueError, ValueError("boom"), None), traceback="theirs")
    assert (found["traceback"], found["extra_traceback"]) == ("ValueError: boom", "theirs")
    found = line("x", request_ids_left_out="theirs", request_ids=("i" * 1999, "j"))
    assert (found["request_ids_left_out"], found["extra_request_ids_left_out"]) == (2, "theirs")


def test_request_ids_are_as_many_as_a_line_has_room_for():
    assert line("x", request_ids=())["request_ids"] == []
    ids = tuple("i" * 17 for _ in range(100))  # 20 bytes each with quotes and comma: what IDS_BYTES takes
    found = line("x", request_ids=ids)
    assert found["request_ids"] == list(ids)
    assert "request_ids_left_out" not in found
    found = line("x", request_ids=(*ids, "a", "b"))
    assert (found["request_ids"], found["request_ids_left_out"]) == (list(ids), 2)
    assert line("x", request_ids="of the user")["request_ids"] == "of the user"


@pytest.mark.parametrize(
    ("message", "arguments", "words"),
    [
        ("bad %d", ("x",), "bad %d ('x',): TypeError("),
        ("bad %s", (Shy(),), "bad %s <tuple: cannot be shown>: RuntimeError('not for you')"),
        (Shy(), (), "<Shy: cannot be shown> (): RuntimeError('not for you')"),
    ],
    ids=["kind", "argument", "message"],
)
def test_a_message_that_cannot_be_made_is_an_object_that_says_where(message, arguments, words):
    found = line(message, *arguments, fuel=0.5)
    assert found["message"].startswith(words)
    assert found["message"].endswith(f" at {__file__}:1")
    assert found["fuel"] == 0.5


def test_a_message_that_ends_a_line_ends_it_once():
    """As those of `logging.captureWarnings` do."""
    assert line("old\n  warn()\n\n")["message"] == "old\n  warn()"
    record = logging.makeLogRecord({"name": "my", "levelname": "INFO", "msg": "old\n\n"})
    assert StageLines(TEXT).format(record).endswith(" INFO my: old")
    record.stage, record.worker, record.exc_text = "M", 1, "Traceback"
    assert StageLines(TEXT).format(record).endswith(" INFO my [M/1]: old\nTraceback")


def test_a_text_line_of_nobodys_worker_is_as_the_others():
    record = logging.makeLogRecord({"name": "my", "levelname": "INFO", "msg": "x"})
    assert StageLines(TEXT).format(record) == TextLines(TEXT).format(record)


def test_a_text_line_of_a_stage_says_where_it_comes_from():
    record = logging.makeLogRecord({"name": "my", "levelname": "INFO", "msg": "x", "stage": "M", "worker": 1})
    assert StageLines(TEXT).format(record).endswith(" INFO my [M/1]: x")
    record.request_ids = ("", "a")
    assert StageLines(TEXT).format(record).endswith(" INFO my [M/1 a]: x")
    record.request_ids = tuple(map(str, range(12)))
    assert StageLines(TEXT).format(record).endswith(" INFO my [M/1 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more]: x")


@pytest.fixture
def penstock_logger():
    logger = logging.getLogger("penstock")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield logger
    set_up_logging("text")
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])  # which also forgets what was cached


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_setting_up_twice_writes_each_line_once(penstock_logger, log_format):
    old, new = io.StringIO(), io.StringIO()
    set_up_logging(log_format, stream=old)
    set_up_logging(log_format, stream=new)
    logging.getLogger("penstock.access").info("hello")
    assert not old.getvalue()
    (written,) = new.getvalue().splitlines()
    assert written.startswith("{") == (log_format == "json")
    assert "hello" in written


def test_the_level_is_for_all_loggers_of_ours_unless_they_are_named(penstock_logger):
    stream = io.StringIO()
    set_up_logging("text", "warning,penstock.access=info,penstock.runtime=error,my.model=debug", stream=stream)
    for name in ("access", "runtime", "server"):
        logging.getLogger(f"penstock.{name}").info("%s info", name)
        logging.getLogger(f"penstock.{name}").warning("%s warning", name)
    assert [line.split(": ")[1] for line in stream.getvalue().splitlines()] == [
        "access info",
        "access warning",
        "server warning",
    ]
    assert logging.getLogger("my.model").level == logging.NOTSET  # a program's logging is its own
    set_up_logging("text", "info", stream=stream)
    assert logging.getLogger("penstock.runtime").isEnabledFor(logging.INFO)


@pytest.mark.parametrize("spoil", ["closed", "full"])
def test_a_stream_that_takes_no_line_is_no_error(penstock_logger, capsys, spoil):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        stream = io.StringIO() if spoil == "closed" else full
        set_up_logging("text", stream=stream)
        if spoil == "closed":
            stream.close()
        logging.getLogger("penstock.server").error("lost")
        with contextlib.suppress(OSError):
            stream.close()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("created", [0.0, 0.9994, 0.25, 1.0, 1e9 + 0.5, 1e9 + 0.75, 1e9 - 1])
def test_the_time_of_a_text_line_is_that_of_logging(created):
    ours, theirs = TextLines("%(asctime)s"), logging.Formatter("%(asctime)s")
    for moment in (created, created + 0.1, created + 1, created):
        record = logging.makeLogRecord({"msg": "x"})
        record.created, record.msecs = moment, (moment % 1) * 1000
        assert ours.format(record) == theirs.format(record)


def test_where_there_is_no_standard_error_lines_are_lost_without_a_word(penstock_logger, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    set_up_logging("text")
    logging.getLogger("penstock.server").error("lost")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_notice_of_dropped_lines_looks_as_the_other_lines(penstock_logger, log_format):
    set_up_logging(log_format, stream=io.StringIO())
    words = "12 log lines were dropped: the reader of the output is too slow, or they could not be written"
    notice = dropped_notice(12)
    if log_format == "json":
        assert json.loads(notice)["message"] == words
    else:
        assert notice.endswith(f"WARNING penstock.server: {words}")


def test_without_a_log_of_ours_the_notice_is_a_plain_line(penstock_logger):
    for handler in list(penstock_logger.handlers):
        penstock_logger.removeHandler(handler)
    assert dropped_notice(3) == (
        "penstock: 3 log lines were dropped: the reader of the output is too slow, or they could not be written"
    )
