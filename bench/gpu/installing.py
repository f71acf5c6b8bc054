"""Install the wheels of `make gpu-wheels` into a folder of their own, on a machine without a network.

The folder comes first on PYTHONPATH, for servers and workers too.  Nothing of the Python that is there is changed: it
may be a virtual environment, and another one made from it would not see its packages.  Only the standard library is
imported; pip is run where that Python has it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"
SUPPORTED = ("3.11", "3.12", "3.13")
OLD_NAMES = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
"""The glibc of the platforms that were named before PEP 600."""

LIMIT = 120.0
"""Seconds that pip, or an import, may take; both take a few."""

PROBE = """
import json, os, platform, sys, sysconfig
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (OSError, ValueError):
    libc = ""
kind = platform.python_implementation()
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    kind = "free-threaded " + kind
print(json.dumps([kind, "%d.%d" % sys.version_info[:2], platform.machine(), libc]))
"""

IMPORT = """
import penstock.server.serve
from penstock.hosting.build import is_compiled
print("compiled" if is_compiled() else "sources")
"""


class WrongWheels(ValueError):
    """The wheels cannot be used by this Python on this machine; the message is a sentence with what to do."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A CPython that wheels are for, and the machine that it runs on."""

    version: str
    """As in "3.12"."""
    machine: str
    """As `uname -m` names it."""
    glibc: tuple[int, int]
    """(0, 0) where the system has another C library: no manylinux wheel runs there."""

    @classmethod
    def of(cls, python: str) -> Interpreter:
        """The interpreter `python`; a WrongWheels where its kind is not supported."""
        answer = subprocess.run([python, "-I", "-c", PROBE], capture_output=True, text=True, check=True)
        kind, version, machine, libc = json.loads(answer.stdout)
        if kind != "CPython" or version not in SUPPORTED:
            raise WrongWheels(f"{python} is {kind} {version}: use CPython 3.11, 3.12 or 3.13")
        glibc = re.fullmatch(r"glibc (\d+)\.(\d+).*", libc)
        return cls(version, machine, (int(glibc[1]), int(glibc[2])) if glibc else (0, 0))

    def imports(self, python: str, abi: str) -> bool:
        """Whether this Python can import a wheel with these two tags."""
        tag = re.fullmatch(r"(py|cp)3(\d*)", python)
        if tag is None:
            return False
        minor = int(self.version.partition(".")[2])
        same, no_newer = tag[2] == str(minor), int(tag[2] or 0) <= minor
        if abi == "none":
            return same or (no_newer and tag[1] == "py")
        return tag[1] == "cp" and ((same and abi == python) or (no_newer and abi == "abi3"))

    def glibc_for(self, platform: str) -> tuple[int, int] | None:
        """The glibc that a wheel with this tag needs, (0, 0) if any will do; None if it is for another machine."""
        if platform in ("any", f"linux_{self.machine}"):
            return (0, 0)
        named = re.fullmatch(rf"(manylinux\w*?)_(?:(\d+)_(\d+)_)?{re.escape(self.machine)}", platform)
        if named is None:
            return None
        return (int(named[2]), int(named[3])) if named[2] else OLD_NAMES.get(named[1])


@dataclass(frozen=True, slots=True)
class Installed:
    """The build of Penstock that can be imported."""

    build: str
    """`compiled`, in the folder of what was installed, or `sources`: those beside this file come before it."""
    why: str
    """The reason for sources; with a compiled build a warning for the reader of its figures; "" if there is nothing."""


def check_wheels(wheels: Path, on: Interpreter | None = None) -> list[Path]:
    """The wheels of a folder, sorted; a WrongWheels where it lacks some, or `on`, or this Python, cannot use some."""
    on = on or Interpreter.of(sys.executable)
    if not wheels.is_dir():
        raise WrongWheels(f"there is no folder of wheels at {wheels}: {_cure(on)}")
    found: dict[str, Path] = {}
    for wheel in sorted(wheels.glob("*.whl")):
        _check_tags(wheel, on)
        if not zipfile.is_zipfile(wheel):
            raise WrongWheels(f"{wheel} is cut short: copy it again")
        project = wheel.name.partition("-")[0].lower()
        if project in found:
            raise WrongWheels(f"{wheel} is there beside {found[project].name}, and one of each is wanted: {_cure(on)}")
        found[project] = wheel
    if "penstock" not in found:
        raise WrongWheels(f"{wheels} has no wheel of penstock: {_cure(on)}")
    return list(found.values())


