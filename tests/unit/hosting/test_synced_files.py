from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.hosting.synced_files import make_folders, sync_folder, sync_tree, write_synced


@pytest.fixture
def synced(monkeypatch):
    """The paths that are synced, in order."""
    found = []
    fsync = os.fsync

    def listen(descriptor):
        fsync(descriptor)
        found.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", listen)
    return found


def test_a_file_is_written_and_synced(tmp_path, synced):
    write_synced(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"
    assert synced == [str(tmp_path / "a")]


def test_a_file_that_is_there_is_written_anew(tmp_path):
    write_synced(tmp_path / "a", b"longer")
    write_synced(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_folder_is_synced(tmp_path, synced):
    sync_folder(tmp_path)
    assert synced == [str(tmp_path)]


def test_folders_are_made_and_each_is_on_the_disk(tmp_path, synced):
    make_folders(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert sorted(synced) == [str(tmp_path), str(tmp_path / "a")]
    synced.clear()
    make_folders(tmp_path / "a" / "b")
    assert synced == []


def test_of_a_tree_each_file_and_each_folder_is_synced_a_folder_after_what_is_in_it(tmp_path, synced):
    (tmp_path / "b" / "c").mkdir(parents=True)
    for name in ("a", "b/d", "b/c/e"):
        (tmp_path / name).write_bytes(b"x")
    sync_tree(tmp_path)
    places = {str(path) for path in tmp_path.rglob("*")} | {str(tmp_path)}
    assert (set(synced), len(synced)) == (places, len(places))
    for path in tmp_path.rglob("*"):
        assert synced.index(str(path)) < synced.index(str(path.parent))


def test_links_and_pipes_are_passed_over(tmp_path, synced):
    (tmp_path / "link").symlink_to("/nowhere")
    os.mkfifo(tmp_path / "pipe")
    sync_tree(tmp_path)
    assert synced == [str(tmp_path)]


def test_what_cannot_be_synced_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        sync_tree(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        sync_folder(tmp_path / "file")
