"""Room that is kept on a disk: what newcomers must leave, and the file that is given up."""

from __future__ import annotations

import stat

import pytest

from penstock.config import MIB
from penstock.hosting.disk_room import SPARE_BYTES, DiskRoom


class Disk:
    """A disk that has as much room as a test says."""

    def __init__(self, free):
        self.left = free

    def free(self, folder):
        if self.left is None:
            raise OSError("nobody knows")
        return self.left


@pytest.fixture
def disk():
    return Disk(100 * MIB)


@pytest.fixture
def room(tmp_path, disk):
    return DiskRoom(str(tmp_path / "q.db"), 8 * MIB, free=disk.free)


def test_newcomers_leave_the_reserve(room, disk):
    disk.left = 10 * MIB
    assert room.leaves_reserve(2 * MIB, 0)
    assert not room.leaves_reserve(2 * MIB + 1, 0)


def test_room_inside_the_file_counts_while_half_of_the_reserve_is_free(room, disk):
    disk.left = 4 * MIB
    assert room.leaves_reserve(MIB, 5 * MIB)
    disk.left -= 1
    assert not room.leaves_reserve(0, 50 * MIB)


def test_a_disk_that_does_not_tell_has_no_room(room, disk):
    disk.left = None
    assert room.free() == 0


def test_the_spare_file_is_the_owners_and_made_once(room, tmp_path):
    room.make_spare()
    room.make_spare()
    found = (tmp_path / "q.db-spare").stat()
    assert (found.st_size, stat.S_IMODE(found.st_mode), found.st_blocks * 512 >= SPARE_BYTES) == (2 * MIB, 0o600, True)


@pytest.mark.parametrize(
    ("free", "reserve", "made"), [(6 * MIB, 8 * MIB, True), (6 * MIB - 1, 8 * MIB, False), (100 * MIB, 0, False)]
)
def test_a_spare_file_leaves_half_of_the_reserve(tmp_path, free, reserve, made):
    room = DiskRoom(str(tmp_path / "q.db"), reserve, free=Disk(free).free)
    room.make_spare()
    assert room.has_spare() is made


def test_the_spare_file_is_given_up_only_where_the_disk_is_full(room, disk):
    room.make_spare()
    assert not room.give_up_spare()
    disk.left = 0
    assert room.give_up_spare()
    assert not room.give_up_spare()


def test_a_spare_file_that_finds_no_room_is_not_there(room, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    room.make_spare()
    assert not room.has_spare()


def test_half_of_the_spare_file_stays_for_what_removes(room, disk):
    disk.left = 0
    assert room.left_for_results(0) == -MIB
    disk.left = 100 * MIB
    room.make_spare()
    disk.left = 0
    assert room.left_for_results(1000) == MIB - 1000


def test_a_link_has_its_spare_file_where_the_file_is(tmp_path, disk):
    (tmp_path / "there").mkdir()
    (tmp_path / "q.db").symlink_to("there/q.db")
    assert DiskRoom(str(tmp_path / "q.db"), free=disk.free).spare == tmp_path / "there" / "q.db-spare"
