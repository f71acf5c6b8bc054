"""A connection to Redis ends at the answer that another server may be the one; for a new one Sentinels are asked."""

from __future__ import annotations

import contextlib
import socketserver
import threading

import pytest

from penstock.errors import ConfigError, StoreUnavailable
from penstock.jobs.store import StoreFull
from penstock.jobs.stores.opening import open_store
from redis_server import free_port, private_redis, private_sentinel

PASSWORD = "open-sesame"
OF_SENTINELS = "open-wheat"


class Refusing(socketserver.ThreadingTCPServer):
    """Lets itself be opened as Redis does, and answers every call of a script with `error`; is also a Sentinel."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.url = f"redis://127.0.0.1:{self.server_address[1]}"
        self.error = ""
        self.primary = 0
        """The port that it names as a Sentinel."""
        self.connections = 0
        """How many there were."""


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.server.connections += 1
        with contextlib.suppress(ConnectionError):
            while head := self.rfile.readline():
                words = [self._word() for _ in range(int(head[1:]))]
                self.wfile.write(self._answer(words[0].upper()))

    def _word(self) -> bytes:
        return self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2]

    def _answer(self, command: bytes) -> bytes:
        match command:
            case b"INFO":
                return b"$19\r\nredis_version:7.0.0\r\n"
            case b"EVAL":
                return b"$1\r\n1\r\n"
            case b"SENTINEL":
                return b"*2\r\n$9\r\n127.0.0.1\r\n$4\r\n%4d\r\n" % self.server.primary
            case b"EVALSHA":
                return f"-{self.server.error}\r\n".encode()
        return b"+OK\r\n"


@contextlib.contextmanager
def served():
    with Refusing() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def refusing():
    with served() as server:
        yield server


@pytest.mark.parametrize(
    "error",
    [
        "READONLY You can't write against a read only replica.",
        "ERR Error running script (call to f_ab): @user_script:4: @user_script: 4: -READONLY You can't write",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "LOADING Redis is loading the dataset in memory",
        "MOVED 12 127.0.0.1:7000",
        "ASK 12 127.0.0.1:7000",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "NOREPLICAS Not enough good replicas to write.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    ],
)
def test_a_server_that_may_not_be_the_one_is_looked_up_again_for_each_further_try(refusing, error):
    store = open_store(refusing.url)
    refusing.error = error
    for further in (1, 2):  # a call has two tries; the second one of the last call has closed its connection, too
        before = refusing.connections
        with pytest.raises(StoreUnavailable):
            store.stats()
        assert refusing.connections - before == further
    store.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("MISCONF Redis is configured to save RDB snapshots, but", StoreUnavailable),
        ("BUSY Redis is busy running a script.", StoreUnavailable),
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFull),
        ("NOPERM this user has no permissions", StoreUnavailable),
    ],
)
def test_a_server_that_cannot_do_it_now_keeps_its_connection(refusing, error, kind):
    store = open_store(refusing.url)
    refusing.error = error
    before = refusing.connections
    for _ in range(2):
        with pytest.raises(kind):
            store.stats()
    assert refusing.connections == before
    store.close()


# -- Sentinels --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def primary():
    with private_redis("--requirepass", PASSWORD, port=free_port("127.0.0.1")) as server:
        yield server


@pytest.fixture(scope="module")
def sentinel(primary):
    lines = (f"sentinel auth-pass queue {PASSWORD}", f"requirepass {OF_SENTINELS}")
    with private_sentinel(primary, *lines, port=free_port("127.0.0.1"), votes=1) as server:
        yield server


def url(*places, name="queue", password=PASSWORD, of_sentinels=OF_SENTINELS):
    return f"redis+sentinel://:{password}@{','.join(places)}/{name}?db=1&sentinel_password={of_sentinels}"


def test_the_primary_is_found_where_the_first_sentinel_that_answers_says(primary, sentinel):
    gone = f"127.0.0.1:{free_port('127.0.0.1')}"
    stores = [open_store(url(gone, f"127.0.0.1:{sentinel.port}", gone)) for _ in range(2)]
    assert all(store.stats().queued == 0 for store in stores)
    assert all(secret not in repr(vars(store)) for store in stores for secret in (PASSWORD, OF_SENTINELS))
    assert repr(stores[0]) == (
        f"RedisStore('default' at Redis at queue (Sentinel {gone}, 127.0.0.1:{sentinel.port}, {gone}))"
    )
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"name": "prices"}, ConfigError, r"Sentinel at .*:\d+ monitors no primary with the name 'prices'"),
        ({"of_sentinels": "open"}, ConfigError, r"Sentinel at .*:\d+ rejected the user name or password"),
        ({"password": "open"}, ConfigError, r"Redis at queue \(Sentinel .*\) rejected the user name or password"),
    ],
)
def test_a_url_that_no_sentinel_can_follow_is_told(sentinel, changed, kind, words):
    gone = f"127.0.0.1:{free_port('127.0.0.1')}"
    with pytest.raises(kind, match=words) as caught:
        open_store(url(gone, f"127.0.0.1:{sentinel.port}", **changed))
    assert PASSWORD not in str(caught.value)
    assert OF_SENTINELS not in str(caught.value)


def test_a_sentinel_that_names_the_former_primary_is_not_the_first_to_be_asked_each_time():
    connections = pytest.importorskip("penstock.jobs.stores.redis_connections", exc_type=ImportError)
    with served() as cut_off, served() as other:
        cut_off.primary, other.primary = 1000, 2000
        places = [("127.0.0.1", each.server_address[1]) for each in (cut_off, other)]
        sentinels = connections.Sentinels(places, "queue", 5.0)
        assert [sentinels.primary()[1] for _ in range(4)] == [1000, 2000, 1000, 2000]


def test_sentinels_that_are_not_there_are_told_each(sentinel):
    gone = [f"127.0.0.1:{free_port('127.0.0.1')}" for _ in range(2)]
    with pytest.raises(StoreUnavailable) as caught:
        open_store(url(*gone))
    for each in gone:
        assert f"cannot connect to Sentinel at {each}: " in str(caught.value)


def test_a_server_and_a_sentinel_that_were_confused_are_told_as_what_they_are(primary, sentinel):
    with pytest.raises(ConfigError, match="is not a Sentinel but a Redis server"):
        open_store(url(f"127.0.0.1:{primary.port}", of_sentinels=PASSWORD))
    with pytest.raises(ConfigError, match=r"is a Sentinel: write redis\+sentinel://HOST:PORT/NAME"):
        open_store(f"redis://:{OF_SENTINELS}@127.0.0.1:{sentinel.port}/0")
