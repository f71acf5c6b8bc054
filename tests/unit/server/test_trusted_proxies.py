"""Who the client of a request is, by what proxies say of it."""

from __future__ import annotations

from penstock.server.trusted_proxies import TrustedProxies
from rows import each

OURS = ("10.0.0.0/8", "2001:db8::1")


@each(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.7", None, "192.0.2.7"),
        ("192.0.2.7", b"198.51.100.1", "192.0.2.7"),  # not one of ours: whatever it says
        ("10.1.2.3", b"198.51.100.1", "198.51.100.1"),
        ("10.1.2.3", None, "10.1.2.3"),
        ("10.1.2.3", b"", "10.1.2.3"),
        ("10.1.2.3", b"203.0.113.9, 198.51.100.1", "198.51.100.1"),  # what the client itself says is no matter
        ("10.1.2.3", b"198.51.100.1, 10.9.9.9", "198.51.100.1"),  # two proxies of ours
        ("10.1.2.3", b"10.4.4.4, 10.9.9.9", "10.4.4.4"),  # the client is within
        ("10.1.2.3", b"198.51.100.1, unknown, 10.9.9.9", "10.9.9.9"),
        ("10.1.2.3", b"nonsense", "10.1.2.3"),
        ("10.1.2.3", b"198.51.100.1:4711", "198.51.100.1"),
        ("10.1.2.3", b"[2001:db8::2]:4711", "2001:db8::2"),
        ("10.1.2.3", b" 2001:DB8:0::2 ", "2001:db8::2"),
        ("::ffff:10.1.2.3", b"198.51.100.1", "198.51.100.1"),  # as at a socket of both versions
        ("::ffff:192.0.2.7", b"198.51.100.1", "192.0.2.7"),
        ("2001:db8::1", b"198.51.100.1", "198.51.100.1"),
        ("2001:db8::2", b"198.51.100.1", "2001:db8::2"),
        ("unix", b"198.51.100.1", "unix"),
        ("in a test", b"198.51.100.1", "unknown"),
        ("10.1.2.3", b"1\n2.3.4.5", "10.1.2.3"),
        ("10.1.2.3", b"\xff\xff", "10.1.2.3"),
        ("10.1.2.3", b"fe80::1%eth0", "fe80::1%eth0"),
        ("10.1.2.3", b"fe80::1%x attempt=9 client=192.0.2.7", "10.1.2.3"),  # more than one word of the log
        ("10.1.2.3", b"[fe80::1%x\ty]:80", "10.1.2.3"),
        ("10.1.2.3", b"fe80::1%" + b"x" * 16, "10.1.2.3"),
    ],
)
def test_the_client_is_the_last_address_that_somebody_trusted_has_written(peer, forwarded, client):
    assert TrustedProxies(OURS).client(peer, forwarded) == client


def test_whoever_connects_to_a_unix_socket_may_be_trusted():
    assert TrustedProxies(("unix",)).client("unix", b"198.51.100.1") == "198.51.100.1"
    assert TrustedProxies(("unix",)).client("10.1.2.3", b"198.51.100.1") == "10.1.2.3"


def test_nobody_is_trusted_by_default():
    assert TrustedProxies(()).client("127.0.0.1", b"198.51.100.1") == "127.0.0.1"


def test_only_so_many_addresses_are_looked_at():
    assert TrustedProxies(OURS).client("10.1.2.3", b"198.51.100.1" + b",10.0.0.1" * 1000) == "10.0.0.1"
