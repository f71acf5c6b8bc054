"""A run says which build of Penstock it tests, and does not begin on a part of one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMPILED = re.findall(r'^    "(\S+\.py)",$', (ROOT / "setup.py").read_text(), re.MULTILINE)


@pytest.fixture
def run_over(tmp_path):
    """Start a run that collects this file, over a package where these modules, and no others, are extensions."""

    def run(extensions):
        for name in {*COMPILED, *extensions, "__init__.py"}:
            source = tmp_path / "penstock" / name
            source.parent.mkdir(parents=True, exist_ok=True)
            source.touch()
            if name in extensions:
                source.with_suffix(EXTENSION_SUFFIXES[0]).touch()
        return subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", str(Path(__file__))],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_run_over_the_sources_says_so(run_over):
    run = run_over([])
    assert (run.returncode, run.stderr) == (pytest.ExitCode.OK, "")
    assert "\npenstock: sources\n" in run.stdout


def test_a_run_over_the_compiled_build_counts_its_modules(run_over):
    run = run_over(COMPILED)
    assert (run.returncode, run.stderr) == (pytest.ExitCode.OK, "")
    assert f"\npenstock: compiled, {len(COMPILED)} modules\n" in run.stdout


@pytest.mark.parametrize(("missing", "extra"), [(["core/item.py"], []), ([], ["errors.py"])])
def test_a_run_over_a_part_of_a_build_does_not_begin(run_over, missing, extra):
    run = run_over([name for name in COMPILED if name not in missing] + extra)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"not compiled {missing}, compiled without being in setup.py's list {extra}\n" in run.stderr
