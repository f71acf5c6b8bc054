"""Prove in a fresh process that an artifact answers as its model did, whatever happens to that process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from penstock.artifact.probes import write_recorded
from penstock.artifact.proof_messages import (
    CHECK,
    Begun,
    CheckRows,
    Invalid,
    Message,
    Order,
    Proved,
    Refused,
    WrongOption,
    message_from_line,
    order_to_text,
)
from penstock.artifact.recorded import Recorded
from penstock.errors import ArtifactInvalid, ConfigError, ExportRefused

LONGEST_ANSWER = 1 << 20
"""Bytes that are read of what the process answers."""
SHOWN_OF_STDERR = 4000
"""Bytes of the end of what it wrote there."""


@dataclass(frozen=True)
class Proof:
    """What a proof that succeeded has seen."""

    rows: int
    """How many rows were replayed through each graph: the probes, and the rows to check."""
    worst: Mapping[str, float]
    """For each output the greatest difference to what the model answered, of all graphs; 0.0 where all is equal."""


def prove(
    folder: str | os.PathLike[str],
    *,
    check: Recorded | None = None,
    formats: tuple[str, ...] | None = None,
    trust: bool = False,
    digest: str | None = None,
    threads: int | None = None,
) -> Proof:
    """Replay the probes of the artifact at `folder`, and the rows of `check`, through each of its graphs.

    Args:
        folder: the artifact, or the folder of a draft that is finished.
        check: more rows, which need not be in the artifact.
        formats: the graphs to replay; None: all of them.
        trust: lets graphs be opened that can run code.
        digest: the digest that is expected, which is trust too; a draft has its own in `Draft.digest`.
        threads: how many threads each graph uses; None: as many as this process has cores.

    Raises:
        ExportRefused: an answer differs, or the process did not end as it should.
        ArtifactInvalid: the folder is no artifact, or not as it was saved.
        ConfigError: a graph can run code and is not trusted, its library is not installed, or an option is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-proof-") as scratch:
        if check is not None:
            write_recorded(Path(scratch) / CHECK, check)
        order = Order(
            artifact=os.fspath(Path(folder).absolute()),
            check=None if check is None else CheckRows(scratch, len(check.rows)),
            formats=formats,
            trust=trust,
            digest=digest,
            threads=threads or len(os.sched_getaffinity(0)),
        )
        with tempfile.TemporaryFile() as stderr:
            return _proof(*_run(order, stderr), stderr)


def _run(order: Order, stderr: IO[bytes]) -> tuple[bytes, int]:
    """What the process wrote as its answer, and how it ended; it does not outlive this call, nor this process."""
    with _pipe() as (answers, their_answers), _pipe() as (their_lifeline, _):
        command = [sys.executable, "-P", "-m", "penstock.artifact.proof_process"]
        arguments = [str(their_answers.fileno()), str(their_lifeline.fileno()), order_to_text(order)]
        process = subprocess.Popen(  # noqa: S603  # our own module
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            pass_fds=(their_answers.fileno(), their_lifeline.fileno()),
            env=_environment(),
        )
        try:
            their_answers.close()
            answer = answers.read(LONGEST_ANSWER)
            if len(answer) == LONGEST_ANSWER:  # it would wait for ever for somebody to read the rest
                process.kill()
            return answer, process.wait()
        finally:
            process.kill()
            process.wait()


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


def _proof(answer: bytes, status: int, stderr: IO[bytes]) -> Proof:
    *lines, rest = answer.split(b"\n")
    try:
        messages = [message_from_line(line) for line in lines]
    except ValueError:
        messages, rest = [], b"garbage"
    begun = [message.format for message in messages if isinstance(message, Begun)]
    last = messages[-1] if messages else None
    if rest or status or last is None or isinstance(last, Begun):
        _refuse_ending(begun[-1] if begun else "", status, stderr)
    return _proof_from(last)


def _proof_from(message: Message) -> Proof:
    match message:
        case Proved(rows, worst):
            return Proof(rows, worst)
        case Refused(text, format_, output, row, expected, got):
            raise ExportRefused(text, format=format_, output=output, row=row, expected=expected, got=got)
        case Invalid(text, file):
            raise ArtifactInvalid(text, file=file)
        case WrongOption(text):
            raise ConfigError(text)
        case Begun():
            raise AssertionError("the last message is a result")


def _refuse_ending(format: str, status: int, stderr: IO[bytes]) -> NoReturn:  # noqa: A002  # the word users know
    if status < 0:
        ending = f"was ended by {signal.Signals(-status).name}"
        if -status == signal.SIGKILL:
            ending += ", as the system does where memory runs out"
    elif status:
        ending = f"ended with status {status}"
    else:
        ending = "answered with something that is no result"
    stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, stderr.tell() - SHOWN_OF_STDERR))
    said = stderr.read().decode(errors="replace").strip()
    where = f"format {format!r}: " if format else ""
    raise ExportRefused(
        f"{where}the process that replays the rows {ending}" + (f"; the end of what it wrote:\n{said}" if said else ""),
        format=format,
    )
