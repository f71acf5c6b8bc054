"""Write an artifact so that it appears whole, by one rename, or not at all.

Contract
--------
* The draft is a folder beside the target, `.NAME.draft-RANDOM`, on the same file system.
* The target must not exist, not even as an empty folder or as a link that leads nowhere.  It exists from `publish` on.
* Whatever is raised in the body of `new_artifact`, or a body that ends without `publish`, leaves neither draft nor
  target.  A process that is killed leaves its draft, which nothing reads; the next draft for the same target removes
  it, and never that of a process that lives.
* What `publish` made is on the disk: each file and each folder was synced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from penstock.artifact.draft_folder import draft_folder
from penstock.artifact.manifest import (
    DIGEST,
    FEATURES,
    MANIFEST,
    SCHEMA,
    BatchEntry,
    FileEntry,
    GraphEntry,
    Manifest,
    ReferenceEntry,
    TableEntry,
)
from penstock.artifact.manifest_json import manifest_to_json
from penstock.artifact.probes import write_recorded
from penstock.artifact.recorded import Recorded
from penstock.errors import ConfigError
from penstock.hosting.synced_files import sync_folder, write_synced

CHUNK = 1 << 20
"""How many bytes are hashed at a time."""


class Written(Protocol):
    """What a draft needs of a feature spec."""

    def to_json(self) -> str:
        """All of it, statistics too."""


class Draft:
    """An artifact that is being written."""

    def __init__(self, folder: Path, target: Path, name: str) -> None:
        self.folder = folder
        """Where the graphs are written, and what `prove` proves."""
        self.target = target
        self.name = name
        self.digest = ""
        """The digest of the artifact; "" before `finish`."""

    def finish(
        self,
        *,
        features: Written,
        probes: Recorded,
        graphs: Sequence[GraphEntry],
        batch: BatchEntry,
        tolerance: tuple[float, float],
        classes: Sequence[Any] | None,
        libraries: Mapping[str, str],
        created: str,
        git: str | None,
        metadata: Mapping[str, Any],
        run: str | None = None,
        tables: Sequence[TableEntry] = (),
    ) -> str:
        """Write all but the graphs and shards, which are there, and return the digest.  Nothing is written after it.

        Empty folders, which some frameworks leave, are removed: a manifest lists files alone.

        Raises:
            ConfigError: the artifact could not be opened again, as where metadata is not JSON.
            OSError: there is no room, or a file cannot be written.
        """
        (self.folder / FEATURES).write_text(features.to_json(), encoding="utf-8")
        entry = ReferenceEntry(rows=len(probes.rows))
        write_recorded(self.folder / entry.path, probes)
        manifest = Manifest(
            schema=SCHEMA,
            name=self.name,
            files=_sync_and_list(self.folder),
            graphs=tuple(graphs),
            batch=batch,
            reference_rows=entry,
            tolerance=tolerance,
            classes=None if classes is None else tuple(classes),
            libraries=dict(libraries),
            created=created,
            git=git,
            metadata=dict(metadata),
            run=run,
            tables=tuple(tables),
        )
        content = manifest_to_json(manifest)
        self.digest = sha256(content).hexdigest()
        write_synced(self.folder / MANIFEST, content)
        write_synced(self.folder / DIGEST, f"{self.digest}\n".encode())
        sync_folder(self.folder)
        return self.digest

    def publish(self) -> Path:
        """Let the artifact appear at its path, which is returned."""
        assert self.digest, "call finish before publish"
        check_absent(self.target)
        try:
            self.folder.rename(self.target)
        except OSError as error:
            if os.path.lexists(self.target):  # since the check; a rename replaces nothing but an empty folder
                raise _exists(self.target) from error
            raise
        sync_folder(self.target.parent)
        return self.target


@contextlib.contextmanager
def new_artifact(path: str | os.PathLike[str], *, name: str) -> Iterator[Draft]:
    """A draft of the artifact that is to be at `path`; folders above it are made.

    Raises:
        ConfigError: `path` exists.
    """
    target = Path(path).absolute()
    check_absent(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with draft_folder(target) as folder:
        yield Draft(folder, target, name)


def check_absent(target: Path) -> None:
    """Raise ConfigError where there is something already, be it a link that leads nowhere."""
    if os.path.lexists(target):
        raise _exists(target)


def _exists(target: Path) -> ConfigError:
    return ConfigError(f"{target} exists; an artifact is never overwritten: give another path, or remove it first")


def _sync_and_list(folder: Path) -> dict[str, FileEntry]:
    """Every file below `folder`, synced, in order of the paths; empty folders are removed, others are synced."""
    found: dict[str, FileEntry] = {}
    for top, folders, files in os.walk(folder, topdown=False):
        here = Path(top)
        for name in files:
            path = here / name
            found[path.relative_to(folder).as_posix()] = _sync_and_hash(path)
        if here != folder and not files and not any((here / name).is_dir() for name in folders):
            here.rmdir()
        else:
            sync_folder(here)
    return dict(sorted(found.items()))


def _sync_and_hash(path: Path) -> FileEntry:
    digest, size = sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
        os.fsync(file.fileno())
    return FileEntry(sha256=digest.hexdigest(), bytes=size)
