"""Checkpoints: whole or absent, the newest two, and nothing left of one that failed."""

from __future__ import annotations

import errno
import os

import pytest

from penstock.errors import ConfigError, LeaseLost, RunUnavailable
from penstock.hosting import synced_files
from penstock.training import checkpoints
from penstock.training.checkpoints import keep_checkpoint, latest_checkpoint


def nothing():
    pass


def writing(text):
    return lambda path: (path / "weights").write_text(text)


def kept(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_the_newest_two_stay_and_numbers_only_grow(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    assert latest_checkpoint(folder) is None
    for number in range(1, 12):
        found = keep_checkpoint(folder, writing(str(number)), nothing)
        assert found == latest_checkpoint(folder) == folder / str(number)
        assert (found / "weights").read_text() == str(number)
    assert kept(folder) == ["10", "11"]


def test_folders_in_a_checkpoint_are_kept(tmp_path):
    def write(path):
        (path / "a" / "b").mkdir(parents=True)
        (path / "a" / "b" / "c").write_text("deep")

    assert (keep_checkpoint(tmp_path, write, nothing) / "a" / "b" / "c").read_text() == "deep"


def test_a_checkpoint_can_be_read_by_whoever_reads_the_folder_of_the_run_whatever_the_umask(tmp_path, umask):
    def write(path):
        (path / "a").mkdir()
        (path / "a" / "weights").write_text("1")

    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o755)
    umask(0o077)
    checkpoint = keep_checkpoint(run / "checkpoints", write, nothing)
    modes = {path.stat().st_mode & 0o777 for path in (checkpoint.parent, checkpoint, checkpoint / "a")}
    assert (modes, (checkpoint / "a" / "weights").stat().st_mode & 0o777) == ({0o755}, 0o644)


def test_where_others_cannot_be_let_in_a_checkpoint_is_kept_for_its_user(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "the group cannot be given")

    monkeypatch.setattr(checkpoints, "share_tree", refuse)
    monkeypatch.setattr(synced_files, "share", refuse)
    assert keep_checkpoint(tmp_path / "run" / "checkpoints", writing("1"), nothing).name == "1"


def test_a_write_that_raises_leaves_nothing_and_is_raised_as_it_is(tmp_path):
    def write(path):
        (path / "weights").write_text("half")
        raise OSError(28, "No space left on device")

    keep_checkpoint(tmp_path, writing("1"), nothing)
    with pytest.raises(OSError, match="No space left"):
        keep_checkpoint(tmp_path, write, nothing)
    assert kept(tmp_path) == ["1"]


def test_a_write_that_fills_nothing_leaves_nothing(tmp_path):
    with pytest.raises(ConfigError, match="wrote no file into the directory"):
        keep_checkpoint(tmp_path, nothing_written, nothing)
    assert kept(tmp_path) == []


def nothing_written(path):
    pass


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    def write(path):
        path.rmdir()
        path.write_text("weights")

    with pytest.raises(ConfigError, match="replaced the directory"):
        keep_checkpoint(tmp_path, write, nothing)
    assert kept(tmp_path) == []


def test_who_may_keep_it_no_longer_keeps_nothing_and_removes_nothing(tmp_path):
    def lost():
        raise LeaseLost("gone")

    keep_checkpoint(tmp_path, writing("1"), nothing)
    keep_checkpoint(tmp_path, writing("2"), nothing)
    with pytest.raises(LeaseLost):
        keep_checkpoint(tmp_path, writing("3"), lost)
    assert kept(tmp_path) == ["1", "2"]


def test_the_files_are_on_the_disk_before_the_checkpoint_appears(tmp_path, monkeypatch):
    order = []
    for name in ("sync_tree", "sync_folder"):
        real = getattr(checkpoints, name)
        monkeypatch.setattr(
            checkpoints, name, lambda path, name=name, real=real: order.append((name, kept(tmp_path))) or real(path)
        )
    keep_checkpoint(tmp_path, writing("1"), nothing)
    (first, before), (second, after) = order
    assert (first, second) == ("sync_tree", "sync_folder")
    assert "1" not in before
    assert "1" in after


def test_the_stage_of_a_dead_process_is_removed(tmp_path):
    left = tmp_path / ".stage-0123456789abcdef"
    left.mkdir()
    (left / "half").write_text("half")
    keep_checkpoint(tmp_path, writing("1"), nothing)
    assert kept(tmp_path) == ["1"]


def test_what_the_system_refuses_is_told_with_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "checkpoints", tmp_path / "file"):
        with pytest.raises(ConfigError, match=rf"cannot save a checkpoint in {folder}: .*file.* is not a directory"):
            keep_checkpoint(folder, writing("1"), nothing)
        with pytest.raises(ConfigError, match=rf"cannot read the checkpoints in {folder}: {folder} is not a directory"):
            latest_checkpoint(folder)


def test_a_disk_that_fills_up_while_it_is_kept_is_told_as_such(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "sync_tree", full)
    with pytest.raises(RunUnavailable, match=r"cannot save a checkpoint in .*: .*No space left on device"):
        keep_checkpoint(tmp_path, writing("1"), nothing)
    assert kept(tmp_path) == []


def test_checkpoints_that_the_system_does_not_read_are_told(tmp_path, monkeypatch):
    def fail(folder):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoints, "_numbers", fail)
    with pytest.raises(RunUnavailable, match=r"cannot read the checkpoints in .*: .*Input/output error"):
        latest_checkpoint(tmp_path)


def test_what_is_no_checkpoint_is_not_taken_for_one(tmp_path):
    for name in ("0", "007", "1.bak", "x", "٣"):
        (tmp_path / name).mkdir()
    (tmp_path / "5").write_text("a file")
    assert latest_checkpoint(tmp_path) is None
    os.mkdir(tmp_path / "2")  # noqa: PTH102
    assert latest_checkpoint(tmp_path) == tmp_path / "2"
