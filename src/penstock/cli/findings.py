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


class StageToMeasure(msgspec.Struct, frozen=True, tag="stage"):
    """A stage of the service, and how the process is started that measures it."""

    stage: str
    skipped: str = ""
    """Why it cannot be measured, or ""."""
    max_size: int = 1
    batched: bool = False
    """Whether it has a batch policy."""
    concurrency: int = 0
    """How many batches one of its workers has in progress, where it is a waiting stage; else 0."""
    fed: bool = False
    """Whether it has no examples, and gets the results of the stage before."""
    feeds: bool = False
    """Whether its results are the inputs of the stage behind it."""
    variables: list[bytes] = []
    """Variables that are added for its first worker: ``NAME=value`` as the system has it."""
    threads: int = 1
    """How many threads the libraries of its first worker should start."""
    cores: list[int] = []
    """The cores that its first worker runs on; none where that is not said."""


class Memory(msgspec.Struct, frozen=True):
    """How much memory a process has taken."""

    nbytes: int
    on_device: bool = False
    """Whether torch has taken it on a device; else it is resident."""


class SetupTook(msgspec.Struct, frozen=True, tag="setup"):
    """The stage that is measured is set up, which took so much memory."""

    memory: Memory


class BatchRan(msgspec.Struct, frozen=True, tag="ran"):
    """Batches of one size have run."""

    size: int
    seconds: float | None
    """The median of the runs that were timed; None where no time was left to time one."""
    runs: int
    """How many were timed."""
    before: Memory
    """Memory that was taken before the first."""
    peak: Memory
    """The most that was taken in one of them."""


class MemoryShort(msgspec.Struct, frozen=True, tag="short"):
    """A batch of one size found no memory."""

    size: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Everything was looked at, and the service has stopped."""


Report: TypeAlias = Step | Finding | NothingToCheck | StageToMeasure | SetupTook | BatchRan | MemoryShort | Done

_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(
    Step | Finding | NothingToCheck | StageToMeasure | SetupTook | BatchRan | MemoryShort | Done
)


class MeasuringOrder(msgspec.Struct, frozen=True):
    """Orders for a process that measures a stage."""

    stage: str
    cores: list[int]
    inputs: int = -1
    """The descriptor of a file with the stage's inputs; -1 where it has examples."""
    results: int = -1
    """The descriptor of a file for what the stage gives for each of its inputs; -1 where that is not wanted."""


def results_not_kept(what: str, error: Exception) -> Finding:
    """The finding that the results of a stage, which `what` names, cannot be written down for the one behind it."""
    note = f"cannot store its results for the next stage: {error}; set TMPDIR to a directory with free space"
    return Finding(what, note=note, warning=True)


def encode(report: Report) -> bytes:
    """`report` as a line.  What UTF-8 cannot carry, for instance in a user's error, is escaped."""
    clean: dict[str, Any] = {
        name: utf8(value) if isinstance(value, str) else value for name, value in msgspec.structs.asdict(report).items()
    }
    return msgspec.json.encode(type(report)(**clean)) + b"\n"


def decode(line: bytes) -> Report:
    """The report that `encode` made this line of."""
    return _decoder.decode(line)
