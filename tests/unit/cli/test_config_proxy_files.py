"""What the files for HAProxy and nginx say, by the options that they are made of.

That the real programs take them, and what they then do, is in `tests/integration/program/test_config_proxies.py`.
"""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.config_files.endpoints import Endpoint, read_endpoint
from penstock.cli.config_files.haproxy_file import CHECK_FAILURES, CHECK_SECONDS, haproxy_file
from penstock.cli.config_files.nginx_file import nginx_file
from penstock.cli.config_files.proxied import (
    NOTICED_SECONDS,
    ProxyDescription,
    proxy_time,
    proxy_warnings,
)
from penstock.config import ServerOptions, ServiceOptions
from penstock.errors import ConfigError
from rows import each

FORBIDDEN = (
    *("non_idempotent", "empty-response", "all-retryable-errors", "junk-response", "response-timeout"),
    *("0rtt-rejected", "invalid_header", "http_5", "http_4"),
)
"""Words with which a proxy sends again what may have run."""
PAIR = (Endpoint("127.0.0.1", 8001), Endpoint("127.0.0.1", 8002))


def described(listen="127.0.0.1:8080", replicas=PAIR, timeout=60.0, tls=False, **server):
    more = {}
    if tls:
        server |= {"tls_cert": "c", "tls_key": "k"}
        more = {"replica_ca": "/ca.pem", "replica_name": "replica.example", "listen_cert": "/both.pem"}
    return ProxyDescription(
        read_endpoint("--listen", listen),
        tuple(replicas),
        ServerOptions(**server),
        ServiceOptions(timeout=timeout),
        **more,
    )


def directives(text):
    """The lines that are no comments, by their first word; the last of a name wins."""
    lines = [line.strip() for line in text.splitlines()]
    return {
        line.split(" ")[0]: line.partition(" ")[2].rstrip(";") for line in lines if line and not line.startswith("#")
    }


EVERY_DESCRIPTION = [
    described(),
    described(tls=True),
    described(timeout=math.inf, drain_delay=2.0, overload_status=429, unready_when_full=True),
    described(timeout=0.1, keepalive_timeout=0, max_body_bytes=0, drain_delay=math.inf),
    described("[::]:80", [Endpoint(path="/run/a.sock")], queue_timeout_status=408, run_timeout_status=408),
]


@pytest.mark.parametrize("write", [haproxy_file, nginx_file])
@pytest.mark.parametrize("description", EVERY_DESCRIPTION)
def test_no_file_sends_again_what_may_have_run(write, description):
    text = write(description)
    for word in FORBIDDEN:
        assert word not in text, word
    again = re.findall(r"^ *(retry-on|retries|proxy_next_upstream\w*) (.*)$", text, re.MULTILINE)
    assert again in (
        [("retry-on", "conn-failure 503"), ("retries", "1")],
        [("proxy_next_upstream", "error timeout;"), ("proxy_next_upstream_tries", "2;")],
    )


@pytest.mark.parametrize("write", [haproxy_file, nginx_file])
@pytest.mark.parametrize("description", EVERY_DESCRIPTION)
def test_every_number_has_a_comment_near_before_it(write, description):
    lines = write(description).splitlines()
    bare = re.compile(r"^ *(daemon|pid|error_log|worker_connections|worker_rlimit|events|http |retries|server_tokens)")
    for number, line in enumerate(lines):
        if re.search(r" [0-9]+(s|ms)?;?$", line) and not line.lstrip().startswith("#") and not bare.match(line):
            assert any(each.lstrip().startswith("#") for each in lines[max(0, number - 6) : number]), line


@pytest.mark.parametrize("write", [haproxy_file, nginx_file])
def test_the_time_for_an_answer_is_that_of_the_service_and_five_seconds(write):
    name = {haproxy_file: "timeout server", nginx_file: "proxy_read_timeout"}[write]
    for timeout, said in ((60.0, "65s"), (0.25, "5250ms"), (math.inf, "2073600s"), (1e12, "2073600s")):
        found = re.findall(rf"^ *{name} (\w+);?$", write(described(timeout=timeout)), re.MULTILINE)
        assert found[0] == said


@pytest.mark.parametrize("write", [haproxy_file, nginx_file])
def test_who_waits_for_a_job_may_wait_longer_than_for_an_answer(write):
    assert "65s" not in write(described(timeout=120.0))
    longer = re.compile(r"/jobs.* \{[^}]+proxy_read_timeout 65s;|set-timeout server 65s if \{ path_beg /jobs/")
    assert longer.search(write(described(timeout=60.0))) is None
    assert longer.search(write(described(timeout=5.0)))


