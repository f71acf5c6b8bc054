"""Write the file of an nginx in front of replicas.  Pure: a description becomes one text.

What nginx sends again (its page on `proxy_next_upstream`, and `ngx_http_upstream_next` of its sources): with `error`
and `timeout` every request of which nothing was sent yet, because the connection was refused or did not come about; and
what was sent, where its method may be used twice.  A POST that nginx has begun to send is never passed on: that takes
one more word, which this file must not have.  Every call of a model, and every new job, is a POST.

Our 503 says that a request never ran, and a replica that starts answers 503 until its models are loaded.  So an answer
of 503, and no other, is taken for an error page, and the page is asked of the other replicas.  nginx picks a group of
servers by a variable; there is a group for each replica, without it.

Contract
--------
* Nothing that may have run is sent again: only a request whose connection was refused, or whose answer is our 503;
  once, and to another replica.  What is about jobs is not even then, because our 503 may mean that nobody knows.
* No replica is marked as down: nginx asks none how it is, and one that has just refused a connection may be ready.
* nginx needs no root for this file, and writes only below the folder that it is started in.

Where a number comes from is said beside it, for whoever reads the file without us.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.cli.config_files.endpoints import Endpoint
from penstock.cli.config_files.layout import because, indented
from penstock.cli.config_files.proxied import (
    ANSWER_MARGIN_SECONDS,
    BAD_GATEWAY,
    CONNECT_SECONDS,
    GATEWAY_TIMEOUT,
    LARGEST_HEAD,
    LARGEST_NUMBER,
    LONGEST_SECONDS,
    TOO_LARGE,
    ProxyDescription,
    problem,
    proxy_time,
)
from penstock.errors import ConfigError

KEPT_CONNECTIONS: Final = 256
"""The most idle connections that are kept: those of a burst that is over are closed."""
BUFFERED_BODY: Final = 64 * 1024
"""Bytes of a request's body that stay in memory."""
LEAST_HEAD: Final = 8 * 1024
"""nginx refuses a file with a much smaller buffer for heads; this is its own default."""
LEAST_CONNECTIONS: Final = 64
"""nginx needs some itself."""
SPARE_FILES: Final = 64
"""Files for logs, sockets that listen, and bodies."""
_TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
"""What nginx makes a folder for when it starts, used or not."""
_OWN_ANSWERS: Final = {"too_large": TOO_LARGE, "bad_gateway": BAD_GATEWAY, "gateway_timeout": GATEWAY_TIMEOUT}
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/@:+=~-]+")


def nginx_file(description: ProxyDescription) -> str:
    """The whole file.

    Raises:
        ConfigError: a path cannot be written in a file of nginx.
    """
    http = [*_HTTP, "", *_clients(description), "", *_replicas(description), "", *_server(description)]
    return "\n".join([*_TOP, "", *_processes(description), "http {", *indented(http), "}", ""])


_TOP: Final = (
    "# nginx in front of Penstock, made by `penstock generate nginx`.  Run it again when an option changes: the",
    "# numbers follow from the options of the replicas.",
    '#   check it:  nginx -t -e stderr -p "$PWD" -c "$PWD/FILE"',
    '#   start it:  nginx -e stderr -p "$PWD" -c "$PWD/FILE"     (needs no root, writes only below that directory)',
)


def _processes(description: ProxyDescription) -> list[str]:
    connections = max(description.replica_connections, LEAST_CONNECTIONS)
    return [
        "daemon off;",
        "pid nginx.pid;",
        "error_log stderr warn;",
        *because(
            "One process forwards more than replicas compute, and its round robin is exact.  With N "
            "processes divide worker_connections by N."
        ),
        "worker_processes 1;",
        *because(
            "Connections of clients and to replicas together: no more than one replica accepts, "
            f"max_connections ({description.server.max_connections}), and at least {LEAST_CONNECTIONS}. "
            " If the system allows fewer open files, nginx logs that, and uses fewer."
        ),
        f"worker_rlimit_nofile {connections + SPARE_FILES};",
        "events {",
        f"    worker_connections {connections};",
        "}",
    ]


_HTTP: Final = (
    *because("The request id of the client if it is valid, else a new one: it is in both logs."),
    "map $http_x_request_id $penstock_request_id {",
    '    "~^[A-Za-z0-9._-]{1,128}$" $http_x_request_id;',
    "    default $request_id;",
    "}",
    *because(
        "Client, request, status, total seconds; the replicas that were tried, with status and "
        "seconds of each; request id."
    ),
    "log_format penstock '$remote_addr [$time_iso8601] \"$request\" $status $request_time '",
    "    '$upstream_addr $upstream_status $upstream_response_time id=$penstock_request_id';",
    *because(
        "A file, because standard output often cannot be opened by name, as under systemd; use "
        "/dev/stdout where it can.  After a rotation SIGUSR1 reopens the file."
    ),
    "access_log access.log penstock;",
    *(f"{name}_temp_path {name}_temp;" for name in _TEMPORARY),
    "server_tokens off;",
)


