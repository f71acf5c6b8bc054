import importlib.util
import queue
from pathlib import Path

import pytest

from penstock.cli.watched import is_watched, need_watchfiles, watch
from penstock.errors import ConfigError


@pytest.mark.parametrize("name", ["a.py", "a/b.py", "a/b/c.py", "venvs/a.py", "environment.py"])
def test_python_files_below_the_folder_are_watched(tmp_path, name):
    assert is_watched(tmp_path / name, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "a.txt",
        "a.pyc",
        "a.py~",
        ".a.py",
        ".git/a.py",
        "a/.hidden/b.py",
        "venv/lib/a.py",
        ".venv/lib/a.py",
        "a/site-packages/b.py",
        "node_modules/a.py",
        "__pycache__/a.py",
    ],
)
def test_other_files_and_those_of_environments_and_hidden_folders_are_not(tmp_path, name):
    assert not is_watched(tmp_path / name, tmp_path)


def test_an_environment_of_any_name_is_known_by_its_file(tmp_path):
    (tmp_path / "mine" / "lib").mkdir(parents=True)
    assert is_watched(tmp_path / "mine" / "lib" / "a.py", tmp_path)
    (tmp_path / "mine" / "pyvenv.cfg").touch()
    assert not is_watched(tmp_path / "mine" / "lib" / "a.py", tmp_path)
    assert not is_watched(tmp_path / "mine" / "a.py", tmp_path)


def test_a_folder_that_is_itself_hidden_or_in_an_environment_is_watched(tmp_path):
    root = tmp_path / ".hidden" / "venv"
    assert is_watched(root / "a.py", root)


def test_a_file_elsewhere_is_not_watched(tmp_path):
    assert not is_watched(Path("/elsewhere/a.py"), tmp_path)


def test_without_watchfiles_a_sentence_has_the_line_for_pip(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[reload\]'"):
        need_watchfiles()


def test_a_changed_file_is_told_after_nothing_was(tmp_path):
    told = queue.Queue()
    stop = watch(tmp_path, told.put, told.put)
    try:
        assert told.get(timeout=20) == []
        (tmp_path / "notes.txt").write_text("x")
        (tmp_path / "a.py").write_text("x = 1")
        while not (files := told.get(timeout=20)):
            pass
        assert files == [tmp_path / "a.py"]
    finally:
        stop()


def test_what_cannot_be_watched_is_told(tmp_path):
    told, failed = queue.Queue(), queue.Queue()
    watch(tmp_path / "gone", told.put, failed.put)
    assert isinstance(failed.get(timeout=20), FileNotFoundError)
    assert told.empty()
