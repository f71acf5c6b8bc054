import importlib.util

import pytest

from penstock.errors import ConfigError, QueueFull
from penstock.jobs.rules.waiting_bounds import WaitingBounds
from penstock.jobs.store import NewJob
from penstock.jobs.stores.opening import open_store
from penstock.jobs.stores.urls import masked, read_store_url
from rows import each


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///q.db", "q.db"),
        ("sqlite:///folder/q.db", "folder/q.db"),
        ("sqlite:////var/q.db", "/var/q.db"),
        ("sqlite:///a%20b%3Fc.db", "a b?c.db"),
        ("  sqlite:///q.db\n", "q.db"),
    ],
)
def test_three_slashes_are_relative_and_four_absolute(url, path):
    place = read_store_url(url)
    assert (place.scheme, place.path, place.queue, place.synchronous) == ("sqlite", path, "default", "FULL")


def test_a_url_names_the_queue_and_how_sqlite_writes():
    place = read_store_url("sqlite:///q.db?queue=Films-2.a_b&synchronous=normal")
    assert (place.queue, place.synchronous, place.reserve) == ("Films-2.a_b", "NORMAL", 8 << 20)
    assert read_store_url("sqlite:///q.db?reserve=0").reserve == 0


@pytest.mark.parametrize("url", ["memory://n?", "sqlite:///q.db?", "redis://host/0?queue=a&", "unix:///r.sock?"])
def test_every_url_may_bound_what_waits(url):
    assert read_store_url(f"{url}max_waiting=7").bounds == WaitingBounds(7, None)
    found = read_store_url(f"{url}max_waiting=0&max_waiting_bytes=1000")
    assert found.bounds == WaitingBounds(0, 1000)
    assert "max_waiting" not in found.server


def test_a_store_in_memory_keeps_the_bounds_that_somebody_has_named():
    store = open_store("memory://bounded?max_waiting=1")
    assert open_store("memory://bounded") is store
    store.submit([NewJob("a")])
    with pytest.raises(
        QueueFull, match=r"queue default is full: 1 waiting jobs and 1 more submitted exceed max_waiting \(1\)"
    ):
        store.submit([NewJob("b")])


