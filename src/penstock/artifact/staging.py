"""Let an artifact become a version of a model directory: it is staged beside the versions, and then renamed.

Contract
--------
* A stage is a folder `versions/.stage-RANDOM` that belongs to one process.  Whoever makes a stage removes those that
  dead processes have left, and at its end its own.
* What is current changes by one rename, of a file that is on the disk already, after the version is there as a whole.
  Whoever reads `CURRENT` at any moment finds a version that is whole.
* A folder with a number that was never published, as a process leaves it that dies in between, is finished by the next
  to publish if it is its own, and removed otherwise.  Where there is no `CURRENT`, it is removed only if the stage of
  that process shows that it was never published.  For that such a stage is kept until something is.
* Where a call raises, the model directory is as it was.
* A version can be read by whoever may list and enter the model directory, whatever the umask of its publisher, or it is
  not published.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.artifact.current_file import (
    CURRENT,
    CurrentRecord,
    number_of,
    number_of_run,
    published,
    publishes,
    record_to_json,
)
from penstock.artifact.given_folder import absolute_folder
from penstock.artifact.model_directory import (
    VERSIONS,
    check_place,
    check_versions_folder,
    checked_versions,
    open_version,
    read_current,
    version_folder,
)
from penstock.artifact.opened_artifact import open_artifact, read_digest
from penstock.codec.text import printable
from penstock.errors import ArtifactInvalid, ConfigError, PublishFailed
from penstock.hosting.fault_points import hit
from penstock.hosting.file_rights import keep_rights, share, share_tree
from penstock.hosting.folder_lock import folder_lock
from penstock.hosting.held_folder import STAGE, held_folder, remove_abandoned
from penstock.hosting.host_clock import time_now
from penstock.hosting.synced_files import make_folders, sync_folder, write_synced

STAGED: Final = "model"


@dataclass(frozen=True)
class Publication:
    """What became of an artifact that was to be published."""

    version: int
    repeated: bool
    """Whether it was published before, so that nothing was changed."""
    digest: str
    """Of that version."""
    current: int
    """The version that is current now."""


def _nothing() -> None:
    pass


class VersionStage:
    """A folder on the model directory's file system, in which an artifact is written before it has a number."""

    def __init__(self, model_dir: Path, folder: Path) -> None:
        self.model_dir = model_dir
        self.folder = folder
        self.artifact = folder / STAGED
        """Where the artifact is to be written.  Nothing is there yet."""

    def publish(self, *, run: str | None = None, check: Callable[[], None] = _nothing) -> Publication:
        """Make the artifact, which was checked and is on the disk, the next version, and current.

        Nothing is changed where that has been done before: by this run, or with the same artifact.

        Args:
            run: the training run that publishes; it publishes one version at most.
            check: called under the lock, before anything is changed; what it raises is raised here.

        Raises:
            PublishFailed: the folder cannot be written, or is locked for too long.
            ArtifactInvalid: something in the model directory is not as it was left.
        """
        with changing(self.model_dir), folder_lock(self.model_dir):
            check()
            record = read_current(self.model_dir)
            there = checked_versions(self.model_dir, record)
            digest = read_digest(self.artifact)
            return self._repeated(record, there, digest, run) or self._publish(record, there, digest, run)

    def _repeated(
        self, record: CurrentRecord | None, there: frozenset[int], digest: str, run: str | None
    ) -> Publication | None:
        number = None if run is None else number_of_run(record, run)
        if number is None:
            number = number_of(record, digest, there)
        if record is None or number is None:
            return None
        if number in there:
            open_version(self.model_dir, record, number, check_files=False)
        sync_folder(self.model_dir)  # who replaced CURRENT may have died before this
        return Publication(number, True, publishes(record)[number - 1].digest, record.version)

    def _publish(
        self, record: CurrentRecord | None, there: frozenset[int], digest: str, run: str | None
    ) -> Publication:
        number = len(publishes(record)) + 1
        place = version_folder(self.model_dir, number)
        own = _own_digest(place, digest, run) if number in there else None
        if number in there and own is None and record is None:
            _check_never_published(self.model_dir, place)
        share_tree(self.artifact if own is None else place, self.model_dir)
        with self._replacing(published(record, own or digest, time_now(), run)) as undo:
            if own is None:
                if number in there:
                    _rename(place, self.folder / "left", undo)
                _rename(self.artifact, place, undo)
            sync_folder(place.parent)
            hit("version_renamed")
        return Publication(number, False, own or digest, number)

    def make_current(self, record: CurrentRecord) -> None:
        """Replace `CURRENT`; whoever calls it holds the lock.

        Raises:
            PublishFailed: it was replaced, and may not be on the disk.
            OSError: it cannot be replaced.
        """
        with self._replacing(record):
            pass

    @contextlib.contextmanager
    def _replacing(self, record: CurrentRecord) -> Iterator[list[Callable[[], object]]]:
        """Write the new record, do what has to come first, and replace `CURRENT`; undo the former where that fails."""
        new, undo = self.folder / CURRENT, list[Callable[[], object]]()
        write_synced(new, record_to_json(record))
        if os.path.lexists(self.model_dir / CURRENT):
            keep_rights(self.model_dir / CURRENT, new)
        else:
            share(new, self.model_dir)
        sync_folder(self.folder)  # it shows what became of this process, after a loss of power too
        sync_folder(self.folder.parent)
        try:
            yield undo
            new.replace(self.model_dir / CURRENT)
        except BaseException:
            if new.exists():  # Ctrl-C can come just after it was renamed
                for back in reversed(undo):
                    back()
            raise
        try:
            sync_folder(self.model_dir)
        except OSError as error:
            raise PublishFailed(
                f"{printable(str(self.model_dir))}: version {record.version} is current now, but a power cut "
                f"could undo that: cannot sync the directory ({error.strerror})"
            ) from error
        hit("current_replaced")


