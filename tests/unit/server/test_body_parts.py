"""A body that another server hands over in parts lies in a piece where its length was announced, and else inline."""

from __future__ import annotations

import pytest

from penstock.core.arriving import ArrivingBody
from penstock.server.application import HttpRequest
from penstock.server.body_parts import BodyParts
from penstock.testing.virtual_clock import VirtualClock

LARGE = 4096


class App:
    """Gives each body a piece of its own, unless it is `full`, and notes what it is told."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.full = False
        self.asked: list[ArrivingBody] = []
        self.ended: list[ArrivingBody] = []

    def piece_for(self, request, body):
        assert isinstance(request, HttpRequest)
        self.asked.append(body)
        return None if self.full or body.chunked else memoryview(bytearray(body.announced))

    def arrived(self, request, body):
        assert isinstance(request, HttpRequest)
        self.ended.append(body)


@pytest.fixture
def app():
    return App()


def parts_of(app, announced=None):
    headers = {} if announced is None else {b"content-length": b"%d" % announced}
    return BodyParts(app, HttpRequest("POST", b"/predict", b"", headers, 0.0))


@pytest.mark.parametrize("cut", [1, 7, LARGE - 1, LARGE, LARGE + 900])
def test_a_large_body_lies_in_its_piece_however_it_is_cut(app, cut):
    content = bytes(i % 251 for i in range(LARGE + 900))
    parts = parts_of(app, len(content))
    for at in range(0, len(content), cut):
        parts.add(content[at : at + cut])
        parts.add(b"")
    whole = parts.whole()
    assert isinstance(whole, memoryview)
    assert whole == content
    parts.drop()
    assert app.ended == app.asked == [app.asked[0]]
    assert app.asked[0].piece is None, "the caller has the only view of it"


def test_a_small_body_asks_for_no_piece(app):
    parts = parts_of(app, LARGE - 1)
    parts.add(b"a")
    parts.add(b"b" * (LARGE - 2))
    assert parts.whole() == b"a" + b"b" * (LARGE - 2)
    parts.drop()
    assert app.asked == app.ended == []


def test_a_body_in_one_part_is_not_copied_where_there_is_no_room(app):
    app.full = True
    parts = parts_of(app, LARGE)
    part = bytes(LARGE)
    parts.add(part)
    assert parts.whole() is part
    parts.drop()
    assert app.ended == []


def test_a_body_without_a_length_is_counted_as_chunked_where_it_is_large(app):
    parts = parts_of(app)
    parts.add(bytes(LARGE - 1))
    parts.add(b"x")
    assert parts.whole() == bytes(LARGE - 1) + b"x"
    assert [(body.announced, body.chunked) for body in app.asked] == [(LARGE, True)]
    small = parts_of(app)
    small.add(b"x")
    assert small.whole() == b"x"
    assert len(app.asked) == 1


def test_nothing_is_an_empty_body(app):
    parts = parts_of(app, 0)
    parts.add(b"")
    assert parts.whole() == b""


@pytest.mark.parametrize("came", [LARGE - 1, LARGE + 1], ids=["less", "more"])
def test_a_server_that_hands_over_another_length_than_it_announced_is_taken_at_its_bytes(app, came):
    parts = parts_of(app, LARGE)
    parts.add(b"a" * 100)
    parts.add(b"b" * (came - 100))
    assert parts.whole() == b"a" * 100 + b"b" * (came - 100)
    parts.drop()
    assert len(app.asked) == len(app.ended) == 1


def test_more_than_was_announced_in_one_part_asks_for_no_piece(app):
    parts = parts_of(app, LARGE)
    parts.add(b"a" * (LARGE + 1))
    assert parts.whole() == b"a" * (LARGE + 1)
    assert app.asked == []


def test_a_body_that_was_moved_out_goes_on_inline(app):
    parts = parts_of(app, LARGE)
    parts.add(b"a" * 100)
    app.asked[0].move_out(1 << 20)
    parts.add(b"b" * (LARGE - 100))
    assert parts.whole() == b"a" * 100 + b"b" * (LARGE - 100)
    parts.drop()
    assert app.ended == app.asked


def test_a_body_that_will_not_come_lets_go(app):
    parts = parts_of(app, LARGE)
    parts.add(b"a" * 100)
    parts.drop()
    assert app.ended == app.asked
    assert app.asked[0].piece is None
