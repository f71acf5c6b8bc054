"""Fill `build/gpu-wheels` with the wheels that `bench/gpu/run.py` installs on a machine without a network.

    python bench/gpu/wheels.py                        # for the Python that runs this
    python bench/gpu/wheels.py 3.12

Penstock is compiled where an interpreter of that version, with its headers, is found: the one that runs this, on PATH,
or of pyenv.  Without one, and with PENSTOCK_COMPILE=0, its wheel has the sources alone.  Its dependencies and those of
the extra `bench-gpu` are resolved by pip, with the index that pip is set to, for this kind of machine with glibc 2.28.
Torch and numpy are the machine's with the GPU: they are left out, and so is all that only they need.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from installing import OLD_NAMES, SUPPORTED, Interpreter, WrongWheels, check_wheels
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "gpu-wheels"
GLIBC = (2, 28)
LIMIT = 40_000_000
"""Bytes of all wheels together."""

REFUSED = re.compile(r"torch(vision|audio)?|(pytorch-)?triton|numpy|(nvidia|cuda)-.*")

PROBE = """
import os, platform, sys, sysconfig
free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
kind = platform.python_implementation(), "%d.%d" % sys.version_info[:2], free_threaded
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
raise SystemExit(kind != ("CPython", sys.argv[1], False) or not headers)
"""


class NotMade(Exception):
    """The folder was not made; the message is a sentence with what to do."""


# -- what is needed ---------------------------------------------------------------------------------------------------


def requirements() -> list[str]:
    """The requirements of `pyproject.toml`: those of Penstock, and those of the report on a GPU."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["bench-gpu"]]


Projects = Mapping[str, Mapping[str, Any]]
"""The metadata of projects, by their normalized names."""


def resolve(roots: Iterable[str], version: str, report: Callable[[list[str]], Projects]) -> dict[str, str]:
    """The version of each project that `roots` lead to under the first release of a Python `version`.

    `report` resolves requirements as `pip install --dry-run --report` does.  pip evaluates markers for the Python that
    runs it, so the projects it reports are walked with the markers of the other one.  A requirement that they do not
    meet is given to pip by itself, and all is resolved again.  A project that nothing leads to is left out.
    """
    environment = {**default_environment(), "python_version": version, "python_full_version": f"{version}.0"}
    needs = list(_applying(roots, environment))
    wanted = list(map(str, needs))
    while True:
        needed, unmet = _walk(needs, report(wanted), environment)
        if not unmet:
            return needed
        assert unmet.isdisjoint(wanted), f"pip passed over {unmet}"
        wanted += sorted(unmet)


def _walk(
    needs: list[Requirement], projects: Projects, environment: Mapping[str, Any]
) -> tuple[dict[str, str], set[str]]:
    """The version of each project that is led to, and the requirements that none meets."""
    needed: dict[str, str] = {}
    seen, unmet = set(), set()
    waiting = list(needs)
    while waiting:
        requirement = waiting.pop()
        name, text = canonicalize_name(requirement.name), str(requirement)
        if text in seen or REFUSED.fullmatch(name):
            continue
        seen.add(text)
        project = projects.get(name)
        if project is None or not requirement.specifier.contains(project["version"], prereleases=True):
            unmet.add(text)
        else:
            needed[name] = project["version"]
            waiting += _applying(project.get("requires_dist", []), environment, requirement.extras)
    return needed, unmet


def _applying(
    lines: Iterable[str], environment: Mapping[str, Any], extras: Iterable[str] = ()
) -> Iterator[Requirement]:
    """The requirements whose marker holds, without an extra or with one of `extras`; the marker is taken off."""
    for requirement in map(Requirement, lines):
        marker, requirement.marker = requirement.marker, None
        if marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)):
            yield requirement


# -- what it is made by -----------------------------------------------------------------------------------------------


