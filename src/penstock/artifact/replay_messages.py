"""What the process that replays rows is told, and the lines of JSON that it answers."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

import msgspec

from penstock.artifact.changes import Changes

CHECK: Final = "check"
"""The folder with the validation rows, in the file that the order names."""
MADE: Final = "made"
"""The folder with rows that were made and that the model answered."""
FAR: Final = "far"
"""The folder with rows that were made of ids that no float32 holds."""
REFUSED_ROWS: Final = "refused.json"
"""The file with rows that were made and that the model refused."""


class CheckRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows besides those in the artifact."""

    descriptor: int
    """A zip file without a name, with the `recorded_files` below `CHECK`, `MADE` and `FAR`; the process inherits it."""
    rows: int
    """How many are to be checked; 0: there is no folder `CHECK`."""
    made: int = 0
    """How many were made and answered; 0: there is no folder `MADE`."""
    far: int = 0
    """How many were made of such ids; 0: there is no folder `FAR`."""


class ProofOrder(msgspec.Struct, frozen=True, tag="prove", forbid_unknown_fields=True):
    """What is to be proved."""

    artifact: str
    check: CheckRows | None
    formats: tuple[str, ...] | None
    trust: bool
    digest: str | None
    threads: int


class DiffOrder(msgspec.Struct, frozen=True, tag="diff", forbid_unknown_fields=True):
    """Which artifacts are to be compared; all but `before` is about the second."""

    before: str
    after: str
    format: str | None
    trust: bool
    digest: str | None
    threads: int


Order: TypeAlias = ProofOrder | DiffOrder


class Begun(msgspec.Struct, frozen=True, tag="begun", forbid_unknown_fields=True):
    """A graph is being replayed.  What ends the process from here on was its doing."""

    format: str


class Proved(msgspec.Struct, frozen=True, tag="proved", forbid_unknown_fields=True):
    """All graphs answer as the model did."""

    rows: int
    worst: dict[str, float]


class Compared(msgspec.Struct, frozen=True, tag="compared", forbid_unknown_fields=True):
    """What differs between two artifacts."""

    changes: Changes


class Refused(msgspec.Struct, frozen=True, tag="refused", forbid_unknown_fields=True):
    """What an `ExportRefused` says."""

    message: str
    format: str
    output: str
    row: int | None
    expected: Any
    got: Any


class Invalid(msgspec.Struct, frozen=True, tag="invalid", forbid_unknown_fields=True):
    """What an `ArtifactInvalid` says."""

    message: str
    file: str


class WrongOption(msgspec.Struct, frozen=True, tag="option", forbid_unknown_fields=True):
    """What a `ConfigError` says."""

    message: str


Message: TypeAlias = Begun | Proved | Compared | Refused | Invalid | WrongOption


def order_to_text(order: Order) -> str:
    """One line of ASCII.  Python's own JSON carries a path that is no Unicode as `os.fsdecode` made it."""
    return json.dumps(msgspec.to_builtins(order))


def order_from_text(text: str) -> Order:
    """The order that `order_to_text` wrote."""
    order: Order = msgspec.convert(json.loads(text), Order)
    return order


def message_to_line(message: Message) -> bytes:
    """One line.  Python's own JSON knows NaN and infinity, which a refused graph may have answered."""
    return json.dumps(msgspec.to_builtins(message)).encode() + b"\n"


def message_from_line(line: bytes) -> Message:
    """What a line says.

    Raises:
        ValueError: it says nothing that is known here.
    """
    # The numbers of reference rows are keys, and those of JSON are strings.
    message: Message = msgspec.convert(json.loads(line), Message, str_keys=True)
    return message
