"""Try Penstock on a GPU, and measure it: nine parts, and a report of what each found.

    python3 bench/gpu/run.py                    # with the wheels in build/gpu-wheels
    python3 bench/gpu/run.py --installed        # with the Penstock and the packages that this Python has
    python3 bench/gpu/run.py --only speed,oom

It needs a Python 3.11 to 3.13, and PyTorch with CUDA; no network, no compiler, no home.  Without a GPU the parts run on
the CPU with small models, and without PyTorch with a stand-in.  Nothing of the Python that is there is changed: the
wheels are installed into a folder that is removed afterwards.

`gpu-report.json`, `gpu-report.md` and `gpu-report.log` are written into `$OUT`, or `build/gpu`, anew after each part.
Exit status: 0 if no part failed, 1 if one did or the report could not be written, 2 if nothing was run, 130 or 143 if
it was interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

if sys.version_info < (3, 11):  # noqa: UP036  # before the imports, which such a Python cannot read
    print(
        f"run.py: {sys.executable} is Python {sys.version.split()[0]}: use CPython 3.11, 3.12 or 3.13", file=sys.stderr
    )
    sys.exit(2)

from findings import LOG_NAME, PartReport, Report, one_line, write_whole
from installing import Installed, Interpreter, WrongWheels, check_wheels, import_build, install
from part_process import DIES_WITH_PARENT, adopt_orphans, end_children, run_part

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WHEELS = ROOT / "build" / "gpu-wheels"
COMPILED, SOURCES = ROOT / "build" / "compiled", ROOT / "src"
REPORT_BYTES = 200_000
"""About what a report takes, with the file that takes its place; there must be room for it."""
FILES = 1024
"""How many files a process may have open at least: parts have 256 callers at once, each with a connection."""
DESCRIBE_SECONDS = 120.0
"""For how long torch may take to say which device there is, and to compute on it once."""
LOG_BYTES = 32 * 1024
MOST_LOGS = 40
"""How much of the log of a server is kept, and of how many servers of a part."""
UNWANTED = (
    "PYTHONDONTWRITEBYTECODE",
    # Settings of torch's allocator, with which it may take a large piece of memory bit by bit, or not keep any, or not
    # be the one that takes it; and one with which each kernel is waited for.
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_LAUNCH_BLOCKING",
)
"""Variables that the parts do not get."""


class CannotRun(Exception):
    """Nothing can be run, and the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part and its limits in seconds."""

    name: str
    seconds: float
    """On a GPU."""
    small_seconds: float
    """On a CPU, where its sizes are small."""
    command: tuple[str, ...] = ()
    """What runs it; () is the module of its name in `parts`."""


PARTS = (
    Part("speed", 160, 100),
    Part("overlap", 35, 40),
    Part("large", 25, 20),
    Part("oom", 30, 30),
    Part("lost", 35, 30),
    Part("memory", 85, 75),
    Part("gpus", 20, 30),
    Part("start", 60, 40),
    Part("check", 30, 40),
)


def main(argv: Sequence[str], parts: Sequence[Part] = PARTS) -> int:
    """Run it; the exit status."""
    try:
        chosen, wheels = _chosen(argv, parts)
        out = _writable(Path(os.environ.get("OUT") or ROOT / "build" / "gpu"))
        if wheels is not None:
            check_wheels(wheels)
        _raise_file_limit()
    except (CannotRun, WrongWheels) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        with _own_folder() as folder:
            return _run(chosen, wheels, out, folder)
    except CannotRun as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    except _Interrupted as interrupted:
        print(f"run.py: {interrupted}", file=sys.stderr)
        return 128 + interrupted.number
    finally:
        end_children()  # an interruption may have come while those of a part were ended


def _run(parts: Sequence[Part], wheels: Path | None, out: Path, folder: Path) -> int:
    started = time.monotonic()
    env, installed = _prepare(wheels, folder)
    if installed.why:
        print(f"{installed.build}: {installed.why}", file=sys.stderr, flush=True)
    machine = _describe(env)
    env["PART_NO_TORCH"] = one_line(machine["no_torch"])
    if machine["device"]:
        env |= {"PART_DEVICE": "cuda", "PART_GPU": machine["device"]["id"]}
        if machine["device"]["trouble"]:
            print(f"the GPU does not compute: {one_line(machine['device']['trouble'])}", file=sys.stderr, flush=True)
    else:
        # A dozen processes with small models: their threads would wait for each other.
        env |= {"PART_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        machine["versions"]["gpu"] = f"none: {machine['no_gpu']}"
        print(f"no GPU: {one_line(machine['no_gpu'])}", file=sys.stderr, flush=True)
    reports = [PartReport(part.name, why="it was not reached") for part in parts]
    day = datetime.now().astimezone().strftime("%Y-%m-%d")
    report = Report(machine["device"], machine["versions"], installed.build, installed.why, day, reports)
    log_path = folder / LOG_NAME
    with log_path.open("wb", buffering=0) as log:
        try:
            for part, part_report in zip(parts, reports, strict=True):
                seconds = part.seconds if machine["device"] else part.small_seconds
                print(f"{part.name}: at most {seconds:g} s", file=sys.stderr, flush=True)
                log.write(f"\n==== {part.name}\n".encode())
                with _part_folder(folder, part.name) as place:
                    command = part.command or (sys.executable, str(HERE / "part.py"), part.name)
                    part_env = {**env, "PWD": str(place)}
                    run_part(command, part_report, seconds, part_env, place, log)
                    _keep_logs(place, log)
                print(f"{part.name}: {part_report.verdict}, {one_line(part_report.why)}", file=sys.stderr, flush=True)
                _save(report, started, log_path, out)
        finally:
            saved = _save(report, started, log_path, out)
    print("\n".join(report.summary()))
    return report.status if saved else 1


def _keep_logs(place: Path, log: IO[bytes]) -> None:
    """Append what the servers of a part have said, which is removed with its folder: the end of each, not all."""
    for path in sorted(place.glob("*.log"))[:MOST_LOGS]:
        with contextlib.suppress(OSError):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LOG_BYTES))
                words = file.read(LOG_BYTES)
            log.write(b"\n-- %s\n%s" % (os.fsencode(path.name), words))


def _save(report: Report, started: float, log: Path, out: Path) -> bool:
    """Write the report and the log as they are now.  Where that fails, the next part can run all the same."""
    report.seconds = time.monotonic() - started
    try:
        report.write(out)
        write_whole(out / LOG_NAME, log.read_bytes())
    except OSError as error:
        print(f"run.py: the report cannot be written: {error}", file=sys.stderr)
        return False
    return True


# -- what is checked before anything runs -----------------------------------------------------------------------------


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise CannotRun(f"{message}; --help says how it is called")


def _chosen(argv: Sequence[str], parts: Sequence[Part]) -> tuple[list[Part], Path | None]:
    """The parts that were asked for, and the folder of wheels; None where this Python has what is needed."""
    names = [part.name for part in parts]
    parser = _Arguments(prog="run.py", description="Try Penstock on a GPU, and measure it.")
    parser.add_argument("--only", metavar="PARTS", help=f"some of the parts, with commas between: {', '.join(names)}")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--wheels", metavar="DIR", type=Path, help="the folder of wheels (default: build/gpu-wheels)")
    where.add_argument("--installed", action="store_true", help="use what this Python has, and no wheels")
    given = parser.parse_args(argv)
    Interpreter.of(sys.executable)  # it may be one that nothing here is for
    asked = names if given.only is None else [name.strip() for name in given.only.split(",") if name.strip()]
    unknown = [name for name in asked if name not in names]
    if unknown or not asked:
        words = f"no part is called {unknown[0]!r}" if unknown else "--only names no part"
        raise CannotRun(f"{words}; the parts are {', '.join(names)}")
    return [part for part in parts if part.name in asked], None if given.installed else given.wheels or WHEELS


def _writable(out: Path) -> Path:
    """The folder for the report, made if it is not there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out) as file:
            file.write(bytes(REPORT_BYTES))
    except OSError as error:
        raise CannotRun(f"the report cannot be written into {out}: {error.strerror}; set OUT to a folder") from None
    return out.resolve()


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < FILES:
        raise CannotRun(f"{FILES} open files are needed for the callers, and {hard} are allowed: raise `ulimit -Hn`")
    if 0 <= soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))


