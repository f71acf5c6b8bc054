"""Files of a folder of the test; what an event names is given by hand."""

import os
import random
import shutil
from pathlib import Path

import pytest

from night import histories
from penstock.cli.python_files import PythonFiles, is_watched
from rows import each


def looked_at(root):
    files = PythonFiles(root)
    files.look([root])
    return files


def written(path, text="x = 1\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["a.py", "a/b.py", "a/b/c.py", "venvs/a.py", "environment.py"])
def test_python_files_below_the_folder_are_watched(tmp_path, name):
    assert is_watched(tmp_path / name, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "a.txt", "a.pyc", "a.py~", ".a.py", ".git/a.py", "a/.hidden/b.py", "venv/lib/a.py", ".venv/lib/a.py",
        "a/site-packages/b.py", "node_modules/a.py", "__pycache__/a.py",
    ],
)  # fmt: skip
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


def test_a_file_is_changed_once_when_it_is_new_or_holds_something_else_or_is_gone(tmp_path):
    files = looked_at(tmp_path)
    file = written(tmp_path / "a.py")
    assert files.look([file]) == ([file], [])
    written(file, "x = 2\n")
    assert files.look([file, file]) == ([file], [])
    file.unlink()
    assert files.look([file]) == ([file], [])
    assert files.look([file]) == ([], [])


def test_a_file_that_is_written_again_as_it_was_is_not_changed(tmp_path):
    file = written(tmp_path / "a.py")
    files = looked_at(tmp_path)
    other = tmp_path / "other.txt"
    written(other).replace(file)
    assert files.look([other, file]) == ([], [file])


def test_a_folder_that_comes_brings_its_files_and_takes_them_away_when_it_goes(tmp_path):
    away = tmp_path / "away"
    inside = written(away / "package" / "deep" / "a.py")
    written(away / "package" / "notes.txt")
    root = tmp_path / "root"
    root.mkdir()
    files = looked_at(root)
    (away / "package").rename(root / "package")
    there = root / "package" / "deep" / "a.py"
    assert files.look([root / "package"]) == ([there], [])
    (root / "package").rename(root / "renamed")
    renamed = root / "renamed" / "deep" / "a.py"
    assert files.look([root / "package", root / "renamed"]) == ([there, renamed], [])
    (root / "renamed").rename(away / "package")
    assert inside.exists()
    assert files.look([root / "renamed"]) == ([renamed], [])


def test_a_link_to_a_folder_comes_and_goes_as_a_folder(tmp_path):
    written(tmp_path / "away" / "a.py")
    root = tmp_path / "root"
    root.mkdir()
    files = looked_at(root)
    (root / "link").symlink_to(tmp_path / "away")
    assert files.look([root / "link"]) == ([root / "link" / "a.py"], [])
    (root / "link").unlink()
    assert files.look([root / "link"]) == ([root / "link" / "a.py"], [])


def test_a_folder_without_python_files_changes_nothing(tmp_path):
    files = looked_at(tmp_path)
    folder = written(tmp_path / "data" / "a.csv").parent
    assert files.look([folder]) == ([], [])
    shutil.rmtree(folder)
    assert files.look([folder, folder / "a.csv"]) == ([], [])


@pytest.mark.parametrize("name", ["venv", ".hidden", "of-any-name"])
def test_an_environment_changes_nothing_when_it_comes_grows_or_goes(tmp_path, name):
    away = tmp_path / "away"
    written(away / "pyvenv.cfg")
    script = written(away / "bin" / "activate_this.py")
    root = tmp_path / "root"
    root.mkdir()
    files = looked_at(root)
    environment = away.rename(root / name)
    assert files.look([environment]) == ([], [])
    module = written(environment / "lib" / "new.py")
    assert files.look([module, module.parent, environment]) == ([], [])
    gone = [environment / "pyvenv.cfg", environment / "bin" / script.name, environment / "bin", module, environment]
    shutil.rmtree(environment)
    assert files.look(gone) == ([], [])


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "a.py")
    assert looked_at(tmp_path).look([tmp_path / "a.py"]) == ([], [])


def test_a_file_that_cannot_be_read_is_changed_once_it_can_be(tmp_path, monkeypatch):
    file = written(tmp_path / "a.py")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda _file: (_ for _ in ()).throw(PermissionError(13, "no")))
        files = looked_at(tmp_path)
        assert files.look([file]) == ([], [file])
    assert files.look([file]) == ([file], [])


@each("seed", range(histories(20)))
def test_what_is_told_is_how_the_files_differ(tmp_path, seed):
    root = tmp_path / str(seed)
    root.mkdir()
    chance = random.Random(seed)
    files = looked_at(root)
    folders = [root, root / "a", root / "a" / "b", root / "c", root / ".d"]
    before = {}
    for _ in range(60):
        folder = chance.choice(folders)
        target = chance.choice(folders[1:])
        path = folder / chance.choice(["x.py", "y.py", "z.txt"])
        match chance.randrange(4):
            case 0 | 1:
                asked = [written(path, chance.choice("123")), folder]
            case 2:
                path.unlink(missing_ok=True)
                asked = [path]
            case 3:
                if folder == root or not folder.exists() or target.exists() or target.is_relative_to(folder):
                    continue
                target.parent.mkdir(exist_ok=True)
                folder.rename(target)
                asked = [folder, target, target.parent]
        now = {file: file.read_text() for file in root.rglob("*.py") if ".d" not in file.parts}
        differ = sorted(file for file in before | now if before.get(file) != now.get(file))
        assert files.look(asked).changed == differ
        before = now
