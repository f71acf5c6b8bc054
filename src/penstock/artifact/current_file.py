"""Decide what `CURRENT` of a model directory says, and what may become of it.  Pure: no file, no clock.

Contract
--------
* Versions are numbered from 1, one more with each publish, and no number is ever used for another artifact.
* The record ends with what is current.  Only `published` and `rolled_back` make another one.
* `record_to_json` writes nothing that `record_from_json` does not read, which trusts nothing: whatever is not known or
  cannot be is an `ArtifactInvalid`.
* To roll back is to undo: the history is read as a stack.  A publish, and a rollback to a version that is not on the
  stack, puts it on top; a rollback to one that is takes away what lies above it.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final, Literal

import msgspec

from penstock.artifact.manifest_json import SHA256, is_run_id
from penstock.artifact.strict_json import read_strictly
from penstock.errors import ArtifactInvalid

CURRENT: Final = "CURRENT"
CURRENT_SCHEMA: Final = 1
LARGEST_CURRENT: Final = 16 << 20
"""Bytes: about 80,000 entries of the history."""


class HistoryEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One change of what is current."""

    version: int
    digest: str
    at: str
    """When, in UTC."""
    action: Literal["publish", "rollback"]
    run: str | None = None
    """The training run that published it."""


class CurrentRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `CURRENT` says."""

    schema: Literal[1]
    version: int
    """What is current."""
    digest: str
    history: tuple[HistoryEntry, ...]
    """Every change, the oldest first."""

    @property
    def last(self) -> int:
        """The number that was given last."""
        return len(publishes(self))


def publishes(record: CurrentRecord | None) -> list[HistoryEntry]:
    """The entries that gave a number, in its order; none where nothing was published yet."""
    return [] if record is None else [entry for entry in record.history if entry.action == "publish"]


def published(record: CurrentRecord | None, digest: str, at: str, run: str | None = None) -> CurrentRecord:
    """The record after the artifact `digest` was published, as the next number; None: it is the first.

    Args:
        record: what was, or None.
        digest: the artifact's.
        at: the time, as ISO 8601.
        run: the training run that published it.
    """
    return _with(record, HistoryEntry(len(publishes(record)) + 1, digest, at, "publish", run))


def rolled_back(record: CurrentRecord, to: int, at: str) -> CurrentRecord:
    """The record after version `to`, which has been published, was made current again."""
    return _with(record, HistoryEntry(to, publishes(record)[to - 1].digest, at, "rollback"))


def _with(record: CurrentRecord | None, entry: HistoryEntry) -> CurrentRecord:
    history = () if record is None else record.history
    return CurrentRecord(CURRENT_SCHEMA, entry.version, entry.digest, (*history, entry))


def rollback_target(record: CurrentRecord, there: Collection[int]) -> int | None:
    """The version that a rollback goes to which names none: what was current before, of those that are still there."""
    stack: list[int] = []
    on_stack: set[int] = set()  # a history may have 80,000 entries
    for entry in record.history:
        if entry.version in on_stack:  # a rollback: no number is published twice
            while stack[-1] != entry.version:
                on_stack.remove(stack.pop())
        else:
            stack.append(entry.version)
            on_stack.add(entry.version)
    return next((version for version in reversed(stack[:-1]) if version in there), None)


def number_of(record: CurrentRecord | None, digest: str, there: Collection[int]) -> int | None:
    """The number of the artifact `digest` among the versions that are there, or None."""
    found = [entry.version for entry in publishes(record) if entry.digest == digest and entry.version in there]
    return max(found, default=None)


def number_of_run(record: CurrentRecord | None, run: str) -> int | None:
    """The number that the training run `run` has published, be its folder there or not; None: it has published none."""
    return next((entry.version for entry in publishes(record) if entry.run == run), None)


def prunable(record: CurrentRecord, there: Collection[int], keep: int) -> list[int]:
    """The versions to remove: all but the newest `keep`, the current one, and the one that a rollback goes to."""
    last = record.last
    listed = sorted(version for version in there if version <= last)
    kept = {record.version, rollback_target(record, there), *listed[-keep:]}
    return [version for version in listed if version not in kept]


def record_to_json(record: CurrentRecord) -> bytes:
    """The bytes of `CURRENT`.

    Raises:
        ArtifactInvalid: they could not be read again, as of a history that has become too long.
    """
    content = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    if len(content) > LARGEST_CURRENT:
        raise ArtifactInvalid(
            f"{CURRENT} would have more than {LARGEST_CURRENT} bytes: publish into another directory", file=CURRENT
        )
    record_from_json(content)
    return content


def record_from_json(content: bytes) -> CurrentRecord:
    """What `CURRENT` says, which has at most `LARGEST_CURRENT` bytes.

    Raises:
        ArtifactInvalid: it says something that is not known here, or that cannot be.
    """
    return read_strictly(
        content,
        CurrentRecord,
        file=CURRENT,
        schemas=(CURRENT_SCHEMA,),
        remedy="publish into another directory",
        check=_check_history,
    )


def _check_history(record: CurrentRecord) -> None:
    digests: list[str] = []
    for place, entry in enumerate(record.history, 1):
        datetime.fromisoformat(entry.at)
        if not entry.at.isprintable():  # between date and time it lets any character pass
            raise ValueError(f"entry {place} has the time {entry.at!r}, which is not valid")
        if entry.action == "publish":
            digests.append(entry.digest)
            if entry.version != len(digests):
                raise ValueError(
                    f"entry {place} publishes version {entry.version}, but the next version is {len(digests)}"
                )
            if not SHA256.fullmatch(entry.digest):
                raise ValueError(f"the digest of version {entry.version} is not 64 hexadecimal digits")
            if not is_run_id(entry.run):
                raise ValueError(
                    f"the run of version {entry.version} is {entry.run!r}, which is not a valid name of a run"
                )
        elif not 1 <= entry.version <= len(digests):
            raise ValueError(f"entry {place} rolls back to version {entry.version}, which was never published")
        elif (entry.digest, entry.run) != (digests[entry.version - 1], None):
            raise ValueError(f"entry {place} differs from the entry that published version {entry.version}")
    if not record.history:
        raise ValueError("the history is empty")
    end = record.history[-1]
    if (record.version, record.digest) != (end.version, end.digest):
        raise ValueError(f"version {record.version} is named as current, but the history ends with {end.version}")
