"""What an answer at `/readyz` says, and which answers are none of ours."""

from __future__ import annotations

import json

import pytest

from penstock.cli.readiness import LONGEST_LINE_BYTES, NotPenstock, Readiness, read_readiness
from penstock.core.state import State
from rows import each

PROBLEM = {
    "type": "urn:penstock:problem:not-ready",
    "title": "Not ready",
    "status": 503,
    "detail": "prices is starting: stage 'embed' has no worker yet",
    "request_id": "r1",
    "state": "starting",
}


def answer(status, found):
    return read_readiness(status, json.dumps(found).encode())


@pytest.mark.parametrize("state", ["ready", "busy"])
def test_a_server_that_takes_traffic_is_ready(state):
    assert answer(200, {"state": state}) == Readiness(ready=True, words=state)


@pytest.mark.parametrize("state", [state.value for state in State if not state.serving] + ["busy"])
def test_one_that_takes_none_is_not_and_says_why(state):
    found = answer(503, PROBLEM | {"state": state})
    assert found == Readiness(ready=False, words=f"{state}: prices is starting: stage 'embed' has no worker yet")


def test_a_reason_of_the_host_that_has_no_state_is_told_as_it_is():
    problem = {
        "type": "about:blank",
        "title": "",
        "status": 503,
        "detail": "the queue is out of reach",
        "request_id": "",
    }
    assert answer(503, problem) == Readiness(ready=False, words="not ready: the queue is out of reach")


def without(name):
    return {key: value for key, value in PROBLEM.items() if key != name}


@each(
    ("status", "found"),
    [
        (200, {"state": "starting"}),
        (200, {"state": "UP"}),
        (200, {"state": ["ready"]}),
        (200, {"status": "ready"}),
        (200, ["state"]),
        (200, "ready"),
        (200, None),
        (204, {"state": "ready"}),
        (301, {"state": "ready"}),
        (404, PROBLEM),
        (500, PROBLEM),
        (503, {"state": "starting"}),
        (503, {"type": "about:blank", "detail": "down for repairs"}),
        (503, PROBLEM | {"type": "https://example.com/problem"}),
        (503, PROBLEM | {"type": 5}),
        (503, PROBLEM | {"detail": None}),
        (503, without("type")),
        (503, without("detail")),
        (503, without("request_id")),
        (503, [PROBLEM]),
    ],
)
def test_what_is_no_answer_of_ours_is_told_from_one(status, found):
    with pytest.raises(NotPenstock, match=f"not Penstock: unexpected status {status}"):
        answer(status, found)


@pytest.mark.parametrize(
    "body",
    [b"", b"OK", b"<html>", b"\xff\xfe", b"[" * 60_000, b'{"state":' * 7_000, b"1" * 60_000, b'{"state":"ready"'],
)
def test_a_body_that_is_no_json_is_none_of_ours(body):
    for status in (200, 503):
        with pytest.raises(NotPenstock):
            read_readiness(status, body)


def test_a_reason_is_one_line_that_a_terminal_may_show():
    found = answer(503, PROBLEM | {"detail": "\n a\x1b[2J\u202eb\ud800\x07c\r \n second line"})
    assert found.words == "starting: a\\x1b[2J\\u202eb?\\x07c\\r"
    found = answer(503, PROBLEM | {"detail": "\x1b" * 50_000})
    assert len(found.words.encode()) <= LONGEST_LINE_BYTES
    assert found.words.isprintable()


def test_a_state_that_nobody_knows_is_not_repeated():
    assert answer(503, PROBLEM | {"state": "\x1b[2J", "detail": "no"}).words == "not ready: no"
