"""Files of a shared store: their rights, what is refused when it is opened, and copies."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest

from penstock.embeddings import held_file
from penstock.embeddings.row_optimizers import Adagrad
from penstock.embeddings.row_table import Records
from penstock.embeddings.shared_store import SharedTrainingStore
from penstock.embeddings.training_store import TableSpec
from penstock.errors import ConfigError, EmbeddingError, RowsUnavailable

SPEC = TableSpec("t", 5, ids="any", optimizer=Adagrad(lr=0.5))
IDS = np.arange(1000)
ROWS = (IDS[:, None] * 8 + np.arange(5)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    store = SharedTrainingStore(tmp_path / "rows")
    store.create(SPEC)
    store.load("t", IDS, ROWS)
    store.close()
    return tmp_path / "rows"


def table(folder):
    (found,) = folder.glob("table-*")
    return found


def test_nobody_else_has_rights_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        store = SharedTrainingStore(tmp_path / "rows")
        store.create(SPEC)
        store.load("t", IDS, ROWS)
        store.save(tmp_path / "saved")
    finally:
        os.umask(before)
    for path in [p for name in ("rows", "saved") for p in (tmp_path / name, *(tmp_path / name).rglob("*"))]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_what_a_killed_maker_of_a_table_has_left_is_removed(folder):
    left = folder / ".draft-0123456789abcdef"
    left.mkdir()
    (left / "0.rows").write_bytes(b"x")
    store = SharedTrainingStore(folder)
    assert set(store.tables()) == {"t"}
    store.create(TableSpec("other", 5, ids="any"))
    assert not left.exists()
    assert set(store.tables()) == {"t", "other"}


@pytest.mark.parametrize("name", ["0.rows", "3.ids", "1.head", "step", "table.json"])
def test_a_cut_file_is_refused(folder, name):
    path = table(folder) / name
    os.truncate(path, 10)
    with pytest.raises(EmbeddingError, match=r"cut|damaged") as caught:
        SharedTrainingStore(folder)
    assert not isinstance(caught.value, RowsUnavailable)
    assert name in str(caught.value)


def test_an_id_that_cannot_be_is_refused(tmp_path):
    store = SharedTrainingStore(tmp_path)
    store.create(TableSpec("t", 5, size=1000))
    store.load("t", IDS, ROWS)
    path = table(tmp_path) / "2.ids"
    path.write_bytes(np.array([-1000]).tobytes() + path.read_bytes()[8:])
    with pytest.raises(EmbeddingError, match=r"2\.ids is damaged .*id -1000 is not from 0 to 999"):
        SharedTrainingStore(tmp_path)


def test_a_spec_that_is_no_text_is_refused(folder):
    path = table(folder) / "table.json"
    path.write_bytes(path.read_bytes().replace(b"{", b'{"\xeb":0,', 1))
    with pytest.raises(EmbeddingError, match=r"table\.json is damaged"):
        SharedTrainingStore(folder)


@pytest.mark.parametrize(("undo", "places"), [(2**50, []), (2, [0, 10**6]), (2, [0, -1])], ids=["many", "high", "low"])
def test_an_undo_that_cannot_be_is_refused(folder, undo, places):
    with (table(folder) / "1.head").open("r+b") as head:
        head.seek(40)
        head.write(np.array([undo]).tobytes())
        head.seek(4096)
        head.write(np.array(places, np.int64).tobytes())
    with pytest.raises(EmbeddingError, match=r"1\.head is damaged"):
        SharedTrainingStore(folder)


def test_a_missing_file_is_said_to_be_missing(folder):
    (table(folder) / "2.rows").unlink()
    with pytest.raises(RowsUnavailable, match=r"No such file .*2\.rows"):
        SharedTrainingStore(folder)


def test_a_folder_that_is_gone_is_rows_that_are_unavailable(folder):
    store = SharedTrainingStore(folder)
    folder.rename(folder.with_name("elsewhere"))
    for call in (lambda: store.fetch("t", IDS), lambda: store.apply("t", IDS, ROWS), lambda: store.count("t")):
        with pytest.raises(RowsUnavailable, match=r"table 't': .*No such file"):
            call()


def test_a_folder_that_was_replaced_is_not_mixed_up_with_the_one_before(folder, tmp_path):
    store = SharedTrainingStore(folder)
    store.save(tmp_path / "saved")
    store.load("t", IDS, ROWS + 1)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "saved", folder)
    for call in (
        lambda: store.fetch("t", IDS),
        lambda: store.apply("t", IDS + 500, ROWS),
        lambda: store.count("t"),
        lambda: list(store.scan("t")),
    ):
        with pytest.raises(RowsUnavailable, match=r"\.rows was replaced since this process opened it"):
            call()
    assert (SharedTrainingStore(folder).fetch("t", IDS).rows == ROWS).all()
    assert SharedTrainingStore(folder).count("t") == len(IDS)


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b'{"format":2}', ConfigError, "format 2, but this version of Penstock requires 1"),
        (b'{"format":2,"more":[]}', ConfigError, "format 2"),
        (b'{"format":"1"}', EmbeddingError, "store.json is damaged"),
        (b"", EmbeddingError, "store.json is damaged"),
    ],
)
def test_another_format_is_refused(folder, content, kind, words):
    (folder / "store.json").write_bytes(content)
    with pytest.raises(kind, match=words):
        SharedTrainingStore(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"partitions": 4', '"partitions": 0'), ('"partitions"', '"parts"'), ('"width": 5', '"width": 6'),
     ('"width": 5', '"width": "5"'), ('"name": "t"', '"name": "u"'), ('"lr": 0.5', '"lr": -1'),
     ('"lr": 0.5', '"lr": 0.5, "momentum": 1')],
)  # fmt: skip
def test_another_tables_file_is_refused(folder, old, new):
    path = table(folder) / "table.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(EmbeddingError, match=r"is damaged|of another table|has records of"):
        SharedTrainingStore(folder)


def test_what_is_no_folder_of_a_store_is_refused_and_not_changed(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="file is not a directory"):
        SharedTrainingStore(file)
    with pytest.raises(ConfigError, match=r"has other files in it, such as file: use a directory of its own"):
        SharedTrainingStore(tmp_path)
    with pytest.raises(ConfigError, match="cannot be opened as a store of rows: Not a directory"):
        SharedTrainingStore(file / "rows")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"mine"


def test_a_network_file_system_is_refused(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36 35 0:50 / {tmp_path} rw,noatime - nfs4 host:/x rw\n")
    with pytest.raises(ConfigError, match=r"rows is on a network file system \(nfs4\)"):
        SharedTrainingStore(tmp_path / "rows", mountinfo=mounts)
    assert not (tmp_path / "rows").exists()


def test_an_interrupt_in_a_growth_leaves_arrays_of_one_length():
    class Interrupted:
        def view(self, _):
            raise KeyboardInterrupt

    records = Records(SPEC, None)
    records.make_room(10)
    with pytest.raises(KeyboardInterrupt):
        records.place(np.empty(5000, np.int64), Interrupted())
    assert len(records.ids) == len(records.items)
    records.make_room(5000)
    assert len(records.ids) == len(records.items) >= 5000


def test_an_interrupt_where_a_lock_is_let_go_keeps_none(folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    store = SharedTrainingStore(folder)
    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda file, how: interrupted() if how == fcntl.LOCK_UN else flock(file, how))
    with pytest.raises(KeyboardInterrupt):
        store.fetch("t", IDS)
    monkeypatch.undo()
    monkeypatch.setattr(held_file, "LONGEST_WAIT", 0.0)
    assert (store.fetch("t", IDS).rows == ROWS).all()


def test_a_copy_with_holes_has_none_once_it_is_open(folder, tmp_path):
    """To write into a hole of a mapped file on a full disk is SIGBUS."""
    store = SharedTrainingStore(folder)
    store.load("t", IDS, np.zeros_like(ROWS))
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", "--sparse=always", folder, copy], check=True)
    files = [path for end in ("ids", "rows") for path in table(copy).glob(f"*.{end}")]
    assert any(512 * path.stat().st_blocks < path.stat().st_size for path in files)
    opened = SharedTrainingStore(copy)
    assert not any(512 * path.stat().st_blocks < path.stat().st_size for path in files)
    assert (opened.fetch("t", IDS).rows == 0).all()


def test_a_save_into_the_store_itself_is_refused(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    store = SharedTrainingStore(folder)
    for path in (folder / "table-saved", tmp_path / "link" / "saved", table(folder) / "saved"):
        with pytest.raises(ConfigError, match="is inside of the store itself"):
            store.save(path)
    assert set(SharedTrainingStore(folder).tables()) == {"t"}


def test_a_save_that_fails_leaves_nothing(folder, tmp_path, monkeypatch):
    store = SharedTrainingStore(folder)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "sendfile", full)
    with pytest.raises(RowsUnavailable, match=r"saved was not saved: .*No space left"):
        store.save(tmp_path / "saved")
    assert [path.name for path in Path(tmp_path).iterdir()] == ["rows"]
    store.apply("t", IDS, ROWS)
