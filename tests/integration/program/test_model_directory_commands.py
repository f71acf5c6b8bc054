"""`penstock model publish`, `rollback`, `list` and `prune`, as their user calls them."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from served import run
from spoken import spoken

from penstock.artifact.publishing import publish_artifact
from tiny_artifacts import write_artifact

WIDE = {"COLUMNS": "300"}
NEXT_START = "restart a server to load it"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Three artifacts, a, b and c, whose answers differ, and their digests."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, {name: write_artifact(folder / name, slope=(0.5, place)) for place, name in enumerate("abc")}


@pytest.fixture
def models(saved, tmp_path):
    """A model directory in which a is version 1, and b version 2."""
    for name in "ab":
        publish_artifact(saved[0] / name, tmp_path / "models")
    return tmp_path / "models"


def artifact(folder, *arguments):
    """How the command ends, and what it says: on standard error where it fails, and else on standard output."""
    status, output, error = spoken(folder, "model", *map(str, arguments), env=WIDE)
    assert "Traceback" not in output + error
    assert output == "" or error == ""
    return status, output + error


def told(folder, *arguments):
    status, output = artifact(folder, *arguments, "--json")
    assert status == 0, output
    return json.loads(output)


def there(models):
    """Every file and what is in it."""
    return {str(path.relative_to(models)): path.read_bytes() for path in models.rglob("*") if path.is_file()}


@pytest.mark.smoke
def test_the_program_publishes_rolls_back_and_tells(saved, tmp_path):
    folder, digests = saved
    for name in "ab":
        assert run(tmp_path, "model", "publish", str(folder / name), "models", env=WIDE)[0] == 0
    said = run(tmp_path, "model", "rollback", "models", env=WIDE)
    assert said == (0, f"rolled back models from version 2 to version 1; {NEXT_START}\n")
    status, output = run(tmp_path, "model", "rollback", "models", env=WIDE)
    assert status == 1
    assert "no version to roll back to" in output
    status, output = run(tmp_path, "model", "list", "models", "--json", env=WIDE)
    told = json.loads(output)
    assert (status, told["version"]) == (0, 1)
    assert [each["digest"] for each in told["versions"]] == [digests["a"], digests["b"]]


def test_a_publish_says_the_number_and_when_servers_take_it(saved, tmp_path):
    folder, _ = saved
    for number, name in ((1, "a"), (2, "b")):
        said = artifact(tmp_path, "publish", folder / name, "models")
        assert said == (0, f"published {folder / name} as version {number} of models; {NEXT_START}\n")


def test_a_publish_that_is_repeated_changes_nothing_and_says_so(models, saved, tmp_path):
    folder, digests = saved
    before = there(models)
    said = artifact(tmp_path, "publish", folder / "b", "models")
    assert said == (0, f"{folder / 'b'} is version 2 of models already, and current: nothing was changed\n")
    status, output = artifact(tmp_path, "publish", folder / "a", "models")
    assert status == 0
    assert "is version 1 of models already, but version 2 is current: nothing was changed" in output
    assert output.endswith("; to switch to it: penstock model rollback models --to 1\n")
    assert there(models) == before
    said = told(tmp_path, "publish", folder / "a", "models")
    assert said == {"path": "models", "version": 1, "digest": digests["a"], "repeated": True, "current": 2}


def test_a_publish_gives_json(models, saved, tmp_path):
    said = told(tmp_path, "publish", saved[0] / "c", "models")
    assert said == {"path": "models", "version": 3, "digest": saved[1]["c"], "repeated": False, "current": 3}


def test_a_rollback_goes_to_what_was_current_before_or_to_the_version_that_is_named(models, saved, tmp_path):
    said = artifact(tmp_path, "rollback", "models")
    assert said == (0, f"rolled back models from version 2 to version 1; {NEXT_START}\n")
    assert told(tmp_path, "rollback", "models", "--to", "2") == {"path": "models", "version": 2, "before": 1}
    said = artifact(tmp_path, "rollback", "models", "--to", "2")
    assert said == (0, "version 2 of models is current already: nothing was changed\n")


def test_a_rollback_that_has_nowhere_to_go_is_exit_1(models, tmp_path):
    artifact(tmp_path, "rollback", "models")
    before = there(models)
    status, output = artifact(tmp_path, "rollback", "models")
    assert status == 1
    assert "no version to roll back to" in output
    status, output = artifact(tmp_path, "rollback", "models", "--to", "7")
    assert status == 1
    assert "has no version 7; versions: 2, 1" in output
    assert there(models) == before


def test_a_list_has_a_line_for_each_version(models, saved, tmp_path):
    artifact(tmp_path, "publish", saved[0] / "c", "models")
    status, output = artifact(tmp_path, "list", "models")
    assert status == 0
    lines = [line.split("\t") for line in output.splitlines()]
    assert [line[:2] for line in lines] == [["1", ""], ["2", "a rollback goes here"], ["3", "current"]]
    assert [line[3:] for line in lines] == [["publish", saved[1][name][:12], "", "there"] for name in "abc"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*", line[2]) for line in lines)


def test_a_list_tells_what_was_pruned_and_what_was_altered(models, saved, tmp_path):
    artifact(tmp_path, "publish", saved[0] / "c", "models")
    artifact(tmp_path, "rollback", "models", "--to", "1")
    shutil.rmtree(models / "versions" / "2")
    (models / "versions" / "3" / "manifest.json").write_text("{}")
    said = told(tmp_path, "list", "models")
    assert (said["path"], said["version"], said["rollback_to"]) == ("models", 1, None)
    versions = said["versions"]
    assert [(each["version"], each["role"], each["action"], each["state"]) for each in versions] == [
        (1, "current", "rollback", "there"),
        (2, None, "publish", "pruned"),
        (3, None, "publish", "altered"),
    ]
    assert [(each["digest"], each["run"]) for each in versions] == [(saved[1][name], None) for name in "abc"]


def test_a_prune_removes_the_oldest_and_never_the_current_nor_what_a_rollback_goes_to(models, saved, tmp_path):
    artifact(tmp_path, "publish", saved[0] / "c", "models")
    nothing = "nothing was removed from models: no other version is old enough\n"
    assert artifact(tmp_path, "prune", "models") == (0, nothing)
    assert artifact(tmp_path, "prune", "models", "--keep", "1") == (0, "removed from models: version 1\n")
    assert sorted(path.name for path in (models / "versions").iterdir()) == ["2", "3"]
    assert told(tmp_path, "prune", "models", "--keep", "1") == {"path": "models", "removed": []}


def test_a_version_that_was_pruned_is_published_with_a_new_number(models, saved, tmp_path):
    artifact(tmp_path, "publish", saved[0] / "c", "models")
    assert told(tmp_path, "prune", "models", "--keep", "1")["removed"] == [1]
    assert told(tmp_path, "publish", saved[0] / "a", "models")["version"] == 4


@pytest.mark.parametrize(
    "command", [("publish", "models/versions/1", ""), ("rollback", ""), ("prune", ""), ("list", "")]
)
def test_nothing_is_not_the_current_folder(models, command):
    before = there(models)
    status, output = artifact(models.parent, *command)
    assert (status, "model_dir must be the path of a directory, got ''" in output) == (1, True), output
    status, output = artifact(models, *command)
    assert status == 1
    assert there(models) == before


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("rollback", "models", "--to", "two"), "--to: expected a number, got 'two'"),
        (("rollback", "models", "--to", "1_0"), "--to: expected a number, got '1_0'"),
        (("rollback", "models", "--to", "２"), "--to: expected a number, got '２'"),  # noqa: RUF001  # a digit elsewhere
        (("rollback", "models", "--to", " 2 "), "--to: expected a number, got ' 2 '"),
        (("rollback", "models", "--to", "0"), "--to must be at least 1, got 0"),
        (("prune", "models", "--keep", "0"), "--keep must be at least 1, got 0"),
        (("prune", "models", "--keep", "-1"), "--keep must be at least 1, got -1"),
    ],
)
def test_a_number_that_can_never_be_is_exit_2(models, tmp_path, command, words):
    before = there(models)
    status, output = artifact(tmp_path, *command)
    assert (status, words in output) == (2, True), output
    assert there(models) == before


@pytest.mark.parametrize("command", ["rollback", "list", "prune"])
def test_what_is_no_model_directory_is_a_sentence_and_stays_as_it_is(saved, tmp_path, command):
    status, output = artifact(tmp_path, command, "nothing")
    assert status == 1
    assert "is not a model directory: it has no file CURRENT" in output
    assert not (tmp_path / "nothing").exists()
    shutil.copytree(saved[0] / "a", tmp_path / "a")
    before = there(tmp_path / "a")
    status, output = artifact(tmp_path, command, "a")
    assert status == 1
    assert "is not a model directory" in output
    assert there(tmp_path / "a") == before


def test_what_is_no_artifact_is_not_published(models, tmp_path):
    before = there(models)
    status, output = artifact(tmp_path, "publish", "nothing", "models")
    assert status == 1
    assert "nothing is not an artifact: the directory does not exist" in output
    status, output = artifact(tmp_path, "publish", "models", "models")
    assert status == 1
    assert "is a model directory" in output
    assert there(models) == before


def test_inspect_verify_and_diff_take_a_model_directory_for_its_current_version(models, saved, tmp_path):
    digests = saved[1]
    said = told(tmp_path, "inspect", "models")
    assert said["digest"] == digests["b"]
    assert said["path"].endswith("models/versions/2")
    status, output = artifact(tmp_path, "verify", "models")
    assert status == 0
    assert "models/versions/2: every graph answered 4 rows as the model did" in output
    assert artifact(tmp_path, "diff", "models", saved[0] / "b")[0] == 0
    status, output = artifact(tmp_path, "diff", saved[0] / "a", "models", "--json")
    said = json.loads(output)
    assert (status, said["before"], said["after"]) == (1, digests["a"], digests["b"])
    assert artifact(tmp_path, "verify", "models", "--model-digest", digests["b"])[0] == 0
    status, output = artifact(tmp_path, "verify", "models", "--model-digest", digests["a"])
    assert status == 1
    assert digests["a"] in output
