from __future__ import annotations

import fcntl
import os
import platform

import pytest
from processes import open_files

from penstock.hosting.folder_lock import EVERY, FolderLocked, folder_lock


class Clock:
    """Time that passes while somebody sleeps; a function may be called at a moment."""

    def __init__(self, at=None, call=None):
        self.now = 100.0
        self.at, self.call = at, call
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds
        if self.at is not None and self.now >= self.at:
            self.at = None
            self.call()


def locked(folder, clock, wait=30.0):
    return folder_lock(folder, wait=wait, now=lambda: clock.now, sleep=clock.sleep)


def hold(folder, said=b"process 4711 on there\n"):
    """Another holder of the lock, as another process would be; what it wrote is in the file."""
    (folder / ".lock").write_bytes(said)
    descriptor = os.open(folder / ".lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def test_a_free_lock_is_had_at_once_and_says_who_has_it(tmp_path):
    clock = Clock()
    with locked(tmp_path, clock):
        assert (tmp_path / ".lock").read_text() == f"process {os.getpid()} on {platform.node()}\n"
        with (tmp_path / ".lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert clock.slept == []


def test_it_is_free_again_at_the_end_also_where_the_body_raises(tmp_path):
    clock = Clock()
    with pytest.raises(ValueError, match="mine"), locked(tmp_path, clock):
        raise ValueError("mine")
    with locked(tmp_path, clock):
        pass
    assert clock.slept == []


def test_who_has_let_go_is_not_taken_for_the_holder(tmp_path):
    with locked(tmp_path, Clock()):
        pass
    with (tmp_path / ".lock").open() as other:  # as the program `flock` does, which writes nothing into it
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(FolderLocked, match=r"by another process$"):
            locked(tmp_path, Clock(), wait=0.0).__enter__()


def test_who_waits_looks_again_and_again_and_has_it_when_it_is_free(tmp_path):
    other = hold(tmp_path)
    clock = Clock(at=101.0, call=lambda: os.close(other))
    with locked(tmp_path, clock):
        assert 101.0 <= clock.now < 101.0 + EVERY
    assert set(clock.slept) == {EVERY}


def test_who_has_waited_too_long_is_told_the_holder(tmp_path):
    other = hold(tmp_path)
    clock = Clock()
    with pytest.raises(
        FolderLocked,
        match=(
            r"^the lock was not released within 30 s; it is held by process 4711 on "
            r"there$"
        ),
    ):
        locked(tmp_path, clock).__enter__()
    assert 130.0 <= clock.now < 130.0 + 2 * EVERY
    os.close(other)


@pytest.mark.parametrize("said", [b"", b"\x1b[31m", b"\xff\x00"])
def test_a_holder_that_is_not_known_is_another_process(tmp_path, said):
    other = hold(tmp_path, said)
    with pytest.raises(FolderLocked, match=r"by another process$"):
        locked(tmp_path, Clock(), wait=0.0).__enter__()
    os.close(other)


def test_a_longer_name_that_was_there_before_is_gone(tmp_path):
    (tmp_path / ".lock").write_bytes(b"x" * 200)
    with locked(tmp_path, Clock()):
        assert (tmp_path / ".lock").read_text() == f"process {os.getpid()} on {platform.node()}\n"


def test_a_file_that_is_a_link_is_not_opened(tmp_path):
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / ".lock").symlink_to("mine")
    with pytest.raises(OSError, match="symbolic links"):
        locked(tmp_path, Clock()).__enter__()
    assert (tmp_path / "mine").read_bytes() == b"mine"


def test_a_file_that_has_another_name_too_is_not_written_to(tmp_path):
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / ".lock").hardlink_to(tmp_path / "mine")
    before = open_files()
    with pytest.raises(OSError, match=rf"^{tmp_path}/\.lock has a second hard link"):
        locked(tmp_path, Clock()).__enter__()
    assert (tmp_path / "mine").read_bytes() == b"mine"
    assert open_files() <= before


def test_a_pipe_is_no_lock(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OSError, match=rf"^{tmp_path}/\.lock is not a regular file, so it cannot be used as a lock$"):
        locked(tmp_path, Clock()).__enter__()


def test_a_system_that_locks_nothing_is_told_and_nothing_stays_open(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(38, "Function not implemented")

    before = open_files()
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="not implemented"):
        locked(tmp_path, Clock()).__enter__()
    assert open_files() <= before
