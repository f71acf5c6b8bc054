"""Publishing and rolling back as users call it: what is told, and what is refused."""

from __future__ import annotations

import json

import pytest

import penstock as ps
from penstock.export import load, publish, rollback
from tiny_artifacts import write_artifact


@pytest.fixture
def there(tmp_path):
    """A folder with two artifacts, and the path of a model directory."""
    for name in "ab":
        write_artifact(tmp_path / name, name=name)
    return tmp_path / "my models"


def told(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_publish_answers_the_number_and_tells_it(there, capsys):
    assert publish(there.parent / "a", there) == 1
    assert told(capsys) == [
        f"penstock: publishing {there.parent}/a",
        f"penstock: published {there.parent}/a as version 1 of {there}",
    ]
    assert publish(str(there.parent / "b"), str(there)) == 2
    assert json.loads((there / "CURRENT").read_bytes())["version"] == 2


def test_what_is_told_has_printable_characters_alone(there, capsys):
    models = there.parent / "\x1b[31m\nmodels"
    publish(there.parent / "a", models)
    publish(there.parent / "b", models)
    rollback(models)
    lines = told(capsys)
    assert len(lines) == 5
    assert all(map(str.isprintable, lines))


def test_what_is_published_already_is_told_and_how_to_go_to_it(there, capsys):
    for name in "ab":
        publish(there.parent / name, there)
    told(capsys)
    assert publish(there.parent / "b", there) == 2
    assert told(capsys)[-1] == (
        f"penstock: {there.parent}/b is version 2 of {there} already, and current: nothing was changed"
    )
    assert publish(there.parent / "a", there) == 1
    assert told(capsys)[-1] == (
        f"penstock: {there.parent}/a is version 1 of {there} already, but version 2 is current: nothing was changed; "
        f"to switch to it: penstock model rollback '{there}' --to 1"
    )


def test_rollback_answers_the_number_and_tells_both(there, capsys):
    for name in "ab":
        publish(there.parent / name, there)
    told(capsys)
    assert rollback(there) == 1
    assert told(capsys) == [f"penstock: rolled back {there} from version 2 to version 1"]
    assert rollback(there, to=1) == 1
    assert told(capsys) == [f"penstock: version 1 of {there} is current already: nothing was changed"]
    assert rollback(there, 2) == 2
    with pytest.raises(ps.ConfigError, match="has no version 3; versions: 2, 1"):
        rollback(there, 3)


@pytest.mark.parametrize("path", [None, 1, "", b"bytes", ["a"], "a\0b", "\ud800"])
def test_what_is_no_path_is_refused(there, path):
    with pytest.raises(ps.ConfigError, match="artifact must be the path of a directory, got"):
        publish(path, there)
    for call in (lambda: publish(there.parent / "a", path), lambda: rollback(path)):
        with pytest.raises(ps.ConfigError, match="model_dir must be the path of a directory, got"):
            call()
    with pytest.raises(ps.ConfigError, match="path must be the path of a directory, got"):
        load(path)
    assert not there.exists()


def test_what_is_no_argument_is_refused(there):
    with pytest.raises(ps.ConfigError, match=r"penstock.export.publish: there is no 'name' here"):
        publish(there.parent / "a", there, name="b")
    with pytest.raises(ps.ConfigError, match=r"penstock.export.rollback: there is no 'version' here"):
        rollback(there, version=1)


def test_an_artifact_that_is_none_makes_no_model_directory(there):
    with pytest.raises(ps.ArtifactInvalid, match="is not an artifact: the directory does not exist; nothing was"):
        publish(there.parent / "nowhere", there)
    assert not there.exists()
