"""Here belongs what a user sees of the command: `penstock serve` and `penstock check` in a process, with real workers.

The fixtures start servers that the tests of a module share, and servers that a test has to itself.
"""

from __future__ import annotations

import contextlib
import json

import pytest
from served import serving, write_module


@pytest.fixture
def serve(tmp_path):
    """Starts servers in folders of their own, with `serving`'s arguments; ended and checked after the test."""
    with contextlib.ExitStack() as running:
        count = iter(range(1, 100))

        def start(*options, **more):
            folder = tmp_path / f"server{next(count)}"
            folder.mkdir()
            return running.enter_context(serving(folder, *options, **more))

        yield start


@pytest.fixture
def module(tmp_path):
    """Writes a module with services into the test's folder; answers the folder."""

    def write(source=None):
        write_module(tmp_path, source)
        return tmp_path

    return write


@pytest.fixture(scope="session")
def log_lines():
    """The log lines of a server that writes JSON, as objects; every line of its output must be one."""
    return lambda server: [json.loads(line) for line in server.output.splitlines()]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server of `orders.service` for every test of a module that asks nothing special of it."""
    with serving(tmp_path_factory.mktemp("shared")) as server:
        yield server
