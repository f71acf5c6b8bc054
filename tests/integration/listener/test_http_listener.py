"""Opening the door, and closing it."""

import asyncio
import errno
import os
import resource
import socket
import ssl
import stat
import threading

import pytest

from penstock.config import ServerOptions
from penstock.errors import ConfigError, StartFailed
from penstock.hosting.loop_clock import LoopClock
from penstock.hosting.unix_sockets import bind_unix
from penstock.server.http1.binding import raise_file_limit
from penstock.server.http1.connections import EXCESS_CONNECTIONS
from penstock.server.http1.last_arrivals import accept_last
from penstock.server.http1.listener import Listener

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LATER = b"GET /later HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.smoke
def test_port_zero_takes_a_free_port_and_says_which(serve, knock):
    server = serve()
    assert server.listener.addresses == [f"http://127.0.0.1:{server.port}"]
    client = knock(server)
    client.send(GET)
    assert client.answer()[0] == 200


def needs_ipv6():
    """Skip where this machine has no IPv6."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")


def test_ipv6_is_served(serve, knock):
    needs_ipv6()
    server = serve(host="::1")
    assert server.listener.addresses == [f"http://[::1]:{server.port}"]
    client = knock(server)
    client.send(GET)
    assert client.answer()[0] == 200


@pytest.mark.parametrize("host", ["::", ["::", "0.0.0.0"]])
def test_every_interface_of_ipv6_serves_ipv4_too(serve, knock, host):
    needs_ipv6()
    server = serve(host=host)
    assert server.listener.addresses == [f"http://[::]:{server.port}"]
    for ip in ("::1", "127.0.0.1", "127.0.0.2"):
        client = knock(server, at=ip)
        client.send(GET)
        assert client.answer()[0] == 200


def test_one_address_of_ipv6_does_not_serve_ipv4(serve, knock):
    needs_ipv6()
    server = serve(host="::1")
    with pytest.raises(ConnectionRefusedError):
        knock(server, at="127.0.0.1")


def test_without_ipv6_in_the_kernel_the_error_says_so(serve, monkeypatch):
    make = socket.socket

    def refuse(family=-1, *how, **more):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return make(family, *how, **more)

    monkeypatch.setattr("penstock.server.http1.binding.socket.socket", refuse)
    with pytest.raises(StartFailed, match=r"^cannot listen on \[::\]:0: this kernel has no IPv6; use an IPv4 address"):
        serve(host="::")


def test_several_addresses_and_a_unix_socket_are_served_together(serve, knock, tmp_path):
    path = tmp_path / "s"
    server = serve(host=["127.0.0.1", "127.0.0.2"], uds=str(path))
    port = server.listener.addresses[0].rpartition(":")[2]
    assert server.listener.addresses == [f"http://127.0.0.1:{port}", f"http://127.0.0.2:{port}", f"unix:{path}"]
    clients = [knock(server, at=at) for at in ("127.0.0.1", "127.0.0.2", "unix")]
    for client in clients:
        client.send(GET)
        assert client.answer()[0] == 200
    assert server.call(lambda: server.listener.connections) == 3
    server.stop()
    assert not path.exists()
    assert all(client.ended() for client in clients)
    for at in ("127.0.0.1", "127.0.0.2"):
        with pytest.raises(ConnectionRefusedError):
            knock(server, at=at)


def test_where_one_address_cannot_be_had_none_is_served(serve, tmp_path):
    taken = serve(host="127.0.0.2")
    path = tmp_path / "s"
    with pytest.raises(StartFailed, match="the address is in use"):
        serve(host=["127.0.0.1", "127.0.0.2"], port=taken.port, uds=str(path))
    assert list(tmp_path.iterdir()) == []
    assert serve(host="127.0.0.1", port=taken.port).port == taken.port


def test_a_port_in_use_is_an_error_that_says_so(serve):
    port = serve().port
    with pytest.raises(StartFailed, match=rf"127\.0\.0\.1:{port}: the address is in use"):
        serve(port=port)


def test_a_port_can_be_taken_again_at_once(serve, knock):
    server = serve()
    port = server.port
    client = knock(server)
    client.send(GET)
    assert client.answer()[0] == 200
    server.stop()
    assert serve(port=port).port == port


def test_an_address_that_is_not_ours_is_an_error(serve):
    with pytest.raises(StartFailed, match="this host has no such address"):
        serve(host="192.0.2.1")


def test_a_host_that_is_none_is_an_error(serve):
    with pytest.raises(ConfigError, match="is not an address to listen on"):
        serve(host="no such host")


@pytest.mark.parametrize("spoil", ["missing", "empty", "mismatched"])
def test_a_certificate_that_cannot_be_used_is_an_error(serve, certificate, tmp_path, spoil):
    cert, _ = certificate
    bad = tmp_path / "bad.pem"
    if spoil == "empty":
        bad.write_text("")
    elif spoil == "mismatched":
        bad.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match="cannot be used"):
        serve(tls_cert=cert, tls_key=str(bad))


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_unix_socket_has_the_mode_asked_for_whatever_the_umask(serve, knock, tmp_path, mode, umask):
    path = tmp_path / "s"
    before = os.umask(umask)
    try:
        server = serve(uds=str(path), uds_mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert server.listener.addresses == [f"unix:{path}"]
    client = knock(server)
    client.send(GET)
    assert client.answer()[0] == 200
    server.stop()
    assert not path.exists()


def test_a_stale_unix_socket_is_replaced(serve, knock, tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    server = serve(uds=str(path))
    client = knock(server)
    client.send(GET)
    assert client.answer()[0] == 200


def test_a_live_unix_socket_is_refused_and_left_alone(serve, knock, tmp_path):
    path = tmp_path / "s"
    first = serve(uds=str(path))
    with pytest.raises(StartFailed, match="another server listens there"):
        serve(uds=str(path))
    client = knock(first)
    client.send(GET)
    assert client.answer()[0] == 200


def test_a_file_that_is_no_socket_is_left_alone(serve, tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(StartFailed, match="not a socket"):
        serve(uds=str(path))
    assert path.read_text() == "data"


def test_another_servers_socket_is_not_removed(serve, tmp_path):
    path = tmp_path / "s"
    server = serve(uds=str(path))
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        server.stop()
        assert path.exists()


def test_the_soft_limit_of_files_is_raised_and_never_lowered():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        low = min(512, before[1] if before[1] > 0 else 512)
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, before[1]))
        assert raise_file_limit(10, tls=False) == (10, EXCESS_CONNECTIONS)
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert raised == 1034
        raise_file_limit(1, tls=False)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.smoke
def test_draining_answers_what_was_accepted_and_closes_what_is_idle(serve, knock):
    server = serve()
    idle, busy = knock(server), knock(server)
    idle.send(GET)
    idle.answer()
    busy.send(LATER)
    server.until(lambda: len(server.app.waiting) == 1)
    stopping = threading.Thread(target=server.stop, args=(10.0,))
    stopping.start()
    assert idle.ended()
    with pytest.raises(OSError, match="refused"):
        knock(server)
    server.call(server.app.release)
    status, head, body = busy.answer()
    assert (status, body) == (200, b"released")
    assert b"connection: close" in head
    assert busy.ended()
    stopping.join(20)
    assert not stopping.is_alive()
    assert server.app.cancelled == []


def test_what_is_not_answered_within_the_grace_is_aborted(serve, knock):
    server = serve()
    client = knock(server)
    client.send(LATER)
    server.until(lambda: len(server.app.waiting) == 1)
    server.run(server.listener.close(0.2))
    assert client.ended()
    assert server.app.cancelled == [b"/later"]
    assert server.listener.connections == 0


def test_closing_is_allowed_at_any_time_and_again(serve):
    server = serve()

    async def close_an_unstarted_one():
        await Listener(server.app, ServerOptions(port=0), LoopClock()).close(0.0)

    server.run(close_an_unstarted_one())
    server.run(server.listener.close(0.0))
    server.run(server.listener.close(0.0))


def test_who_is_seen_out_is_answered_once_more_and_nobody_else_comes_in(serve, knock):
    server = serve()
    kept, new, silent = knock(server), knock(server), knock(server)
    kept.send(GET)
    assert kept.answer()[0] == 200
    server.until(lambda: server.listener.connections == 3)
    seeing_out = asyncio.run_coroutine_threadsafe(server.listener.see_out(20.0), server.loop)
    server.until(lambda: refused(knock, server))
    for client in (kept, new):
        client.send(GET)
        status, head, _ = client.answer()
        assert status == 200
        assert b"\r\nconnection: close\r\n" in head
        assert client.ended()
    assert not seeing_out.done()  # one connection is left
    silent.close()
    seeing_out.result(20.0)


def refused(knock, server):
    try:
        knock(server)
    except ConnectionRefusedError:
        return True
    return False


def test_who_says_nothing_is_seen_out_for_so_long_and_no_longer(serve, knock):
    server = serve()
    silent = knock(server)
    server.until(lambda: server.listener.connections == 1)
    server.run(server.listener.see_out(0.05))
    assert server.listener.connections == 1
    silent.send(GET)
    assert silent.answer()[0] == 200


def test_a_tls_client_that_has_said_nothing_yet_is_seen_out_too(serve, knock, certificate):
    cert, key = certificate
    server = serve(tls_cert=cert, tls_key=key)
    client = knock(server)
    server.until(lambda: len(server.listener._handshakes) == 1)
    seeing_out = asyncio.run_coroutine_threadsafe(server.listener.see_out(20.0), server.loop)
    server.until(lambda: refused(knock, server))
    context = ssl.create_default_context(cafile=cert)
    with context.wrap_socket(client.sock, server_hostname="localhost") as sock:
        sock.sendall(GET)
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200")
    seeing_out.result(20.0)


@pytest.mark.parametrize("way", ["tcp", "unix", "tls"])
def test_who_is_connected_and_not_yet_accepted_is_seen_out_too(serve, knock, tmp_path, certificate, way):
    cert, key = certificate
    options = {"tcp": {}, "unix": {"uds": str(tmp_path / "in.sock")}, "tls": {"tls_cert": cert, "tls_key": key}}[way]
    server = serve(**options)
    clients = []

    async def connect_and_see_out():
        # The event loop does nothing else meanwhile: the kernel keeps these connections.
        clients.extend(knock(server) for _ in range(20))
        if way != "tls":
            for client in clients:
                client.send(GET)
        await server.listener.see_out(20.0)

    seeing_out = asyncio.run_coroutine_threadsafe(connect_and_see_out(), server.loop)
    server.until(lambda: len(clients) == 20)
    context = ssl.create_default_context(cafile=cert) if way == "tls" else None
    for client in clients:
        if context is not None:
            client.sock = context.wrap_socket(client.sock, server_hostname="localhost")
            client.send(GET)
        assert client.answer()[0] == 200
        client.close()
    seeing_out.result(20.0)


def test_nobody_comes_to_a_unix_socket_behind_those_who_are_accepted_last(tmp_path):
    path = str(tmp_path / "in.sock")
    listening = bind_unix(path, 0o600)
    with socket.socket(socket.AF_UNIX) as before, socket.socket(socket.AF_UNIX) as behind:
        before.connect(path)
        (accepted,) = accept_last(listening)
        with accepted:
            before.sendall(b"x")
            assert accepted.recv(10) == b"x"
        with pytest.raises(ConnectionRefusedError):
            behind.connect(path)
    assert listening.fileno() == -1


def test_a_listener_on_sockets_of_somebody_else_leaves_them_listening(serve, knock, tmp_path):
    path = str(tmp_path / "in.sock")
    waiting = None
    with bind_unix(path, 0o600) as theirs:
        for _ in range(2):  # one after the other, as a service that is reloaded
            server = serve(sockets=[theirs.dup()], uds=path)
            assert server.listener.addresses == [f"unix:{path}"]
            client = waiting or knock(server)
            client.send(GET)
            assert client.answer()[0] == 200
            server.stop()
            waiting = knock(server)  # the kernel keeps it for the next one
    assert (tmp_path / "in.sock").exists()
