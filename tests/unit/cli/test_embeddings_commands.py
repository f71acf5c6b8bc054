"""`penstock embeddings`, and the tables that `penstock model inspect` shows."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from penstock.artifact.publishing import publish_artifact
from penstock.cli.main import main
from saved_artifacts import edit_manifest
from tiny_artifacts import ITEM, USER, USERS, user_rows, write_artifact, write_tables


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "tables"
    write_tables(folder)
    return folder


def printed(capsys, *words):
    assert main([*map(str, words)]) == 0
    return capsys.readouterr().out


def inline_items(artifact):
    """Have the manifest say that the table of items is in the graph."""

    def edit(found):
        found["tables"][1].update(placed="inlined", shards=[], input="")
        found["tables"][1]["lookups"][0]["places"] = ""
        found["files"] = {path: entry for path, entry in found["files"].items() if not path.startswith("tables/item")}
        model = found["graphs"][1]
        model["inputs"] = [given for given in model["inputs"] if given["name"] not in {"rows_1", "places_1_0"}]

    edit_manifest(artifact, edit)
    shutil.rmtree(artifact / "tables" / "item")


def test_stats_tell_of_each_table(artifact, tmp_path, capsys):
    shutil.copytree(artifact, tmp_path / "tables")
    inline_items(tmp_path / "tables")
    told = json.loads(printed(capsys, "embeddings", "stats", tmp_path / "tables", "--json"))
    shared = {"width": 2, "lookups": 1}
    user = {"name": "user", "path": "embed.user", "placed": "outside", "ids": "any", "size": None, "rows": 8}
    item = {"name": "item", "path": "embed.item", "placed": "inlined", "ids": "dense", "size": 4, "rows": 4}
    size = sum(path.stat().st_size for path in (artifact / "tables" / "user").iterdir())
    rule = {"type": "init", "seed": 7, "low": -0.05, "high": 0.05}
    assert told["tables"] == [
        {**user, **shared, "shards": 8, "bytes": size, "missing": rule},
        {**item, **shared, "shards": 0, "bytes": None, "missing": {"type": "zeros"}},
    ]
    shown = printed(capsys, "embeddings", "stats", tmp_path / "tables")
    assert {"user", "item", "outside", "inlined", "8", f"{size:,}", "any", "0 to 3", "Zeros()"} <= {
        cell.strip() for cell in shown.replace("│", "\n").splitlines()
    }


def test_an_artifact_without_tables_is_told_as_that(tmp_path, capsys):
    write_artifact(tmp_path / "affairs")
    assert printed(capsys, "embeddings", "stats", tmp_path / "affairs").endswith("has no table outside of its graph\n")
    assert json.loads(printed(capsys, "embeddings", "stats", tmp_path / "affairs", "--json"))["tables"] == []


def test_get_tells_of_each_id_in_the_order_of_the_ids_whether_it_is_there_and_its_row(artifact, tmp_path, capsys):
    publish_artifact(artifact, tmp_path / "models")
    ids = [5, -1, 7, -(2**63), -7, 5]
    told = json.loads(printed(capsys, "embeddings", "get", tmp_path / "models", "user", *ids, "--json"))
    assert told["table"] == "user"
    assert told["rows"] == [
        {"id": number, "found": number in USERS, "row": user_rows(np.array([number]))[0].tolist()} for number in ids
    ]
    shown = printed(capsys, "embeddings", "get", artifact, "user", -1, 7)
    assert "124.875 3.0" in shown
    assert f"no: {USER.missing}" in " ".join(shown.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("item", 4), 1, "table 'item' has the ids from 0 to 3, but 4 is not one of them"),
        (("item", -1), 1, "table 'item' has the ids from 0 to 3, but -1 is not one of them"),
        (("users", 4), 1, "has no table 'users'; tables: 'user', 'item'"),
        (
            ("user", 2**63),
            1,
            f"has the ids from {-(2**63)} to {2**63 - 1}, but {2**63} is not one of them",
        ),
        (("user", "five"), 2, "an id must be a whole number of at most 19 digits, got 'five'"),
    ],
)
def test_a_row_that_cannot_be_is_a_sentence(artifact, capsys, words, status, said):
    assert main(["embeddings", "get", str(artifact), *map(str, words)]) == status
    assert said in capsys.readouterr().err


def test_a_row_in_the_graph_is_told_as_that(artifact, tmp_path, capsys):
    shutil.copytree(artifact, tmp_path / "tables")
    inline_items(tmp_path / "tables")
    assert main(["embeddings", "get", str(tmp_path / "tables"), ITEM.name, "1"]) == 1
    assert "table 'item' is inlined: its rows are in the graph of" in capsys.readouterr().err


def test_inspect_shows_tables_and_the_roles_of_graphs(artifact, capsys):
    shown = printed(capsys, "model", "inspect", artifact)
    assert {"onnx ids", "onnx model", "user", "item", "outside", "8", "4"} <= {
        cell.strip() for cell in shown.replace("│", "\n").splitlines()
    }
