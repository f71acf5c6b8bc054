"""Run pytest, and what failed a second time: alone, in one process, with fresh fixtures.

    python tests/run.py -n 2 tests bench              # any arguments of pytest
    python tests/run.py --again 50                    # each test of build/second-try.txt, so many times

The run passes where each test that failed passes in the second run: a skipped or missing one does not.  That mends what
a race, a teardown, a time limit, a broken fixture of a module or a dead worker of xdist has failed, and no true fault.
There is no second run after more than `MOST` failures, an error of collection, a run without tests, a run that stopped
early, or any other end of pytest than "tests failed".

Tests that passed the second time are the last lines printed, and stand in build/second-try.txt until each has passed
with `--again`, in the environment and over the build that this program is called with.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

MOST = 20
"""Failures above which something is broken, and no race is to blame."""
SECOND_TRY = Path("build/second-try.txt")

TESTS_FAILED = 1
"""The status of pytest that says so; any other one but 0 is no matter of single tests."""


@dataclass(eq=False)
class Outcome:
    """What became of the tests of one run of pytest; a plugin of pytest while it runs."""

    names: list[str] = field(default_factory=list)
    """The tests to run, in place of the files that the arguments name; empty for these."""
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Files that could not be collected."""
    stopped: bool = False
    """Whether pytest ended before it had run all."""
    finished: bool = False
    """Whether pytest came to its end: a test that ends the process prevents that, whatever status it gives."""

    def pytest_configure(self, config: Any) -> None:
        """Put the names in place of the files."""
        if self.names:
            config.args[:] = self.names

    def pytest_collectreport(self, report: Any) -> None:
        """Note what could not be collected."""
        if report.failed:
            self.broken.append(report.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note what passed, and what failed in its setup, its call or its teardown."""
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
        elif report.passed and report.when == "call":
            self.passed.append(report.nodeid)

    def pytest_sessionfinish(self, session: Any) -> None:
        """Note the end."""
        most = session.config.option.maxfail or 0
        self.stopped = bool(session.shouldstop or session.shouldfail or 0 < most <= session.testsfailed)
        self.finished = True


def run_inside(file: Path, arguments: Sequence[str]) -> int:
    """Run pytest in this process, over what `file` says, and write there what became of it; the status."""
    import pytest

    sys.path[0] = ""  # as for `python -m pytest`
    outcome = Outcome(**json.loads(file.read_text()))
    status = int(pytest.main(list(arguments), plugins=[outcome]))
    file.write_text(json.dumps(asdict(outcome)))
    return status


def pytest(*arguments: str, names: Sequence[str] = ()) -> tuple[int, Outcome]:
    """Run pytest in a process of its own; the status, and what became of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "outcome.json")
        file.write_text(json.dumps(asdict(Outcome(names=list(names)))))
        command = [sys.executable, __file__, "--inside", str(file), "-p", "no:cacheprovider", *arguments]
        with subprocess.Popen(command) as process:

            def interrupt(number: int, frame: FrameType | None) -> None:
                process.send_signal(signal.SIGINT)  # pytest, its workers and what they started end in good order

            before = signal.signal(signal.SIGTERM, interrupt)
            status = process.wait()
            signal.signal(signal.SIGTERM, before)
        outcome = Outcome(**json.loads(file.read_text()))
    if status in {0, TESTS_FAILED} and not outcome.finished:
        print(f"pytest ended with status {status} before its end", flush=True)
        status = 3
    return status, outcome


def why_not(outcome: Outcome) -> str:
    """Why what failed is not run a second time; "" where it is."""
    if outcome.broken:
        return f"{outcome.broken[0]} could not be collected"
    if not outcome.failed:
        return "pytest failed without saying which test"
    if len(outcome.failed) > MOST:
        return f"{len(outcome.failed)} tests failed, more than {MOST}"
    return "pytest stopped before it had run all" if outcome.stopped else ""


def listed() -> list[str]:
    """The tests that passed only the second time, in this run and in those before it."""
    return list(dict.fromkeys(SECOND_TRY.read_text().splitlines())) if SECOND_TRY.exists() else []


def run(spread: Sequence[str], arguments: Sequence[str]) -> int:
    """Run these tests as `spread` says, and what failed once more; a status."""
    status, first = pytest(*spread, *arguments)
    if status != TESTS_FAILED:
        return status
    if reason := why_not(first):
        print(f"no second run: {reason}", flush=True)
        return status
    print(f"{len(first.failed)} failed: a second run, alone", flush=True)
    status, second = pytest("-p", "no:xdist", *arguments, names=first.failed)
    left = [name for name in first.failed if name not in second.passed or name in second.failed]
    if status or left:
        print("\n".join(["not passed the second time:", *left]), flush=True)
        return status or TESTS_FAILED
    with SECOND_TRY.open("a") as file:  # another run may be at its end too
        file.write("".join(f"{name}\n" for name in first.failed))
    print("\n".join(["passed the second time, to be mended before anything else:", *first.failed]), flush=True)
    return 0


def run_again(times: int) -> int:
    """Run each test of the list so many times, and take it off where it has passed each time; a status."""
    left = []
    for name in listed():
        for _ in range(times):
            # Without the expression of pyproject.toml: a night lists tests of the night too.
            status, outcome = pytest("-p", "no:xdist", "-q", "-m", "", name)
            if status or outcome.passed != [name]:
                left.append(name)
                break
    if not left:
        SECOND_TRY.unlink(missing_ok=True)
        return 0
    part = SECOND_TRY.with_suffix(".part")
    part.write_text("".join(f"{name}\n" for name in left))
    part.replace(SECOND_TRY)
    print("\n".join(["not passed each time; delete from build/second-try.txt what is no test any more:", *left]))
    return TESTS_FAILED


def main() -> int:
    """Run what the arguments say; a status."""
    if sys.argv[1:2] == ["--inside"]:
        return run_inside(Path(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", dest="processes", help="processes of the first run; without, it is alone too")
    parser.add_argument("--again", type=int, metavar="TIMES", help="run the list this many times instead")
    chosen, arguments = parser.parse_known_args()
    SECOND_TRY.parent.mkdir(exist_ok=True)
    if chosen.again is not None:
        return run_again(max(1, chosen.again))
    spread = []
    if chosen.processes is not None:
        # Who has none left takes tests of another: else the last minute of a run is that of one process.  xdist gives
        # up after some dead workers, and the tests that are left are then not run: more than `MOST` end the run anyway.
        spread = ["-n", chosen.processes, "--dist", "worksteal", f"--max-worker-restart={MOST + 1}"]
    return run(spread, arguments)


if __name__ == "__main__":
    sys.exit(main())