# -- what the parts are given -----------------------------------------------------------------------------------------


def _prepare(wheels: Path | None, folder: Path) -> tuple[dict[str, str], Installed]:
    """The environment of the parts, and the build of Penstock that they use."""
    env = dict(os.environ)
    for name in [name for name in env if name.startswith(("PENSTOCK_", "PART_", "GPU_"))]:
        del env[name]
    for name in UNWANTED:
        env.pop(name, None)
    home = folder / "home"
    home.mkdir()
    env.setdefault("HOME", str(home))
    # Whatever a framework compiles is gone with the run, and finds a place where there is no home.
    caches = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME", "TMPDIR")
    env |= {name: str(home) for name in caches}
    # A Python that may not be changed may have no bytecode of PyTorch, and each process would compile it anew.
    env |= {"PYTHONUTF8": "1", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    if wheels is not None:
        print(f"installing the wheels of {wheels}", file=sys.stderr, flush=True)
        site = folder / "site"
        try:
            installed = install(wheels, site, sys.executable)
        except WrongWheels as error:
            raise CannotRun(str(error)) from None
        packages = [SOURCES, site] if installed.build == "sources" else [site]
        env["PYTHONPATH"] = _paths(HERE, HERE.parent, *packages, os.environ.get("PYTHONPATH", ""))
        return env, installed
    why = ""
    for place in (COMPILED, SOURCES):
        build, failure = import_build(sys.executable, place) if (place / "penstock").is_dir() else ("", f"no {place}")
        if not failure:
            env["PYTHONPATH"] = _paths(HERE, HERE.parent, place, os.environ.get("PYTHONPATH", ""))
            return env, Installed(build, why)
        why = failure
    raise CannotRun(f"this Python cannot import Penstock ({why}): `make gpu-wheels` makes wheels to run it with")


def _paths(*places: Path | str) -> str:
    return os.pathsep.join(str(place) for place in places if str(place))


def _describe(env: Mapping[str, str]) -> dict[str, Any]:
    """The device and the versions."""
    command = [*DIES_WITH_PARENT, sys.executable, str(HERE / "machine.py")]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DESCRIBE_SECONDS, check=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        raise CannotRun(f"PyTorch did not say within {DESCRIBE_SECONDS:g} s which device there is") from None
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        words = str(getattr(error, "stderr", "")).strip().rpartition("\n")[2] or str(error)
        raise CannotRun(f"PyTorch cannot say which device there is: {words}") from None


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder of this run's own, which is removed."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="penstock-gpu-"))
    except OSError as error:
        raise CannotRun(f"there is no folder for what the parts write ({error}): set TMPDIR to one") from None
    try:
        if os.statvfs(folder).f_flag & os.ST_NOEXEC:
            raise CannotRun(
                f"no library can be loaded from {folder.parent}, mounted with noexec: set TMPDIR to a folder"
            )
        yield folder
    finally:
        end_children()  # an interruption may have come while a process was started, which writes there
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _part_folder(folder: Path, name: str) -> Iterator[Path]:
    """A folder of the part's own, which is removed before the next part fills the disk."""
    place = folder / f"part-{name}"
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


# -- interruption -----------------------------------------------------------------------------------------------------


class _Interrupted(BaseException):
    """A signal has asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}; the report has what was found until then")
        self.number = number


def _interrupt(number: int, _: object) -> None:
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)  # what is killed and written now is not interrupted again
    raise _Interrupted(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