def test_haproxy_takes_a_draining_replica_out_in_time():
    assert CHECK_SECONDS * CHECK_FAILURES <= NOTICED_SECONDS / 2
    text = haproxy_file(described(drain_delay=2.0))
    assert "check inter 250ms fall 2 rise 1" in text
    assert "timeout check 1s" in text  # twice this and two intervals are less than 3 s, for one that is frozen
    assert "shutdown-sessions" not in text  # what it has in hand is answered


def test_haproxy_has_room_for_the_largest_head_and_a_body():
    assert int(directives(haproxy_file(described()))["tune.bufsize"]) >= 65536 + 16384 + 1024
    small = directives(haproxy_file(described(max_header_bytes=64, max_header_fields=1)))
    assert int(small["tune.bufsize"]) >= 16384
    assert int(small["tune.http.maxhdr"]) > 1


def test_no_thread_of_haproxy_uses_idle_connections_of_which_another_one_knows_the_end():
    assert directives(haproxy_file(described()))["tune.idle-pool.shared"] == "off"


def test_the_body_limit_is_that_of_the_replicas():
    assert "req.body_size gt 100 }" in haproxy_file(described(max_body_bytes=100))
    assert directives(nginx_file(described(max_body_bytes=100)))["client_max_body_size"] == "100"
    assert directives(nginx_file(described(max_body_bytes=0)))["client_max_body_size"] == "1"  # 0 is no limit there


@pytest.mark.parametrize(
    ("keep_alive", "drain_delay", "idle"),
    [(75.0, 2.0, "1s"), (75.0, 0.0, "1s"), (1.0, 60.0, "500ms"), (75.0, 600.0, "37500ms")],
)
def test_nginx_closes_idle_connections_long_before_a_replica_does(keep_alive, drain_delay, idle):
    text = nginx_file(described(keepalive_timeout=keep_alive, drain_delay=drain_delay))
    assert f"    keepalive_timeout {idle};\n    }}" in text


def test_connections_are_not_kept_where_replicas_keep_none():
    assert "keepalive 256" not in nginx_file(described(keepalive_timeout=0))
    assert "pool-purge-delay 0" in haproxy_file(described(keepalive_timeout=0))
    assert "pool-purge-delay 500ms" in haproxy_file(described(keepalive_timeout=10))
    assert "pool-purge-delay 3750ms" in haproxy_file(described())


def test_nginx_marks_no_replica_as_down():
    text = nginx_file(described())
    assert text.count("max_fails=0;") == 2 + 2 == len(re.findall("^ *server [^ {]+ [^;]*;$", text, re.MULTILINE))
    assert "fail_timeout" not in text


def test_nginx_sends_a_refusal_of_each_replica_to_the_others():
    a, b, c = "127.0.0.1:8001", "[::1]:8001", "unix:/run/c+.sock"
    text = nginx_file(described(replicas=[read_endpoint("--server", each) for each in (a, b, c)]))
    groups = dict(re.findall(r"upstream (\w+) \{([^}]*)\}", text))
    asked = {name: re.findall("server (.*) max_fails", inside) for name, inside in groups.items()}
    assert asked == {"replicas": [a, b, c], "others1": [b, c], "others2": [a, c], "others3": [a, b]}
    chosen = {
        name: pattern.replace("\\\\", "\\")
        for pattern, name in re.findall(r'^ *"~(.*)" (others\d);$', text, re.MULTILINE)
    }
    for tried, name in ((a, "others1"), (f"{a}, {b}", "others2"), (f"{b}, {c}", "others3")):
        assert [each for each, pattern in chosen.items() if re.search(pattern, tried)] == [name]
    for other in ("1127.0.0.1:8001", "127.0.0.1:80010", "127a0.0.1:8001"):
        assert not any(re.search(pattern, other) for pattern in chosen.values())


def test_a_lone_replica_has_no_others():
    text = nginx_file(described(replicas=PAIR[:1]))
    assert "others" not in text
    assert "intercept" not in text


def test_a_wildcard_of_ipv6_is_for_ipv4_too():
    assert "bind [::]:80 v4v6" in haproxy_file(described("[::]:80"))
    assert "listen [::]:80 ipv6only=off;" in nginx_file(described("[::]:80"))


