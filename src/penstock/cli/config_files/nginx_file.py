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
    "# nginx in front of Penstock, made by `penstock config nginx`.  Make it again when an option changes: the",
    "# numbers follow from the options that the replicas run with.",
    '#   check it:  nginx -t -e stderr -p "$PWD" -c "$PWD/FILE"',
    '#   start it:  nginx -e stderr -p "$PWD" -c "$PWD/FILE"     (needs no root, writes only below that folder)',
)


def _processes(description: ProxyDescription) -> list[str]:
    connections = max(description.replica_connections, LEAST_CONNECTIONS)
    return [
        "daemon off;",
        "pid nginx.pid;",
        "error_log stderr warn;",
        *because(
            "One process passes on more than replicas compute, and takes turns exactly.  With N of them divide "
            "worker_connections by N."
        ),
        "worker_processes 1;",
        *because(
            f"Those of clients and to replicas together: no more than one replica alone takes, max_connections "
            f"({description.server.max_connections}), and {LEAST_CONNECTIONS} at least.  Where the system allows fewer "
            "files, nginx says so, and keeps to as many as it was started with."
        ),
        f"worker_rlimit_nofile {connections + SPARE_FILES};",
        "events {",
        f"    worker_connections {connections};",
        "}",
    ]


_HTTP: Final = (
    *because("The client's id of a request, if it is one that we keep, or else a new one: it is in both logs."),
    "map $http_x_request_id $penstock_request_id {",
    '    "~^[A-Za-z0-9._-]{1,128}$" $http_x_request_id;',
    "    default $request_id;",
    "}",
    *because(
        "The client, the request, the status, the seconds in all; the replicas that were asked, what each said and "
        "after how long; the id."
    ),
    "log_format penstock '$remote_addr [$time_iso8601] \"$request\" $status $request_time '",
    "    '$upstream_addr $upstream_status $upstream_response_time id=$penstock_request_id';",
    *because(
        "A file, because standard output can often not be opened by name, as under systemd; /dev/stdout where it can.  "
        "SIGUSR1 opens it again, after it was moved away."
    ),
    "access_log access.log penstock;",
    *(f"{name}_temp_path {name}_temp;" for name in _TEMPORARY),
    "server_tokens off;",
)


def _clients(description: ProxyDescription) -> list[str]:
    server = description.server
    none = ", of which nginx cannot be told: one byte is let pass, and refused by the replica"
    return [
        *because(f"max_body ({server.max_body} bytes{'' if server.max_body else none})."),
        f"client_max_body_size {min(server.max_body, LARGEST_NUMBER) or 1};",  # 0 would be no limit
        *because(
            f"A body of up to {BUFFERED_BODY} bytes stays in memory, a larger one is written to a file.  It is sent "
            "when all of it is there, so a client that sends slowly takes no room of a replica."
        ),
        f"client_body_buffer_size {BUFFERED_BODY};",
        *because(f"max_header ({server.max_header} bytes): a larger head is for us to refuse."),
        f"large_client_header_buffers 2 {min(max(server.max_header, LEAST_HEAD), LARGEST_HEAD)};",
        *because(
            f"header_timeout ({server.header_timeout:g} s), body_timeout ({server.body_timeout:g} s), unread_timeout "
            f"({server.unread_timeout:g} s) and keep_alive ({server.keep_alive:g} s), as without a proxy."
        ),
        f"client_header_timeout {proxy_time(server.header_timeout)};",
        f"client_body_timeout {proxy_time(server.body_timeout)};",
        f"send_timeout {proxy_time(server.unread_timeout)};",
        f"keepalive_timeout {proxy_time(server.keep_alive) if server.keep_alive else '0'};",
    ]


