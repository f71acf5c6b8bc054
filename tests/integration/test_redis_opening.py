"""A store in Redis is opened only where it can be used, and tells nobody its password."""

from __future__ import annotations

import re
import subprocess

import pytest
from proxies import free_port

from penstock.errors import ConfigError, StoreUnavailable
from penstock.jobs.store import NewJob
from penstock.jobs.stores.opening import open_store
from redis_server import private_redis

PASSWORD = "open-sesame"


@pytest.fixture(scope="module")
def server():
    with private_redis("--requirepass", PASSWORD) as server:
        yield server


@pytest.fixture
def client(server):
    redis = pytest.importorskip("redis")
    with redis.Redis(unix_socket_path=server.path, password=PASSWORD) as client:
        yield client


def refusal(call):
    with pytest.raises(ConfigError) as caught:
        call()
    assert PASSWORD not in str(caught.value)
    assert PASSWORD not in repr(caught.value)
    return str(caught.value)


def test_a_url_with_the_password_opens_the_queue_that_it_names(server):
    store = open_store(f"unix://:{PASSWORD}@{server.path}?queue=mine")
    assert store.queue == "mine"
    assert PASSWORD not in repr(store)
    assert PASSWORD not in repr(vars(store))
    store.submit([NewJob("a")])
    store.close()
    other = open_store(f"unix://:{PASSWORD}@{server.path}?queue=other")
    assert other.get(["a"]) == [None]
    other.close()


def test_without_the_password_or_with_another_one_it_is_not_opened(server):
    assert "rejected the user name or password" in refusal(lambda: server.connect())
    assert "rejected the user name or password" in refusal(lambda: server.connect(password="open-wheat"))


def test_a_user_who_may_not_do_what_a_queue_needs_is_told_so(server, client):
    client.acl_setuser("looker", enabled=True, passwords=["+look"], commands=["+info", "+get"], keys=["*"])
    assert "denies this user" in refusal(lambda: server.connect(username="looker", password="look"))


def test_a_server_that_is_too_old_is_refused(server, monkeypatch):
    connections = pytest.importorskip("penstock.jobs.stores.redis_connections", exc_type=ImportError)
    monkeypatch.setattr(connections, "LEAST_VERSION", (99, 1))
    told = refusal(lambda: server.connect(password=PASSWORD))
    assert re.search(r"redis\.sock has version \d[.\d]+; version 99\.1 or later is required$", told)


def test_a_queue_of_another_version_is_refused_and_left_alone(server, client):
    key = "{penstock:later}:meta"
    client.hset(key, "schema", "99")
    told = refusal(lambda: server.connect("later", password=PASSWORD))
    assert told.startswith("queue later in Redis at ")
    assert told.endswith(" has schema 99, but this Penstock requires 1")
    assert client.hgetall(key) == {b"schema": b"99"}


def test_a_server_that_is_not_there_is_unavailable(tmp_path):
    pytest.importorskip("redis")
    with pytest.raises(StoreUnavailable, match=r"^cannot connect to Redis at .*nothing\.sock: "):
        open_store(f"unix://{tmp_path}/nothing.sock")


@pytest.mark.parametrize(("asked", "told"), [
    ("redis", "requires TLS: write rediss://"),
    ("rediss", "does not use TLS: write redis://"),
])  # fmt: skip
def test_a_server_that_is_asked_with_tls_where_it_has_none_or_the_other_way_round_says_so(tmp_path, asked, told):
    openssl = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost")
    subprocess.run([*openssl, "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True)
    tls = (
        "--tls-cert-file",
        f"{tmp_path}/cert.pem",
        "--tls-key-file",
        f"{tmp_path}/key.pem",
        "--tls-auth-clients",
        "no",
    )
    port = free_port()
    plain, listens = (port, ()) if asked == "rediss" else (0, ("--tls-port", str(port)))
    with private_redis(*listens, *tls, "--requirepass", PASSWORD, port=plain):
        refused = refusal(lambda: open_store(f"{asked}://:{PASSWORD}@127.0.0.1:{port}"))
    assert refused == f"Redis at 127.0.0.1:{port} {told}"


@pytest.mark.parametrize("queue", ["", "a b", "a}b", "x" * 65])
def test_a_queue_has_a_plain_name(queue):
    pytest.importorskip("redis")
    from penstock.jobs.stores.redis_ import connect_redis

    assert "the name of a queue must be 1 to 64 characters of" in refusal(lambda: connect_redis(queue))


def test_a_server_that_refuses_us_while_we_use_it_is_unavailable(server, client):
    client.acl_setuser("later", enabled=True, passwords=["+later"], commands=["+@all"], keys=["*"])
    store = server.connect(username="later", password="later")
    store.submit([NewJob("b")])
    client.acl_setuser("later", commands=["-evalsha"])
    with pytest.raises(StoreUnavailable, match="denies this user"):
        store.get(["b"])
    client.acl_setuser("later", commands=["+evalsha"])
    assert [job.id for job in store.get(["b"])] == ["b"]
    store.close()
