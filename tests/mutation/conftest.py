"""Let the tests of the sampler import its programs, which are no package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
