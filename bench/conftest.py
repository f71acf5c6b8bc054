"""Let the tests of the bench import its programs, which are no package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
# Behind this folder: both have a `run.py`.
sys.path.append(str(Path(__file__).resolve().parent / "gpu"))
# `night` says how much is compared by day and by night.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
