"""Certificates and keys are read again while the server serves: nobody notices, and what is bad changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import ssl
import time
from pathlib import Path

import pytest
from served import request

from night import tight

EXPIRES = "penstock_tls_certificate_expires_timestamp_seconds"
AGAIN = "SIGHUP: reloaded tls_cert"
BY_NIGHT = [pytest.param(how, marks=pytest.mark.night) for how in ("no key", "no certificate", "an empty certificate")]


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def shown(server, name: str | None = None) -> bytes:
    """The certificate that a new connection gets, which asks for server `name`."""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock,
        trusting().wrap_socket(sock, server_hostname=name) as tls,
    ):
        return tls.getpeercert(binary_form=True)


def hang_up(server, line: str) -> None:
    """Send SIGHUP, and wait for one more `line`."""
    before = server.output.count(line)
    os.kill(server.pid, signal.SIGHUP)
    server.until(lambda: server.output.count(line) > before, line)


def test_a_request_in_flight_is_answered_and_new_connections_get_the_new_certificate(serve, pair):
    server = serve(*pair.options)
    old = pair.encoded
    expired = server.metric(EXPIRES)
    assert expired == pair.expires
    assert {shown(server), shown(server, "localhost")} == {old}
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock,
        trusting().wrap_socket(sock) as before,
    ):
        before.sendall(request("POST", "/predict", {"do": "hold", "value": 7}))
        server.until((server.folder / "ran").exists)
        pair.renew(days=9)
        hang_up(server, AGAIN)
        assert {shown(server), shown(server, "localhost")} == {pair.encoded} != {old}
        assert server.metric(EXPIRES) == pair.expires > expired
        server.open_gate()
        assert before.recv(1 << 16).endswith(b"7.0")
        before.sendall(request("POST", "/predict", {"value": 8}))
        assert before.recv(1 << 16).endswith(b"8.0")


@pytest.mark.smoke
def test_a_renewed_connection_is_as_strict_as_the_first_ones(serve, pair):
    server = serve(*pair.options)
    pair.renew()
    hang_up(server, AGAIN)
    context = trusting()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock,
        context.wrap_socket(sock) as tls,
    ):
        assert tls.selected_alpn_protocol() == "http/1.1"
        assert tls.version() in ("TLSv1.2", "TLSv1.3")


@pytest.mark.parametrize("how", ["another's key", *BY_NIGHT])
def test_a_bad_pair_is_logged_and_the_old_one_stays_unharmed(serve, pair, how):
    server = serve(*pair.options)
    http = server.client()
    old, files = pair.encoded, (pair.cert.read_bytes(), pair.key.read_bytes())
    expires = pair.expires
    match how:
        case "another's key":
            pair.renew()
            pair.cert.write_bytes(files[0])
        case "no key":
            pair.key.unlink()
        case "no certificate":
            pair.cert.unlink()
        case "an empty certificate":
            pair.cert.write_bytes(b"")
    hang_up(
        server,
        (
            "ERROR penstock.server: SIGHUP: reload failed, keeping the old one: tls_cert "
            f"{pair.cert} and tls_key {pair.key}"
        ),
    )
    for name in (None, "localhost"):
        assert shown(server, name) == old
    assert server.metric(EXPIRES) == expires
    assert http.post("/predict", json={"value": 1}).json() == 1
    assert server.client().post("/predict", json={"value": 2}).json() == 2
    assert AGAIN not in server.output
    pair.renew()
    hang_up(server, AGAIN)
    assert shown(server) == pair.encoded


@pytest.mark.smoke
def test_renewed_keys_hold_on_open_connections_too(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("old\nkept\n")
    server = serve("--api-key-file", str(keys))
    wire = server.wire()

    def status(key):
        return wire.post("/predict", {"value": 1}, X_API_Key=key).answer().status

    assert [status(key) for key in ("old", "kept", "new")] == [200, 200, 401]
    keys.write_text("kept\nnew\n")
    hang_up(server, "SIGHUP: reloaded api_key_file")
    assert [status(key) for key in ("old", "kept", "new")] == [401, 200, 200]
    for bad in (b"", b"two words\n", b"#" * (1024 * 1024 + 1)):
        keys.write_bytes(bad)
        hang_up(server, "ERROR penstock.server: SIGHUP: reload failed, keeping the old one: api_key_file")
        assert [status(key) for key in ("old", "kept", "new")] == [401, 200, 200]
    keys.unlink()
    hang_up(server, "cannot be read: No such file or directory")
    assert [status(key) for key in ("old", "kept", "new")] == [401, 200, 200]
    assert not {"old", "kept", "new", "two"} & set(server.output.replace("keeping the old one", "").split())


def test_a_bad_key_file_does_not_keep_the_certificate_from_being_renewed(serve, pair, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    server = serve(*pair.options, "--api-key-file", str(keys))
    keys.write_text("")
    pair.renew()
    hang_up(server, AGAIN)
    server.wait_for("reload failed, keeping the old one: api_key_file .* contains no key")
    assert shown(server) == pair.encoded


@pytest.fixture
def leased():
    """Takes a lease on a file: any other process that opens it waits until the lease is given back, for up to 45 s."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # it says that somebody waits
    with contextlib.ExitStack() as files:

        def take(path: Path) -> None:
            file = files.enter_context(path.open("r+b"))
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)

        yield take
    signal.signal(signal.SIGIO, before)


