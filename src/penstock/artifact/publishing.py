"""Publish artifacts in a model directory, go back to an earlier one, and remove old ones.

Contract
--------
* A publish and a rollback are done as a whole, or nothing is changed and the error says so.  A prune removes version by
  version, and its error says which.  A process that is killed leaves a stage or a folder that was never published, and
  the next publisher removes them.
* A version is checked without the lock, which can take a while.  What is done then is decided under the lock.
* Only what is asked for is checked: a damaged version keeps nobody from publishing another, or going back to another.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from penstock.artifact.copying import copy_artifact
from penstock.artifact.current_file import (
    CURRENT,
    CurrentRecord,
    HistoryEntry,
    number_of,
    number_of_run,
    prunable,
    publishes,
    rollback_target,
    rolled_back,
)
from penstock.artifact.given_folder import absolute_folder, given_folder
from penstock.artifact.manifest import MANIFEST
from penstock.artifact.model_directory import (
    VERSIONS,
    check_place,
    check_versions_folder,
    checked_versions,
    open_version,
    read_current,
    read_published,
    resolved_place,
    version_folder,
    versions_there,
)
from penstock.artifact.opened_artifact import Artifact, open_artifact
from penstock.artifact.staging import Publication, changing, new_stage, refusal_words, remove_dead_stages
from penstock.codec.text import printable
from penstock.errors import ArtifactInvalid, ConfigError, PublishFailed
from penstock.hosting.file_rights import share_tree
from penstock.hosting.folder_lock import folder_lock
from penstock.hosting.held_folder import STAGE
from penstock.hosting.host_clock import time_now
from penstock.hosting.synced_files import sync_folder

MOST_NAMED = 20
"""Versions, or folders, that an error names."""

MOST_BITS = 128
"""Of a number that an error repeats."""


@dataclass(frozen=True)
class Rollback:
    """What became of a rollback."""

    version: int
    """What is current now."""
    before: int
    """What was; the same where nothing was changed."""


@dataclass(frozen=True)
class ModelVersion:
    """One version that was published."""

    version: int
    digest: str
    at: str
    """When it was published, in UTC."""
    run: str | None
    """The training run that published it."""
    there: bool
    """Whether it still has a folder; its files are not looked at."""


@dataclass(frozen=True)
class ModelVersions:
    """What a model directory has."""

    path: Path
    current: int
    rollback_to: int | None
    """Where a rollback without a number goes; None: nowhere."""
    versions: tuple[ModelVersion, ...]
    """All that were published, the oldest first."""
    history: tuple[HistoryEntry, ...]
    """Each change of what is current, the oldest first."""


def publish_artifact(artifact: str | os.PathLike[str], model_dir: str | os.PathLike[str]) -> Publication:
    """Copy the artifact into the model directory as its next version, and make it current.

    Every byte of the copy is checked, those of shards of rows too.

    Raises:
        ArtifactInvalid: the artifact is not as it was saved, or something in the model directory is not as it was left.
        ConfigError: one of the two is no path or lies where it cannot, or `artifact` is a model directory.
        PublishFailed: the model directory cannot be written, or is locked for too long.
    """
    folder = absolute_folder("model_dir", model_dir)
    saved = given_folder("artifact", artifact)
    with changing(folder):
        _check_is_artifact(saved)
        source = open_artifact(saved, check_files=False)
        _check_target(folder, source)
        repeated = _published_before(folder, source)
        if repeated is not None:
            return repeated
        if source.path.is_relative_to(resolved_place(folder) / VERSIONS):
            raise ConfigError(f"{artifact} is among the versions of {folder}; give an artifact saved at another path")
    with new_stage(folder) as stage:
        with changing(folder):
            copy_artifact(source, stage.artifact)
        return stage.publish()


def roll_back(model_dir: str | os.PathLike[str], to: int | None = None) -> Rollback:
    """Make an earlier version current again, after every file of it was checked, of shards of rows the sizes alone.

    Args:
        model_dir: the folder.
        to: the version; None: what was current before this one, of those that are there.

    Raises:
        ConfigError: there is nothing to go back to, or no such version.
        ArtifactInvalid: the version is not as it was published, `CURRENT` cannot be used, or somebody changed what is
            current meanwhile, and `to` is None.
        PublishFailed: the model directory cannot be written, or is locked for too long.
    """
    folder = absolute_folder("model_dir", model_dir)
    with changing(folder):
        seen = read_published(folder)
        target = _target(folder, seen, to)
        open_version(folder, seen, target)
    if target == seen.version:
        return Rollback(target, target)
    with new_stage(folder) as stage, changing(folder), folder_lock(folder):
        record = read_published(folder)
        if to is None and record != seen:  # two who see one bad version must not go two back
            raise ArtifactInvalid(
                f"{folder} was changed by another process, and version {record.version} is current now: check "
                "`penstock model list`, and try again if needed",
                file=CURRENT,
            )
        if record.version != target:
            open_version(folder, record, _target(folder, record, target), check_files=False)
            share_tree(version_folder(folder, target), folder)
            stage.make_current(rolled_back(record, target, time_now()))
        return Rollback(target, record.version)


def prune_versions(model_dir: str | os.PathLike[str], keep: int) -> tuple[int, ...]:
    """Remove old versions, and say which: never the newest `keep`, the current, or what a rollback goes to.

    Raises:
        ConfigError: `keep` is less than 1.
        ArtifactInvalid: `CURRENT` cannot be used, or a name of digits in `versions` is no version's.
        PublishFailed: the model directory cannot be written, or is locked for too long; or the files of a version that
            is none any more stay.
    """
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ConfigError(f"keep must be an integer of at least 1, got {_shown(keep)}")
    folder = absolute_folder("model_dir", model_dir)
    moved: dict[int, Path] = {}
    with changing(folder):
        read_published(folder)
        check_versions_folder(folder)
        remove_dead_stages(folder)
        try:
            with folder_lock(folder):
                record = read_published(folder)
                for number in prunable(record, checked_versions(folder, record), keep):
                    moved[number] = _moved_away(folder, number)
                _sync_pruned(folder, moved)
        except OSError as error:
            if not moved:
                raise
            raise PublishFailed(f"{_pruned_words(folder, moved)}, but no others: {refusal_words(error)}") from error
        finally:
            failures = _remove(moved.values())
    if failures:
        raise PublishFailed(f"{_pruned_words(folder, moved)}, but {_failure_words(failures)}")
    return tuple(moved)


def list_versions(model_dir: str | os.PathLike[str]) -> ModelVersions:
    """What was published there, and what is current.

    Raises:
        ArtifactInvalid: it is no model directory, or cannot be read, or `CURRENT` cannot be used.
    """
    folder = absolute_folder("model_dir", model_dir)
    record = read_published(folder)
    try:
        there = versions_there(folder)
    except OSError as error:
        raise ArtifactInvalid(
            f"{printable(str(folder / VERSIONS))} cannot be read: {error.strerror}", file=VERSIONS
        ) from error
    versions = (
        ModelVersion(entry.version, entry.digest, entry.at, entry.run, entry.version in there)
        for entry in publishes(record)
    )
    return ModelVersions(folder, record.version, rollback_target(record, there), tuple(versions), record.history)


def version_of_run(model_dir: str | os.PathLike[str], run: str) -> int | None:
    """The version that a training run has published, or None; read without a lock.

    Raises:
        ArtifactInvalid: `CURRENT` cannot be used.
    """
    return number_of_run(read_current(Path(model_dir)), run)


def _check_is_artifact(path: Path) -> None:
    record = read_current(path)
    if record is not None:
        version = version_folder(path, record.version)
        raise ConfigError(
            f"{path} is a model directory with the current version {version}: give the directory of an artifact"
        )


def _check_target(folder: Path, source: Artifact) -> None:
    if os.path.lexists(folder) and not folder.is_dir():
        raise ConfigError(f"{folder} is not a directory, so it cannot be a model directory")
    if os.path.lexists(folder / MANIFEST):
        raise ConfigError(f"{folder} is an artifact; give another path for the model directory")
    if resolved_place(folder).is_relative_to(source.path):
        raise ConfigError(f"the model directory {folder} would be inside the artifact {source.path}")
    check_place(folder)


def _published_before(folder: Path, source: Artifact) -> Publication | None:
    digest = source.digest
    record = read_current(folder)
    number = number_of(record, digest, versions_there(folder))
    if record is None or number is None:
        return None
    # Its manifest alone has said so far that it is this version.
    open_artifact(source.path, digest=digest, verify_rows=True)
    try:
        open_version(folder, record, number, verify_rows=True)
    except ArtifactInvalid:
        if os.path.lexists(version_folder(folder, number)):
            raise
        return None  # somebody has pruned it meanwhile
    remove_dead_stages(folder)
    with folder_lock(folder):
        record = read_published(folder)
        if number_of(record, digest, versions_there(folder)) != number:
            return None
        return Publication(number, True, digest, record.version)


def _target(folder: Path, record: CurrentRecord, to: int | None) -> int:
    last = record.last
    there = frozenset(number for number in versions_there(folder) if number <= last)
    if to is None:
        target = rollback_target(record, there)
        if target is None:
            others = there - {record.version}
            raise ConfigError(
                f"{folder}: no version to roll back to from version {record.version}; "
                f"{f'name one (to): {_numbers(others)}' if others else 'no other version exists'}"
            )
        return target
    if isinstance(to, bool) or not isinstance(to, int) or to.bit_length() > MOST_BITS:
        raise ConfigError(f"to must be the number of a version, got {_shown(to)}")
    if to in there or to == record.version:
        return to
    if not 1 <= to <= last:
        raise ConfigError(f"{folder} has no version {to}; versions: {_numbers(there)}")
    if not _has_something(folder, to):
        raise ConfigError(
            f"{folder} has no version {to} any more: it was pruned, and its artifact can be published "
            f"again; versions: {_numbers(there)}"
        )
    return to


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > MOST_BITS:  # Python refuses to write one of 5,000 digits
        return "one of too many digits"
    return repr(value)


def _has_something(folder: Path, number: int) -> bool:
    """Whether something is where the version would be, as a link, which `open_version` tells."""
    return os.path.lexists(version_folder(folder, number))


def _numbers(there: Collection[int]) -> str:
    named = ", ".join(map(str, sorted(there, reverse=True)[:MOST_NAMED])) or "none"
    return f"{named} and {len(there) - MOST_NAMED} older ones" if len(there) > MOST_NAMED else named


def _moved_away(folder: Path, number: int) -> Path:
    """Make a dead stage of a version, by a rename alone: a full disk has no room for another folder."""
    return version_folder(folder, number).rename(folder / VERSIONS / f"{STAGE}{secrets.token_hex(8)}")


def _sync_pruned(folder: Path, moved: Collection[int]) -> None:
    """Have it on the disk that versions were moved away.

    Raises:
        PublishFailed: that cannot be done; the versions are gone as long as there is power.
        OSError: likewise, where none was moved.
    """
    try:
        sync_folder(folder / VERSIONS)
    except OSError as error:
        if not moved:
            raise
        raise PublishFailed(
            f"{_pruned_words(folder, moved)}, but a power cut could restore them damaged: cannot sync the "
            f"directory ({error.strerror})"
        ) from error


def _remove(folders: Iterable[Path]) -> dict[Path, OSError]:
    """Remove folders, which somebody else may be removing too; those that stay, and why."""
    failures: dict[Path, OSError] = {}
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            failures[folder] = error
    return failures


def _failure_words(failures: Mapping[Path, OSError]) -> str:
    named = [
        f"{printable(str(folder))} cannot be removed: {refusal_words(refusal)}"
        for folder, refusal in islice(failures.items(), MOST_NAMED)
    ]
    more = len(failures) - MOST_NAMED
    return "; ".join([*named, f"{more} more cannot be removed"] if more > 0 else named)


def _pruned_words(folder: Path, numbers: Collection[int]) -> str:
    named = ", ".join(map(str, numbers))
    versions = f"versions {named} are" if len(numbers) > 1 else f"version {named} is"
    return f"{printable(str(folder))}: {versions} pruned"
