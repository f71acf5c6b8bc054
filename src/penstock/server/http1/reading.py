"""When one connection reads from its socket, and what it has read but cannot use yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.server.http1.heads import HeadReader
from penstock.server.http1.states import CLOSED, DISCARDING, FINISHING, LINGERING, READING_HEAD, ConnectionState


class ReadingFlow:
    """The flow of bytes into one connection.

    A connection stops reading while its client does not take the answers.  It also stops while it has kept bytes, and
    as many requests are in hand as may be, or others have their turn first.  `in_hand` is the number of requests in
    hand, in every call.
    """

    __slots__ = (
        "_max_pipelined",
        "_now",
        "choked",
        "judged_bytes",
        "kept",
        "more",
        "on",
        "passed_blank_line",
        "pipelines",
        "rested",
        "resting",
        "waiting_since",
    )

    def __init__(self, max_pipelined: int, now: Callable[[], float]) -> None:
        self._max_pipelined = max_pipelined
        self._now = now
        self.on = True
        """Whether the socket is read."""
        self.choked = False
        """Cause: the transport's buffer of answers is past its high mark."""
        self.resting = False
        """Cause: its turn is over, and others have theirs before it goes on."""
        self.rested = False
        """History: it rested, and the socket was not read since.  More may lie there."""
        self.pipelines = False
        """History: a request came behind another one, before its answer.  More may come at any moment."""
        self.kept: bytes | bytearray = b""
        """Bytes not used yet: an unfinished head, or what came while nothing further could be done with it."""
        self.judged_bytes = 0
        """How much of an unfinished head in `kept` was judged."""
        self.more = False
        """Whether bytes that are being read lie behind the request begun last."""
        self.passed_blank_line = False
        """History: the blank line before the next request line came, and was ignored."""
        self.waiting_since = now()
        """When the client last sent what was awaited from it, or when that began to be awaited."""

    def blocked(self, state: ConnectionState, in_hand: int) -> bool:
        """Whether what came from the client cannot be used now: no further request be begun, no body go on."""
        return self.choked or self.resting or (state is READING_HEAD and in_hand >= self._max_pipelined)

    def sign_of_life(self) -> None:
        """Note that the client sent what was awaited, or that something is awaited from now on."""
        self.waiting_since = self._now()

    def passes_blank_line(self, data: bytes | bytearray, at: int) -> bool:
        """Whether the two bytes at `at` are a blank line that is ignored.

        Some clients send one after a body, so one before each request line is (RFC 9112, section 2.2).  A second one is
        not: h11 and other parsers differ in how many they take.
        """
        if self.passed_blank_line or data[at : at + 2] != b"\r\n":
            return False
        self.passed_blank_line = True
        self.judged_bytes = 0
        return True

    def judge_head(self, heads: HeadReader, data: bytes | bytearray, at: int) -> None:
        """Judge the start of a head at `at`; RequestRefused says that it cannot become one."""
        start = data[at:] if at else data
        if self.passed_blank_line or start != b"\r":  # which may be half of a blank line
            heads.judge_unfinished(start, self.judged_bytes)
        if not self.judged_bytes:
            self.sign_of_life()
        self.judged_bytes = max(1, len(start) - 3)  # the end of the head may have begun

    def keep(self, data: bytes | bytearray, at: int) -> None:
        """Keep what `data` has from `at`: it cannot be used yet."""
        self.kept = data if at == 0 else data[at:]

    def add(self, data: bytes) -> None:
        """Put `data` after what is kept."""
        if type(self.kept) is bytes:
            self.kept = bytearray(self.kept)
        self.kept += data

    def take(self) -> bytes | bytearray:
        """What is kept, to be used now."""
        kept, self.kept = self.kept, b""
        return kept

    def match(self, transport: asyncio.Transport | None, state: ConnectionState, in_hand: int) -> None:
        """Read from the socket if that is wanted now, and else stop reading."""
        if transport is None or state is CLOSED:
            return
        wanted = self._wanted(state, in_hand)
        if wanted == self.on:
            return
        self.on = wanted
        if wanted:
            self.rested = False
            self.sign_of_life()
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _wanted(self, state: ConnectionState, in_hand: int) -> bool:
        if state is FINISHING or state is DISCARDING or state is LINGERING:
            return True  # to learn that the client leaves
        if self.kept:
            return not self.blocked(state, in_hand)
        # Nothing is kept: even with the most requests in hand, reading goes on, to learn that the client leaves.
        return not self.choked
