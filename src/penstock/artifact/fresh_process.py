"""Have a fresh process open artifacts and replay rows, whatever happens to that process.

Contract
--------
* The process does not outlive the call, nor the process that called, however that one ends.
* Each way in which it can end without a result is an `ExportRefused` that says which it was.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn

from penstock.artifact.replay_messages import (
    Begun,
    Compared,
    Invalid,
    Message,
    Order,
    Proved,
    Refused,
    WrongOption,
    message_from_line,
    order_to_text,
)
from penstock.errors import ArtifactInvalid, ConfigError, ExportRefused

LONGEST_ANSWER = 256 << 20
"""Bytes that are read of what the process answers.

What an order can ask for is far below it: the names of the outputs, or what two feature specs say.  It is there for a
library that writes without end where the answer belongs.
"""
PIECE = 1 << 16
"""Bytes that are read at a time: as many as a pipe holds."""
SHOWN_OF_STDERR = 4000
"""Bytes of the end of what it wrote there."""


def carry_out(order: Order, *, descriptors: Sequence[int] = ()) -> Proved | Compared:
    """What came of `order` in a process of its own, which inherits `descriptors`.

    Raises:
        ExportRefused: the graph does not answer as it should, or the process did not end as it should.
        ArtifactInvalid: an artifact is none, or not as it was saved.
        ConfigError: a graph can run code and is not trusted, its library is not installed, or an option is wrong.
    """
    with tempfile.TemporaryFile() as stderr:
        answer, status = _run(order, descriptors, stderr)
        return _result(_last_message(answer, status, stderr))


def _run(order: Order, descriptors: Sequence[int], stderr: IO[bytes]) -> tuple[bytes, int]:
    """What the process wrote as its answer, and how it ended."""
    with _pipe() as (answers, their_answers), _pipe() as (their_lifeline, _):
        command = [sys.executable, "-P", "-m", "penstock.artifact.replay_process"]
        arguments = [str(their_answers.fileno()), str(their_lifeline.fileno()), order_to_text(order)]
        process = subprocess.Popen(  # noqa: S603  # our own module
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            pass_fds=(their_answers.fileno(), their_lifeline.fileno(), *descriptors),
            env=_environment(),
        )
        try:
            their_answers.close()
            answer = _read(answers)
            if len(answer) > LONGEST_ANSWER:  # it would wait for ever for somebody to read the rest
                process.kill()
            return answer, process.wait()
        finally:
            process.kill()
            process.wait()


def _read(answers: IO[bytes]) -> bytes:
    """All that is written there, or a little more than is allowed."""
    found = bytearray()
    while len(found) <= LONGEST_ANSWER and (piece := os.read(answers.fileno(), PIECE)):
        found += piece
    return bytes(found)


@contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    ours, theirs = os.pipe()
    with open(ours, "rb") as read, open(theirs, "wb", buffering=0) as write:  # noqa: PTH123  # descriptors, no paths
        yield read, write


def _environment() -> dict[str, str]:
    """With this very package first on the path, as the process could find another one or none."""
    ours = os.fspath(Path(__file__).parents[2])
    theirs = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{ours}{os.pathsep}{theirs}" if theirs else ours}


def _last_message(answer: bytes, status: int, stderr: IO[bytes]) -> Message:
    if len(answer) > LONGEST_ANSWER:
        _refuse("", f"was ended: its reply had more than {LONGEST_ANSWER:,} bytes", stderr)
    *lines, rest = answer.split(b"\n")
    try:
        messages = [message_from_line(line) for line in lines]
    except ValueError:
        messages, rest = [], b"garbage"
    begun = [message.format for message in messages if isinstance(message, Begun)]
    last = messages[-1] if messages else None
    if rest or status or last is None or isinstance(last, Begun):
        _refuse(begun[-1] if begun else "", _ending(status), stderr)
    return last


def _result(message: Message) -> Proved | Compared:
    match message:
        case Proved() | Compared():
            return message
        case Refused(text, format_, output, row, expected, got):
            raise ExportRefused(text, format=format_, output=output, row=row, expected=expected, got=got)
        case Invalid(text, file):
            raise ArtifactInvalid(text, file=file)
        case WrongOption(text):
            raise ConfigError(text)
        case Begun():
            raise AssertionError("the last message is a result")


def _ending(status: int) -> str:
    """How a process ended that gave no result."""
    if status < 0:
        ending = f"was ended by {signal.Signals(-status).name}"
        return ending + (", as the system does where memory runs out" if -status == signal.SIGKILL else "")
    return f"ended with status {status}" if status else "sent an invalid reply"


def _refuse(format: str, ending: str, stderr: IO[bytes]) -> NoReturn:  # noqa: A002  # the word users know
    stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, stderr.tell() - SHOWN_OF_STDERR))
    said = stderr.read().decode(errors="replace").strip()
    where = f"format {format!r}: " if format else ""
    raise ExportRefused(
        f"{where}the process that replays the rows {ending}"
        + (f"; the last lines of its stderr:\n{said}" if said else ""),
        format=format,
    )
