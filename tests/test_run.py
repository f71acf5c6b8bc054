"""What the second run of failed tests lets pass, and what it does not: real runs of pytest, over tests of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rows import each

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
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers = night\naddopts = {WITHOUT} -m 'not night'\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}

    def start(*arguments, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        command = [sys.executable, str(RUN), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        listed = tmp_path / "build" / "second-try.txt"
        return done.returncode, done.stdout, listed.read_text() if listed.exists() else ""

    return start


SKIPPED = """
import pathlib, pytest

def test_skipped():
    if pathlib.Path("seen").exists():
        pytest.skip("something is missing")
    pathlib.Path("seen").touch()
    assert False
"""
ANOTHER_NAME = """
import os, pytest

@pytest.mark.parametrize("pid", [os.getpid()])
def test_pid(pid):
    assert False
"""
ENDS = """
import os, pathlib

def test_ends():
    if pathlib.Path("seen").exists():
        os._exit(0)
    pathlib.Path("seen").touch()
    assert False

def test_broken():
    assert False
"""
DEAD = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(10))
def test_dead(number):
    seen = pathlib.Path(f"seen{number}")
    if not seen.exists():
        seen.touch()
        os._exit(1)
"""


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


@each(
    ("arguments", "text"),
    [
        ((), SKIPPED),
        ((), ANOTHER_NAME + RACE % FAILS),
        ((), ENDS),
        ((), "import os\ndef test_race(): os._exit(0)\n" + BROKEN),
        (("-x",), RACE % FAILS + BROKEN),
        (("-n", "2"), DEAD + BROKEN),
    ],
)
def test_a_run_passes_only_where_each_test_has_passed(run, tmp_path, arguments, text):
    (tmp_path / "seen").unlink(missing_ok=True)
    status, output, listed = run(*arguments, "test_all.py", test_all=text)
    assert (status != 0, listed) == (True, ""), output


def test_the_list_is_run_again_with_tests_of_the_night_and_without_those_that_are_gone(run, tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "second-try.txt").write_text("test_all.py::test_night\ntest_all.py::test_gone\n")
    night = "import pytest\n@pytest.mark.night\ndef test_night(): pass\n"
    status, output, listed = run("--again", "1", test_all=night)
    assert (status, listed) == (1, "test_all.py::test_gone\n"), output
    assert output.endswith("what is no test any more:\ntest_all.py::test_gone\n")
