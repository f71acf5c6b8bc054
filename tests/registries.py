"""Whether the registries of packages can be reached, asked before anything is installed from them.

A test that installs is skipped only where its registry is absent at the start, and the skip says which.  A registry
that is lost after that is a failure.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile

import pytest

ASKING_SECONDS = 120.0


@functools.cache
def answers(*command: str) -> bool:
    """Whether a command that only asks a registry ends well."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASKING_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def need_python_packages() -> None:
    """Skip where no index of Python packages answers at all; it is asked for a small package of pure Python."""
    asked = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--retries", "1")
    if not answers(*asked, "flask-swagger-ui==5.34.0"):
        pytest.skip("no index of Python packages can be reached")


def need_node_packages() -> None:
    """Skip where no registry of npm answers at all."""
    if not answers("npm", "view", "--fetch-retries=1", "typescript", "version"):
        pytest.skip("no registry of npm packages can be reached")
