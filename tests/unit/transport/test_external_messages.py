"""What the handshake and the failures of workers from outside say, and how little of it is believed."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.formats import Codec
from penstock.errors import ProtocolError
from penstock.transport.external_messages import (
    ExternalFailure,
    ExternalHello,
    ExternalLaunch,
    codecs_of,
    pack_json,
    read_external_failure,
    unpack_json,
    write_failure,
)
from penstock.transport.messages import MESSAGE_BYTES, NAME_BYTES, TRACEBACK_BYTES, Problem
from rows import each


def failure(**fields):
    return json.dumps(fields).encode()


def test_a_hello_may_leave_out_all_but_what_it_wants_to_say():
    hello = unpack_json(b'{"version": 4, "codecs": ["json"], "of the future": [1]}', ExternalHello)
    assert (hello.version, hello.pid, hello.language, hello.stage, hello.health) == (4, 0, "", None, False)
    assert codecs_of(hello.codecs) == {Codec.JSON}


def test_a_format_that_we_do_not_know_is_one_that_we_never_ask_for():
    assert codecs_of(("json", "of the future", "npy")) == {Codec.JSON, Codec.NPY}


@each(
    "payload",
    [b"", b"{", b"null", b"[]", b'{"pid": "1"}', b'{"codecs": "json"}', b'{"codecs": [1]}', b"\xff", b"[" * 60000,
     b'{"version": 4.5}', b'{"health": 1}', b'{"stage": 7}'],
)  # fmt: skip
def test_what_is_no_hello_is_refused(payload):
    with pytest.raises(ProtocolError, match="invalid JSON in a HELLO"):
        unpack_json(payload, ExternalHello)


def test_a_launch_is_read_as_it_was_written():
    launch = ExternalLaunch("service", "square", 1, 64, True, 8, ("json",), 1 << 20, False, True)
    assert unpack_json(pack_json(launch), ExternalLaunch) == launch


def test_a_failure_crosses_whole():
    problem = Problem("builtins.ValueError", ("builtins.ValueError",), "bad", "Traceback", "$.x", "model.py:3")
    assert read_external_failure(write_failure(problem)) == problem


def test_a_failure_may_say_nothing():
    assert read_external_failure(b"{}") == Problem("", (), "")
    assert pack_json(ExternalFailure("why")) == b'{"message":"why"}'


def test_texts_are_cut_to_what_our_own_workers_may_send():
    long = "é" * 10**6
    problem = read_external_failure(failure(message=long, type=long, traceback=long, path=long, raised_at=long))
    found = [problem.message, problem.type_name, *problem.mro, problem.traceback, problem.path, problem.raised_at]
    limits = [MESSAGE_BYTES, NAME_BYTES, NAME_BYTES, TRACEBACK_BYTES, MESSAGE_BYTES, NAME_BYTES]
    for text, limit in zip(found, limits, strict=True):
        assert limit // 2 < len(text.encode()) <= limit


def test_no_text_of_a_failure_acts_on_a_terminal_or_begins_a_line_where_a_name_is():
    said = dict.fromkeys(["message", "type", "traceback", "path", "raised_at"], "a\x1b[2J\r\n\tb")
    problem = read_external_failure(json.dumps(said).encode())
    assert {problem.message, problem.traceback, problem.path} == {"a\\x1b[2J\\x0d\n\tb"}
    assert {problem.type_name, problem.raised_at} == {"a\\x1b[2J\\r\\n\\tb"}


def test_texts_are_cut_also_where_their_escapes_are_what_is_long():
    said = dict.fromkeys(["message", "type", "traceback", "path", "raised_at"], "\x1b" * 100_000)
    problem = read_external_failure(json.dumps(said).encode())
    assert max(len(problem.message), len(problem.path)) <= MESSAGE_BYTES
    assert max(len(problem.type_name), len(problem.raised_at)) <= NAME_BYTES
    assert len(problem.traceback) <= TRACEBACK_BYTES


@pytest.mark.parametrize(
    "said", [b"", b"null", b"[]", b'{"message":1}', b'{"message":"\\ud800"}', b"{} {}", b"[" * 9999]
)
def test_what_is_no_failure_is_not_taken_for_one(said):
    with pytest.raises(ProtocolError, match="invalid JSON in a FAILURE"):
        read_external_failure(said)


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_failure_or_no_failure(payload):
    with contextlib.suppress(ProtocolError):
        assert isinstance(read_external_failure(payload), Problem)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_any_json_is_a_failure_or_no_failure(value):
    with contextlib.suppress(ProtocolError):
        assert isinstance(read_external_failure(json.dumps(value).encode()), Problem)