def _clients(description: ProxyDescription) -> list[str]:
    server = description.server
    none = "; nginx cannot limit that to 0: it accepts one byte, and the replica rejects it"
    return [
        *because(f"max_body_bytes ({server.max_body_bytes} bytes{'' if server.max_body_bytes else none})."),
        f"client_max_body_size {min(server.max_body_bytes, LARGEST_NUMBER) or 1};",  # 0 would be no limit
        *because(
            f"A body of up to {BUFFERED_BODY} bytes stays in memory, a larger one is written to a file. "
            " It is sent when it is complete, so a slow client does not occupy a replica."
        ),
        f"client_body_buffer_size {BUFFERED_BODY};",
        *because(f"max_header_bytes ({server.max_header_bytes} bytes): the replica rejects a larger head."),
        f"large_client_header_buffers 2 {min(max(server.max_header_bytes, LEAST_HEAD), LARGEST_HEAD)};",
        *because(
            f"header_timeout ({server.header_timeout:g} s), body_timeout ({server.body_timeout:g} s), write_timeout "
            f"({server.write_timeout:g} s) and keepalive_timeout ({server.keepalive_timeout:g} s), as without a proxy."
        ),
        f"client_header_timeout {proxy_time(server.header_timeout)};",
        f"client_body_timeout {proxy_time(server.body_timeout)};",
        f"send_timeout {proxy_time(server.write_timeout)};",
        f"keepalive_timeout {proxy_time(server.keepalive_timeout) if server.keepalive_timeout else '0'};",
    ]


def _replicas(description: ProxyDescription) -> list[str]:
    inside = [
        *because(
            "Round robin, not least connections: a replica that is down has no requests in flight.  "
            "max_fails=0: a replica that has refused a connection is tried again at its next turn, so "
            "it serves as soon as it is up, and two failures never remove all replicas.  The cost is "
            "one refused connection at each turn."
        ),
        *(f"server {_address('--server', each)} max_fails=0;" for each in description.replicas),
        *_kept(description),
    ]
    return ["upstream replicas {", *indented(inside), "}", *_others(description)]


def _others(description: ProxyDescription) -> list[str]:
    """For each replica the group of the others, and which it is after an answer of that replica."""
    replicas = description.replicas
    if len(replicas) == 1:
        return []
    lines = ["", *because("For a request that one replica rejects: the other replicas.")]
    for number, refused in enumerate(replicas, 1):
        servers = [f"server {_address('--server', each)} max_fails=0;" for each in replicas if each != refused]
        lines += [f"upstream others{number} {{", *indented([*servers, *_kept(description)]), "}"]
    return [
        *lines,
        *because("The last replica that was tried, by its address; a replica given by name only may be tried again."),
        "map $upstream_addr $penstock_others {",
        *(f'    "~(^|[, ]){re.escape(str(each))}$" others{n};' for n, each in enumerate(replicas, 1)),
        "    default replicas;",
        "}",
    ]


def _kept(description: ProxyDescription) -> list[str]:
    server = description.server
    if description.idle_seconds == 0:
        return because("keepalive_timeout is 0: a replica closes each connection after its response.")
    return [
        *because(
            "A request on a connection that is being closed fails, so an idle connection is closed "
            f"here first: a replica closes it after keepalive_timeout ({server.keepalive_timeout:g} s), and at the "
            f"end of drain_delay ({server.drain_delay:g} s).  Half of the shorter time; 1 s if there is "
            "no delay."
        ),
        f"keepalive {min(KEPT_CONNECTIONS, description.replica_connections)};",
        f"keepalive_timeout {proxy_time(description.idle_seconds)};",
    ]


def _server(description: ProxyDescription) -> list[str]:
    inside = [
        *_listen(description),
        "",
        *_passed_on(),
        *_replica_tls(description),
        "",
        *_sent_again(description),
        "",
        *_locations(description),
        "",
        *because(
            "Errors of nginx itself have the problem format of Penstock, where they cannot hide a response of Penstock."
        ),
        *(line for name, own in _OWN_ANSWERS.items() for line in _own_answer(name, *own)),
    ]
    return ["server {", *indented(inside), "}"]


def _passed_on() -> list[str]:
    return [
        *because("Keep connections to the replicas open."),
        "proxy_http_version 1.1;",
        'proxy_set_header Connection "";',
        "proxy_set_header Host $http_host;",
        "proxy_set_header X-Request-ID $penstock_request_id;",
        *because(
            "Address of the client, after the addresses that the client sent.  Replicas with --trusted-proxies log it."
        ),
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
        "proxy_set_header X-Forwarded-Proto $scheme;",
    ]


