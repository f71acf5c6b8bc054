"""Open an artifact: first check that every byte of it is what was saved, then read what it says.

Contract
--------
* The path is resolved once.  What was opened stays the artifact it was, whatever a link on the way leads to later.
* Before anything in it is interpreted, `DIGEST` was the manifest's sha256, each listed file was of its size and
  sha256, and there was nothing else: else `ArtifactInvalid`, with the file's path.  Shards of rows can be
  larger than memory, and their sha256 is checked only where that is asked for.
* Files that another process of this service has checked, and that have the same stamps still, are not hashed again.
* `read` checks a file again, unless its stamp is still that with which it was checked.  A graph that can be opened from
  bytes is opened from these bytes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from penstock.artifact.listed_files import (
    FOLDER_FLAGS,
    FileStamp,
    check_listed,
    open_regular,
    read_listed,
    read_small,
    read_stamps,
)
from penstock.artifact.manifest import DIGEST, FEATURES, MANIFEST, FileEntry, GraphEntry, Manifest, Role
from penstock.artifact.manifest_json import SHA256, manifest_from_json
from penstock.artifact.probes import read_recorded, read_rows
from penstock.artifact.recorded import Recorded
from penstock.codec.text import printable
from penstock.errors import ArtifactInvalid, ConfigError
from penstock.features.feature_spec import Features
from penstock.features.tensors import TensorSpec

LARGEST_MANIFEST = 16 << 20
"""Bytes.  A manifest of ten thousand files has about 2 MiB."""
SETTLED_SECONDS = 2.0
"""Age of a file from which on each later write gives it another time: those of some file systems are that coarse."""
DIGEST_FILE = re.compile(rb"(?:\xef\xbb\xbf)?([0-9a-f]{64})(?:\n|\r\n|\r)")
"""With any line end, and with a byte order mark: git and editors change those of text files."""
LARGEST_DIGEST = 69
"""Bytes."""

T = TypeVar("T")


@dataclass(frozen=True)
class Artifact:
    """A saved model whose files were checked."""

    path: Path
    """Absolute, and without links."""
    manifest: Manifest
    digest: str
    """The sha256 of the manifest, which has those of all other files."""
    features: Features
    trusted: bool
    """Whether a graph of it that can run code may be opened, as whoever opened it has said."""
    stamps: Mapping[str, FileStamp] = field(default_factory=dict, repr=False, compare=False)
    """The files that were checked, with the stamps by which a later change is seen."""

    @property
    def seen(self) -> str:
        """A word for the checked files and their stamps, for `open_artifact` in another process; "" where one is young.

        A file that was written just before it was checked may be written once more without another time.
        """
        return _seen(self.digest, self.stamps) if self.stamps.keys() == self.manifest.files.keys() else ""

    def program(self, format: str | None = None) -> dict[Role, GraphEntry]:  # noqa: A002  # the word users know
        """The graphs of a format, by their roles; of the first, where `format` is None.

        Raises:
            ConfigError: the model was not saved in it.
        """
        formats = self.manifest.formats
        found = self.manifest.program(formats[0] if format is None else format)
        if not found:
            raise ConfigError(f"{self.path} has no graph of the format {format!r}, but {', '.join(map(repr, formats))}")
        return found

    def read(self, path: str) -> bytes:
        """The content of a file that the manifest lists, checked again.

        Raises:
            ArtifactInvalid: it is no longer what it was.
        """
        entry, stamp = self._listed(path), self.stamps.get(path)
        return _in_folder(self.path, lambda folder: read_listed(folder, path, entry, stamp=stamp))

    def open_file(self, path: str) -> int:
        """A descriptor of a file that the manifest lists, of which nothing is checked.

        Raises:
            ArtifactInvalid: it cannot be opened, or is no regular file.
        """
        self._listed(path)
        return _in_folder(self.path, lambda folder: open_regular(folder, path))

    def probes(self) -> Recorded:
        """The rows that ship in the artifact, and what the model answered to them.

        Raises:
            ArtifactInvalid: they do not fit the features or the graphs.
        """
        manifest = self.manifest
        return read_recorded(
            self.read,
            manifest.reference_rows.path,
            rows=manifest.reference_rows.rows,
            inputs=self.features.inputs,
            outputs=manifest.outputs,
            ids=manifest.ids,
            tables=[table.shape for table in manifest.outside],
        )

    def probe_rows(self) -> list[dict[str, Any]]:
        """The reference rows alone, raw.

        Raises:
            ArtifactInvalid: there are none that can be read.
        """
        return read_rows(self.read, self.manifest.reference_rows.path)

    def _listed(self, path: str) -> FileEntry:
        entry = self.manifest.files.get(path)
        if entry is None:
            raise ArtifactInvalid(f"{printable(path)} is not listed in the manifest", file=path)
        return entry


def open_artifact(
    path: str | os.PathLike[str],
    *,
    digest: str | None = None,
    trust: bool = False,
    check_files: bool = True,
    verify_rows: bool = False,
    seen: str = "",
) -> Artifact:
    """The artifact in the folder `path`, which may be reached through links; nothing inside may be one.

    Args:
        path: the folder.
        digest: what the artifact's digest has to be; None: whatever it is.
        trust: lets a graph be opened that can run code.  A digest that the user has named is a reason
            to say so, for the user knows the very bytes; one that lies beside the artifact, as in `CURRENT`, is none.
        check_files: whether every file is checked now; without, only what is read, when it is read.  It is for those
            who open no graph.
        verify_rows: whether the sha256 of shards of rows is checked too.
        seen: `Artifact.seen` of the process that has checked them: files that are still so are not hashed again.

    Raises:
        ArtifactInvalid: it is no artifact, or not as it was when it was saved, or has another digest.
        ConfigError: `digest` is no digest.
    """
    _check_digest(digest)
    try:
        resolved = Path(path).resolve(strict=True)
    except PermissionError as error:
        raise ArtifactInvalid(f"{printable(str(path))} cannot be opened: {error.strerror}") from error
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        raise ArtifactInvalid(f"{printable(str(path))} is not an artifact: the directory does not exist") from error
    if not resolved.is_dir():
        raise ArtifactInvalid(f"{printable(str(path))} is not an artifact: it is not a directory")
    try:
        return _in_folder(
            resolved,
            lambda folder: _open(
                folder, resolved, digest, seen, trust=trust, check_files=check_files, verify_rows=verify_rows
            ),
        )
    except ArtifactInvalid as error:
        raise ArtifactInvalid(f"{printable(str(path))} is not a valid artifact: {error}", file=error.file) from error


def read_digest(path: Path) -> str:
    """The digest of the artifact in the folder `path`, whose other files are not looked at.

    Raises:
        ArtifactInvalid: there is no manifest that can be read, or not that of `DIGEST`.
    """
    return _in_folder(path, lambda folder: _read_manifest(folder)[1])


def _check_digest(digest: str | None) -> None:
    if digest is not None and not SHA256.fullmatch(digest):
        raise ConfigError(f"digest must be the 64 hexadecimal digits of a file {DIGEST}, in lower case; got {digest!r}")


def _open(
    folder: int,
    path: Path,
    expected: str | None,
    seen: str,
    *,
    trust: bool,
    check_files: bool,
    verify_rows: bool,
) -> Artifact:
    manifest, digest = _read_manifest(folder)
    if expected not in (None, digest):
        raise ArtifactInvalid(f"its digest is {digest}, but {expected} is expected", file=DIGEST)
    stamps = _checked(folder, manifest, digest, seen, verify_rows=verify_rows) if check_files else {}
    text = read_listed(folder, FEATURES, manifest.files[FEATURES], stamp=stamps.get(FEATURES))
    features = _read_features(text)
    _check_inputs(manifest, features)
    return Artifact(path, manifest, digest, features, trusted=trust, stamps=stamps)


def _checked(folder: int, manifest: Manifest, digest: str, seen: str, *, verify_rows: bool) -> dict[str, FileStamp]:
    """Check every file, and return the stamps of those that are old enough."""
    besides = (MANIFEST, DIGEST)
    if seen:
        found = read_stamps(folder, manifest.files, besides=besides)
        if _seen(digest, found) == seen:
            return found
    settled = (time.time() - SETTLED_SECONDS) * 1e9
    of_size_alone = [] if verify_rows else [shard.file for table in manifest.outside for shard in table.shards]
    checked = check_listed(folder, manifest.files, besides=besides, of_size_alone=of_size_alone)
    return {path: stamp for path, stamp in checked.items() if stamp.mtime_ns <= settled}


def _seen(digest: str, stamps: Mapping[str, FileStamp]) -> str:
    told = [digest, *(f"{path} {' '.join(map(str, stamp))}" for path, stamp in sorted(stamps.items()))]
    return sha256("\n".join(told).encode(errors="surrogatepass")).hexdigest()


def _read_manifest(folder: int) -> tuple[Manifest, str]:
    content = read_small(folder, MANIFEST, limit=LARGEST_MANIFEST)
    said = DIGEST_FILE.fullmatch(read_small(folder, DIGEST, limit=LARGEST_DIGEST))
    digest = sha256(content).hexdigest()
    if said is None:
        raise ArtifactInvalid(f"{DIGEST} must contain 64 hexadecimal digits and a line end", file=DIGEST)
    if said[1].decode() != digest:
        raise ArtifactInvalid(
            f"{DIGEST} does not match {MANIFEST}: the sha256 of {MANIFEST} is {digest}", file=MANIFEST
        )
    return manifest_from_json(content), digest


def _read_features(content: bytes) -> Features:
    try:
        return Features.from_json(content.decode())
    except (ConfigError, UnicodeDecodeError) as error:
        raise ArtifactInvalid(
            f"{FEATURES} is not a feature spec that this version can read: {error}", file=FEATURES
        ) from error


def _check_inputs(manifest: Manifest, features: Features) -> None:
    """A graph may do without an input that the model does not use; another one it cannot have."""
    encoded = {tensor.name: tensor for tensor in features.inputs}
    looked_up: dict[str, TensorSpec] = {}
    if manifest.outside:
        ids = {tensor.name: tensor for tensor in manifest.program(manifest.formats[0])["ids"].outputs}
        for table in manifest.outside:
            looked_up[table.input] = TensorSpec(table.input, "float32", (table.width,))
            for lookup in table.lookups:
                looked_up[lookup.places] = TensorSpec(lookup.places, "int64", ids[lookup.ids].shape)
    twice = encoded.keys() & looked_up.keys()
    if twice:
        raise ArtifactInvalid(f"{MANIFEST}: {min(twice)!r} is a feature, and the rows of a table", file=MANIFEST)
    for graph in manifest.graphs:
        given = encoded if graph.role == "ids" else encoded | looked_up
        for tensor in graph.inputs:
            if given.get(tensor.name) != tensor:
                raise ArtifactInvalid(
                    f"{MANIFEST}: the {graph.format} graph takes {tensor}, and "
                    f"{'its table' if tensor.name in looked_up else FEATURES} gives "
                    f"{given.get(tensor.name, 'nothing of that name')}",
                    file=MANIFEST,
                )


def _in_folder(path: Path, work: Callable[[int], T]) -> T:
    try:
        folder = os.open(path, FOLDER_FLAGS)
    except OSError as error:
        raise ArtifactInvalid(f"{printable(str(path))} cannot be opened: {error.strerror}") from error
    try:
        return work(folder)
    finally:
        os.close(folder)
