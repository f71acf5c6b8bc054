"""Decide whether a request is sent again, and how long to wait before.  It is told the time and the chance.

Contract
--------
* `x-should-retry` decides where it stands.  Else 429, 503, 408 and a connection that never was are tried again.
* Where a second run does no harm, so are a connection lost after the request was sent, 500, 502 and 504, whatever that
  header says.
* The wait is what the server says, and up to a tenth more, so that those who were told the same do not come at once.
  Where it says nothing, or more than `LONGEST_TOLD_SECONDS`, it doubles from `FIRST_PAUSE_SECONDS` up to
  `LONGEST_PAUSE_SECONDS`, less up to a quarter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

from penstock.client.replies import NoReply, Reply

LONGEST_TOLD_SECONDS: Final = 60.0
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 8.0
_RETRIED: Final = frozenset({408, 429, 503})
_RETRIED_IF_HARMLESS: Final = frozenset({500, 502, 504})
_LARGEST_TOLD: Final = 1e15
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
"""A number of seconds or milliseconds; RFC 9110 has whole ones."""


class Retry(Enum):
    """Whether to try again."""

    ASKED = "asked"
    """The server asks for it."""
    UNASKED = "unasked"
    """It is the client's own idea, for which there is a budget."""
    NEVER = "never"


def judge_reply(reply: Reply | NoReply, *, harmless: bool) -> Retry:
    """Whether to try again after `reply`; `harmless` says that a second run would do no harm."""
    if isinstance(reply, NoReply):
        return Retry.UNASKED if harmless or not reply.sent else Retry.NEVER
    if reply.status < 400:
        return Retry.NEVER
    told = reply.headers.get("x-should-retry", "")
    if told == "true":
        return Retry.ASKED
    if harmless and reply.status in _RETRIED_IF_HARMLESS:
        return Retry.UNASKED
    return Retry.UNASKED if told != "false" and reply.status in _RETRIED else Retry.NEVER


def judge_item(problem: Mapping[str, object], *, harmless: bool) -> Retry:
    """Whether to send an item of a client batch again, whose outcome is `problem`.

    The server says when to come again exactly where the item may succeed then and was not at work.
    """
    if item_seconds(problem) is not None:
        return Retry.ASKED
    status = problem.get("status")
    return Retry.UNASKED if harmless and isinstance(status, int) and status in _RETRIED_IF_HARMLESS else Retry.NEVER


def item_seconds(problem: Mapping[str, object]) -> float | None:
    """How long to wait before an item is sent again; None where the server does not say."""
    for name, unit in (("retry_after_ms", 0.001), ("retry_after", 1.0)):
        told = problem.get(name)
        if isinstance(told, (int, float)) and not isinstance(told, bool) and 0 <= told <= _LARGEST_TOLD:
            return told * unit
    return None


def told_seconds(headers: Mapping[str, str], wall: float) -> float | None:
    """How long the server says to wait, by `retry-after-ms`, else by `Retry-After`; None where it does not say.

    `wall` is the moment in Unix seconds, for a `Retry-After` that is a date.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    told = headers.get("retry-after")
    seconds = _number(told)
    if seconds is not None or told is None:
        return seconds
    try:
        moment = parsedate_to_datetime(told)
        if moment.tzinfo is None:  # as in the form of asctime; it is no local time
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, moment.timestamp() - wall)
    except (ValueError, OverflowError):
        return None


def pause_seconds(told: float | None, tries: int, chance: float) -> float:
    """How long to wait before the next try.

    Args:
        told: what the server says; None is nothing.
        tries: how many there were, at least 1.
        chance: a random number from 0 up to 1.
    """
    if told is not None and told <= LONGEST_TOLD_SECONDS:
        return told * (1 + 0.1 * chance)
    doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 10)
    return min(LONGEST_PAUSE_SECONDS, doubled) * (0.75 + 0.25 * chance)


def shared_pause_seconds(told: float | None) -> float:
    """How long a client sends nothing that is refused again though it sends one request at a time.

    It is never longer than the wait of the refused request, and at most `LONGEST_PAUSE_SECONDS`: also those wait for it
    who have not been told anything.
    """
    return min(LONGEST_PAUSE_SECONDS, pause_seconds(told, 1, 0.0))


def _number(text: str | None) -> float | None:
    if text is None or _NUMBER.fullmatch(text.strip()) is None:
        return None
    return float(text)
