"""The programs of the bench start: what they import is there, and they say how they are called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent


@pytest.mark.parametrize(
    "name",
    ["run", "against", "beside", "jobs", "clients", "hold_callers", "export", "embeddings", "waits", "gpu/wheels"],
)
def test_a_program_starts_and_says_how_it_is_called(name: str) -> None:
    done = subprocess.run([sys.executable, BENCH / f"{name}.py", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {Path(name).name}.py")
