"""Copy an artifact, and check every byte of the copy.

Where the file system shares blocks of files, as XFS and Btrfs do, a copy takes no room.  No file is a hard link: it
would change with the artifact that it was copied from, and have its owner and its rights.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.artifact.listed_files import FOLDER_FLAGS, check_listing, copy_listed, read_small
from penstock.artifact.manifest import DIGEST, MANIFEST
from penstock.artifact.opened_artifact import LARGEST_MANIFEST, Artifact, open_artifact
from penstock.errors import ArtifactInvalid
from penstock.hosting.fault_points import hit
from penstock.hosting.synced_files import sync_tree


def copy_artifact(source: Artifact, target: Path) -> None:
    """Copy `source`, whose files need not have been checked yet, to `target`, and have the copy on the disk.

    Raises:
        ArtifactInvalid: the source is not as it was saved, or the copy is not as the source.
        OSError: the copy cannot be written.
    """
    folder = os.open(source.path, FOLDER_FLAGS)
    try:
        _copy(folder, source, target)
    except ArtifactInvalid as error:
        raise ArtifactInvalid(f"{source.path} is not a valid artifact: {error}", file=error.file) from error
    finally:
        os.close(folder)
    sync_tree(target)
    hit("synced")
    try:
        open_artifact(target, digest=source.digest, verify_rows=True)
    except ArtifactInvalid:
        open_artifact(source.path, digest=source.digest, verify_rows=True)  # the fault is most often in what was copied
        raise
    hit("verified")


def _copy(folder: int, source: Artifact, target: Path) -> None:
    files = source.manifest.files
    check_listing(folder, files, besides=(MANIFEST, DIGEST))
    target.mkdir()
    for path, entry in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        with (target / path).open("xb", buffering=0) as file:
            copy_listed(folder, path, entry, file)
        hit("half_written")
    (target / MANIFEST).write_bytes(read_small(folder, MANIFEST, limit=LARGEST_MANIFEST))
    (target / DIGEST).write_text(f"{source.digest}\n")