def _sent_again(description: ProxyDescription) -> list[str]:
    server, timeout = description.server, description.service.timeout
    if description.answer_seconds > LONGEST_SECONDS:
        answer = f"timeout is {timeout:g} s: this is the maximum of nginx."
    else:
        answer = (
            f"timeout ({timeout:g} s) and {ANSWER_MARGIN_SECONDS:g} s: the response to a request that "
            "times out is from Penstock, with the reason."
        )
    return [
        *because(
            "Retried once, at the next replica: a request whose connection was refused or failed.  A "
            "POST that was sent is not retried.  Other methods run nothing.  Add no condition: with "
            "more of them a request may run twice."
        ),
        "proxy_next_upstream error timeout;",
        "proxy_next_upstream_tries 2;",
        *because(
            "A lost packet is sent again after 1 s.  No request data was sent yet, so the next replica "
            "gets the request."
        ),
        f"proxy_connect_timeout {proxy_time(CONNECT_SECONDS)};",
        *because(f"body_timeout ({server.body_timeout:g} s): maximum time in which a replica reads no data of a body."),
        f"proxy_send_timeout {proxy_time(server.body_timeout)};",
        *because(answer),
        f"proxy_read_timeout {proxy_time(description.answer_seconds)};",
        *because("The kernel detects a host that is down without closing its connections."),
        "proxy_socket_keepalive on;",
    ]


def _listen(description: ProxyDescription) -> list[str]:
    listen = description.listen
    secure = " ssl" if description.listen_cert is not None else ""
    both = " ipv6only=off" if listen.host == "::" else ""  # IPv4 too
    lines = [f"listen {_address('--listen', listen)}{secure}{both};"]
    if description.listen_cert is not None:
        path = _word("--listen-cert", description.listen_cert)
        lines += [f"ssl_certificate {path};", f"ssl_certificate_key {path};", "ssl_protocols TLSv1.2 TLSv1.3;"]
    return lines


def _replica_tls(description: ProxyDescription) -> list[str]:
    if not description.replicas_speak_tls:
        return []
    assert description.replica_ca is not None, "checked at birth"
    return [
        f"proxy_ssl_trusted_certificate {_word('--server-ca', description.replica_ca)};",
        f"proxy_ssl_name {description.replica_name};",
        "proxy_ssl_server_name on;",
        "proxy_ssl_verify on;",
        *because("Their certificate may be below two intermediate certificates and a root, as in clusters."),
        "proxy_ssl_verify_depth 3;",
        "proxy_ssl_protocols TLSv1.2 TLSv1.3;",
    ]


def _scheme(description: ProxyDescription) -> str:
    return "https" if description.replicas_speak_tls else "http"


def _locations(description: ProxyDescription) -> list[str]:
    scheme = _scheme(description)
    everything = [f"proxy_pass {scheme}://replicas;"]
    another: list[str] = []
    if len(description.replicas) > 1:
        everything += [
            *because(
                "A response 503 is from Penstock, and means that the request never ran: it is retried "
                "once, at another replica.  Add no other status, except 502, which only nginx itself "
                "sends."
            ),
            "proxy_intercept_errors on;",
            "error_page 503 = @another;",
            "error_page 502 @bad_gateway;",
        ]
        another = ["location @another {", f"    proxy_pass {scheme}://$penstock_others;", "}"]
    wait = description.job_answer_seconds
    jobs = [
        f"proxy_pass {scheme}://replicas;",
        *([] if wait is None else because(f"A client may wait for a job for {wait - ANSWER_MARGIN_SECONDS:g} s.")),
        *([] if wait is None else [f"proxy_read_timeout {proxy_time(wait)};"]),
    ]
    return [
        "location / {",
        *indented(everything),
        "}",
        *another,
        *because(
            "If the store of jobs does not respond, 503 does not mean that a job was not stored: it is not retried."
        ),
        "location ~ ^/jobs(/|$) {",
        *indented(jobs),
        "}",
    ]


def _own_answer(name: str, status: int, title: str, detail: str) -> list[str]:
    return [
        f"error_page {status} @{name};",
        f"location @{name} {{",
        "    default_type application/problem+json;",
        f"    return {status} '{problem(status, title, detail)}';",
        "}",
    ]


def _address(what: str, endpoint: Endpoint) -> str:
    return _word(what, str(endpoint)) if endpoint.path else str(endpoint)


def _word(what: str, text: str) -> str:
    """`text` as one word: some directives read variables in it, and there is no way to write a dollar sign."""
    if not text or not text.isprintable() or set(text) & set("\"'\\$"):
        raise ConfigError(
            f"{what} cannot be written in a file of nginx, which does not support a dollar sign, a "
            f"quote, a backslash, an empty value or a character that is not printable: {text!r}"
        )
    return text if _PLAIN.fullmatch(text) else f'"{text}"'
