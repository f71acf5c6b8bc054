"""What a check's process reports to the process that started it: one JSON object a line, over a pipe."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from penstock.codec.text import utf8


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Something begins that may take long, hang, or end the process."""

    what: str


class Finding(msgspec.Struct, frozen=True, tag="finding"):
    """One thing that was looked at; `problem` is "" where nothing is wrong."""

    what: str
    problem: str = ""
    note: str = ""
    skipped: bool = False
    """Nothing was looked at, and `note` says why."""
    warning: bool = False
    """It works for some callers only, and `note` says for whom it does not."""


class NothingToCheck(msgspec.Struct, frozen=True, tag="refused"):
    """Why there is nothing to check: a sentence, or the traceback of a module that cannot be imported."""

    sentence: str = ""
    traceback: str = ""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Everything was looked at, and the service has stopped."""


Report: TypeAlias = Step | Finding | NothingToCheck | Done

_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Step | Finding | NothingToCheck | Done)


def encode(report: Report) -> bytes:
    """`report` as a line.  What UTF-8 cannot carry, for instance in a user's error, is escaped."""
    clean: dict[str, Any] = {
        name: utf8(value) if isinstance(value, str) else value for name, value in msgspec.structs.asdict(report).items()
    }
    return msgspec.json.encode(type(report)(**clean)) + b"\n"


def decode(line: bytes) -> Report:
    """The report that `encode` made this line of."""
    return _decoder.decode(line)
