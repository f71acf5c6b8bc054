"""How a terminal shows the versions of a model directory."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from penstock.artifact.current_file import HistoryEntry
from penstock.artifact.publishing import ModelVersion, ModelVersions, list_versions, publish_artifact
from penstock.cli.main import main
from penstock.cli.model_versions_shown import show_versions
from tiny_artifacts import write_artifact

STYLES = re.compile(r"\x1b\[[0-9;]*m")
"""What makes a title bold."""
AT = "2026-11-23T03:00:00Z"


@pytest.fixture
def on_a_terminal(capsys, monkeypatch):
    """What `show_versions` writes on a terminal of 200 columns."""

    def shown(*arguments):
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # in a fixture it is not yet that of the test
        show_versions(*arguments, as_json=False)
        return capsys.readouterr().out

    return shown


def found(tmp_path, *, run=None):
    """What a model directory has whose version 2 was pruned, and then rolled back to version 1."""
    digests = ["1" * 64, "2" * 64, "3" * 64]
    history = [HistoryEntry(n, digest, AT, "publish", run) for n, digest in enumerate(digests, 1)]
    versions = [ModelVersion(n, digest, AT, run, n == 2) for n, digest in enumerate(digests, 1)]
    later = HistoryEntry(1, digests[0], "2026-11-24T03:00:00Z", "rollback")
    return ModelVersions(tmp_path, 1, 3, tuple(versions), (*history, later))


def test_a_terminal_gets_a_table_with_what_is_current_and_where_a_rollback_goes(on_a_terminal, tmp_path):
    (tmp_path / "versions" / "2").mkdir(parents=True)
    title, _, head, _, *rows = STYLES.sub("", on_a_terminal("models", found(tmp_path))).splitlines()
    assert title == "models"
    assert [cell.strip() for cell in head.strip("┃").split("┃")] == [
        "version", "", "when", "action", "digest", "run", "state",
    ]  # fmt: skip
    assert [[cell.strip() for cell in row.strip("│").split("│")] for row in rows[:-1]] == [
        ["1", "current", "2026-11-24T03:00:00Z", "rollback", "1" * 12, "", "pruned"],
        ["2", "", AT, "publish", "2" * 12, "", "altered"],
        ["3", "a rollback goes here", AT, "publish", "3" * 12, "", "pruned"],
    ]


def test_a_table_has_the_beginning_of_a_run_and_json_all_of_it(on_a_terminal, tmp_path, capsys):
    run = "0123456789abcdef" * 2
    assert "│ 0123456789ab │" in STYLES.sub("", on_a_terminal("models", found(tmp_path, run=run)))
    show_versions("models", found(tmp_path, run=run), as_json=True)
    assert [version["run"] for version in json.loads(capsys.readouterr().out)["versions"]] == [run] * 3


def test_no_text_reaches_the_terminal_with_escape_sequences(on_a_terminal, tmp_path):
    output = on_a_terminal("mod\x1b[31mels", found(tmp_path, run="\x9b\u202erun"))
    assert all(map(str.isprintable, STYLES.sub("", output).split("\n")))
    assert "\x1b[31m" not in output
    assert r"\u202erun" in output


DONE = {
    "publish": r"published .*c as version 3 of .*models; cannot write to standard output: ",
    "rollback": r"rolled back .*models from version 2 to version 1; cannot write to standard output: ",
    "prune": r"nothing was removed from .*models: .*; cannot write to standard output: ",
}


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["words", "object"])
@pytest.mark.parametrize("command", DONE)
@pytest.mark.parametrize("closed", [True, False])
def test_what_was_done_is_told_where_stdout_takes_nothing(tmp_path, monkeypatch, capsys, command, flags, closed):
    for place, name in enumerate("abc"):
        write_artifact(tmp_path / name, slope=(0.5, place))
    for name in "ab":
        publish_artifact(tmp_path / name, tmp_path / "models")
    named = {"publish": [tmp_path / "c", tmp_path / "models"]}.get(command, [tmp_path / "models"])
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", None if closed else full)
        assert main(["model", command, *map(str, named), *flags]) == 1
    said = capsys.readouterr().err
    assert re.search(DONE[command], said)
    assert said.endswith("stdout is closed\n" if closed else "No space left on device\n")


@pytest.fixture
def states(tmp_path):
    """What is said of the versions 1 and 2 of a model directory, of which the list found both, after `change`."""
    models = tmp_path / "models"
    for name in "ab":
        write_artifact(tmp_path / name, name=name)
        publish_artifact(tmp_path / name, models)

    def listed(capsys, change):
        found = list_versions(models)
        change(models / "versions" / "1")
        show_versions("models", found, as_json=True)
        return [version["state"] for version in json.loads(capsys.readouterr().out)["versions"]]

    return listed


def test_a_version_that_is_pruned_while_the_list_is_made_is_told_as_pruned(states, capsys):
    assert states(capsys, shutil.rmtree) == ["pruned", "there"]


def test_a_version_says_whom_it_is_hidden_from_of_those_who_read_the_model_directory(states, capsys, tmp_path):
    models = tmp_path / "models"
    for folder in (models, models / "versions"):
        folder.chmod(0o755)

    def close(folder):
        (folder / "manifest.json").chmod(0o640)

    states(capsys, close)
    show_versions("models", list_versions(models), as_json=True)
    assert [each["hidden_from"] for each in json.loads(capsys.readouterr().out)["versions"]] == [["others"], []]
    show_versions("models", list_versions(models), as_json=False)
    assert [line.split("\t")[-1] for line in capsys.readouterr().out.splitlines()] == [
        "there, hidden from others",
        "there",
    ]


@pytest.mark.parametrize(("owner", "call"), [(os, "open"), (Path, "resolve")], ids=["version", "versions"])
def test_a_version_that_may_not_be_read_is_told_as_unreadable(states, capsys, monkeypatch, owner, call):
    def close(folder):
        real = getattr(owner, call)

        def refuse(path, *given, **more):
            if path == folder:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *given, **more)

        monkeypatch.setattr(owner, call, refuse)

    assert states(capsys, close) == ["unreadable", "there"]


def test_a_link_among_the_versions_is_told_as_altered(tmp_path, states, capsys):
    (tmp_path / "models" / "versions" / "1").rename(tmp_path / "moved")
    (tmp_path / "models" / "versions" / "1").symlink_to(tmp_path / "moved")
    assert states(capsys, lambda _: None) == ["altered", "there"]


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_stdout_that_is_closed_is_a_sentence(tmp_path, monkeypatch, capsys, flags):
    write_artifact(tmp_path / "affairs")
    publish_artifact(tmp_path / "affairs", tmp_path / "models")
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["model", "list", str(tmp_path / "models"), *flags]) == 1
    assert "cannot write to standard output: stdout is closed" in capsys.readouterr().err
