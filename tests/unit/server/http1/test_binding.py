"""What a listener asks of the system: TLS, sockets, and how many connections fit."""

from __future__ import annotations

import errno
import os
import resource
import socket
from types import SimpleNamespace

import pytest
from processes import open_files

from penstock.config import ServerOptions
from penstock.errors import ConfigError, StartFailed
from penstock.hosting.unix_sockets import inode
from penstock.server.http1 import binding
from penstock.server.http1.binding import (
    MIN_SPARE_FILES,
    SPARE_FILES,
    UNSENT_BYTES,
    bind_sockets,
    bind_tcp,
    raise_file_limit,
    share_files,
    tls_context,
)
from penstock.server.http1.connections import EXCESS_CONNECTIONS
from rows import each


@pytest.mark.parametrize(("cert", "key"), [(None, None), ("cert.pem", None), (None, "key.pem")])
def test_there_is_no_tls_without_both_certificate_and_key(cert, key):
    assert tls_context(SimpleNamespace(tls_cert=cert, tls_key=key)) is None


def test_a_certificate_and_key_are_used_or_are_an_error(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file in (cert, key):
        file.write_text("nonsense")
    with pytest.raises(ConfigError, match=rf"^tls_cert {cert} and tls_key {key} cannot be used: "):
        tls_context(SimpleNamespace(tls_cert=str(cert), tls_key=str(key)))


@pytest.mark.parametrize(
    ("files", "spare"), [(100_000, 768), (3072, 768), (2000, 500), (256, MIN_SPARE_FILES), (100, MIN_SPARE_FILES)]
)
def test_the_rest_of_the_program_gets_a_quarter_of_the_files_within_bounds(files, spare):
    assert sum(share_files(files, tls=False)) == files - spare
    served, excess = share_files(files, tls=True)
    assert served + 2 * excess == files - spare
    assert SPARE_FILES - EXCESS_CONNECTIONS == 768


def test_however_few_files_there_are_one_connection_is_served():
    assert share_files(0, tls=False) == share_files(0, tls=True) == (2, 0)
    assert share_files(MIN_SPARE_FILES + 8, tls=False) == (6, 2)
    assert share_files(MIN_SPARE_FILES + 8, tls=True) == (4, 2)


@each("tls", [False, True])
@each("files", [256, 1024, 4096])
@each("workers", [1, 24, 40])
def test_the_files_of_workers_are_left_to_them(files, workers, tls):
    limits = share_files(files, tls=tls, worker_files=4 * workers)
    assert limits.connections + limits.excess * (2 if tls else 1) <= files - MIN_SPARE_FILES - 4 * workers
    assert sum(limits) <= sum(share_files(files, tls=tls))


# -- sockets --------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened():
    """Sockets to close at the end."""
    sockets = []
    yield sockets
    for sock in sockets:
        sock.close()


def test_every_address_of_a_host_listens_on_one_port(opened, monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in ("127.0.0.1", "127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(binding.socket, "getaddrinfo", lambda *_, **__: found)
    opened += bind_tcp(["a.host"], 0)
    (first, port), (second, same) = (sock.getsockname() for sock in opened)
    assert (first, second) == ("127.0.0.1", "127.0.0.2")
    assert port == same != 0
    for sock in opened:
        assert not sock.getblocking()
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert sock.getsockopt(socket.IPPROTO_TCP, 25) == UNSENT_BYTES


def only_version_6(sock):
    return bool(sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))


def needs_ipv6():
    """Skip where this machine has no IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")


def test_an_address_of_version_6_takes_connections_of_that_version_alone(opened):
    needs_ipv6()
    opened += bind_tcp(["::1"], 0)
    assert only_version_6(opened[0])


@pytest.mark.parametrize("host", ["::", "0::0"])
def test_every_interface_of_version_6_is_every_one_of_version_4_too(opened, host):
    needs_ipv6()
    opened += bind_tcp([host], 0)
    (sock,) = opened
    assert not only_version_6(sock)
    assert sock.getsockname()[0] == "::"
    with socket.create_connection(("127.0.0.1", sock.getsockname()[1]), timeout=20):
        pass


def test_without_version_6_in_the_kernel_the_error_says_so(opened, monkeypatch):
    make = socket.socket

    def refuse(family, *how):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return make(family, *how)

    monkeypatch.setattr(binding.socket, "socket", refuse)
    before = open_files()
    words = "this kernel has no IPv6; use an IPv4 address, or 0.0.0.0 for every interface"
    for hosts, named in ((["::"], "[::]:80"), (["0.0.0.0", "::"], "[::]:80"), (["::1"], "[::1]:80")):
        with pytest.raises(StartFailed) as refused:
            bind_tcp(hosts, 80)
        assert str(refused.value) == f"cannot listen on {named}: {words}"
    with pytest.raises(StartFailed, match="this kernel has no IPv6"):
        bind_tcp(["127.0.0.1", "::1"], 0)
    assert open_files() == before
    monkeypatch.setattr(binding.socket, "socket", make)
    opened += bind_tcp(["127.0.0.1"], 0)


class Covered:
    """Notes what would be bound, in the place of sockets."""

    def __init__(self, monkeypatch, names):
        self.bound = []
        self.names = names
        monkeypatch.setattr(binding.socket, "getaddrinfo", self.find)
        monkeypatch.setattr(binding, "_listen", self.listen)

    def find(self, host, port, **_):
        families = [(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip) for ip in self.names.get(host, [host])]
        return [
            (family, socket.SOCK_STREAM, 6, "", (ip, port, 0, 0) if family == socket.AF_INET6 else (ip, port))
            for family, ip in families
        ]

    def listen(self, addresses, port):
        return [address.name[0] for address in addresses]


@pytest.mark.parametrize(
    ("hosts", "bound"),
    [
        (["::", "0.0.0.0"], ["::"]),
        (["0.0.0.0", "127.0.0.1", "::"], ["::"]),
        (["::1", "10.0.0.1", "::"], ["::"]),
        (["0.0.0.0", "10.0.0.1", "::1"], ["0.0.0.0", "::1"]),
        (["10.0.0.1", "0.0.0.0"], ["0.0.0.0"]),
        (["127.0.0.1", "here", "::1"], ["127.0.0.1", "::1"]),
        (["10.0.0.2", "10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.1"]),
        ([], []),
    ],
)
def test_what_another_address_covers_gets_no_socket_of_its_own(monkeypatch, hosts, bound):
    Covered(monkeypatch, {"here": ["::1", "127.0.0.1"]})
    assert bind_tcp(hosts, 80) == bound


def test_a_free_port_that_is_taken_at_another_address_is_not_the_one(opened, monkeypatch):
    """The kernel is played: it chooses a port at 127.0.0.1 that somebody has at 127.0.0.2, and then another one."""
    opened += bind_tcp(["127.0.0.2"], 0)
    taken = opened[0].getsockname()[1]
    asked = []
    listen_at = binding._listen_at

    def listen(address, port):
        asked.append((address.name[0], port))
        return listen_at(address, taken if len(asked) == 1 else port)

    monkeypatch.setattr(binding, "_listen_at", listen)
    before = open_files()
    opened += bind_tcp(["127.0.0.1", "127.0.0.2"], 0)
    first, second = (sock.getsockname() for sock in opened[1:])
    assert first[1] == second[1] != taken
    assert asked == [("127.0.0.1", 0), ("127.0.0.2", taken), ("127.0.0.1", 0), ("127.0.0.2", first[1])]
    assert len(open_files()) == len(before) + 2


def test_where_no_free_port_is_free_everywhere_the_search_ends(opened, monkeypatch):
    opened += bind_tcp(["127.0.0.2"], 0)
    taken = opened[0].getsockname()[1]
    listen_at = binding._listen_at
    monkeypatch.setattr(binding, "_listen_at", lambda address, port: listen_at(address, port or taken))
    before = open_files()
    with pytest.raises(StartFailed, match=r"^cannot listen on 127\.0\.0\.1, 127\.0\.0\.2: tried 16 ports"):
        bind_tcp(["127.0.0.1", "127.0.0.2"], 0)
    assert open_files() == before


@pytest.mark.parametrize(("host", "asks"), [("::", False), ("10.0.0.1", False), ("fe80::1%eth0", False), ("a.b", True)])
def test_only_a_name_is_looked_up_by_the_addresses_that_there_are(monkeypatch, host, asks):
    seen = []

    def find(*_, flags, **__):
        seen.append(flags)
        return []

    monkeypatch.setattr(binding.socket, "getaddrinfo", find)
    assert bind_tcp([host], 80) == []
    assert [bool(flags & socket.AI_ADDRCONFIG) for flags in seen] == [asks]
    assert all(flags & socket.AI_PASSIVE for flags in seen)


# -- everything, or nothing -----------------------------------------------------------------------------------------


def test_a_unix_socket_and_several_hosts_are_bound_together(opened, tmp_path):
    path = tmp_path / "s"
    found = bind_sockets(ServerOptions(host=["127.0.0.1", "127.0.0.2"], port=0, uds=str(path)))
    opened += found.sockets
    assert [sock.family for sock in opened] == [socket.AF_INET, socket.AF_INET, socket.AF_UNIX]
    assert found.file == inode(str(path))


def test_a_unix_socket_alone_has_no_tcp_beside_it(opened, tmp_path):
    opened += bind_sockets(ServerOptions(port=0, uds=str(tmp_path / "s"))).sockets
    assert [sock.family for sock in opened] == [socket.AF_UNIX]


def test_without_a_unix_socket_there_is_no_file(opened):
    found = bind_sockets(ServerOptions(port=0))
    opened += found.sockets
    assert [sock.getsockname()[0] for sock in opened] == ["127.0.0.1"]
    assert found.file is None


def test_where_one_address_cannot_be_bound_none_is_and_no_file_is_left(opened, tmp_path):
    opened += bind_tcp(["127.0.0.2"], 0)
    port, path = opened[0].getsockname()[1], tmp_path / "s"
    before = open_files()
    with pytest.raises(StartFailed, match=rf"^cannot listen on 127\.0\.0\.2:{port}: the address is in use"):
        bind_sockets(ServerOptions(host=["127.0.0.1", "127.0.0.2"], port=port, uds=str(path)))
    assert open_files() == before
    assert list(tmp_path.iterdir()) == []
    opened += bind_tcp(["127.0.0.1"], port)  # it was given back


def test_where_the_unix_socket_cannot_be_bound_no_address_is(opened, tmp_path):
    path = tmp_path / "s"
    path.write_text("data")
    opened += bind_tcp(["127.0.0.3"], 0)
    port = opened[0].getsockname()[1]
    before = open_files()
    with pytest.raises(StartFailed, match="the file exists and is not a socket"):
        bind_sockets(ServerOptions(host=["127.0.0.1", "127.0.0.2"], port=port, uds=str(path)))
    assert open_files() == before
    assert path.read_text() == "data"
    opened += bind_tcp(["127.0.0.1", "127.0.0.2"], port)


def test_a_host_without_an_address_is_named(monkeypatch):
    def find(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(binding.socket, "getaddrinfo", find)
    with pytest.raises(ConfigError, match=r"^host 'no\.host' is not an address to listen on: .*not known"):
        bind_tcp(["no.host"], 0)


def test_a_host_that_cannot_be_looked_up_is_no_fault_of_its_name(monkeypatch):
    def find(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(binding.socket, "getaddrinfo", find)
    with pytest.raises(StartFailed, match=r"^cannot listen on a\.host:80: Too many open files$"):
        bind_tcp(["a.host"], 80)


def test_a_port_that_is_taken_is_named_and_no_socket_stays_open(opened, monkeypatch):
    opened += bind_tcp(["127.0.0.1"], 0)
    port = opened[0].getsockname()[1]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(binding.socket, "getaddrinfo", lambda *_, **__: found)
    before = open_files()
    words = f"cannot listen on h:{port}: the address is in use"
    with pytest.raises(StartFailed, match=rf"^{words}; use another port, or 0 for a free one$"):
        bind_tcp(["h"], port)
    assert open_files() == before


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "permission denied"),
        (errno.EADDRNOTAVAIL, "this host has no such address"),
        (errno.ENOBUFS, os.strerror(errno.ENOBUFS)),
    ],
)
def test_why_an_address_cannot_be_listened_on_is_said(monkeypatch, number, words):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(binding.socket, "socket", refuse)
    with pytest.raises(StartFailed, match=rf"^cannot listen on 127\.0\.0\.1:80: {words}$"):
        bind_tcp(["127.0.0.1"], 80)


# -- how many files may be open -------------------------------------------------------------------------------------


class FileLimit:
    """This process's limit of open files."""

    def __init__(self, soft: int, hard: int) -> None:
        self.limits = (soft, hard)
        self.raised_to: list[int] = []

    def getrlimit(self, which):
        assert which == resource.RLIMIT_NOFILE
        return self.limits

    def setrlimit(self, which, limits):
        assert which == resource.RLIMIT_NOFILE
        assert limits[1] == self.limits[1], "the hard limit is the administrator's"
        self.raised_to.append(limits[0])


NO_LIMIT = resource.RLIM_INFINITY


@pytest.fixture
def file_limit(monkeypatch):
    """Gives this process such a limit."""

    def make(soft, hard):
        limit = FileLimit(soft, hard)
        monkeypatch.setattr(resource, "getrlimit", limit.getrlimit)
        monkeypatch.setattr(resource, "setrlimit", limit.setrlimit)
        return limit

    return make


@pytest.mark.parametrize(
    ("soft", "hard", "raised_to"),
    [
        (NO_LIMIT, NO_LIMIT, []),
        (10_000 + SPARE_FILES, 20_000, []),
        (1024, NO_LIMIT, [10_000 + SPARE_FILES]),
        (1024, 10_000 + SPARE_FILES, [10_000 + SPARE_FILES]),
        (1024, 50_000, [10_000 + SPARE_FILES]),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_must_be(file_limit, soft, hard, raised_to):
    limit = file_limit(soft, hard)
    assert raise_file_limit(10_000, tls=False) == (10_000, EXCESS_CONNECTIONS)
    assert limit.raised_to == raised_to


def test_many_workers_raise_the_limit_further(file_limit):
    limit = file_limit(1024, NO_LIMIT)
    assert raise_file_limit(10_000, tls=False, worker_files=4 * 400) == (10_000, EXCESS_CONNECTIONS)
    assert limit.raised_to == [10_000 + EXCESS_CONNECTIONS + MIN_SPARE_FILES + 4 * 400]


def test_tls_handshakes_want_files_too(file_limit):
    limit = file_limit(1024, NO_LIMIT)
    assert raise_file_limit(10_000, tls=True) == (10_000, EXCESS_CONNECTIONS)
    assert limit.raised_to == [10_000 + SPARE_FILES + EXCESS_CONNECTIONS]


@pytest.mark.parametrize(("soft", "raised_to"), [(1024, [4096]), (4096, [])])
def test_a_low_hard_limit_serves_fewer_and_says_so(file_limit, caplog, soft, raised_to):
    limit = file_limit(soft, 4096)
    fitting = share_files(4096, tls=False)
    assert raise_file_limit(10_000, tls=False) == fitting
    assert limit.raised_to == raised_to
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith(f" allows {fitting.connections} connections, not max_connections=10000")
    assert line.startswith("the hard limit of 4096 open files ")


def test_a_low_hard_limit_that_still_fits_them_all_says_nothing(file_limit, caplog):
    file_limit(1024, 2048)
    served = share_files(2048, tls=False).connections
    assert served > 2048 - SPARE_FILES
    assert raise_file_limit(served, tls=False) == share_files(2048, tls=False)
    assert raise_file_limit(served - 1, tls=False) == (served - 1, share_files(2048, tls=False).excess)
    assert caplog.records == []
    assert raise_file_limit(served + 1, tls=False) == share_files(2048, tls=False)
    assert len(caplog.records) == 1