def test_a_store_in_memory_may_have_a_name():
    assert read_store_url("memory://").name == ""
    assert read_store_url("memory://tests?queue=a").name == "tests"


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("redis://localhost", "redis://localhost"),
        ("redis://:pw@localhost:6380/2?queue=a", "redis://:pw@localhost:6380/2"),
        ("rediss://me:p%40w@host?queue=a&ssl_ca_certs=/etc/ca.pem", "rediss://me:p%40w@host?ssl_ca_certs=%2Fetc%2Fca.pem"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("unix:///run/redis.sock?db=1&queue=b", "unix:///run/redis.sock?db=1"),
        ("redis+unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)  # fmt: skip
def test_the_library_of_redis_gets_the_url_without_our_parameters(url, server):
    assert read_store_url(url).server == server


@pytest.mark.parametrize(
    ("url", "sentinels", "server"),
    [
        ("redis+sentinel://one/prices", (("one", 26379),), "redis:///0"),
        ("redis+sentinel://me:p%40w@one:1,[::1]:2,two/prices?db=3", (("one", 1), ("::1", 2), ("two", 26379)),
         "redis://me:p%40w@/3"),
        ("redis+sentinel://:p%2Cw@one:1/prices?queue=a&max_waiting=1", (("one", 1),), "redis://:p%2Cw@/0"),
    ],
)  # fmt: skip
def test_a_url_may_name_sentinels_and_what_they_call_the_primary(url, sentinels, server):
    place = read_store_url(url)
    assert (place.sentinels, place.primary, place.server) == (sentinels, "prices", server)
    assert place.sentinel_login == {}


def test_sentinels_may_want_a_user_and_a_password_of_their_own():
    place = read_store_url("redis+sentinel://:geheim@one/p%C3%A9?sentinel_username=me&sentinel_password=gehe%26im")
    assert place.sentinel_login == {"username": "me", "password": "gehe&im"}
    assert place.primary == "pé"
    assert "gehe" not in repr(place)


@each(
    ("url", "words"),
    [
        ("", "the URL of a queue must be a string such as sqlite:///q.db, got ''"),
        (None, "got None"),
        ("q.db", "q.db is not the URL of a queue, such as sqlite:///q.db; use memory://, sqlite://"),
        ("sqlite:q.db", "is not the URL of a queue"),
        ("sqlite3:///q.db", "scheme sqlite3:// is not supported: did you mean sqlite://?"),
        ("redus://host", "did you mean redis://?"),
        ("amqp://host", "scheme amqp:// is not supported; use memory://, sqlite://, redis://, rediss://"),
        (
            "sqlite://q.db",
            "write sqlite:///q.db for a path below the current directory, or sqlite:////q.db for",
        ),
        ("sqlite://var/q.db", "sqlite:////var/q.db for an absolute path"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///folder/", "names no file"),
        ("sqlite:///:memory:", "for a store in memory write memory://"),
        ("sqlite:///a%00b", "null character"),
        ("sqlite:///a#b", "write %23"),
        ("sqlite:///q.db?queu=a", "sqlite:// has no parameter 'queu': did you mean queue?"),
        (
            "sqlite:///q.db?sync=FULL",
            "no parameter 'sync'; parameters: queue, max_waiting, max_waiting_bytes, synchronous, reserve",
        ),
        ("sqlite:///q.db?reserve=8MiB", "reserve must be an integer of at least 0, got '8MiB'"),
        ("redis://host?max_waiting=many", "max_waiting must be an integer of at least 0, got 'many'"),
        ("sqlite:///q.db?reserve=-1", "reserve must be an integer of at least 0, got '-1'"),
        ("sqlite:///q.db?synchronous=OFF", "synchronous must be FULL or NORMAL, got 'OFF'"),
        ("sqlite:///q.db?queue=a&queue=b", "the parameter 'queue' is given twice"),
        ("sqlite:///q.db?queue=", "1 to 64 characters of A-Z a-z 0-9 . _ -, got ''"),
        ("sqlite:///q.db?queue=a/b", "got 'a/b'"),
        (f"sqlite:///q.db?queue={'a' * 65}", "1 to 64"),
        ("memory://a/b", "write memory://, or memory://NAME"),
        ("memory://?synchronous=FULL", "memory:// has no parameter 'synchronous'; parameters: queue"),
        ("redis://", "names no host: write redis://HOST:6379"),
        ("redis://host/main", "the database of Redis must be a number such as 0, got 'main'"),
        ("redis://host:port", "its port is not a number"),
        ("redis://host:70000", "its port is not a number from 0 to 65535"),
        ("redis://host:0", "port 0"),
        ("redis://[host", "its host cannot be read"),
        ("unix://", "names no socket"),
        ("redis+sentinal://host/p", "did you mean redis+sentinel://?"),
        ("redis+sentinel:///p", "names no Sentinel: write redis+sentinel://HOST:PORT,HOST:PORT/NAME"),
        ("redis+sentinel://one,/p", "names no Sentinel"),
        (
            "redis+sentinel://one:1,two:2",
            "does not name the primary: write redis+sentinel://HOST:PORT/NAME, with the NAME",
        ),
        ("redis+sentinel://one/p/1", "'p/1' is not a name of a primary; write the database of Redis as ?db=1"),
        ("redis+sentinel://one/p?db=x", "the database of Redis must be a number such as 0, got 'x'"),
        ("redis+sentinel://one,two:x/p", "in 'two:x' its port is not a number from 0 to 65535"),
        ("redis+sentinel://one,two:0/p", "port 0"),
        ("redis+sentinel://one,[::1/p", "its host cannot be read"),
        ("redis+sentinel://a:b@one,a:b@two/p", "once, before the first Sentinel; write a comma in them as %2C"),
        ("redis+sentinel://one/p?sentinel_pasword=x", "did you mean sentinel_password?"),
        ("redis://one/0?sentinel_password=x", "redis:// has no parameter 'sentinel_password'"),
    ],
)
def test_what_is_no_queue_is_told_in_a_sentence(url, words):
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:geheim@host", "redis://:***@host"),
        ("rediss://me:geheim@host:1/0?queue=a", "rediss://me:***@host:1/0?queue=a"),
        ("redis://me:gehe@im/@host", "redis://me:***@host"),
        ("redis://geheim@host", "redis://***@host"),
        ("redis:/:geheim@host", "redis:/:***@host"),
        ("amqp://a:geheim@host", "amqp://a:***@host"),
        ("redis://host?password=geheim&queue=a", "redis://host?password=***&queue=a"),
        (
            "redis+sentinel://:geheim@a,b:1/p?sentinel_password=geheim&db=1",
            "redis+sentinel://:***@a,b:1/p?sentinel_password=***&db=1",
        ),
        ("redis+sentinel://u:geheim@a,u:geheim@b/p", "redis+sentinel://u:***@b/p"),
        ("redis://host?passwort=geheim", "redis://host?passwort=***"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
        ("sqlite://a:geheim@b.db", "sqlite://a:***@b.db"),
    ],
)
def test_the_password_of_a_url_is_not_shown(url, shown):
    assert masked(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:geheim@host:port",
        "redis://me:geheim@host/main",
        "redis://me:ge#heim@host",
        "redis://me:ge/heim@host",
        "redis://me:geheim@[host",
        "sqlite://me:geheim@q.db",
        "redys://me:geheim@host",
        "me:geheim@host",
        "redis+sentinel://me:geheim@a,b:port/p",
        "redis+sentinel://me:geheim@a,me:geheim@b/p",
        "redis+sentinel://me:geheim@a",
        "redis+sentinel://a/p?sentinel_passwd=geheim",
        "redis+sentinel://a,[b/p?sentinel_password=geheim",
    ],
)
def test_no_error_tells_the_password(url):
    with pytest.raises(ConfigError) as caught:
        read_store_url(url)
    assert "heim" not in f"{caught.value!r}"


def test_a_place_that_is_shown_has_no_password():
    assert "geheim" not in repr(read_store_url("redis://me:geheim@host"))


def test_a_library_that_is_not_there_is_told_with_what_brings_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"redis://:\*\*\*@host needs the redis library: pip install 'penstock\[redis\]'"
    ):
        open_store("redis://:geheim@host")
