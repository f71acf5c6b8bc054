"""A plugin for pytest: run chosen tests in a chosen order, with little memory, and note what each one took.

`copies.py` loads it into every run.  ``--chosen FILE`` names the tests in a JSON list; one that is not collected is an
error.  With ``--others`` it is not, and the tests that are not in the list run last.  ``--note FILE`` gets a JSON line
for each test that ended, and ``null`` at the end of the run.
"""

from __future__ import annotations

import json
import resource
from collections import defaultdict
from pathlib import Path

import pytest

MEMORY_BYTES = 4 << 30
"""A change may make a loop endless; it then ends for want of memory before the machine suffers."""


def pytest_addoption(parser):
    group = parser.getgroup("mutation sampling")
    group.addoption("--chosen", type=Path, help="run these tests in this order")
    group.addoption("--others", action="store_true", help="then run the others")
    group.addoption("--note", type=Path, help="note what each test took")


def pytest_configure(config):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    if config.option.note is not None:
        config.pluginmanager.register(Notes(config.option.note))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if config.option.chosen is None:
        return
    collected = {item.nodeid: item for item in items}
    names = json.loads(config.option.chosen.read_text())
    missing = [name for name in names if name not in collected]
    if missing and not config.option.others:
        raise pytest.UsageError(f"{len(missing)} chosen tests are not collected, the first is {missing[0]}")
    # With --others a change may be in what tests are parametrized with: some have other names then.
    items[:] = [collected.pop(name) for name in names if name in collected]
    if config.option.others:
        items += collected.values()


class Notes:
    """Writes a line when a test has ended, so that whatever ends the run, what went before is known."""

    def __init__(self, path):
        self.file = path.open("w", buffering=1)
        self.seconds = defaultdict(float)
        self.failed = set()

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid):
        note = {"name": nodeid, "passed": nodeid not in self.failed, "seconds": self.seconds.pop(nodeid, 0.0)}
        self.file.write(json.dumps(note) + "\n")

    def pytest_sessionfinish(self):
        self.file.write("null\n")
