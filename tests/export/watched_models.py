"""A model directory with two versions, and what must hold of it whatever happens to a third."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from penstock.artifact.proof import prove
from penstock.artifact.publishing import publish_artifact
from tiny_artifacts import write_artifact

LOOK_EVERY = 0.001
"""Seconds."""


def two_versions(folder: Path) -> Path:
    """A new model directory in `folder`."""
    models = folder / "models"
    for name in ("first", "second"):
        write_artifact(folder / name, name=name)
        publish_artifact(folder / name, models)
    return models


def content(folder: Path) -> dict[str, bytes | None]:
    """Every path below `folder`, with the bytes of files."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def record(models: Path) -> dict[str, Any]:
    return json.loads((models / "CURRENT").read_bytes())


def manifest(models: Path, version: int) -> dict[str, Any]:
    return json.loads((models / "versions" / str(version) / "manifest.json").read_bytes())


class Models:
    """The directory as it was, and what may have become of it."""

    def __init__(self, models: Path) -> None:
        self.path = models
        self.before = content(models)
        self.history = record(models)["history"]

    def check_unchanged(self, stages: int = 0) -> None:
        """Nothing was published, and nothing is left but the stages of those who are about to."""
        assert record(self.path)["history"] == self.history
        self._check_versions(len(self.history), stages)

    def check_one_more(self) -> dict[str, Any]:
        """One version came, which proves true; its manifest."""
        number = len(self.history) + 1
        found = record(self.path)
        assert found["history"][:-1] == self.history
        entry = found["history"][-1]
        assert (entry["version"], entry["action"]) == (number, "publish")
        assert (found["version"], found["digest"]) == (number, entry["digest"])
        self._check_versions(number)
        prove(self.path / "versions" / str(number), digest=entry["digest"])
        told = manifest(self.path, number)
        assert told["run"] == entry["run"]
        return told

    def _check_versions(self, count: int, stages: int = 0) -> None:
        """The versions are those that were, byte for byte, and no others than `count`; nothing else is there."""
        there = {path.name for path in (self.path / "versions").iterdir()}
        assert there >= (numbers := {str(number) for number in range(1, count + 1)})
        assert [name.partition("-")[0] for name in there - numbers] == [".stage"] * stages
        now = content(self.path)
        for path, was in self.before.items():
            if path.startswith("versions/"):
                assert now[path] == was, path
        assert {path.partition("/")[0] for path in now} <= {"CURRENT", "versions", ".lock"}


class Reader:
    """Reads `CURRENT` again and again, as servers do that start at any moment."""

    def __init__(self, models: Path) -> None:
        self.models = models
        self.versions: set[int] = set()
        self.troubles: list[str] = []
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        while not self._enough.is_set():
            try:
                self._look()
            except Exception as error:
                self.troubles.append(repr(error))
            time.sleep(LOOK_EVERY)

    def _look(self) -> None:
        found = record(self.models)
        version = self.models / "versions" / str(found["version"])
        assert sha256((version / "manifest.json").read_bytes()).hexdigest() == found["digest"]
        self.versions.add(found["version"])

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Read all the while; every record must have been whole, and of a version that is there."""
        self._thread.start()
        try:
            yield
        finally:
            self._enough.set()
            self._thread.join()
        assert not self.troubles, self.troubles[:3]
