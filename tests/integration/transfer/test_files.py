"""Files beneath an allowed folder: no link leads out, nothing but files is read, and an output appears whole."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from penstock.errors import TransferCancelled, TransferFailed, TransferRejected
from penstock.transfer.allowed_places import AllowedPlaces
from penstock.transfer.transfers import TransferOptions, Transfers


@pytest.fixture
def inside(tmp_path):
    (tmp_path / "inside").mkdir()
    return tmp_path / "inside"


@pytest.fixture
def transfers(tmp_path, inside):
    allowed = AllowedPlaces.parse(f"file://{inside}", "--allow-input")
    return Transfers(
        TransferOptions(tmp_path / "downloads", allowed_inputs=allowed, allowed_outputs=allowed, max_input=3_000_000)
    )


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.smoke
def test_a_file_is_read_whole_and_its_copy_is_ours_alone(transfers, inside):
    body = os.urandom(2_500_000)
    (inside / "deep").mkdir()
    (inside / "deep" / "a b.wav").write_bytes(body)
    found = transfers.download(f"file://{inside}/deep/a%20b.wav", "job/../1", 7)
    assert (found.path.read_bytes(), found.nbytes, found.path.name) == (body, len(body), "job%2F%2E%2E%2F1.7.wav")
    assert found.path.stat().st_mode & 0o777 == 0o600
    found.remove()
    found.remove()
    assert names(transfers.options.folder) == []
    assert transfers.read(f"file://{inside}/deep/a%20b.wav").body == body


@pytest.mark.parametrize(
    ("mode", "folders", "files"), [(0o755, 0o755, 0o644), (0o2750, 0o2750, 0o640), (0o1777, 0o700, 0o600)]
)
def test_an_output_in_its_place_can_be_read_by_whoever_reads_the_folder(transfers, inside, mode, folders, files):
    inside.chmod(mode)
    url = f"file://{inside}/a/result.json"
    transfers.write_output(url, "job", 7, b"1")
    assert (inside / "a" / ".result.json.job.7.part").stat().st_mode & 0o777 == 0o600
    transfers.finish_output(url, "job", 7)
    assert (inside / "a").stat().st_mode & 0o7777 == folders
    assert (inside / "a" / "result.json").stat().st_mode & 0o7777 == files


@pytest.mark.parametrize("path", ["link", "folder/secret", "inner"])
def test_no_symbolic_link_is_followed(transfers, inside, tmp_path, path):
    (tmp_path / "secret").write_text("secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "folder").symlink_to(tmp_path)
    (inside / "inner").symlink_to("link")
    with pytest.raises(TransferRejected):
        transfers.read(f"file://{inside}/{path}")
    with pytest.raises(TransferRejected):
        transfers.write_output(f"file://{inside}/{path}", "job", 1, b"result")
    assert (tmp_path / "secret").read_text() == "secret"
    assert names(tmp_path) == ["downloads", "inside", "secret"]


def test_a_link_in_the_operators_own_path_is_followed(tmp_path, inside):
    (inside / "a").write_text("a")
    (tmp_path / "link").symlink_to(inside)
    allowed = AllowedPlaces.parse(f"file://{tmp_path}/link", "--allow-input")
    transfers = Transfers(TransferOptions(tmp_path / "downloads", allowed_inputs=allowed))
    assert transfers.read(f"file://{tmp_path}/link/a").body == b"a"


def test_what_is_no_regular_file_is_refused_and_not_waited_for(transfers, inside):
    os.mkfifo(inside / "fifo")
    (inside / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(inside / "socket"))
        for name in ("fifo", "folder", "socket"):
            with pytest.raises(TransferRejected, match="it is not a regular file"):
                transfers.read(f"file://{inside}/{name}")
            with pytest.raises(TransferRejected, match="exists and is not a regular file"):
                transfers.write_output(f"file://{inside}/{name}", "job", 1, b"result")


def test_a_file_that_becomes_a_fifo_at_the_last_moment_is_refused_and_not_waited_for(transfers, inside, monkeypatch):
    (inside / "a").write_text("a")
    look = os.stat

    def look_and_swap(path, **words):
        found = look(path, **words)
        if path == "a":
            (inside / "a").unlink()
            os.mkfifo(inside / "a")
        return found

    monkeypatch.setattr(os, "stat", look_and_swap)
    with pytest.raises(TransferRejected, match="it is not a regular file"):
        transfers.read(f"file://{inside}/a")


def test_a_device_is_refused(tmp_path):
    allowed = AllowedPlaces.parse("file:///dev", "--allow-input")
    transfers = Transfers(TransferOptions(tmp_path / "downloads", allowed_inputs=allowed))
    with pytest.raises(TransferRejected, match="it is not a regular file"):
        transfers.read("file:///dev/zero")


def test_a_file_that_is_not_there_is_refused(transfers, inside):
    with pytest.raises(TransferRejected, match="the file does not exist"):
        transfers.read(f"file://{inside}/none")
    with pytest.raises(TransferRejected, match="the file does not exist"):
        transfers.download(f"file://{inside}/none/none", "job", 1)
    assert names(transfers.options.folder) == []


def test_a_file_that_may_not_be_read_is_refused(transfers, inside):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (inside / "a").touch(0)
    with pytest.raises(TransferRejected, match="permission denied"):
        transfers.read(f"file://{inside}/a")


def test_an_allowed_folder_that_is_not_there_may_be_there_later(transfers, inside):
    inside.rmdir()
    with pytest.raises(TransferFailed, match="cannot open the allowed directory"):
        transfers.read(f"file://{inside}/a")


def test_a_file_that_is_too_large_is_refused(transfers, inside):
    (inside / "a").write_bytes(b"x" * 11)
    assert transfers.read(f"file://{inside}/a", most_bytes=11).body == b"x" * 11
    with pytest.raises(TransferRejected, match="11 bytes, which is more than 10"):
        transfers.read(f"file://{inside}/a", most_bytes=10)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_that_changes_while_it_is_read_is_a_failure(transfers, inside, change):
    (inside / "a").write_bytes(b"x" * 2_000_000)
    looks = iter(range(100))

    def changing() -> bool:
        if next(looks) == 1:  # the first piece has been read
            os.truncate(inside / "a", 2_000_000 + change)
        return False

    with pytest.raises(TransferFailed, match="changed while it was read"):
        transfers.read(f"file://{inside}/a", changing)


def test_a_transfer_is_stopped_between_two_pieces_and_leaves_nothing(transfers, inside):
    (inside / "a").write_bytes(b"x" * 2_000_000)
    looks = iter([False, False, True])
    with pytest.raises(TransferCancelled):
        transfers.download(f"file://{inside}/a", "job", 1, lambda: next(looks))
    assert names(transfers.options.folder) == []
    looks = iter([False, False, True])
    with pytest.raises(TransferCancelled):
        transfers.write_output(f"file://{inside}/b", "job", 1, b"x" * 2_000_000, stopped=lambda: next(looks))
    assert names(inside) == ["a"]


# -- outputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_an_output_appears_in_its_place_when_it_is_finished_and_only_then(transfers, inside, tmp_path):
    url = f"file://{inside}/a/b/result.json"
    (tmp_path / "source").write_bytes(b"x" * 600_000)
    transfers.write_output(url, "job", 7, tmp_path / "source")
    assert names(inside / "a" / "b") == [".result.json.job.7.part"]
    assert (inside / "a" / "b" / ".result.json.job.7.part").stat().st_mode & 0o777 == 0o600
    for _ in range(2):
        transfers.finish_output(url, "job", 7)
        assert names(inside / "a" / "b") == ["result.json"]
    assert (inside / "a" / "b" / "result.json").read_bytes() == b"x" * 600_000


def test_a_part_is_written_again_by_the_same_attempt_and_replaces_an_older_output(transfers, inside):
    url = f"file://{inside}/result"
    (inside / "result").write_text("old")
    transfers.write_output(url, "job", 1, b"first")
    transfers.write_output(url, "job", 1, b"second")
    assert (inside / "result").read_text() == "old"
    transfers.finish_output(url, "job", 1)
    assert (inside / "result").read_text() == "second"


def test_what_a_dead_attempt_left_is_removed_and_nothing_else(transfers, inside):
    url = f"file://{inside}/a/result"
    transfers.discard_output(url, "job", 1)
    for fence in (1, 2):
        transfers.write_output(url, "job", fence, b"result")
    for _ in range(2):
        transfers.discard_output(url, "job", 1)
        assert names(inside / "a") == [".result.job.2.part"]


def test_an_output_that_nobody_wrote_can_never_be_finished(transfers, inside):
    with pytest.raises(TransferRejected, match="the file does not exist"):
        transfers.finish_output(f"file://{inside}/result", "job", 1)
    with pytest.raises(TransferRejected, match="the file does not exist"):
        transfers.finish_output(f"file://{inside}/a/result", "job", 1)


def test_a_disk_that_is_full_is_a_failure_and_leaves_nothing(transfers, inside, monkeypatch):
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TransferFailed, match="No space left"):
        transfers.write_output(f"file://{inside}/result", "job", 1, b"result")
    assert names(inside) == []


def test_a_long_name_has_a_part(transfers, inside):
    url = f"file://{inside}/{'r' * 255}"
    transfers.write_output(url, "job", 1, b"result")
    transfers.finish_output(url, "job", 1)
    assert names(inside) == ["r" * 255]
    with pytest.raises(TransferRejected, match="too long"):
        transfers.write_output(f"{url}r", "job", 1, b"result")
