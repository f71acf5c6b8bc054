"""A copy of a tree, whose files may be changed and whose unit tests are run in processes of their own.

Contract
--------
* The tree itself is only read, and only once.
* The verdict of a run does not depend on the runs before it: bytecode, and what hypothesis found, are not kept.
* No process of a run is left when the run has ended, however it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec
from coverage import CoverageData

PACKAGE = Path("src/penstock")
TESTS = "tests/unit"
COPIED = ("src", "tests", "pyproject.toml", "setup.py")

PLUGIN = Path(__file__).resolve().with_name("chosen_tests.py")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-n", "0", "--hypothesis-seed=0")
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", PLUGIN.stem)

STARTUP_SECONDS = 60.0
"""What a run may take besides its tests: a loaded machine starts pytest slowly, and must not look like a hang."""
TEMPORARY = "tmp"
"""The folder of a copy for the temporary files of its tests."""
PATIENCE = 6
"""A run hangs when its tests take this many times what they took on the unchanged tree."""

ENDINGS = {2: "a file of tests cannot be imported", 3: "pytest itself fails"}
"""What exit statuses of pytest say of a change, besides that a test failed."""
USAGE_ERROR, NOTHING_COLLECTED = 4, 5


class TreeFailed(Exception):
    """The tests of the unchanged tree do not pass, or a run told nothing about a change."""


class Note(msgspec.Struct):
    """One test that ended; `chosen_tests.py` writes it."""

    name: str
    passed: bool
    seconds: float


class Run(msgspec.Struct, frozen=True):
    """How a run of tests ended."""

    noticed_by: str | None
    """The test that failed, or what else ended the run; None when every test passed."""
    notes: list[Note]
    seconds: float


class Learned(msgspec.Struct, frozen=True):
    """What the run of the unchanged tree tells of its tests."""

    seconds: dict[str, float]
    """What each test takes, the fastest first."""
    executed: dict[Path, dict[int, set[str]]]
    """By file and line, the tests that execute it; "" stands for what runs before the first test."""


class Copy:
    """One copy of a tree.  Its runs come one after the other."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._notes = root / "notes.jsonl"
        self._chosen = root / "chosen.json"
        self._output = root / "output.txt"

    @classmethod
    def of(cls, tree: Path, root: Path) -> Copy:
        """Copy what the unit tests of `tree` need to the new folder `root`."""
        root.mkdir()
        for name in COPIED:
            if (tree / name).is_dir():
                shutil.copytree(tree / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy2(tree / name, root / name)
        return cls(root)

    def clone(self, root: Path) -> Copy:
        """A copy of this one, with the bytecode it has, and without what its tests have left: sockets among it."""
        shutil.copytree(self.root, root, ignore=lambda folder, _: [TEMPORARY] if folder == str(self.root) else [])
        return Copy(root)

    @property
    def package(self) -> Path:
        """Where the package lies."""
        return self.root / PACKAGE

    @contextlib.contextmanager
    def changed(self, file: Path, source: bytes) -> Iterator[None]:
        """Within this, `file` of the package contains `source`."""
        path = self.package / file
        before, stat = path.read_bytes(), path.stat()
        # Bytecode passes for that of a file of the same size and, to the second, the same time.
        Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)
        path.write_bytes(source)
        try:
            yield
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    # -- runs ---------------------------------------------------------------------------------------------------

    async def learn(self) -> Learned:
        """Run all unit tests and see what each executes; TreeFailed unless they pass."""
        data, settings = self.root / "executed.db", self.root / "coverage.ini"
        settings.write_text(f"[run]\nsource = {self.package}\ndata_file = {data}\n")
        coverage = ("--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report=")
        run = await self._pytest(TESTS, *coverage, keep_bytecode=True)
        self._require_success(run)
        seconds = {note.name: note.seconds for note in sorted(run.notes, key=lambda note: note.seconds)}
        return Learned(seconds, _executed(data, self.package))

    async def verify(self, learned: Learned) -> Run:
        """Run all unit tests as after a change; TreeFailed unless they pass."""
        run = await self.run(None, learned)
        self._require_success(run)
        return run

    async def run(self, tests: set[str] | None, learned: Learned) -> Run:
        """Run `tests`, or all, the fastest first, until one fails."""
        names = [name for name in learned.seconds if tests is None or name in tests]
        self._chosen.write_bytes(msgspec.json.encode(names))
        which = [TESTS, "--others"] if tests is None else sorted({name.partition("::")[0] for name in names})
        timeout = STARTUP_SECONDS + PATIENCE * sum(learned.seconds[name] for name in names)
        return await self._pytest(*which, f"--chosen={self._chosen}", timeout=timeout)

    def _require_success(self, run: Run) -> None:
        if run.noticed_by is not None:
            raise TreeFailed(f"the unchanged tree fails: {run.noticed_by}\n{self._output.read_text()}")

    async def _pytest(self, *arguments: str, timeout: float | None = None, keep_bytecode: bool = False) -> Run:
        self._notes.unlink(missing_ok=True)
        folder = self.root / TEMPORARY
        command = [*PYTEST, *PLUGINS, f"--note={self._notes}", f"--basetemp={folder}", *arguments]
        begin = time.monotonic()
        try:
            async with asyncio.timeout(timeout), self._started(command, keep_bytecode) as process:
                status: int | None = await process.wait()
        except TimeoutError:
            status = None
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)
        return self._ended(status, time.monotonic() - begin)

    @contextlib.asynccontextmanager
    async def _started(self, command: Sequence[str], keep_bytecode: bool) -> AsyncIterator[asyncio.subprocess.Process]:
        """A process in a session of its own, which is gone at the end with all that it started in there."""
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("COV", "PYTEST"))}
        environment |= {
            "PYTHONPATH": os.pathsep.join((str(self.root / "src"), str(PLUGIN.parent))),
            "PYTHONHASHSEED": "0",
            "TMPDIR": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "" if keep_bytecode else "1",
        }
        with self._output.open("w") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=self.root,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def _ended(self, status: int | None, seconds: float) -> Run:
        """What an exit status, or None for a run that was ended by us, says together with the notes."""
        lines = self._notes.read_bytes().splitlines(keepends=True) if self._notes.exists() else []
        # A line without an end is of a run that was killed.
        found = [msgspec.json.decode(line, type=Note | None) for line in lines if line.endswith(b"\n")]
        notes = [note for note in found if note is not None]
        noticed_by = None
        if failed := [note.name for note in notes if not note.passed]:
            noticed_by = failed[0]
        elif status is None:
            noticed_by = f"no end within {seconds:.0f} s"
        elif status == USAGE_ERROR and "while loading conftest" in self._output.read_text():
            noticed_by = ENDINGS[2]
        elif status in {USAGE_ERROR, NOTHING_COLLECTED}:
            raise TreeFailed(f"pytest ended with status {status}\n{self._output.read_text()}")
        elif status != 0 or not found or found[-1] is not None:
            # Also status 0 before the end of the run: what is tested ended the process.
            noticed_by = ENDINGS.get(status, f"the process ends with status {status}")
        return Run(noticed_by, notes, seconds)


def _executed(data: Path, package: Path) -> dict[Path, dict[int, set[str]]]:
    """What coverage noted in the file `data`."""
    coverage = CoverageData(str(data))
    coverage.read()
    executed = {}
    for name in coverage.measured_files():
        # A context is the name of a test and the part of it: "tests/unit/test_errors.py::test_one|setup".
        executed[Path(name).relative_to(package)] = {
            line: {context.rpartition("|")[0] for context in contexts}
            for line, contexts in coverage.contexts_by_lineno(name).items()
        }
    return executed
