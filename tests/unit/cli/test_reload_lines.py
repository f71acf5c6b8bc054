"""What the process that reloads says; its children are none, and the test tells it what has changed."""

import asyncio
import math

from penstock.cli import reload
from penstock.cli.python_files import Found
from penstock.cli.reloading import QUIET_SECONDS
from penstock.cli.watched import GATHER_MILLISECONDS
from penstock.hosting.notifying import NoObserver


class NoChild:
    def __init__(self, *_arguments, **_more):
        pass

    def give_up(self):
        pass


def test_what_is_looked_at_together_is_named_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(reload, "_Child", NoChild)
    said = []

    async def change():
        run = reload._Run([], [], tmp_path, lambda words, level=0: said.append(words), NoObserver())
        run._changed(Found([], []))
        said.clear()
        run._changed(Found([tmp_path / "c.py", tmp_path / "d.py"], []))
        run._changed(Found([tmp_path / "a.py"], []))
        run._changed(Found([tmp_path / "b.py", tmp_path / "a.py"], []))
        assert said == []
        run._do(run._core.at(math.inf))
        assert said == ["changed: a.py, b.py, c.py and 1 more"]
        run._changed(Found([tmp_path / "b.py"], []))  # beside the trial, which is given up
        run._do(run._core.at(math.inf))
        assert said[1:] == ["changed: b.py"]

    asyncio.run(change())


def test_changes_that_go_on_are_told_before_they_count_as_over():
    assert 2 * GATHER_MILLISECONDS / 1000 <= QUIET_SECONDS
