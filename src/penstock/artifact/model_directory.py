"""Read a model directory: what is current, which versions are there, and whether one is as it was published.

Contract
--------
* Nothing is written.  `CURRENT` is replaced by one rename, so it is read whole, with no lock, while others publish.
* What `CURRENT` and the names of folders say is trusted in no way: `ArtifactInvalid` tells what cannot be.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.artifact.current_file import CURRENT, LARGEST_CURRENT, CurrentRecord, publishes, record_from_json
from penstock.artifact.given_folder import given_folder
from penstock.artifact.listed_files import FOLDER_FLAGS, read_small
from penstock.artifact.manifest import DIGEST, MANIFEST
from penstock.artifact.opened_artifact import Artifact, open_artifact
from penstock.codec.text import printable
from penstock.errors import ArtifactInvalid, ConfigError

VERSIONS: Final = "versions"
_NUMBER: Final = re.compile("[1-9][0-9]{0,17}")
_DIGITS: Final = re.compile("[0-9]+")
"""Any other name is of no version, and nothing here reads it, moves it or removes it, but the names of stages."""


@dataclass(frozen=True)
class FoundArtifact:
    """Where an artifact is, and which one it has to be."""

    path: Path
    digest: str | None
    """What the digest must be: as the caller said, else as `CURRENT` says; None: whatever it is.

    That `CURRENT` names it is no trust: whoever can write the artifact can write `CURRENT` too.
    """
    version: int | None
    """Its number in the model directory; None where it is no model directory."""


def find_artifact(path: str | os.PathLike[str], digest: str | None = None) -> FoundArtifact:
    """The artifact at `path`, which is the artifact's folder, or a model directory, whose current version it is.

    Args:
        path: the folder.  `CURRENT` is read once.
        digest: what the artifact's digest has to be; None: whatever it is.

    Raises:
        ArtifactInvalid: `CURRENT` cannot be used, or names an artifact of another digest.
        ConfigError: `path` is no path.
    """
    folder = given_folder("path", path)
    record = read_current(folder)
    if record is None:
        if (folder / VERSIONS).is_dir() and not (folder / MANIFEST).exists():
            raise _without_current(folder)
        return FoundArtifact(folder, digest, None)
    if digest not in (None, record.digest):
        raise ArtifactInvalid(
            f"the current version of {printable(str(folder))} is {record.version} with the digest "
            f"{record.digest}, not {digest}",
            file=CURRENT,
        )
    return FoundArtifact(_no_link(version_folder(folder, record.version)), record.digest, record.version)


def open_found(
    path: str | os.PathLike[str], digest: str | None = None, *, trust: bool = False, verify_rows: bool = False
) -> tuple[FoundArtifact, Artifact]:
    """The artifact that `find_artifact` finds, opened: every file is checked, and shards of rows as by `open_artifact`.

    Somebody may publish another version and prune this one meanwhile: then `CURRENT` is read once more.

    Raises:
        ArtifactInvalid: it cannot be used, or is not as it was saved.
        ConfigError: `path` is no path.
    """
    found = find_artifact(path, digest)
    try:
        return found, open_artifact(found.path, digest=found.digest, trust=trust, verify_rows=verify_rows)
    except ArtifactInvalid:
        if found.version is None or os.path.lexists(found.path):
            raise
    found = find_artifact(path, digest)
    return found, open_artifact(found.path, digest=found.digest, trust=trust, verify_rows=verify_rows)


def check_place(model_dir: Path) -> None:
    """Raise ConfigError where a model directory would alter an artifact, or the versions of another model directory."""
    place = resolved_place(model_dir)
    for folder in (place, *place.parents):
        if os.path.lexists(folder / MANIFEST) and os.path.lexists(folder / DIGEST):
            raise ConfigError(f"the model directory {model_dir} would be inside the artifact {folder}")
        if folder.name == VERSIONS and os.path.lexists(folder.parent / CURRENT):
            raise ConfigError(
                f"the model directory {model_dir} would be among the versions of the model directory {folder.parent}"
            )


def resolved_place(model_dir: Path) -> Path:
    """Where a model directory is, or would be, without links.

    Raises:
        ConfigError: links on the way lead in a circle.
    """
    try:
        model_dir.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:  # before Python 3.13 `resolve` raises a RuntimeError, and later nothing
            raise ConfigError(f"{model_dir} cannot be reached: {error.strerror}") from error
    return model_dir.resolve()


def read_current(model_dir: Path) -> CurrentRecord | None:
    """What `CURRENT` says; None where there is no such file.

    Raises:
        ArtifactInvalid: it cannot be read, or says what cannot be.
    """
    try:
        folder = os.open(model_dir, FOLDER_FLAGS & ~os.O_NOFOLLOW)  # a model directory may be reached through links
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ArtifactInvalid(f"{printable(str(model_dir))} cannot be opened: {error.strerror}") from error
    try:
        return record_from_json(read_small(folder, CURRENT, limit=LARGEST_CURRENT))
    except ArtifactInvalid as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise ArtifactInvalid(
            f"{printable(str(model_dir))} is not a valid model directory: {error}", file=error.file
        ) from error
    finally:
        os.close(folder)


def read_published(model_dir: Path) -> CurrentRecord:
    """What `CURRENT` says, where something was published.

    Raises:
        ArtifactInvalid: nothing was, or `CURRENT` cannot be used.
    """
    record = read_current(model_dir)
    if record is None:
        raise _without_current(model_dir)
    return record


def _without_current(model_dir: Path) -> ArtifactInvalid:
    return ArtifactInvalid(
        f"{printable(str(model_dir))} is not a model directory: it has no file {CURRENT}", file=CURRENT
    )


def version_folder(model_dir: Path, version: int) -> Path:
    """Where a version is."""
    return model_dir / VERSIONS / str(version)


def versions_there(model_dir: Path) -> frozenset[int]:
    """The numbers in `versions` that have a folder; what else is there is passed over.

    Raises:
        ArtifactInvalid: `versions` is a link, or no folder.
        OSError: the folder cannot be read.
    """
    return frozenset(number for _, number in _entries(model_dir) if number is not None)


def checked_versions(model_dir: Path, record: CurrentRecord | None) -> frozenset[int]:
    """As `versions_there`, for who is about to change it: each name of digits is a version's, no number too many.

    One folder more than were published is what a publisher leaves that is killed before it replaces `CURRENT`.

    Raises:
        ArtifactInvalid: a name of digits is no version's, `versions` is a link, or `CURRENT` was lost or is an old one.
        OSError: the folder cannot be read.
    """
    found: set[int] = set()
    for name, number in _entries(model_dir):
        if number is None:
            raise ArtifactInvalid(
                f"{model_dir / VERSIONS / name} is not a directory of a version: remove it", file=f"{VERSIONS}/{name}"
            )
        found.add(number)
    last = 0 if record is None else record.last
    if found and max(found) > last + 1:
        said = "is missing" if record is None else f"lists {last} versions"
        raise ArtifactInvalid(
            f"{model_dir / CURRENT} {said}, but version {max(found)} exists: restore the right {CURRENT}, "
            "or publish into another directory",
            file=CURRENT,
        )
    return frozenset(found)


def open_version(
    model_dir: Path, record: CurrentRecord, version: int, *, check_files: bool = True, verify_rows: bool = False
) -> Artifact:
    """A version that is there, as it was published; what is checked is as for `open_artifact`.

    Raises:
        ArtifactInvalid: it is not, or not any more.
    """
    folder = _no_link(version_folder(model_dir, version))
    try:
        digest = publishes(record)[version - 1].digest
        return open_artifact(folder, digest=digest, check_files=check_files, verify_rows=verify_rows)
    except ArtifactInvalid as error:
        raise ArtifactInvalid(
            f"version {version} was changed after it was published: {error}", file=error.file
        ) from error


def check_versions_folder(model_dir: Path) -> None:
    """Raise ArtifactInvalid where `versions` is a link, which two model directories can share, or no folder."""
    folder = model_dir / VERSIONS
    if os.path.islink(folder):  # noqa: PTH114  # as below
        raise ArtifactInvalid(f"{printable(str(folder))} must be a directory of versions, not a link", file=VERSIONS)
    if os.path.lexists(folder) and not os.path.isdir(folder):  # noqa: PTH112  # as below
        raise ArtifactInvalid(f"{printable(str(folder))} is not a directory", file=VERSIONS)


def _no_link(folder: Path) -> Path:
    """A version's folder, which is no link to one: nobody could tell whether that is pruned."""
    check_versions_folder(folder.parent.parent)
    if os.path.islink(folder):  # noqa: PTH114  # `Path.is_symlink` raises where `versions` may not be entered
        raise ArtifactInvalid(
            f"{printable(str(folder))} must be a directory of a version, not a link", file=f"{VERSIONS}/{folder.name}"
        )
    return folder


def _entries(model_dir: Path) -> Iterator[tuple[str, int | None]]:
    """Each name of digits in `versions`, with its number; None for what is no version, as a file, a link, or 04."""
    check_versions_folder(model_dir)
    try:
        entries = os.scandir(model_dir / VERSIONS)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            if _DIGITS.fullmatch(entry.name):
                fits = _NUMBER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                yield entry.name, int(entry.name) if fits else None