def install(wheels: Path, into: Path, python: str) -> Installed:
    """Install every wheel of a folder into the new folder `into`, for the interpreter `python`.

    A compiled build that cannot be imported is removed, and the sources beside this file are tried instead.  Raises
    WrongWheels, before anything is written if `check_wheels` does.
    """
    on = Interpreter.of(python)
    found = check_wheels(wheels, on)
    try:
        if not _install_with_pip(found, into, python):
            _unpack(found, into, python)
    except (OSError, zipfile.BadZipFile) as error:
        raise WrongWheels(f"the wheels of {wheels} could not be installed into {into}: {error}") from None
    build, why = import_build(python, into)
    if build == "compiled":
        penstock = next(wheel for wheel in found if wheel.name.startswith("penstock-"))
        return Installed(build, _difference(penstock))
    _remove_penstock(into)
    build, failure = import_build(python, SOURCES, into)
    if failure:
        raise WrongWheels(f"Penstock cannot be imported with the wheels of {wheels}: {failure}; {_cure(on)}")
    return Installed(build, why or "the wheel has the sources alone")


def import_build(python: str, *folders: Path) -> tuple[str, str]:
    """The build that is imported from these folders, and the reason why none can be, "" if one can."""
    paths = os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))
    return _run([python, "-P", "-c", IMPORT], os.environ | {"PYTHONPATH": paths})


def _check_tags(wheel: Path, on: Interpreter) -> None:
    parts = wheel.name.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6):  # the sixth is the number of a build
        raise WrongWheels(f"{wheel} is not named as wheels are: {_cure(on)}")
    pythons, abis, platforms = (part.split(".") for part in parts[-3:])
    if not any(on.imports(python, abi) for python in pythons for abi in abis):
        raise WrongWheels(f"{wheel} is for another Python than this {on.version}: {_cure(on)}")
    needed = [glibc for platform in platforms if (glibc := on.glibc_for(platform)) is not None]
    if not needed:
        raise WrongWheels(f"{wheel} is for another machine than this {on.machine}: {_cure(on)}")
    if min(needed) > on.glibc:
        oldest, here = ("{}.{}".format(*glibc) if any(glibc) else "none" for glibc in (min(needed), on.glibc))
        raise WrongWheels(f"{wheel} needs glibc {oldest}, and this system has {here}: run in another system")


def _cure(on: Interpreter) -> str:
    make = f"make gpu-wheels PYTHON_VERSION={on.version}"
    return f"run `{make}` on a machine of the kind {on.machine} with a network, and copy build/gpu-wheels from there"


def _install_with_pip(wheels: list[Path], into: Path, python: str) -> bool:
    """Whether pip could do it.  Settings of a user are not read: they may name an index, or another target.

    Its own temporary folders lie beside `into`, and are removed with it where pip is killed.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_ROOT_USER_ACTION": "ignore", "TMPDIR": str(into.parent)}
    flags = ["--no-index", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet"]
    command = [python, "-m", "pip", "install", *flags, "--target", str(into), *map(str, wheels)]
    return not _run(command, variables)[1]


def _unpack(wheels: list[Path], into: Path, python: str) -> None:
    """Do without pip.  Programs, headers and data files are left out: servers are started by `python -m`."""
    shutil.rmtree(into, ignore_errors=True)  # pip may have left a part
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                entry.filename = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", entry.filename)
                if not re.match(r"[^/]+\.data/", entry.filename):
                    archive.extract(entry, into)
    _run([python, "-m", "compileall", "-q", str(into)], dict(os.environ))


def _remove_penstock(into: Path) -> None:
    shutil.rmtree(into / "penstock")
    for library in into.glob("*__mypyc.*.so"):
        library.unlink()


def _difference(wheel: Path) -> str:
    """A sentence that names a module which the wheel and the sources beside this file have not alike; "" if none."""
    if not SOURCES.is_dir():
        return ""
    with zipfile.ZipFile(wheel) as archive:
        ours = {name: archive.read(name) for name in archive.namelist() if re.fullmatch(r"penstock/.*\.py", name)}
    here = {path.relative_to(SOURCES).as_posix(): path.read_bytes() for path in SOURCES.glob("penstock/**/*.py")}
    different = sorted(name for name in ours.keys() | here.keys() if ours.get(name) != here.get(name))
    return f"the wheel is of other sources than those here: {different[0]} is not the same" if different else ""


def _run(command: list[str], variables: dict[str, str]) -> tuple[str, str]:
    """The output of a command, and the reason why it failed, "" if it did not."""
    try:
        done = subprocess.run(
            command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"no end after {LIMIT:.0f} s"
    if done.returncode == 0:
        return done.stdout.decode(errors="replace").strip(), ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return "", lines[-1].strip() if lines else f"status {done.returncode}"
