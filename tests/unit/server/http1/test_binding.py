"""What a listener asks of the system: TLS, sockets, and how many connections fit."""

from __future__ import annotations

import errno
import os
import resource
import socket
from types import SimpleNamespace

import pytest
from processes import open_files

from penstock.errors import ConfigError, StartFailed
from penstock.server.http1 import binding
from penstock.server.http1.binding import (
    MIN_SPARE_FILES,
    SPARE_FILES,
    UNSENT_BYTES,
    bind_tcp,
    raise_file_limit,
    share_files,
    tls_context,
)
from penstock.server.http1.connections import EXCESS_CONNECTIONS


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


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("files", [64, 256, 1024, 4096, 10_500])
def test_where_files_are_few_connections_leave_some_to_the_rest(files, tls):
    limits = share_files(files, tls=tls)
    assert limits.connections >= 1
    assert files - sum(limits) >= min(files // 4, 768)
    assert 0 <= limits.excess <= min(EXCESS_CONNECTIONS, files // 4)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("files", [256, 1024, 4096])
@pytest.mark.parametrize("workers", [1, 24, 40])
def test_the_files_of_workers_are_left_to_them(files, workers, tls):
    limits = share_files(files, tls=tls, worker_files=4 * workers)
    assert limits.connections + limits.excess * (2 if tls else 1) <= files - MIN_SPARE_FILES - 4 * workers
    assert sum(limits) <= sum(share_files(files, tls=tls))


def test_many_workers_raise_the_limit_further(monkeypatch):
    limit = FileLimit(1024, NO_LIMIT)
    monkeypatch.setattr(resource, "getrlimit", limit.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", limit.setrlimit)
    assert raise_file_limit(10_000, tls=False, worker_files=4 * 400) == (10_000, EXCESS_CONNECTIONS)
    assert limit.raised_to == [10_000 + EXCESS_CONNECTIONS + MIN_SPARE_FILES + 4 * 400]


def test_the_files_wanted_are_those_of_all_connections():
    assert share_files(10_000 + SPARE_FILES, tls=False) == (10_000, EXCESS_CONNECTIONS)


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
    opened += bind_tcp("a.host", 0)
    (first, port), (second, same) = (sock.getsockname() for sock in opened)
    assert (first, second) == ("127.0.0.1", "127.0.0.2")
    assert port == same != 0
    for sock in opened:
        assert not sock.getblocking()
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert sock.getsockopt(socket.IPPROTO_TCP, 25) == UNSENT_BYTES


def test_an_address_of_version_6_takes_connections_of_that_version_alone(opened):
    try:
        opened += bind_tcp("::1", 0)
    except (ConfigError, StartFailed):
        pytest.skip("this machine has no address ::1")
    assert opened[0].getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)


def test_a_host_without_an_address_is_named(monkeypatch):
    def find(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(binding.socket, "getaddrinfo", find)
    with pytest.raises(ConfigError, match=r"^host 'no\.host' is no address to listen on: .*not known"):
        bind_tcp("no.host", 0)


def test_a_host_that_cannot_be_looked_up_is_no_fault_of_its_name(monkeypatch):
    def find(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(binding.socket, "getaddrinfo", find)
    with pytest.raises(StartFailed, match=r"^cannot listen on a\.host:80: Too many open files$"):
        bind_tcp("a.host", 80)


def test_a_port_that_is_taken_is_named_and_no_socket_stays_open(opened, monkeypatch):
    opened += bind_tcp("127.0.0.1", 0)
    port = opened[0].getsockname()[1]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(binding.socket, "getaddrinfo", lambda *_, **__: found)
    before = open_files()
    words = f"cannot listen on h:{port}: something else listens there already"
    with pytest.raises(StartFailed, match=rf"^{words}; name another port, or 0 for a free one$"):
        bind_tcp("h", port)
    assert open_files() == before


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "permission denied"),
        (errno.EADDRNOTAVAIL, "this machine has no such address"),
        (errno.ENOBUFS, os.strerror(errno.ENOBUFS)),
    ],
)
def test_why_an_address_cannot_be_listened_on_is_said(monkeypatch, number, words):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(binding.socket, "socket", refuse)
    with pytest.raises(StartFailed, match=rf"^cannot listen on 127\.0\.0\.1:80: {words}$"):
        bind_tcp("127.0.0.1", 80)


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
def test_the_soft_limit_is_raised_as_far_as_it_must_be(monkeypatch, soft, hard, raised_to):
    limit = FileLimit(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", limit.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", limit.setrlimit)
    assert raise_file_limit(10_000, tls=False) == (10_000, EXCESS_CONNECTIONS)
    assert limit.raised_to == raised_to


def test_tls_handshakes_want_files_too(monkeypatch):
    limit = FileLimit(1024, NO_LIMIT)
    monkeypatch.setattr(resource, "getrlimit", limit.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", limit.setrlimit)
    assert raise_file_limit(10_000, tls=True) == (10_000, EXCESS_CONNECTIONS)
    assert limit.raised_to == [10_000 + SPARE_FILES + EXCESS_CONNECTIONS]


@pytest.mark.parametrize(("soft", "raised_to"), [(1024, [4096]), (4096, [])])
def test_a_low_hard_limit_serves_fewer_and_says_so(monkeypatch, caplog, soft, raised_to):
    limit = FileLimit(soft, 4096)
    monkeypatch.setattr(resource, "getrlimit", limit.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", limit.setrlimit)
    fitting = share_files(4096, tls=False)
    assert raise_file_limit(10_000, tls=False) == fitting
    assert limit.raised_to == raised_to
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith(f" leaves room for {fitting.connections} connections, not for max_connections=10000")
    assert line.startswith("the hard limit of 4096 open files ")


def test_a_low_hard_limit_that_still_fits_them_all_says_nothing(monkeypatch, caplog):
    limit = FileLimit(1024, 2048)
    monkeypatch.setattr(resource, "getrlimit", limit.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", limit.setrlimit)
    served = share_files(2048, tls=False).connections
    assert served > 2048 - SPARE_FILES
    assert raise_file_limit(served, tls=False) == share_files(2048, tls=False)
    assert raise_file_limit(served - 1, tls=False) == (served - 1, share_files(2048, tls=False).excess)
    assert caplog.records == []
    assert raise_file_limit(served + 1, tls=False) == share_files(2048, tls=False)
    assert len(caplog.records) == 1
