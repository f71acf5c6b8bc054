"""The process of one part: `python part.py NAME`.  Not called by people; `run.py` starts it.

A part is a module in `parts/` with a function `run(part)`.  It says what it finds as soon as it has found it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path


class NotRun(Exception):
    """A part, or what is left of it, cannot be run here.  The message says why."""


class Part:
    """A part's own view of its run: where it may write, how long it has, and whom to tell."""

    def __init__(self, findings: int, seconds: float, folder: Path, device: str) -> None:
        self.folder = folder
        """A folder of this part's own; it is removed after the part."""
        self.device = device
        """`cuda`, or `cpu` where there is no GPU: sizes are small then."""
        self._findings = findings
        self._end = time.monotonic() + seconds

    @property
    def on_gpu(self) -> bool:
        """Whether the part has a GPU."""
        return self.device == "cuda"

    def seconds_left(self) -> float:
        """Seconds until this process is killed."""
        return self._end - time.monotonic()

    def check(self, name: str, ok: bool, words: str = "") -> None:
        """Tell a claim that was tried, and what was seen."""
        self._tell({"check": name, "ok": bool(ok), "words": words})

    def figure(self, name: str, unit: str, values: float | Sequence[float] | Iterable[float]) -> None:
        """Tell the values of a figure, a value a round; told again, it replaces what was told before."""
        kept = [float(values)] if isinstance(values, (int, float)) else [float(value) for value in values]
        if kept:
            self._tell({"figure": name, "unit": unit, "values": kept})

    def note(self, words: str) -> None:
        """Tell a sentence that the reader of the figures needs."""
        self._tell({"note": words})

    def not_run(self, why: str) -> None:
        """Tell that the part is not run."""
        self._tell({"not_run": why})

    def done(self) -> None:
        """Tell that the part has come to its end."""
        self._tell({"done": True})

    def _tell(self, finding: object) -> None:
        left = json.dumps(finding).encode() + b"\n"
        while left:
            left = left[os.write(self._findings, left) :]


def main() -> None:
    """Run the part `argv[1]`."""
    findings = int(os.environ.pop("PART_FINDINGS"))
    os.set_inheritable(findings, False)
    part = Part(findings, float(os.environ.pop("PART_SECONDS")), Path.cwd(), os.environ["PART_DEVICE"])
    try:
        importlib.import_module(f"parts.{sys.argv[1]}").run(part)
    except NotRun as why:
        part.not_run(str(why))
    else:
        part.done()


if __name__ == "__main__":
    # The parts import `part`, which must be this module and no second copy of it.
    sys.modules["part"] = sys.modules["__main__"]
    main()