# -- what cannot be promised ----------------------------------------------------------------------------------------


def test_a_drain_delay_that_is_too_short_is_told():
    assert "--drain-delay 2" in "".join(proxy_warnings(described()))
    assert "--drain-delay 2" in "".join(proxy_warnings(described(drain_delay=NOTICED_SECONDS - 0.1)))
    assert list(proxy_warnings(described(drain_delay=NOTICED_SECONDS))) == []


def test_a_lone_replica_is_told():
    (words,) = proxy_warnings(described(replicas=PAIR[:1], drain_delay=2.0))
    assert "one replica" in words


# -- what cannot be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:80", Endpoint("127.0.0.1", 80)),
        ("replica-1.example:65535", Endpoint("replica-1.example", 65535)),
        ("[::1]:1", Endpoint("::1", 1)),
        ("[0:0::1]:1", Endpoint("::1", 1)),
        ("unix:/run/a b.sock", Endpoint(path="/run/a b.sock")),
    ],
)
def test_an_address_is_read(text, endpoint):
    assert read_endpoint("--server", text) == endpoint
    assert read_endpoint("--server", str(endpoint)) == endpoint


@each(
    "text",
    [
        *(
            "", "8000", ":8000", "host", "host:", "host:0", "host:65536", "host:-1", "host:8e3", "host:\uff18",
            "host:999999",
        ),
        *("a b:1", "a;b:1", "a#:1", "-a:1", "a-:1", "http://a:1", "::1:80", "[::1]", "[x]:1", "[fe80::1%eth0]:1"),
        *("unix:", "unix:a.sock", "unix:/a\n", "unix:/a\0", "unix:/\udc80", f"unix:/{'a' * 107}"),
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="--server"):
        read_endpoint("--server", text)


def test_a_description_is_whole():
    for wrong, words in (
        (lambda: described(replicas=[]), "needs a replica"),
        (lambda: described(replicas=[PAIR[0], PAIR[1], PAIR[0]]), "is repeated"),
        (lambda: described("127.0.0.1:8001"), "address of the proxy itself"),
        (lambda: described(tls_cert="c", tls_key="k"), "--server-ca"),
        (
            lambda: ProxyDescription(PAIR[0], PAIR[1:], ServerOptions(), ServiceOptions(), replica_ca="/ca"),
            "--tls-cert",
        ),
        (
            lambda: ProxyDescription(
                PAIR[0], PAIR[1:], ServerOptions(tls_cert="c", tls_key="k"), ServiceOptions(), None, "/ca", "a b"
            ),
            "--server-name",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            wrong()


def test_a_path_that_haproxy_cannot_listen_on_is_refused():
    haproxy_file(described(f"unix:/{'a' * 96}"))
    with pytest.raises(ConfigError, match="97 bytes"):
        haproxy_file(described(f"unix:/{'a' * 97}"))


@given(st.text(min_size=1, max_size=20))
def test_a_path_is_one_word_in_its_file_or_is_refused(text):
    path = f"/run/{text}"
    for write, quote in ((haproxy_file, "'"), (nginx_file, '"')):
        try:
            endpoint = read_endpoint("--server", f"unix:{path}")
            written = write(described(replicas=[endpoint]))
        except ConfigError:
            assert not path.isprintable() or set(path) & set("'\"\\$") or len(path.encode()) > 107
            continue
        (line,) = [line for line in written.splitlines() if path in line]
        before, _, after = line.partition(path)
        plain = re.fullmatch(r"[\w./@:+=~-]+", path, re.ASCII) is not None
        assert (before[-1:] != quote) == plain or before.endswith((f"{quote}unix@", f"{quote}unix:"))
        assert plain or after.startswith(quote)


@each(
    ("write", "path"),
    [(haproxy_file, path) for path in ("", "a'b", "a\nb")]
    + [(nginx_file, path) for path in ("", "a'b", 'a"b', "a\\b", "a$b", "a\nb")],
)
def test_a_path_that_a_proxy_cannot_read_is_refused(write, path):
    description = ProxyDescription(PAIR[0], PAIR[1:], ServerOptions(), ServiceOptions(), listen_cert=path)
    with pytest.raises(ConfigError, match="--listen-cert"):
        write(description)


def test_times_are_written_as_proxies_read_them():
    assert [proxy_time(s) for s in (0.0, 0.0001, 0.25, 1.0, 90.0)] == ["1ms", "1ms", "250ms", "1s", "90s"]
