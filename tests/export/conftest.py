"""What the tests of exported models share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))

TIMEOUT = 300
"""Seconds for a test: it may import a framework three times, in the trainer, the proof and the server."""


def pytest_collection_modifyitems(items):
    """Give these tests their time: beside seven other processes one that has 60 s elsewhere took 50."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))
