"""The TypeScript client, built from a copy, so that the checkout stays as it is."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from registries import need_node_packages

CLIENTS = Path(__file__).parents[1] / "clients"
OLDEST_NODE = 20
PATIENCE_SECONDS = 120.0
"""For one step; a machine that has none of the packages yet fetches 30 MB."""
MISSING = f"Node {OLDEST_NODE} or later, with npm, is not installed: make node"


@functools.cache
def has_node() -> bool:
    """Whether there are a Node that is new enough, and npm."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return False
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.", told)
    return found is not None and int(found[1]) >= OLDEST_NODE


def copy_clients(folder: Path) -> Path:
    """Copy the client and the vectors, without what was built, into `folder`; the folder of the package."""
    made = shutil.ignore_patterns("node_modules", "dist", "build", "__pycache__")
    shutil.copytree(CLIENTS, folder / "clients", ignore=made)
    return folder / "clients" / "typescript"


def run_npm(package: Path, *arguments: str) -> None:
    """Run npm in the folder of the package; what it wrote is told where it fails."""
    done = try_program(package, "npm", *arguments)
    assert done.returncode == 0, f"npm {' '.join(arguments)}:\n{done.stdout}"


def try_program(package: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder of the package."""
    return subprocess.run(
        command,
        cwd=package,
        env={**os.environ, "PYTHON": sys.executable, "npm_config_prefer_offline": "true"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def build_package(folder: Path) -> Path:
    """Build the package below `folder`; its folder.  Skips where npm finds no registry at the start."""
    need_node_packages()
    package = copy_clients(folder)
    run_npm(package, "ci")
    run_npm(package, "run", "build")
    return package
