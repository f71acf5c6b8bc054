"""Run pytest, and what failed a second time: alone, in one process, with fresh fixtures.

    python tests/run.py -n 2 tests bench              # any arguments of pytest
    python tests/run.py --again 50                    # each test of build/second-try.txt, so many times

The status of the second run counts.  It passes what a race, a teardown, a time limit, a broken fixture of a module or a
dead worker of xdist has failed, and no true fault.  There is no second run after more than `MOST` failures, an error of
collection, a run without tests, or any other end of pytest than "tests failed".

Tests that passed the second time are the last lines printed, and stand in build/second-try.txt until each has passed
with `--again`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MOST = 20
"""Failures above which something is broken, and no race is to blame."""
BUILD = Path("build")
CACHE = BUILD / "pytest-cache"
SECOND_TRY = BUILD / "second-try.txt"

TESTS_FAILED = 1
"""The status of pytest that says so; any other one but 0 is no matter of single tests."""


def pytest(*arguments: str) -> int:
    """Run pytest; its status."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHE}", *arguments], check=False
    ).returncode


def failed() -> list[str]:
    """Names of the tests, and of the files that could not be collected, that failed in the last run."""
    try:
        return list(json.loads((CACHE / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return []


def why_not(names: Sequence[str]) -> str:
    """Why these are not run a second time; "" where they are."""
    if not names:
        return "pytest failed without saying which test"
    if len(names) > MOST:
        return f"{len(names)} tests failed, more than {MOST}"
    broken = [name for name in names if "::" not in name]
    return f"{broken[0]} could not be collected" if broken else ""


def remember(names: Sequence[str]) -> None:
    """Add tests to the list of those that passed the second time."""
    before = SECOND_TRY.read_text().splitlines() if SECOND_TRY.exists() else []
    part = SECOND_TRY.with_suffix(".part")
    part.write_text("".join(f"{name}\n" for name in dict.fromkeys([*before, *names])))
    part.replace(SECOND_TRY)


def run(spread: Sequence[str], arguments: Sequence[str]) -> int:
    """Run these tests as `spread` says, and what failed once more; the status of the run that counts."""
    status = pytest("--cache-clear", *spread, *arguments)
    if status != TESTS_FAILED:
        return status
    names = failed()
    if reason := why_not(names):
        print(f"no second run: {reason}", flush=True)
        return status
    print(f"{len(names)} failed: a second run, alone", flush=True)
    status = pytest("--last-failed", "--last-failed-no-failures=none", "-p", "no:xdist", *arguments)
    if status == 0:
        remember(names)
        print("passed the second time, to be mended before anything else:")
        print("\n".join(names), flush=True)
    return status


def run_again(times: int) -> int:
    """Run each test of the list so many times, and forget the list once all have passed; a status."""
    names = SECOND_TRY.read_text().splitlines() if SECOND_TRY.exists() else []
    for _ in range(times if names else 0):
        status = pytest("-p", "no:xdist", "-q", *names)
        if status:
            return status
    SECOND_TRY.unlink(missing_ok=True)
    return 0


def main() -> int:
    """Run what the arguments say; a status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", dest="processes", help="processes of the first run; without, it is alone too")
    parser.add_argument("--again", type=int, metavar="TIMES", help="run the list this many times instead")
    chosen, arguments = parser.parse_known_args()
    BUILD.mkdir(exist_ok=True)
    if chosen.again is not None:
        return run_again(chosen.again)
    # Who has none left takes tests of another: else the last minute of a run is that of one process.
    spread = [] if chosen.processes is None else ["-n", chosen.processes, "--dist", "worksteal"]
    return run(spread, arguments)


if __name__ == "__main__":
    sys.exit(main())
