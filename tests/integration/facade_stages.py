"""Stages for tests of what callers hand in and get back; workers import this module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from notes_and_gates import wait_for

import penstock as ps


class Stranger:
    """Can be unpickled in the process that pickled it, and nowhere else."""

    def __reduce__(self) -> Any:
        return at_home, (os.getpid(),)


def at_home(pid: int) -> Stranger:
    if os.getpid() != pid:
        raise LookupError("never seen here")
    return Stranger()


def estrange(x: Any) -> Any:
    return Stranger() if x == "stranger" else x


class Held(ps.Stage):
    """Answers nothing before `folder`/open is there."""

    def setup(self, folder: str) -> None:
        self.gate = Path(folder) / "open"

    def predict(self, x: Any) -> Any:
        wait_for(self.gate)
        return x
