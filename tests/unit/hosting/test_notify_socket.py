"""Datagrams to systemd: they arrive, or the log says once why not, and nobody waits."""

from __future__ import annotations

import logging
import os
import socket
import uuid

import pytest

from penstock.hosting.notify_socket import NotifySocket, pass_on
from penstock.hosting.systemd import GivenBySystemd


@pytest.fixture
def opened():
    """Sockets that are closed after the test."""
    sockets = []
    yield sockets
    for sock in sockets:
        sock.close()


@pytest.fixture
def systemd(opened):
    """A socket bound to an address, as systemd has one."""

    def bind(address):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        opened.append(sock)
        sock.bind(address)
        sock.settimeout(20.0)
        return sock

    return bind


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "penstock.server")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


def test_what_is_told_together_is_one_datagram_at_a_path(systemd, tmp_path):
    theirs = systemd(str(tmp_path / "notify"))
    sender = NotifySocket(str(tmp_path / "notify"))
    assert sender.send(["READY=1", "STATUS=ready\udc80"])
    assert theirs.recv(4096) == b"READY=1\nSTATUS=ready?"
    assert sender.send(["WATCHDOG=1"])
    assert theirs.recv(4096) == b"WATCHDOG=1"
    sender.close()
    sender.close()


def test_an_address_behind_an_at_sign_is_abstract(systemd):
    name = f"penstock-{uuid.uuid4().hex}"
    theirs = systemd(f"\0{name}")
    sender = NotifySocket(f"@{name}")
    assert sender.send(["READY=1"])
    assert theirs.recv(4096) == b"READY=1"
    sender.close()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("{folder}/nobody", "No such file or directory"),
        ("{folder}/" + 200 * "x", "too long"),
        ("relative", "neither an absolute path nor an abstract name"),
        ("vsock:2:1234", "neither an absolute path"),
        ("@penstock-nobody-listens-here", "Connection refused"),
    ],
)
def test_an_address_where_nothing_arrives_is_told_once(tmp_path, lines, address, why):
    sender = NotifySocket(address.format(folder=tmp_path))
    for _ in range(3):
        assert not sender.send(["READY=1"])
    ((level, line),) = lines()
    assert level == "WARNING"
    assert line.startswith(f"cannot notify systemd at NOTIFY_SOCKET={address.format(folder=tmp_path)}: ")
    assert why in line
    sender.close()


def test_who_comes_back_is_told_again(systemd, tmp_path, lines):
    sender = NotifySocket(str(tmp_path / "notify"))
    assert not sender.send(["READY=1"])
    theirs = systemd(str(tmp_path / "notify"))
    assert sender.send(["READY=1"])
    assert theirs.recv(4096) == b"READY=1"
    assert len(lines()) == 1
    sender.close()


def test_a_reader_that_is_behind_is_not_waited_for(systemd, tmp_path, lines):
    theirs = systemd(str(tmp_path / "notify"))
    sender = NotifySocket(str(tmp_path / "notify"))
    sent = 0
    while sender.send(["WATCHDOG=1"]):
        sent += 1
        assert sent < 100_000, "this should have filled it"
    theirs.recv(4096)
    assert sender.send(["WATCHDOG=1"])
    assert lines() == []
    sender.close()


def test_what_a_child_tells_is_passed_on(systemd, opened, tmp_path):
    theirs = systemd(str(tmp_path / "notify"))
    ours, childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    opened += [ours, childs]
    given = GivenBySystemd({"NOTIFY_SOCKET": str(tmp_path / "notify")}, os.getpid())
    first = NotifySocket.of(given)
    pass_on(ours, first)
    given.relay = childs
    sender = NotifySocket.of(given)
    assert sender.send(["READY=1", "STATUS=ready"])
    assert theirs.recv(4096) == b"READY=1\nSTATUS=ready"
    ours.shutdown(socket.SHUT_RDWR)  # ends the thread
    first.close()
