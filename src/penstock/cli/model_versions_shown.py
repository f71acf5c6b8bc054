"""What a model directory has, and what became of it, on a terminal, as text for programs, or as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from penstock.artifact.current_file import HistoryEntry
from penstock.artifact.model_directory import version_folder
from penstock.artifact.opened_artifact import open_artifact
from penstock.artifact.publishing import ModelVersion, ModelVersions, Rollback
from penstock.artifact.staging import Publication
from penstock.cli.printing import lines_of, print_json, print_shown, print_table, readable_path
from penstock.codec.text import printable
from penstock.errors import ArtifactInvalid
from penstock.export.releasing import published_words, rolled_back_words
from penstock.hosting.file_rights import hidden_from
from penstock.hosting.stdio import is_terminal

AT_ITS_START: Final = "; restart a server to load it"
SHORT: Final = 12
"""Characters of a digest and of a run that a table shows."""
_COLUMNS: Final = ("version", "", "when", "action", "digest", "run", "state")


def show_publication(artifact: str, model_dir: str, publication: Publication, *, as_json: bool) -> None:
    """What became of an artifact that was to be published."""
    words = published_words(publication, readable_path(artifact), readable_path(model_dir))
    if as_json:
        number, current = publication.version, publication.current
        told = {"version": number, "digest": publication.digest, "repeated": publication.repeated, "current": current}
        print_json({"path": readable_path(model_dir), **told}, done=words)
        return
    _print(words, changed=not publication.repeated)


def show_rollback(model_dir: str, rollback: Rollback, *, as_json: bool) -> None:
    """What became of a rollback."""
    words = rolled_back_words(rollback, readable_path(model_dir))
    if as_json:
        told = {"version": rollback.version, "before": rollback.before}
        print_json({"path": readable_path(model_dir), **told}, done=words)
        return
    _print(words, changed=rollback.version != rollback.before)


def show_pruned(model_dir: str, removed: Sequence[int], *, as_json: bool) -> None:
    """Which versions were removed."""
    if removed:
        numbers = ", ".join(map(str, removed))
        words = f"removed from {readable_path(model_dir)}: version{'s' * (len(removed) > 1)} {numbers}"
    else:
        words = f"nothing was removed from {readable_path(model_dir)}: no other version is old enough"
    if as_json:
        print_json({"path": readable_path(model_dir), "removed": list(removed)}, done=words)
    else:
        _print(words)


def show_versions(model_dir: str, found: ModelVersions, *, as_json: bool) -> None:
    """All versions that were published: a table on a terminal, else a line each with tabs in it, or JSON."""
    last = {entry.version: entry for entry in found.history}
    versions = [_described(version, last[version.version], found) for version in found.versions]
    if as_json:
        told = {"version": found.current, "rollback_to": found.rollback_to, "versions": versions}
        print_json({"path": readable_path(model_dir), **told})
        return
    rows = [_row(version) for version in versions]
    if is_terminal(sys.stdout):
        print_table(readable_path(model_dir), _COLUMNS, rows)
        return
    for line in lines_of(rows):
        print_shown(line)


def _described(version: ModelVersion, last: HistoryEntry, found: ModelVersions) -> dict[str, Any]:
    """A version as JSON says it; `last` is the last change that made it current."""
    return {
        "version": version.version,
        "role": _role(version, found),
        "at": last.at,
        "action": last.action,
        "digest": version.digest,
        "run": version.run,
        "state": (state := _state(version, found)),
        "hidden_from": list(_hidden_from(version, found)) if state == "there" else [],
    }


def _role(version: ModelVersion, found: ModelVersions) -> str | None:
    if version.version == found.current:
        return "current"
    return "rollback" if version.version == found.rollback_to else None


def _state(version: ModelVersion, found: ModelVersions) -> str:
    """Whether its folder is there, and holds what was published, by its manifest: its files may take long to read."""
    folder = version_folder(found.path, version.version)
    if not version.there:
        return "altered" if os.path.lexists(folder) else "pruned"  # a link is no version's folder
    try:
        open_artifact(folder, digest=version.digest, check_files=False)
    except ArtifactInvalid as error:
        if _is_denied(error):
            return "unreadable"
        return "altered" if os.path.lexists(folder) else "pruned"  # by somebody, meanwhile
    return "there"


def _hidden_from(version: ModelVersion, found: ModelVersions) -> Sequence[str]:
    """The users of the model directory who cannot read this version."""
    try:
        return hidden_from(version_folder(found.path, version.version), found.path)
    except OSError:
        return ()


def _is_denied(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, PermissionError):
        error = error.__cause__
    return error is not None


def _row(version: dict[str, Any]) -> Sequence[str]:
    role = {"current": "current", "rollback": "a rollback goes here", None: ""}[version["role"]]
    digest, run = version["digest"][:SHORT], (version["run"] or "")[:SHORT]
    hidden = f", hidden from {' and '.join(version['hidden_from'])}" if version["hidden_from"] else ""
    state = f"{version['state']}{hidden}"
    return (str(version["version"]), role, version["at"], version["action"], digest, run, state)


def _print(words: str, *, changed: bool = False) -> None:
    print_shown(printable(f"{words}{AT_ITS_START}" if changed else words), done=words)