def test_a_file_that_hangs_holds_nobody_up_and_not_the_end_either(serve, leased, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    server = serve("--api-key-file", str(keys))
    leased(keys)
    threads = Path(f"/proc/{server.pid}/task")
    before = len(list(threads.iterdir()))
    os.kill(server.pid, signal.SIGHUP)
    server.until(lambda: len(list(threads.iterdir())) > before, "a thread that reads the keys")
    http = server.client(headers={"x-api-key": "one"})
    for n in range(20):
        assert http.post("/predict", json={"value": n}).json() == n
    http.close()
    server.stop()  # has less time than the lease holds the reader up


def test_a_named_pipe_in_the_place_of_the_keys_leaves_the_old_in_use(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n")
    server = serve("--api-key-file", str(keys))
    keys.unlink()
    os.mkfifo(keys)
    hang_up(server, "reload failed, keeping the old one: api_key_file")
    server.wait_for("is not a regular file")
    assert server.client(headers={"x-api-key": "one"}).post("/predict", json={"value": 1}).json() == 1


class Clients:
    """Half of them keep their connection, half make a new one for each request; each failure is noted."""

    def __init__(self, port: int, count: int) -> None:
        self.port = port
        self.answers = [0] * count
        self.failures: list[str] = []
        self.slowest = 0.0
        self.stopped = False

    async def run(self) -> None:
        await asyncio.gather(*(self._call(n) for n in range(len(self.answers))))

    async def _call(self, n: int) -> None:
        streams = None
        while not self.stopped:
            began = time.monotonic()
            try:
                if streams is None:
                    streams = await asyncio.open_connection("127.0.0.1", self.port, ssl=trusting())
                reader, writer = streams
                writer.write(request("POST", "/predict", {"value": n}))
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                if not head.startswith(b"HTTP/1.1 200") or float(body) != n:
                    self.failures.append(f"{head!r} {body!r}")
                if n % 2:
                    writer.close()
                    await writer.wait_closed()
                    streams = None
            except (OSError, EOFError) as error:
                self.failures.append(repr(error))
                streams = None
            self.answers[n] += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
        if streams is not None:
            streams[1].close()


def test_ten_certificates_are_renewed_under_64_connections_and_no_request_fails(serve, pair):
    server = serve(*pair.options)
    seen = [shown(server)]

    async def renew_ten_times():
        clients = Clients(server.port, 64)
        running = asyncio.ensure_future(clients.run())
        for _ in range(10):
            before = list(clients.answers)
            await asyncio.to_thread(pair.renew)
            await asyncio.to_thread(hang_up, server, AGAIN)
            seen.append(await asyncio.to_thread(shown, server))
            assert seen[-1] == pair.encoded
            while any(now <= then for now, then in zip(clients.answers, before, strict=True)):
                await asyncio.sleep(0.01)
        clients.stopped = True
        await running
        return clients

    clients = asyncio.run(renew_ten_times())
    assert clients.failures == []
    assert len(set(seen)) == 11
    assert clients.slowest < tight(5.0)
