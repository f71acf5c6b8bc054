"""What a client has not taken yet is held for the request whose answer it is."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.server.application import HttpRequest
from penstock.server.http1.unread import UnreadAnswers

ONE, TWO, THREE = (HttpRequest("GET", b"/%d" % number, b"", {}, 0.0) for number in (1, 2, 3))


class App:
    """Counts what is held, by request."""

    def __init__(self) -> None:
        self.held: Counter[object] = Counter()

    def hold(self, request, nbytes):
        self.held[request] += nbytes


class Transport:
    """Takes every byte; a test says how many are still in its buffer."""

    def __init__(self) -> None:
        self.unread = 0

    def write(self, data):
        self.unread += len(data)

    def writelines(self, pieces):
        for piece in pieces:
            self.write(piece)

    def get_write_buffer_size(self):
        return self.unread


@pytest.fixture
def app():
    return App()


@pytest.fixture
def unread(app):
    return UnreadAnswers(app, 0.0)


def test_what_grows_is_the_last_answer_s_and_what_is_taken_the_first_s(app, unread):
    transport = Transport()
    for request, answer in ((ONE, b"x" * 10), (TWO, [b"y" * 10, b"y" * 10]), (THREE, b"z")):
        unread.write(transport, answer, request)
        unread.measure(transport)
    assert app.held == {ONE: 10, TWO: 20, THREE: 1}
    transport.unread = 15
    unread.measure(transport)
    assert +app.held == {TWO: 14, THREE: 1}
    transport.unread = 0
    unread.measure(transport)
    assert +app.held == {}


def test_an_answer_in_parts_grows_for_its_own_request(app, unread):
    unread.write(Transport(), b"", ONE)
    unread.charge(10)
    unread.charge(25)
    assert app.held == {ONE: 25}


def test_a_request_whose_answer_was_taken_is_not_kept(app, unread):
    unread.write(Transport(), b"x", ONE)
    unread.charge(1)
    assert unread.last == ONE
    unread.charge(0)
    assert unread.last is None


def test_a_socket_that_is_gone_is_not_measured(app, unread):
    unread.write(Transport(), b"x", ONE)
    unread.measure(None)
    assert app.held == {}
