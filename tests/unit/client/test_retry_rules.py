"""Whether to try again, and how long to wait."""

from __future__ import annotations

import math
import time

import pytest

from penstock.client.replies import NoReply, Reply
from penstock.client.retry_rules import Retry, item_seconds, judge_item, judge_reply, pause_seconds, told_seconds
from rows import each

ASKED, UNASKED, NEVER = Retry.ASKED, Retry.UNASKED, Retry.NEVER
WALL = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@each(
    ("status", "told", "usually", "harmless"),
    [
        (200, None, NEVER, NEVER),
        (302, "true", NEVER, NEVER),
        (400, None, NEVER, NEVER),
        (408, None, UNASKED, UNASKED),
        (422, None, NEVER, NEVER),
        (429, None, UNASKED, UNASKED),
        (500, None, NEVER, UNASKED),
        (501, None, NEVER, NEVER),
        (502, None, NEVER, UNASKED),
        (503, None, UNASKED, UNASKED),
        (504, None, NEVER, UNASKED),
        (400, "true", ASKED, ASKED),
        (500, "true", ASKED, ASKED),
        (503, "true", ASKED, ASKED),
        (429, "false", NEVER, NEVER),
        (503, "false", NEVER, NEVER),
        (500, "false", NEVER, UNASKED),
        (504, "false", NEVER, UNASKED),
        (503, "perhaps", UNASKED, UNASKED),
    ],
)
def test_the_header_decides_and_else_the_status(status, told, usually, harmless):
    reply = Reply(status, {} if told is None else {"x-should-retry": told}, b"")
    assert judge_reply(reply, harmless=False) is usually
    assert judge_reply(reply, harmless=True) is harmless


@each(
    ("status", "moved", "moved_though_ours"),
    [(200, False, False), (421, True, True), (429, False, False), (500, False, False), (502, True, False),
     (503, True, False), (504, True, False)],
)  # fmt: skip
def test_who_is_not_our_server_may_be_at_an_address_that_was_its(status, moved, moved_though_ours):
    assert Reply(status, {}, b"").may_have_moved is moved
    assert Reply(status, {"x-should-retry": "true"}, b"").may_have_moved is moved_though_ours


def test_a_connection_that_never_was_is_tried_again_and_a_lost_one_only_where_it_does_no_harm():
    never_was, lost = NoReply(sent=False, detail=""), NoReply(sent=True, detail="")
    assert [judge_reply(reply, harmless=False) for reply in (never_was, lost)] == [UNASKED, NEVER]
    assert [judge_reply(reply, harmless=True) for reply in (never_was, lost)] == [UNASKED, UNASKED]


@each(
    ("problem", "seconds", "usually", "harmless"),
    [
        ({"status": 503, "retry_after": 2}, 2.0, ASKED, ASKED),
        ({"status": 503, "retry_after": 2, "retry_after_ms": 1200}, 1.2, ASKED, ASKED),
        ({"status": 503, "retry_after": 2, "retry_after_ms": "soon"}, 2.0, ASKED, ASKED),
        ({"status": 503, "retry_after": -1}, None, NEVER, NEVER),
        ({"status": 503, "retry_after": True}, None, NEVER, NEVER),
        ({"status": 503, "retry_after": 10**400}, None, NEVER, NEVER),
        ({"status": 500}, None, NEVER, UNASKED),
        ({"status": 504}, None, NEVER, UNASKED),
        ({"status": 422}, None, NEVER, NEVER),
        ({"status": "500"}, None, NEVER, NEVER),
        ({"status": [500]}, None, NEVER, NEVER),
        ({}, None, NEVER, NEVER),
    ],
)
def test_an_item_is_sent_again_where_its_problem_says_when(problem, seconds, usually, harmless):
    assert item_seconds(problem) == (None if seconds is None else pytest.approx(seconds))
    assert judge_item(problem, harmless=False) is usually
    assert judge_item(problem, harmless=True) is harmless


@each(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "7", "retry-after-ms": "0"}, 0.0),
        ({"retry-after": "7", "retry-after-ms": "-1"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "1e3"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "inf"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "9" * 16}, 7.0),
        ({"retry-after": "-7"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:23 GMT"}, 3.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:00 GMT"}, 0.0),
        ({"retry-after": "Tue, 99 Nov 2023 22:13:00 GMT"}, None),
        ({"retry-after": "Mon, 01 Jan 0001 00:00:00 -0000"}, 0.0),
    ],
)
def test_what_the_server_says_is_read_or_is_as_nothing(headers, seconds):
    assert told_seconds(headers, WALL) == seconds


def test_a_date_without_a_zone_is_no_local_time(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert told_seconds({"retry-after": "Tue Nov 14 22:13:23 2023"}, WALL) == 3.0
    finally:
        monkeypatch.undo()
        time.tzset()


@each(
    ("told", "tries", "chance", "seconds"),
    [
        (2.0, 1, 0.0, 2.0),
        (2.0, 9, 0.5, 2.1),
        (0.0, 1, 0.9, 0.0),
        (60.0, 1, 0.0, 60.0),
        (60.1, 1, 0.0, 0.375),
        (math.inf, 1, 0.0, 0.375),
        (None, 1, 0.0, 0.375),
        (None, 1, 1.0, 0.5),
        (None, 2, 0.0, 0.75),
        (None, 5, 0.0, 6.0),
        (None, 6, 1.0, 8.0),
        (None, 10_000, 0.0, 6.0),
    ],
)
def test_the_wait_is_what_was_told_and_a_little_more_or_doubles(told, tries, chance, seconds):
    assert pause_seconds(told, tries, chance) == pytest.approx(seconds)