class Pip:
    """The pip of the environment that runs this, for the wheels of another Python."""

    def __init__(self, version: str, scratch: Path) -> None:
        tag = f"cp{version.replace('.', '')}"
        self._scratch = scratch
        self._binary = ["--only-binary=:all:", "--python-version", version, "--implementation", "cp", "--abi", tag]
        for name in platforms(platform.machine()):
            self._binary += ["--platform", name]

    def report(self, wanted: list[str]) -> Projects:
        """The projects that `wanted` resolves to."""
        path = self._scratch / "report.json"
        flags = ["--dry-run", "--ignore-installed", "--report", str(path), "--target", str(self._scratch / "none")]
        self._run(["install", *flags, *self._binary, *wanted], "resolve the requirements")
        found = [entry["metadata"] for entry in json.loads(path.read_bytes())["install"]]
        return {canonicalize_name(metadata["name"]): metadata for metadata in found}

    def fetch(self, projects: dict[str, str], into: Path) -> None:
        """Download the wheel of each project, in this version."""
        pinned = [f"{name}=={version}" for name, version in sorted(projects.items())]
        self._run(["download", "--no-deps", "--dest", str(into), *self._binary, *pinned], "download the wheels")

    def build(self, python: str | None, into: Path) -> None:
        """Make the wheel of Penstock: compiled for `python`, or of the sources alone without it."""
        variables = {"PENSTOCK_COMPILE": "1" if python else "0", "MYPY_CACHE_DIR": str(ROOT / "build" / "types")}
        task = f"compile Penstock for {python}" if python else "make the wheel of Penstock"
        cure = "install the C compiler or mend the network, or set PENSTOCK_COMPILE=0 for the sources alone"
        chosen = ["--python", python] if python else []
        self._run(
            [*chosen, "wheel", "--no-deps", "--wheel-dir", str(into), str(ROOT)],
            task,
            cure if python else "",
            variables,
        )

    def _run(self, command: list[str], task: str, cure: str = "", variables: dict[str, str] | None = None) -> None:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *command]
        if subprocess.run(pip, cwd=ROOT, env=os.environ | (variables or {}), check=False).returncode:
            cure = cure or "check the network and the index that pip is set to"
            raise NotMade(f"pip could not {task}, for the reason above: {cure}, then try again")


def platforms(machine: str) -> list[str]:
    """The platform tags of wheels for a machine with this glibc or an older one, the newest first."""
    numbered = [f"manylinux_{GLIBC[0]}_{minor}_{machine}" for minor in range(GLIBC[1], 4, -1)]
    return [*numbered, *(f"{name}_{machine}" for name in OLD_NAMES)]


def find_python(version: str) -> str | None:
    """An interpreter that Penstock can be compiled for: a CPython of this version, with its headers."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    candidates = [
        Path(sys.executable),
        *(Path(folder, name) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder),
        *sorted(pyenv.glob(f"versions/{version}*/bin/{name}"), reverse=True),
    ]
    return next((str(path) for path in candidates if _suits(path, version)), None)


def _suits(python: Path, version: str) -> bool:
    # The shims of pyenv are on PATH for versions that are not chosen: they say so and fail.
    try:
        return not subprocess.run([python, "-I", "-c", PROBE, version], capture_output=True, check=False).returncode
    except OSError:
        return False


# -- the folder -------------------------------------------------------------------------------------------------------


def fill(version: str) -> list[Path]:
    """The wheels for a Python `version`, in a new folder that takes the place of the old one."""
    FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-wheels.", dir=FOLDER.parent) as name:
        scratch = Path(name)
        made = scratch / "wheels"
        made.mkdir()
        pip = Pip(version, scratch)
        print(f"the wheels of what Penstock and the report need, for Python {version}", flush=True)
        pip.fetch(resolve(requirements(), version, pip.report), made)
        python = None if os.environ.get("PENSTOCK_COMPILE") == "0" else find_python(version)
        print(f"the wheel of Penstock, {f'compiled for {python}' if python else 'of the sources alone'}", flush=True)
        pip.build(python, made)
        check_wheels(made, Interpreter(version, platform.machine(), GLIBC))
        if (size := size_of(made)) > LIMIT:
            largest = max(made.iterdir(), key=lambda path: path.stat().st_size)
            raise NotMade(
                f"the wheels have {size:,} bytes and may have {LIMIT:,}, and the largest is {largest.name}: "
                f"choose smaller versions in pyproject.toml"
            )
        if FOLDER.exists():
            FOLDER.rename(scratch / "old")
        made.rename(FOLDER)
    return sorted(FOLDER.iterdir())


def size_of(folder: Path) -> int:
    """The bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def python_version(given: str) -> str:
    """The version as in "3.12"; a NotMade for one that is not supported.

    The images of Python set the variable that the Makefile reads, PYTHON_VERSION, to a release as in "3.12.4".
    """
    version = ".".join(given.split(".")[:2])
    if version not in SUPPORTED:
        raise NotMade(f"{given!r} is no Python that Penstock is for: give 3.11, 3.12 or 3.13")
    return version


def main() -> int:
    """Fill the folder, and list it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", nargs="?", default=platform.python_version(), help="3.11, 3.12 or 3.13")
    given = parser.parse_args().version
    try:
        version = python_version(given)
    except NotMade as error:
        print(error, file=sys.stderr)
        return 2
    try:
        wheels = fill(version)
    except (NotMade, WrongWheels) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{FOLDER} could not be written: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    for wheel in wheels:
        print(f"{wheel.stat().st_size:>10,}  {wheel.name}")
    print(f"{size_of(FOLDER):>10,}  {FOLDER.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
