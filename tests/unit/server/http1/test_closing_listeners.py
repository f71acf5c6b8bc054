"""The end of a socket that listens: who waited there is accepted, and nobody else."""

from __future__ import annotations

import errno
import socket

import pytest

from penstock.hosting.unix_sockets import BACKLOG
from penstock.server.http1.last_arrivals import accept_last


class Accepted:
    """A connection, which says whether it blocks."""

    blocks = True

    def setblocking(self, flag):
        self.blocks = flag


class Listening:
    """A socket that listens; `waiting` are the connections in its queue, or what `accept` raises in place of one."""

    def __init__(self, *waiting, family=socket.AF_UNIX, endless=False):
        self.family = family
        self.waiting = list(waiting)
        self.endless = endless
        self.calls = []

    def shutdown(self, how):
        assert how == socket.SHUT_RD
        self.calls.append("shutdown")

    def accept(self):
        self.calls.append("accept")
        if self.endless:
            return Accepted(), ""
        if not self.waiting:
            raise BlockingIOError
        found = self.waiting.pop(0)
        if isinstance(found, OSError):
            raise found
        return found, ""

    def close(self):
        self.calls.append("close")


def test_those_who_wait_are_accepted_and_do_not_block():
    waiting = [Accepted(), Accepted()]
    listening = Listening(*waiting)
    assert accept_last(listening) == waiting
    assert [each.blocks for each in waiting] == [False, False]


@pytest.mark.parametrize(
    ("family", "first"),
    [(socket.AF_UNIX, ["shutdown", "accept"]), (socket.AF_INET, ["accept"]), (socket.AF_INET6, ["accept"])],
)
def test_a_unix_socket_lets_nobody_in_first_and_each_is_closed_last(family, first):
    listening = Listening(family=family)
    assert accept_last(listening) == []
    assert listening.calls == [*first, "close"]


def test_a_unix_socket_that_listens_no_more_is_closed_like_any_other():
    listening = Listening(Accepted())

    def shutdown(how):
        raise OSError(errno.ENOTCONN, "not connected")

    listening.shutdown = shutdown
    assert len(accept_last(listening)) == 1


def test_a_client_that_has_left_hides_none_behind_it():
    behind = Accepted()
    assert accept_last(Listening(ConnectionAbortedError(), behind)) == [behind]


def test_without_a_file_for_the_next_one_those_before_are_kept():
    first = Accepted()
    listening = Listening(first, OSError(errno.EMFILE, "too many open files"), Accepted())
    assert accept_last(listening) == [first]
    assert listening.calls[-1] == "close"


def test_no_more_are_accepted_than_the_queue_has_room_for_though_others_come_all_the_time():
    assert len(accept_last(Listening(family=socket.AF_INET, endless=True))) == BACKLOG + 1
