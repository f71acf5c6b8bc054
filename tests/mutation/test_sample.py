"""The sampler over a small tree: it tells what no test notices, what one does, and leaves the tree as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.night

PROGRAM = Path(__file__).with_name("sample.py")
TOY = """\
import os

LIMIT = 3
seen = []

def small(number):
    return number < LIMIT

def never_called(number):
    return not number

def never_looked_at(number):
    seen.append(number)

def end(now):
    if now:
        os._exit(0)
"""
TOY_TESTS = """\
import os

import penstock

def test_what_a_test_leaves_need_not_be_copied(tmp_path):
    os.mkfifo(tmp_path / "pipe")

def test_small():
    assert penstock.small(2)
    assert not penstock.small(3)

def test_calls():
    penstock.never_looked_at(1)
    penstock.end(False)
"""


@pytest.fixture
def toy(tmp_path):
    """A tree whose unit tests leave some changes unnoticed."""
    tree = tmp_path / "tree"
    for name, text in {
        "src/penstock/__init__.py": TOY,
        "tests/unit/test_toy.py": TOY_TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "setup.py": "",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    return tree


def take_sample(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, PROGRAM, "--tree", tree, *arguments, "__init__.py"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_sample_tells_what_the_tests_do_not_notice_and_leaves_the_tree_alone(toy, tmp_path):
    before = {path: path.read_bytes() for path in toy.rglob("*.*")}
    done = take_sample(toy, "--jobs", "2", "--json", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_bytes())
    assert found["finished"]
    small = "tests/unit/test_toy.py::test_small"
    seen = {(result["line"], result["kind"]): (result["noticed_by"], result["tests"]) for result in found["results"]}
    assert seen == {
        (3, "constant"): (small, seen[3, "constant"][1]),  # all tests, in the order of what they took
        (7, "return"): (small, 1),
        (7, "comparison"): (small, 1),
        (10, "return"): (None, 0),
        (10, "not"): (None, 0),
        (13, "statement"): (None, 1),
        (16, "condition"): ("the process ends with status 0", 0),
        (17, "statement"): (None, 0),
        (17, "constant"): (None, 0),
    }
    assert "unnoticed: __init__.py:10  return not number  ->  return number" in done.stdout
    assert {path: path.read_bytes() for path in toy.rglob("*.*")} == before
