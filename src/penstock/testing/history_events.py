"""Write down what happens to jobs, so that what a killed process was about to do is known too.

Each act is two lines of JSON, one before it and one after it.  A line is one write to a file opened with O_APPEND, so
that many processes write into one file.  An act without its second line is one that its process did not live to see the
end of, or of which the store could not be asked: it was done or it was not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from penstock.jobs.store import Room


class Act(StrEnum):
    """What somebody did."""

    SUBMIT = "submit"
    CLAIM = "claim"
    GIVE_UP = "give up"
    """Renewed no longer what it holds, and said so in a claim."""
    RENEW = "renew"
    END = "end"
    """Told how an attempt ended: a commit, a release or a failure."""
    CANCEL = "cancel"
    RETRY = "retry"
    PAUSE = "pause"
    RESUME = "resume"
    CALL = "call"
    """Had the model run for jobs."""
    MOVE = "move"
    """Moved the output of an attempt to its place."""
    SUSPEND = "suspend"
    """Stood still, as under SIGSTOP."""


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an act was to one job."""

    job: str
    fence: int = 0
    """The attempt that it was about; 0 where that is not known."""
    run: int = 0
    size: int = 0
    """The bytes of the input, of a claim."""
    service: str = ""
    """The service that the job is for, of a claim."""
    host: str = ""
    """Where the input is, of a claim; "" in the store."""
    to: str = ""
    """The state told to the store, of an ending."""
    cause: str = ""
    counts: bool = False
    transfers: int = 0
    """Failed tries to store the output, of an ending."""
    answer: str = ""
    """What the store said: an `Answer`, or the job's state; "" before the act."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the history: an act that begins, or that has ended."""

    act: Act
    call: str
    """What the two lines of an act have in common, and no other line has."""
    process: str
    at: float
    """Seconds on a clock that all processes share and nobody sets."""
    ended: bool = False
    lease: float = 0.0
    """The seconds asked for, of a claim and a renewal."""
    stage: str = ""
    """Which model, of a call."""
    rooms: tuple[Room, ...] | None = None
    """The rooms, of a claim, in its first line; None where they are not known."""
    parts: tuple[Part, ...] = ()


class Deed(NamedTuple):
    """An act: its two lines, or its first one only."""

    begun: Event
    ended: Event | None

    @property
    def parts(self) -> tuple[Part, ...]:
        """What it was to each job, as far as that was written."""
        return self.begun.parts if self.ended is None else self.ended.parts

    @property
    def lines(self) -> list[Event]:
        """The lines that there are."""
        return [self.begun] if self.ended is None else [self.begun, self.ended]


class EndOfAct(Protocol):
    """Writes that an act has ended."""

    def __call__(self, became: Iterable[Part] | None = None) -> None:
        """Write it; `became` is what became of the jobs, by default what the act began with."""


class EventLog:
    """Where one process writes its events.

    Args:
        write: takes one line, and has written it when it returns.
        process: a name that no other process has; by default its number.
        now: the time in seconds, on a clock that all processes share.
    """

    def __init__(
        self, write: Callable[[bytes], object], *, process: str = "", now: Callable[[], float] = time.monotonic
    ) -> None:
        self.process = process or str(os.getpid())
        self._write = write
        self._now = now
        self._calls = count()
        self._mark = os.urandom(4).hex()

    def begin(
        self,
        act: Act,
        parts: Iterable[Part] = (),
        *,
        lease: float = 0.0,
        stage: str = "",
        rooms: Iterable[Room] | None = None,
    ) -> EndOfAct:
        """Write that `act` begins; the function returned writes that it has ended.

        Where that is never called, the act has no end.
        """
        event = Event(act, f"{self._mark}-{next(self._calls)}", self.process, self._now(), False, lease, stage)
        asked = None if rooms is None else tuple(room._replace(at_hosts=dict(room.at_hosts)) for room in rooms)
        begun = msgspec.structs.replace(event, parts=tuple(parts), rooms=asked)
        self._write_line(begun)

        def end(became: Iterable[Part] | None = None) -> None:
            told = begun.parts if became is None else tuple(became)
            self._write_line(msgspec.structs.replace(event, at=self._now(), ended=True, parts=told))

        return end

    def _write_line(self, event: Event) -> None:
        self._write(msgspec.json.encode(event) + b"\n")


def log_to(path: str | Path, *, process: str = "") -> EventLog:
    """A log into the file `path`, which other processes may write into too; it is made where it is not there."""

    def append(line: bytes) -> None:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            written = os.write(file, line)
            assert written == len(line), f"{written} of {len(line)} bytes were written to {path}"
        finally:
            os.close(file)

    return EventLog(append, process=process)


def read_events(lines: Iterable[bytes]) -> list[Event]:
    """The events of a log, from its lines; a file opened with ``"rb"`` gives them."""
    return [msgspec.json.decode(line, type=Event) for line in lines]


def pair_up(events: Sequence[Event]) -> list[Deed]:
    """The acts in the order in which they began."""
    ends = {event.call: event for event in events if event.ended}
    begins = sorted((event for event in events if not event.ended), key=lambda event: event.at)
    return [Deed(event, ends.get(event.call)) for event in begins]


@contextmanager
def record_call(path: str | Path, job_ids: Sequence[str], *, stage: str = "model", process: str = "") -> Iterator[None]:
    """Write into `path` that a model runs for `job_ids`, from here to the end of the block.

    For the stage of a test, which knows its jobs by `penstock.current_requests()`.  `stage` names one model: the calls
    of one name must never overlap.  A call that raises has ended.
    """
    end = log_to(path, process=process).begin(Act.CALL, [Part(job_id) for job_id in job_ids], stage=stage)
    try:
        yield
    finally:
        end()
