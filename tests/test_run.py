"""What the second run of failed tests lets pass, and what it does not: real runs of pytest, over tests of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "run.py"

RACE = """
import pathlib

def test_race():
    seen = pathlib.Path("seen")
    if not seen.exists():
        seen.touch()
        %s
"""
WITHOUT = "-p no:hypothesispytest -p no:asyncio -p no:pytest_cov -p no:anyio"
"""Plugins that take half of the time of such a run."""

FAILS = "assert False"
DIES = "import os; os._exit(1)"
BROKEN = "def test_broken():\n    assert False\n"
LISTED = "test_race.py::test_race\n"


@pytest.fixture
def run(tmp_path):
    """Write files, run them with two workers of xdist, and give the status, the output and the list."""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {WITHOUT}\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}

    def start(*arguments, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        command = [sys.executable, str(RUN), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        listed = tmp_path / "build" / "second-try.txt"
        return done.returncode, done.stdout, listed.read_text() if listed.exists() else ""

    return start


@pytest.mark.parametrize("how", [FAILS, DIES], ids=["fails", "kills its worker"])
def test_a_test_that_passes_the_second_time_is_passed_over_and_listed(run, how):
    status, output, listed = run("-n", "2", test_race=RACE % how, test_good="def test_good(): pass")
    assert (status, listed) == (0, LISTED), output
    assert output.endswith(f"before anything else:\n{LISTED}")
    # It stays on the list of a check that goes on with other tests, until it has passed again and again.
    assert run("-n", "2", "test_good.py")[::2] == (0, LISTED)
    assert run("--again", "2")[::2] == (0, "")


def test_a_broken_test_fails_beside_one_that_passes_the_second_time(run):
    status, output, listed = run("-n", "2", test_race=RACE % FAILS, test_broken=BROKEN)
    assert (status, listed) == (1, ""), output
    assert "1 failed, 1 passed" in output


def test_no_second_run_mends_what_is_no_matter_of_single_tests(run):
    many = "".join(f"def test_{number}(): assert False\n" for number in range(21))
    status, output, listed = run("-n", "2", test_many=many)
    assert (status, listed, output.count("test session starts")) == (1, "", 1), output
    assert "no second run: 21 tests failed, more than 20" in output
    status, output, listed = run("-n", "2", test_many="def test_syntax(:", test_good="def test_good(): pass")
    assert (status != 0, listed, output.count("test session starts")) == (True, "", 1), output
    status, output, listed = run("-n", "2", "test_good.py", "-k", "nobody")
    assert (status, listed, output.count("test session starts")) == (5, "", 1), output
