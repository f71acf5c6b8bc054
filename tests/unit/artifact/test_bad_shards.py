"""Artifacts whose shards are not as they were saved: each is told with its file, before anything is served."""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import onnx_bytes
import penstock as ps
from penstock.artifact.opened_artifact import open_artifact
from penstock.artifact.served_model import open_model
from saved_artifacts import edit_manifest
from tiny_artifacts import USERS, write_tables

USER = "tables/user/shard-{}-of-00008.safetensors"
SECOND = USER.format("00002")
THIRD = USER.format("00003")
ITEM = "tables/item/shard-00002-of-00004.safetensors"
WHOLE = "tables/user/shard-00001-of-00001.safetensors"
IDS_AT = 4160 - 8 * 2 * 4 - 8 * 9
"""Where the ids begin in the file of all users: before the index, which is before the rows."""


@pytest.fixture
def artifact(tmp_path):
    """An artifact that has a shard for each row."""
    write_tables(tmp_path / "saved")
    return tmp_path / "saved"


def write(path: Path, content: bytes, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def absent(artifact):
    (artifact / SECOND).unlink()


def cut(artifact):
    os.truncate(artifact / SECOND, (artifact / SECOND).stat().st_size - 1)


def swapped(artifact):
    (artifact / SECOND).rename(artifact / "aside")
    (artifact / THIRD).rename(artifact / SECOND)
    (artifact / "aside").rename(artifact / THIRD)


def linked(artifact):
    (artifact / SECOND).rename(artifact.parent / "shard")
    (artifact / SECOND).symlink_to(artifact.parent / "shard")


def of_another_table(artifact):
    (artifact / SECOND).write_bytes((artifact / ITEM).read_bytes())


def of_another_artifact(artifact):
    write_tables(artifact.parent / "other", created="2026-11-24T00:00:00Z")
    (artifact / SECOND).write_bytes((artifact.parent / "other" / SECOND).read_bytes())


def header_beyond_the_file(artifact):
    write(artifact / SECOND, (2**60).to_bytes(8, "little"), 0)


def unlisted(artifact):
    (artifact / "tables" / "user" / "more").touch()


@pytest.mark.parametrize(
    ("spoil", "file", "words"),
    [
        (absent, SECOND, "is missing"),
        (cut, SECOND, "has 4103 bytes, but the manifest lists 4104"),
        (swapped, SECOND, "is not shard 2 of table 'user' as this artifact was saved: its header differs"),
        (linked, SECOND, "is a link, and should be a file"),
        (of_another_table, SECOND, "is not shard 2 of table 'user' as this artifact was saved: its header differs"),
        (of_another_artifact, SECOND, "is not shard 2 of table 'user' as this artifact was saved: its header differs"),
        (
            header_beyond_the_file,
            SECOND,
            "is not shard 2 of table 'user' as this artifact was saved: its header differs",
        ),
        (unlisted, "tables/user/more", "is a file that the manifest does not list"),
    ],
)
def test_a_file_that_is_another_is_not_loaded(artifact, spoil, file, words):
    spoil(artifact)
    with pytest.raises(ps.ArtifactInvalid, match=words) as caught:
        ps.export.load(artifact)
    assert caught.value.file == file
    assert file in str(caught.value)


def overlapping(found):
    found["tables"][0]["shards"][1]["first"] = -(2**63)


def with_a_gap(found):
    found["tables"][1]["shards"][1].update(first=2, last=2)


def outside(found):
    found["tables"][0]["shards"][1]["file"] = "../shard"


def of_another_width(found):
    found["tables"][0]["width"] = 3


def of_no_table(found):
    found["files"]["tables/more"] = found["files"][SECOND]


def with_another_input(found):
    (rows,) = [given for given in found["graphs"][1]["inputs"] if given["name"] == "rows_0"]
    rows["shape"] = [3]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (overlapping, "table 'user', shard 2 has the ids from -9223372036854775808 to -1, but must have those from"),
        (with_a_gap, "table 'item', shard 2 starts at id 2, but must start at 1: the table has all ids"),
        (outside, f"table 'user', shard 2 is the file '../shard', but must be '{SECOND}'"),
        (of_another_width, "'tables/user/shard-00001-of-00008.safetensors' has 4104 bytes, and its rows take 4108"),
        (of_no_table, "'tables/more' is a shard of no table"),
        (with_another_input, "the onnx graph takes .*'rows_0'.*, and its table gives"),
    ],
)
def test_a_manifest_that_does_not_fit_its_shards_is_not_loaded(artifact, edit, words):
    edit_manifest(artifact, edit)
    with pytest.raises(ps.ArtifactInvalid, match=words) as caught:
        ps.export.load(artifact)
    assert caught.value.file == "manifest.json"


def replaced(artifact, path, content):
    """Write a file, and have the manifest say that it is the right one."""
    (artifact / path).write_bytes(content)
    entry = {"sha256": sha256(content).hexdigest(), "bytes": len(content)}
    edit_manifest(artifact, lambda found: found["files"].update({path: entry}))


def test_a_graph_that_wants_rows_of_another_width_is_not_opened(artifact):
    content = onnx_bytes.model(
        [onnx_bytes.node("Identity", ["age"], ["score"])],
        [
            ("age", "float32", ("n",)),
            ("rows_0", "float32", ("users", 3)),
            ("places_0_0", "int64", ("n",)),
            ("rows_1", "float32", ("items", 2)),
            ("places_1_0", "int64", ("n",)),
        ],
        [("score", "float32", ("n",))],
    )
    replaced(artifact, "model.onnx", content)
    words = "model.onnx: input 'rows_0' of the graph has the axes ['batch', 3], but its manifest lists ['batch', 2]"
    with pytest.raises(ps.ArtifactInvalid, match=re.escape(words)) as caught:
        open_model(open_artifact(artifact))
    assert caught.value.file == "model.onnx"


def altered_row(content):
    return content[:-1] + b"\x40"


def ids_that_do_not_ascend(content):
    ids = USERS.copy()
    ids[2:4] = ids[[3, 2]]
    return content[:IDS_AT] + ids.tobytes() + content[IDS_AT + ids.nbytes :]


def an_index_that_points_outside(content):
    at = IDS_AT + USERS.nbytes
    return content[:at] + np.array([2**62], np.int64).tobytes() + content[at + 8 :]


@pytest.mark.parametrize(
    ("alter", "told_by_contents"),
    [
        (altered_row, None),
        (ids_that_do_not_ascend, f"{WHOLE} has ids that do not ascend"),
        (an_index_that_points_outside, f"{WHOLE} has an index that does not match its ids"),
    ],
)
def test_wrong_contents_are_told_where_they_are_asked_for_and_read_nothing_else(tmp_path, alter, told_by_contents):
    artifact = tmp_path / "saved"
    write_tables(artifact, shard_bytes=2**20)
    content = alter((artifact / WHOLE).read_bytes())
    (artifact / WHOLE).write_bytes(content)
    model = open_model(open_artifact(artifact))
    assert len(model.predict_rows([{"user": int(user), "age": 1.0} for user in USERS[1:]]).kept)
    model.close()
    with pytest.raises(ps.ArtifactInvalid, match="was changed after it was saved: its sha256 is") as caught:
        ps.export.load(artifact, verify_rows=True)
    assert caught.value.file == WHOLE
    if told_by_contents:
        replaced(artifact, WHOLE, content)
        with pytest.raises(ps.ArtifactInvalid, match=told_by_contents):
            ps.export.load(artifact, verify_rows=True)
