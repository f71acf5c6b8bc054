"""What a server asks of the system for a Unix socket, and what becomes of the socket's file."""

from __future__ import annotations

import errno
import os
import socket
import stat

import pytest
from processes import open_files

from penstock.errors import StartFailed
from penstock.hosting import unix_sockets
from penstock.hosting.unix_sockets import bind_unix, inode, remove_unix


@pytest.fixture
def opened():
    """Sockets to close at the end."""
    sockets = []
    yield sockets
    for sock in sockets:
        sock.close()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_file_of_a_unix_socket_has_the_mode_that_was_asked_for(tmp_path, opened, umask, mode):
    path = tmp_path / "s"
    umask(0o077)
    opened.append(bind_unix(str(path), mode))
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert not opened[0].getblocking()
    assert opened[0].getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_the_file_of_a_unix_socket_never_had_more_permissions(tmp_path, opened, umask, monkeypatch):
    seen = []

    class Watched(type(tmp_path)):
        def chmod(self, mode):
            seen.append(stat.S_IMODE(self.stat().st_mode))
            super().chmod(mode)

    monkeypatch.setattr(unix_sockets, "Path", Watched)
    umask(0)
    opened.append(bind_unix(str(tmp_path / "s"), 0o600))
    assert seen == [0o600]


def test_a_socket_file_that_nobody_listens_on_is_replaced(tmp_path, opened):
    path = str(tmp_path / "s")
    bind_unix(path, 0o600).close()
    left = inode(path)
    assert left is not None
    opened.append(bind_unix(path, 0o600))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_a_socket_file_that_somebody_listens_on_stays(tmp_path, opened):
    path = str(tmp_path / "s")
    opened.append(bind_unix(path, 0o600))
    before = inode(path)
    with pytest.raises(StartFailed, match=rf"^cannot listen on {path}: another server listens there$"):
        bind_unix(path, 0o600)
    assert inode(path) == before


def test_a_file_that_is_no_socket_stays(tmp_path):
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(StartFailed, match=r"the file exists and is not a socket$"):
        bind_unix(str(path), 0o600)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("stale", [False, True])
def test_of_two_servers_that_start_at_once_one_has_the_path(tmp_path, opened, monkeypatch, stale):
    """The second one starts at each moment at which the first could be overtaken."""
    path = str(tmp_path / "s")
    if stale:
        bind_unix(path, 0o600).close()
    refused = []

    def second():
        with pytest.raises(StartFailed, match=rf"^cannot listen on {path}: another server listens there$") as error:
            opened.append(bind_unix(path, 0o600))
        refused.append(error)

    class Watched(type(tmp_path)):
        def unlink(self, missing_ok=False):
            if str(self) == path:
                second()
            super().unlink(missing_ok)

        def chmod(self, mode):
            second()  # the first is bound and does not listen yet
            super().chmod(mode)

    with monkeypatch.context() as patch:
        patch.setattr(unix_sockets, "Path", Watched)
        opened.append(bind_unix(path, 0o600))
    assert len(refused) == 1 + stale
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_server_that_ends_leaves_a_file_alone_that_another_one_replaces(tmp_path, opened, monkeypatch):
    path = str(tmp_path / "s")
    bind_unix(path, 0o600).close()
    ours = inode(path)

    class Watched(type(tmp_path)):
        def unlink(self, missing_ok=False):
            if str(self) == path:
                remove_unix(path, ours)
            super().unlink(missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(unix_sockets, "Path", Watched)
        opened.append(bind_unix(path, 0o600))
    device, number = theirs = inode(path)
    remove_unix(path, (device, number + 1))
    assert inode(path) == theirs
    remove_unix(path, theirs)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_removed_after_it_was_opened_is_taken_anew(tmp_path, opened, monkeypatch):
    path = str(tmp_path / "s")
    flock, taken = unix_sockets.fcntl.flock, []

    def overtaken(fd, how):
        if not taken:
            (tmp_path / "s.penstock-lock").unlink()  # as somebody does who had it
        taken.append(fd)
        flock(fd, how)

    monkeypatch.setattr(unix_sockets.fcntl, "flock", overtaken)
    opened.append(bind_unix(path, 0o600))
    assert len(taken) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


def test_a_folder_that_is_not_there_or_not_one_is_said(tmp_path):
    (tmp_path / "file").touch()
    for path, words in ((tmp_path / "none" / "s", "No such file"), (tmp_path / "file" / "s", "Not a directory")):
        before = open_files()
        with pytest.raises(StartFailed, match=rf"^cannot listen on {path}: {words}"):
            bind_unix(str(path), 0o600)
        assert open_files() == before


@pytest.mark.parametrize("refused", ["listen", "chmod"])
def test_a_socket_that_cannot_be_listened_on_leaves_no_file(tmp_path, monkeypatch, refused):
    def refuse(*_):
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    if refused == "chmod":
        monkeypatch.setattr(unix_sockets.Path, "chmod", refuse)
    else:
        monkeypatch.setattr(unix_sockets.socket, "socket", type("Deaf", (socket.socket,), {"listen": refuse}))
    before = open_files()
    with pytest.raises(StartFailed, match=rf"^cannot listen on {tmp_path / 's'}: {os.strerror(errno.ENOBUFS)}$"):
        bind_unix(str(tmp_path / "s"), 0o600)
    assert list(tmp_path.iterdir()) == []
    assert open_files() == before


def test_a_server_that_does_not_answer_in_time_is_still_a_server(tmp_path, monkeypatch):
    path = str(tmp_path / "s")
    bind_unix(path, 0o600).close()

    class Busy(socket.socket):
        def connect(self, _):
            assert self.gettimeout() == 1.0
            raise TimeoutError("timed out")

    monkeypatch.setattr(unix_sockets.socket, "socket", Busy)
    with pytest.raises(StartFailed, match=rf"^cannot listen on {path}: timed out$"):
        bind_unix(path, 0o600)
    assert inode(path) is not None


def test_an_inode_is_the_file_s_own(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.touch()
    two.touch()
    assert inode(str(one)) == (one.stat().st_dev, one.stat().st_ino)
    assert inode(str(one)) != inode(str(two))
    assert inode(str(tmp_path / "none")) is None
