"""The sockets that systemd gave: which are taken, and how the others are named."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import pytest

from penstock.errors import ConfigError
from penstock.hosting.given_sockets import hosts_of, refuse_addresses, sockets_given
from penstock.hosting.systemd import GivenDescriptor
from penstock.hosting.unix_sockets import unix_name


@pytest.fixture
def opened():
    """Sockets that are closed after the test."""
    sockets = []
    yield sockets
    for sock in sockets:
        sock.close()


@pytest.fixture
def give(opened):
    """Sockets as systemd gives them; what is served of them is closed after the test."""

    def start(*descriptors, name=""):
        opened.extend(each for each in descriptors if not isinstance(each, int))
        numbers = [each if isinstance(each, int) else each.fileno() for each in descriptors]
        given = SimpleNamespace(descriptors=lambda: [GivenDescriptor(number, name) for number in numbers])
        found = sockets_given(given)
        opened.extend(found)
        return found

    return start


def listening(family, address):
    sock = socket.socket(family)
    try:
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    sock.listen()
    return sock


def test_sockets_that_listen_are_served_by_duplicates(give, tmp_path):
    tcp = listening(socket.AF_INET, ("127.0.0.1", 0))
    unix = listening(socket.AF_UNIX, str(tmp_path / "http"))
    found = give(tcp, unix)
    assert [sock.getsockname() for sock in found] == [tcp.getsockname(), str(tmp_path / "http")]
    assert {sock.fileno() for sock in found}.isdisjoint({tcp.fileno(), unix.fileno()})
    assert not any(sock.get_inheritable() or sock.getblocking() for sock in found)
    assert hosts_of(found) == ["127.0.0.1"]
    for sock in found:
        sock.close()
    with socket.create_connection(tcp.getsockname()):  # systemd listens on
        assert tcp.accept()[0].close() is None


def test_addresses_of_ipv6_are_those_of_a_network(give):
    try:
        sock = listening(socket.AF_INET6, ("::1", 0))
    except OSError:
        pytest.skip("there is no IPv6 here")
    assert hosts_of(give(sock)) == ["::1"]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "a socket of type SOCK_DGRAM"),
        (lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), "a socket of type SOCK_SEQPACKET"),
        (lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM), "a socket that does not listen"),
        (lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW), "a socket of family AF_NETLINK"),
    ],
)
def test_a_socket_that_cannot_be_served_is_named(give, opened, make, what):
    good = listening(socket.AF_INET, ("127.0.0.1", 0))
    sock = make()
    opened.append(sock)
    with pytest.raises(ConfigError) as raised:
        give(good, sock, name="metrics")
    assert str(raised.value).startswith(f"descriptor {sock.fileno()} of LISTEN_FDS ('metrics') is {what}; ")


def test_a_file_that_is_no_socket_is_named(give, tmp_path):
    with (tmp_path / "file").open("w") as file, pytest.raises(ConfigError, match=r"of LISTEN_FDS is not a socket"):
        give(file.fileno())


def test_a_descriptor_that_is_not_open_is_named(give):
    number = os.dup(0)
    os.close(number)
    with pytest.raises(ConfigError, match=rf"cannot use descriptor {number} of LISTEN_FDS: Bad file"):
        give(number)


def test_an_address_beside_given_sockets_is_refused_with_its_name():
    refuse_addresses([])
    with pytest.raises(ConfigError, match=r"LISTEN_FDS.* conflicts with --host and the variable PENSTOCK_PORT: remove"):
        refuse_addresses(["--host", "the variable PENSTOCK_PORT"])


def test_unix_sockets_are_called_by_their_paths_or_abstract_names(opened, tmp_path):
    opened += [listening(socket.AF_UNIX, str(tmp_path / "a")), listening(socket.AF_UNIX, f"\0{tmp_path}\x07\xff")]
    assert [unix_name(sock) for sock in opened] == [str(tmp_path / "a"), f"@{tmp_path}\\x07\xff"]