def _replicas(description: ProxyDescription) -> list[str]:
    inside = [
        *because(
            "In turns, and not to the one with the least in hand: a replica that is not there has nothing in hand.  "
            "max_fails=0: one that has refused a connection is asked again with its next turn, so that a replica "
            "serves as soon as it is back, and no two failures leave nobody.  It costs a refused connection each turn."
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
    lines = ["", *because("Whom a refusal of each replica goes to: the others.")]
    for number, refused in enumerate(replicas, 1):
        servers = [f"server {_address('--server', each)} max_fails=0;" for each in replicas if each != refused]
        lines += [f"upstream others{number} {{", *indented([*servers, *_kept(description)]), "}"]
    return [
        *lines,
        *because("The last of those that were asked, by its address; for one that has only a name it may be itself."),
        "map $upstream_addr $penstock_others {",
        *(f'    "~(^|[, ]){re.escape(str(each))}$" others{n};' for n, each in enumerate(replicas, 1)),
        "    default replicas;",
        "}",
    ]


def _kept(description: ProxyDescription) -> list[str]:
    server = description.server
    if description.idle_seconds == 0:
        return because("keep_alive is 0: a replica closes each connection behind its answer.")
    return [
        *because(
            "A request that meets the end of its connection is lost, so an idle one is closed here first: a replica "
            f"closes it after keep_alive ({server.keep_alive:g} s), and at the end of drain_delay "
            f"({server.drain_delay:g} s).  Half of the shorter; and 1 s where there is no delay."
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
        *because("What nginx says itself has the shape of our problems, where it cannot hide an answer of ours."),
        *(line for name, own in _OWN_ANSWERS.items() for line in _own_answer(name, *own)),
    ]
    return ["server {", *indented(inside), "}"]


def _passed_on() -> list[str]:
    return [
        *because("Connections to the replicas are kept."),
        "proxy_http_version 1.1;",
        'proxy_set_header Connection "";',
        "proxy_set_header Host $http_host;",
        "proxy_set_header X-Request-ID $penstock_request_id;",
        *because(
            "The client's address, behind what the client itself has sent.  Replicas with --trusted-proxies log it."
        ),
        "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
        "proxy_set_header X-Forwarded-Proto $scheme;",
    ]


def _sent_again(description: ProxyDescription) -> list[str]:
    server, timeout = description.server, description.service.timeout
    if description.answer_seconds > LONGEST_SECONDS:
        answer = f"timeout is {timeout:g} s: this is the longest time that nginx takes."
    else:
        answer = (
            f"timeout ({timeout:g} s) and {ANSWER_MARGIN_SECONDS:g} s: the answer to what takes too long is ours, and "
            "says why."
        )
    return [
        *because(
            "What is sent again, once, to the next replica: a request whose connection was refused or did not come "
            "about.  A POST that was sent is not, whatever became of it.  Other methods run nothing.  Add nothing: "
            "with more words a request may run twice."
        ),
        "proxy_next_upstream error timeout;",
        "proxy_next_upstream_tries 2;",
        *because(
            "One lost packet is sent again after 1 s.  Then nothing was sent of the request, and the next gets it."
        ),
        f"proxy_connect_timeout {proxy_time(CONNECT_SECONDS)};",
        *because(f"body_timeout ({server.body_timeout:g} s): the longest that a replica may take nothing of a body."),
        f"proxy_send_timeout {proxy_time(server.body_timeout)};",
        *because(answer),
        f"proxy_read_timeout {proxy_time(description.answer_seconds)};",
        *because("A host that is gone without a word is noticed by the kernel."),
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
        *because("A certificate of theirs may stand below two others and a root, as those of clusters do."),
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
                "An answer of 503 is ours, and says that the request never ran: another replica gets it, once.  No "
                "other status may stand here, but 502, which only nginx itself says."
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
        *because("Where the store of jobs does not answer, 503 does not say whether a job was kept: it is sent once."),
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
            f"{what} cannot be written in a file of nginx, which has no sure way to write a dollar sign, a quote, a "
            f"backslash, nothing, or a character that cannot be printed: {text!r}"
        )
    return text if _PLAIN.fullmatch(text) else f'"{text}"'
