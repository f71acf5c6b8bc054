"""Printed lines as JSON objects."""

from __future__ import annotations

import json

import pytest

from penstock.hosting.printed_objects import MAX_LINE_BYTES, PrintedObjects


def printed(encoding="utf-8"):
    return PrintedObjects(lambda words, _: json.dumps(words), dict, encoding)


def lines(data):
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def test_each_line_is_an_object_however_it_comes():
    text = "one\ntwo é\n\nthree".encode()
    for cut in range(len(text) + 1):
        objects = printed()
        found = lines(objects.feed(text[:cut])) + lines(objects.feed(text[cut:]))
        assert found == ["one", "two é"]
        assert lines(objects.rest()) == ["three"]
        assert objects.rest() == b""


def test_a_progress_bar_is_lines():
    objects = printed()
    assert lines(objects.feed(b"\r 10 %\r 20 %")) == [" 10 %"]
    assert lines(objects.feed(b"\r\n")) == [" 20 %"]


def test_a_line_without_an_end_is_not_kept_for_ever():
    objects = printed()
    assert objects.feed(b"x" * MAX_LINE_BYTES) == b""
    assert lines(objects.feed(b"x" * MAX_LINE_BYTES + b"y")) == ["x" * MAX_LINE_BYTES] * 2
    assert lines(objects.rest()) == ["y"]


class Printing:
    """Prints as several calls of a stage do; each object is the words and the call's name."""

    def __init__(self):
        self.call = "setup"
        self.objects = PrintedObjects(lambda words, marks: json.dumps([words, marks["call"]]), self.marks, "utf-8")

    def marks(self):
        return {"call": self.call}

    def during(self, call, *pieces):
        self.call = call
        return lines(b"".join(map(self.objects.feed, pieces)))


def test_what_a_call_leaves_without_an_end_is_a_line_of_that_call():
    printing = Printing()
    assert printing.during("one", b"load", b"ing") == []
    assert printing.during("two", b"a\nb\nc") == [["loading", "one"], ["a", "two"], ["b", "two"]]
    assert printing.during("two", b"d") == []
    printing.call = "teardown"
    assert lines(printing.objects.rest()) == [["cd", "two"]]


def test_a_line_that_came_in_pieces_has_the_marks_of_its_call():
    printing = Printing()
    assert printing.during("one", b"a ", b"b", b"\n") == [["a b", "one"]]
    assert printing.during("two", b"\n") == []


def test_what_is_no_text_is_told_all_the_same():
    assert lines(printed().feed(b"\xff\n")) == ["\\xff"]
    assert lines(printed(encoding="latin-1").feed(b"\xe9\n")) == ["é"]


@pytest.mark.parametrize("level", ["level", "levelname", "severity"])
def test_an_object_of_a_users_logger_stays_as_it_is(level):
    line = b'{"event": "x", "%s": "info"}\n' % level.encode()
    assert printed().feed(line) == line


@pytest.mark.parametrize("line", ['{"event": "x"}', '{"level": ', "{}", "{level}", '["level"]'])
def test_anything_else_is_a_printed_line(line):
    assert lines(printed().feed(line.encode() + b"\n")) == [line]
