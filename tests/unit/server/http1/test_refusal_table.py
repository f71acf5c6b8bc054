"""The table of refusals, walked from end to end: what it says, and what a connection does."""

from __future__ import annotations

from itertools import product

import pytest

from penstock.server.application import Response
from penstock.server.http1.heads import CHUNKED
from penstock.server.http1.refusals import LINGER_SECONDS, SKIPPED_BODY_BYTES, AfterRefusal, after_refusal
from rows import each

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LENGTHS = (CHUNKED, 0, 1, SKIPPED_BODY_BYTES, SKIPPED_BODY_BYTES + 1)
SMALL = (1, SKIPPED_BODY_BYTES)
CASES = list(product(LENGTHS, (False, True), (False, True), (False, True)))
POSSIBLE = [case for case in CASES if case[0] or not (case[1] or case[2])]
"""Without a body nothing of it can be read, and no client waits to send it."""

by_row = each(("length", "begun", "expects", "last"), POSSIBLE)


def said(length, begun, expects, last):
    """The table in the documentation of `refusals.py`, row by row."""
    if length == 0:
        return AfterRefusal.CLOSE if last else AfterRefusal.READ_ON
    if length in SMALL and not begun and not expects and not last:
        return AfterRefusal.SKIP
    return AfterRefusal.LINGER


def refused(rig, length, begun, expects, last):
    """A client whose request was refused: by its head, or by the time that its body took."""
    client = rig.connect()
    if not begun:
        rig.app.refusing = Response(404, b"text/plain", b"no")
    body = b"Transfer-Encoding: chunked" if length == CHUNKED else b"Content-Length: %d" % length
    fields = [b"Host: x", body, *[b"Expect: 100-continue"] * expects, *[b"Connection: close"] * last]
    client.send(b"POST / HTTP/1.1\r\n" + b"\r\n".join(fields) + b"\r\n\r\n")
    if begun:
        rig.sweep(rig.now + 30.0)
    else:
        assert b"100 Continue" not in client.transport.sent
    rig.app.refusing = None
    assert client.statuses() == [408 if begun else 404]
    return client


def test_the_table_has_an_answer_for_what_cannot_be():
    for case in set(CASES) - set(POSSIBLE):
        assert after_refusal(*case) is AfterRefusal.LINGER


@by_row
def test_a_connection_does_what_the_table_says(rig_with, length, begun, expects, last):
    rig = rig_with()
    client = refused(rig, length, begun, expects, last)
    after = said(length, begun, expects, last)
    stays = after in (AfterRefusal.READ_ON, AfterRefusal.SKIP)
    lingers = after is AfterRefusal.LINGER
    assert client.answers()[0].headers.get(b"connection") == (None if stays else b"close")
    assert client.transport.half_closed == lingers
    assert client.transport.closed == (after is AfterRefusal.CLOSE)
    assert not client.transport.aborted
    client.send(bytes(max(length, 0)) + GET)
    assert len(client.statuses()) == 1 + stays
    if lingers:
        rig.sweep(rig.now + LINGER_SECONDS - 0.1)
        assert not client.transport.closed
        rig.sweep(rig.now + 0.1)
        assert client.transport.aborted


@pytest.mark.parametrize("length", [0, *SMALL])
def test_what_is_skipped_has_the_time_of_a_body_and_what_is_read_on_that_of_an_idle_connection(rig, length):
    client = refused(rig, length, False, False, False)
    skips = said(length, False, False, False) is AfterRefusal.SKIP
    rig.sweep(rig.now + 30.0)
    assert client.transport.closed == skips
    rig.sweep(rig.now + 45.0)
    assert client.transport.closed


def test_a_connection_that_would_close_lingers_when_something_came_behind_its_last_request(rig):
    client = rig.connect()
    rig.app.patient = True
    client.send(GET)
    rig.app.refusing = Response(404, b"text/plain", b"no")
    client.send(GET.replace(b"Host: x", b"Host: x\r\nConnection: close"), b"more")
    rig.app.answer(rig.app.handled[0])
    assert client.statuses() == [200, 404]
    assert client.transport.half_closed
    assert not client.transport.closed
