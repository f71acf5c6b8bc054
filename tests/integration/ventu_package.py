"""The published package ventu in an environment of its own, and workers that run in it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from programs import END_LIMIT, MarkedProgram

from registries import need_python_packages

REPOSITORY = Path(__file__).parents[2]
PACKAGE = "ventu==0.4.5"
REQUIREMENTS = (PACKAGE, "pydantic<2", "spectree<1")
ENVIRONMENT = REPOSITORY / "build" / f"ventu-0.4.5-python-{platform.python_version()}"
"""Kept, so that a second run needs no registry."""
INSTALL_SECONDS = 240

WORKER = """
import os
import sys

from pydantic import BaseModel
from ventu import Ventu


class Number(BaseModel):
    x: int


class Square(BaseModel):
    y: int


class Squares(Ventu):
    def batch_inference(self, batch):
        with open(sys.argv[2], "ab", buffering=0) as runs:
            for number in batch:
                runs.write(b"%d\\n" % number.x)
        return [{"y": number.x**2} for number in batch]


Squares(Number, Square, use_msgpack=sys.argv[3] == "msgpack").run_unix(sys.argv[1])
"""
"""A stage of squares as a user of the package writes it; each item that it runs is a line in a file."""


def environment() -> Path:
    """The interpreter that has the package; the test is skipped where no index of packages answers at the start."""
    python = ENVIRONMENT / "bin" / "python"
    if python.exists():
        return python
    need_python_packages()
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    made = ENVIRONMENT.with_name(f"{ENVIRONMENT.name}.{os.getpid()}")
    try:
        subprocess.run([sys.executable, "-m", "venv", made], check=True, capture_output=True, timeout=INSTALL_SECONDS)
        install = [made / "bin" / "python", "-m", "pip", "install", "--quiet", *REQUIREMENTS]
        done = subprocess.run(install, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        assert done.returncode == 0, f"{PACKAGE} cannot be installed: {done.stderr}"
        try:
            made.rename(ENVIRONMENT)  # its interpreter finds its packages beside itself
        except OSError:
            assert python.exists()  # another process of this run was faster
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return python


class VentuWorker(MarkedProgram):
    """A worker of the package, connected to the socket `path`; it notes the items that it runs in `runs`."""

    def __init__(self, python: Path, folder: Path, path: str, runs: Path, *, codec: str = "json") -> None:
        script = folder / "squares.py"
        script.write_text(WORKER)
        super().__init__([str(python), str(script), path, str(runs), codec], folder, {"PATH": os.environ["PATH"]})

    def wait(self) -> int:
        """Wait for its end; the exit status."""
        status = self.process.wait(END_LIMIT)
        self.read_to_end()
        return status
