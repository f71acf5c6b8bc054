"""Builds of Penstock that the bench runs: this tree's, and any commit's in an environment of its own.

A commit is installed as a user would install it, compiled, into `bench/build/against/SHA/venv`, with the libraries of
this tree in the versions that this environment has: another uvloop would tell of uvloop.  What is there already is
used again.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILDS = HERE / "build" / "against"


class BuildFailed(Exception):
    """A commit could not be found, built or installed."""


@dataclass(frozen=True, slots=True)
class Build:
    """Where a build of Penstock lies, and the interpreter that runs it."""

    name: str
    python: str
    packages: Path
    """The folder that holds the package `penstock`; searched before the interpreter's own folders."""

    def environment(self) -> dict[str, str]:
        """The environment of a process that runs this build and finds the bench's services."""
        paths = [str(HERE), str(self.packages), os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


COMPILED = Build("tree", sys.executable, ROOT / "build" / "compiled")
"""This tree as an install makes it, by `make compiled`."""

SOURCES = Build("sources", sys.executable, ROOT / "src")


def build_commit(ref: str) -> Build:
    """The compiled build of commit `ref`, made if it is not there.  Raises BuildFailed."""
    sha = _run("git", "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}").decode().strip()
    folder = BUILDS / sha
    recipe, wanted = folder / "recipe", _recipe()
    if not recipe.exists() or recipe.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        _install(sha, folder, wanted)
        recipe.write_text(wanted)  # last: without it the build is not whole
    python = folder / "venv" / "bin" / "python"
    found = _run(str(python), "-P", "-c", "import sysconfig; print(sysconfig.get_path('platlib'))")
    return Build(sha[:12], str(python), Path(found.decode().strip()))


def _recipe() -> str:
    """What a build depends on beside its commit: the interpreter, and the libraries of this environment."""
    libraries = {f"{d.name}=={d.version}" for d in distributions() if d.name != "penstock"}
    return "\n".join([f"# {sys.version}", *sorted(libraries)]) + "\n"


def _install(sha: str, folder: Path, constraints: str) -> None:
    source, venv, constraints_file = folder / "source", folder / "venv", folder / "constraints"
    source.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(_run("git", "archive", "--format=tar", sha))) as archive:
        archive.extractall(source, filter="data")
    constraints_file.write_text(constraints)
    _run(sys.executable, "-m", "venv", str(venv))
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--constraint", str(constraints_file)]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["numpy"]]  # large_services.py wants numpy
    _run(*pip, str(source), *needs, variables={"PENSTOCK_COMPILE": "1", "PYTHONPATH": ""})
    shutil.rmtree(source)


def _run(*command: str, variables: dict[str, str] | None = None) -> bytes:
    """The output of a command that must succeed; a BuildFailed holds what it said."""
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **(variables or {})}, capture_output=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise BuildFailed(f"`{' '.join(command)}` ended with {done.returncode}:\n{said}")
    return done.stdout
