import importlib.util
import queue
from pathlib import Path

import pytest

from penstock.cli.watched import need_watchfiles, watch
from penstock.errors import ConfigError


def test_without_watchfiles_a_sentence_has_the_line_for_pip(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[reload\]'"):
        need_watchfiles()


def test_a_changed_file_is_told_after_nothing_was(tmp_path):
    told = queue.Queue()
    stop = watch(tmp_path, told.put, told.put)
    try:
        assert told.get(timeout=20) == ([], [])
        (tmp_path / "notes.txt").write_text("x")
        (tmp_path / "a.py").write_text("x = 1")
        assert told.get(timeout=20) == ([tmp_path / "a.py"], [])
        (tmp_path / "a.py").write_text("x = 1")
        assert told.get(timeout=20) == ([], [tmp_path / "a.py"])
    finally:
        stop()


def test_what_cannot_be_watched_is_told(tmp_path):
    told, failed = queue.Queue(), queue.Queue()
    watch(tmp_path / "gone", told.put, failed.put)
    assert isinstance(failed.get(timeout=20), FileNotFoundError)
    assert told.empty()
