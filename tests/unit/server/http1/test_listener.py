"""A listener's door and its sweep.  The clock stands still; the sockets are real."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from penstock.config import ServerOptions
from penstock.server.http1.listener import SWEEP_INTERVAL_SECONDS, Listener
from penstock.testing.virtual_clock import VirtualClock


class Told:
    """An open connection; `sweep` is told the time."""

    def __init__(self, sweep) -> None:
        self.sweep = sweep


class NothingUnread:
    """An application that holds no answers."""

    def any_answers_overfull(self):
        return False


@pytest.fixture
def clock():
    return VirtualClock(start=50.0)


@pytest.fixture
async def open_listener(clock):
    opened = []

    async def start(**options):
        opened.append(Listener(NothingUnread(), ServerOptions(**options), clock))
        await opened[-1].start()
        return opened[-1]

    yield start
    for listener in opened:
        await listener.close(0.0)


async def test_the_address_has_the_port_that_was_given(open_listener):
    listener = await open_listener(port=0)
    (address,) = listener.addresses
    host, _, port = address.rpartition(":")
    assert host == "http://127.0.0.1"
    assert 0 < int(port) < 65536
    assert listener.connections == 0
    assert listener.most_connections == ServerOptions().max_connections


@pytest.mark.parametrize(
    ("tls_cert", "address", "url"),
    [
        (None, "/run/s", "unix:/run/s"),
        ("cert.pem", "/run/s", "unix:/run/s"),
        (None, ("10.0.0.1", 80), "http://10.0.0.1:80"),
        (None, ("::1", 80, 0, 0), "http://[::1]:80"),
        ("cert.pem", ("10.0.0.1", 443), "https://10.0.0.1:443"),
        ("cert.pem", ("::1", 443, 0, 0), "https://[::1]:443"),
    ],
)
def test_an_address_is_written_as_a_url(clock, tls_cert, address, url):
    ip = address[0]
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET6 if ":" in ip else socket.AF_INET
    sock = SimpleNamespace(family=family, getsockname=lambda: address)
    assert Listener(None, ServerOptions(tls_cert=tls_cert, tls_key=tls_cert), clock)._name(sock) == url


async def test_a_unix_socket_is_removed_unless_somebody_replaced_it(open_listener, tmp_path):
    path = tmp_path / "s"
    listener = await open_listener(uds=str(path))
    assert listener.addresses == [f"unix:{path}"]
    listener.stop_accepting()
    assert not path.exists()
    listener = await open_listener(uds=str(path))
    path.unlink()
    path.write_text("another's")
    listener.stop_accepting()
    assert path.read_text() == "another's"


async def test_each_address_is_told_those_of_tcp_first(open_listener, tmp_path):
    path = tmp_path / "s"
    listener = await open_listener(host=["127.0.0.2", "127.0.0.1"], port=0, uds=str(path))
    second, first, unix = listener.addresses
    assert second.startswith("http://127.0.0.2:")
    assert first == second.replace("127.0.0.2", "127.0.0.1")
    assert unix == f"unix:{path}"
    listener.stop_accepting()
    assert not path.exists()


async def test_connections_are_told_the_time_each_second_until_the_listener_is_closed(open_listener, clock):
    listener = await open_listener(port=0)
    told = []
    listener._connections.enter(Told(told.append))
    assert clock.waiting == [SWEEP_INTERVAL_SECONDS]
    await clock.advance(3 * SWEEP_INTERVAL_SECONDS)
    assert told == [51.0, 52.0, 53.0]
    listener._connections.open.clear()
    await listener.close(0.0)
    assert clock.waiting == []
    await clock.advance(10.0)
    assert told == [51.0, 52.0, 53.0]


async def test_a_fault_in_one_sweep_does_not_end_the_others(open_listener, clock):
    listener = await open_listener(port=0)
    told = []

    def sweep(now):
        told.append(now)
        raise RuntimeError("broken")

    listener._connections.enter(Told(sweep))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            await clock.advance(SWEEP_INTERVAL_SECONDS)
    assert told == [51.0, 52.0]
    listener._connections.open.clear()


async def test_a_listener_may_be_closed_at_any_time_and_again(clock):
    listener = Listener(None, ServerOptions(port=0), clock)
    await listener.close(1.0)
    await listener.start()
    await listener.close(1.0)
    await listener.close(1.0)
    assert clock.waiting == []
