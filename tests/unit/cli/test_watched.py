import contextlib
import importlib.util
import os
import queue
import shutil
import sys
import types

import pytest

from penstock.cli import watched
from penstock.cli.watched import need_watchfiles, watch
from penstock.errors import ConfigError


@contextlib.contextmanager
def watching(root):
    """What is told of changes below `root`, from when they are seen on."""
    told = queue.Queue()
    stop = watch(root, told.put, told.put)
    try:
        assert told.get(timeout=20) == ([], [])
        yield told
    finally:
        stop()


def test_without_watchfiles_a_sentence_has_the_line_for_pip(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install watchfiles"):
        need_watchfiles()


def test_a_changed_file_is_told_after_nothing_was(tmp_path):
    with watching(tmp_path) as told:
        (tmp_path / "notes.txt").write_text("x")
        (tmp_path / "a.py").write_text("x = 1")
        assert told.get(timeout=20) == ([tmp_path / "a.py"], [])
        (tmp_path / "a.py").write_text("x = 1")
        assert told.get(timeout=20) == ([], [tmp_path / "a.py"])


def test_a_name_that_is_not_utf_8_hides_no_change(tmp_path):
    with watching(tmp_path) as told:
        for letter in "ab":
            (tmp_path / os.fsdecode(b"\xff.txt")).write_text(letter)
            (tmp_path / "a.py").write_text(letter)
            while not (changed := told.get(timeout=20).changed):
                pass  # all was looked at again, and nothing has changed
            assert changed == [tmp_path / "a.py"]


@pytest.mark.parametrize(("watches", "attempts"), [([], 2), ([[set()]], None)])
def test_a_watch_that_ends_is_begun_anew_unless_it_never_began(tmp_path, monkeypatch, watches, attempts):
    told, begun = queue.Queue(), queue.Queue()

    def changes(*_arguments, **_options):
        begun.put("begun")
        yield from watches.pop() if watches else ()
        raise RuntimeError("broken")

    monkeypatch.setattr(watched, "AGAIN_SECONDS", 0.001)
    monkeypatch.setitem(sys.modules, "watchfiles", types.SimpleNamespace(watch=changes))
    stop = watch(tmp_path, told.put, told.put)
    try:
        if attempts is None:
            assert told.get(timeout=20) == ([], [])
            for _ in range(10):
                begun.get(timeout=20)
            assert told.empty()
        else:
            assert str(told.get(timeout=20)) == "broken"
            assert begun.qsize() == attempts
    finally:
        stop()


def test_what_cannot_be_watched_is_told(tmp_path):
    told, failed = queue.Queue(), queue.Queue()
    watch(tmp_path / "gone", told.put, failed.put)
    assert isinstance(failed.get(timeout=20), FileNotFoundError)
    assert told.empty()


def test_a_folder_that_goes_between_two_watches_is_told_as_gone(tmp_path, monkeypatch):
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.py").write_text("1")

    def one_watch(files, root, over):
        monkeypatch.undo()
        yield files.look([root])
        shutil.rmtree(root)

    monkeypatch.setattr("penstock.cli.watched._looks", one_watch)
    with watching(root) as told:
        assert told.get(timeout=20).changed == [root / "a.py"]


def test_a_folder_that_was_replaced_or_comes_again_is_watched_on(tmp_path):
    root = tmp_path / "project"
    root.mkdir()

    def changed(file):
        while file not in told.get(timeout=20).changed:
            pass

    with watching(root) as told:
        root.rename(tmp_path / "old")
        root.mkdir()
        (root / "a.py").write_text("1")
        changed(root / "a.py")
        (root / "a.py").write_text("2")
        changed(root / "a.py")
        shutil.rmtree(root)
        changed(root / "a.py")
        root.mkdir()
        (root / "a.py").write_text("3")
        changed(root / "a.py")