def _rename(path: Path, target: Path, undo: list[Callable[[], object]]) -> None:
    """Rename a folder, and have `undo` take it back; Ctrl-C can come just after it was renamed."""

    def back() -> None:
        if not os.path.lexists(path):
            target.rename(path)

    undo.append(back)
    path.rename(target)


@contextlib.contextmanager
def new_stage(model_dir: str | os.PathLike[str]) -> Iterator[VersionStage]:
    """A stage of the model directory, which is made if it is not there; the stage is removed at the end.

    Raises:
        ConfigError: it is no path, or would lie inside an artifact or among the versions of another.
        ArtifactInvalid: its `versions` is a link, or no folder.
        PublishFailed: the folder cannot be made or written.
    """
    folder = absolute_folder("model_dir", model_dir)
    with contextlib.ExitStack() as at_end:
        with changing(folder):
            check_place(folder)
            check_versions_folder(folder)
            make_folders(folder / VERSIONS, writable=True)
            held = held_folder(folder / VERSIONS, STAGE, with_file=True, kept=_shows_what_was_left)
            stage = VersionStage(folder, at_end.enter_context(held))
        at_end.callback(remove_dead_stages, folder)  # somebody may have died since it was begun
        hit("stage_begun")
        yield stage


def remove_dead_stages(model_dir: Path) -> None:
    """Remove the stages of processes that are no more; what cannot be removed stays."""
    remove_abandoned(model_dir / VERSIONS, STAGE, with_file=True, kept=_shows_what_was_left)


def _shows_what_was_left(stage: Path) -> bool:
    """Whether a dead stage may show that a version was never published, which nothing else can show."""
    return os.path.lexists(stage / CURRENT) and not os.path.lexists(stage.parent.parent / CURRENT)


def _check_never_published(model_dir: Path, place: Path) -> None:
    """Raise ArtifactInvalid unless a stage has the `CURRENT` that was to name this version, as the first of all."""
    for stage in (model_dir / VERSIONS).glob(f"{STAGE}*"):
        with contextlib.suppress(ArtifactInvalid):
            meant = read_current(stage)
            if meant is not None and len(meant.history) == 1 and meant.digest == read_digest(place):
                return
    raise ArtifactInvalid(
        f"{model_dir / CURRENT} is missing, but version {place.name} exists: restore {CURRENT}, or "
        f"remove {place} if it was never published",
        file=CURRENT,
    )


@contextlib.contextmanager
def changing(model_dir: Path) -> Iterator[None]:
    """Say of whatever fails in the body which model directory it was, and that nothing was changed, on one line.

    Raises:
        PublishFailed: the system refused something.
        ArtifactInvalid: as in the body.
        ConfigError: likewise.
    """
    try:
        yield
    except OSError as error:
        raise PublishFailed(f"{printable(str(model_dir))} was not changed: {refusal_words(error)}") from error
    except ArtifactInvalid as error:
        raise ArtifactInvalid(printable(f"{error}; nothing was changed"), file=error.file) from error
    except ConfigError as error:
        raise ConfigError(printable(str(error))) from error


def refusal_words(error: OSError) -> str:
    """What the system refused, in printable characters."""
    if not error.strerror:
        return printable(str(error))
    return printable(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)


def _own_digest(folder: Path, digest: str, run: str | None) -> str | None:
    """The digest of a version that was never published, if it is the publisher's own and whole; else None."""
    try:
        found = open_artifact(folder, verify_rows=True)
    except ArtifactInvalid:
        return None
    own = found.digest == digest if run is None else found.manifest.run == run
    return found.digest if own else None
