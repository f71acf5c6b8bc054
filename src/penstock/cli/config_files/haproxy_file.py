"""Write the file of an HAProxy in front of replicas.  Pure: a description becomes one text.

Contract
--------
* Nothing that may have run is sent again: only a request whose connection was refused, or whose answer is our 503,
  which says that it never ran; once, and to another replica.  A job without a key is not even then, because our 503
  may mean that nobody knows whether it was kept.
* A replica that drains gets nothing new within `NOTICED_SECONDS`, and one that is frozen within 3 s.
* HAProxy needs no root for this file and writes no file of its own: its log goes to standard output.

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
    NOTICED_SECONDS,
    TOO_LARGE,
    UNAVAILABLE,
    ProxyDescription,
    problem,
    proxy_time,
)
from penstock.errors import ConfigError

CHECK_SECONDS: Final = 0.25
CHECK_FAILURES: Final = 2
CHECK_ANSWER_SECONDS: Final = 1.0
"""Two checks of this length and two intervals are 2.5 s, after which a replica that is frozen gets nothing more."""
SPARE_FILES: Final = 256
"""For checks, the log, and sockets that listen."""
ADDED_HEAD: Final = 1024
"""What HAProxy keeps free in each buffer for the fields that it adds: its own default of `tune.maxrewrite`."""
RESENT_BODY: Final = 16 * 1024
"""The body that fits into a buffer beside the largest head."""
ADDED_FIELDS: Final = 8
MOST_FIELDS: Final = 32767
"""The most header fields that HAProxy can be told."""
USUAL_PURGE_SECONDS: Final = 5.0
"""HAProxy's own default of `pool-purge-delay`."""
LONGEST_LISTENED_PATH: Final = 97
"""In bytes: HAProxy binds a socket under a longer name first."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/@:+=~-]+")


def haproxy_file(description: ProxyDescription) -> str:
    """The whole file.

    Raises:
        ConfigError: a path cannot be written in a file of HAProxy.
    """
    sections = {
        "global": _global(description),
        "defaults": _defaults(description),
        "frontend clients": _clients(description),
        "backend replicas": _backend(description),
    }
    lines = [*_TOP]
    for name, inside in sections.items():
        lines += ["", name, *indented(inside)]
    return "\n".join([*lines, ""])


_TOP: Final = (
    "# HAProxy in front of Penstock, made by `penstock generate haproxy`.  Run it again when an option changes: the",
    "# numbers follow from the options of the replicas.",
    "#   check it:  haproxy -c -f FILE",
    "#   start it:  haproxy -f FILE     (needs no root, writes no file, logs to standard output)",
)


def _global(description: ProxyDescription) -> list[str]:
    server, replicas = description.server, len(description.replicas)
    head = min(server.max_header_bytes, LARGEST_HEAD)
    buffer = -(-(head + RESENT_BODY + ADDED_HEAD) // 16) * 16  # HAProxy rounds up to 16 too
    return [
        "log stdout format raw local0 info",
        *because(
            f"Connections of clients: max_connections ({server.max_connections}) for each of {replicas} "
            "replicas, with two files for each client.  If the system allows fewer open files, HAProxy "
            "accepts fewer clients."
        ),
        f"fd-hard-limit {2 * description.replica_connections * replicas + SPARE_FILES}",
        *because(
            "A request can be retried only if its head and body fit into one buffer.  This buffer has "
            f"room for the largest head (max_header_bytes, {server.max_header_bytes} bytes), {ADDED_HEAD} bytes "
            f"that HAProxy adds, and a body of {RESENT_BODY} bytes; with a head of 1 KiB, for a body of "
            f"{buffer - 2 * ADDED_HEAD} bytes.  A larger request is forwarded, but not retried.  A "
            "request in flight uses two or three buffers."
        ),
        f"tune.bufsize {buffer}",
        f"tune.maxrewrite {ADDED_HEAD}",
        *because(
            f"max_header_fields ({server.max_header_fields}), and the headers that HAProxy adds.  The "
            "replica rejects requests with more."
        ),
        f"tune.http.maxhdr {min(server.max_header_fields + ADDED_FIELDS, MOST_FIELDS)}",
        *because(
            "A thread must not use an idle connection of another thread, which alone is notified when "
            "a replica closes it: a request on a closed connection fails."
        ),
        "tune.idle-pool.shared off",
        *because("After a reload the old process exits after its last response, or after this time."),
        f"hard-stop-after {proxy_time(description.answer_seconds)}",
    ]


def _defaults(description: ProxyDescription) -> list[str]:
    server, timeout = description.server, description.service.timeout
    if description.answer_seconds > LONGEST_SECONDS:
        answer = f"timeout is {timeout:g} s: this is the maximum of HAProxy."
    else:
        answer = (
            f"timeout ({timeout:g} s) and {ANSWER_MARGIN_SECONDS:g} s: the response to a request that "
            "times out is from Penstock, with the reason."
        )
    return [
        "mode http",
        "log global",
        *because(
            "If a client disconnects, its request is cancelled at the replica.  In a backend alone "
            "this option has no effect."
        ),
        "option abortonclose",
        *because(
            "Client, replica, status, times in ms (queue, connect, response, total), state at the end, "
            "retries (with a + for another replica), request, and request id, which is in the log of "
            "Penstock too."
        ),
        'log-format "%ci:%cp [%tr] %s %ST %Tw/%Tc/%Tr/%Ta %tsc %rc %{+Q}r id=%[var(txn.id)]"',
        *because(
            f"header_timeout ({server.header_timeout:g} s) and body_timeout ({server.body_timeout:g} "
            "s): time to receive the head and as much of the body as fits into the buffer."
        ),
        f"timeout http-request {proxy_time(server.header_timeout + server.body_timeout)}",
        *because(
            f"The longer of body_timeout ({server.body_timeout:g} s) and write_timeout "
            f"({server.write_timeout:g} s): maximum time in which a client sends no body data, or "
            "reads no response data."
        ),
        f"timeout client {proxy_time(max(server.body_timeout, server.write_timeout))}",
        *because(
            f"Idle connections of clients: keepalive_timeout ({server.keepalive_timeout:g} s), as without a proxy; at "
            "least 1 s."
        ),
        f"timeout http-keep-alive {proxy_time(max(server.keepalive_timeout, 1.0))}",
        *because(
            "A lost packet is sent again after 1 s.  No request data was sent yet, so another replica gets the request."
        ),
        f"timeout connect {proxy_time(CONNECT_SECONDS)}",
        *because(
            "Maximum time that a request is queued for one of the maxconn connections of a replica.  "
            "It was not started: 503 is correct."
        ),
        f"timeout queue {proxy_time(CONNECT_SECONDS)}",
        *because(answer),
        f"timeout server {proxy_time(description.answer_seconds)}",
        *because(
            "Errors of HAProxy itself have the problem format of Penstock, except 400 and 408, which "
            "have their own texts."
        ),
        *(f"http-error status {own[0]} {_body(*own)}" for own in (BAD_GATEWAY, UNAVAILABLE, GATEWAY_TIMEOUT)),
    ]


def _clients(description: ProxyDescription) -> list[str]:
    server = description.server
    largest = min(server.max_body_bytes, LARGEST_NUMBER)
    kept = "{ req.fhdr(X-Request-ID,-1) -m reg ^[A-Za-z0-9._-]{1,128}$ }"
    return [
        _bind(description),
        *because("Wait for the whole request, up to the size of the buffer: only a complete request can be retried."),
        "option http-buffer-request",
        *because(f"max_body_bytes ({server.max_body_bytes} bytes).  The replica checks a body of unknown length."),
        f"http-request deny deny_status {TOO_LARGE[0]} {_body(*TOO_LARGE)} if {{ req.body_size gt {largest} }}",
        *because(
            "Address of the client, after the addresses that the client sent.  Replicas with --trusted-proxies log it."
        ),
        "option forwardfor",
        *because("One request id in both logs: the id of the client if it is valid, else a new one."),
        f"http-request set-header X-Request-ID %[uuid()] unless {kept}",
        "http-request set-var(txn.id) req.fhdr(X-Request-ID,-1)",
        "default_backend replicas",
    ]


def _bind(description: ProxyDescription) -> str:
    listen = description.listen
    if len(listen.path.encode()) > LONGEST_LISTENED_PATH:
        raise ConfigError(f"--listen {listen}: HAProxy listens on paths of at most {LONGEST_LISTENED_PATH} bytes")
    words = ["bind", _address("--listen", listen)]
    if listen.host == "::":
        words.append("v4v6")  # IPv4 too
    if description.listen_cert is not None:
        words += ["ssl", "crt", _word("--listen-cert", description.listen_cert), "ssl-min-ver TLSv1.2 alpn http/1.1"]
    return " ".join(words)


def _backend(description: ProxyDescription) -> list[str]:
    status, wait = description.server.overload_status, description.job_answer_seconds
    without_key = "{ method POST } { path,url_dec -m beg /jobs } !{ req.hdr(Idempotency-Key) -m found }"
    full = (
        [] if status == 503 else because(f"A full replica responds {status} (overload_status), which is not retried.")
    )
    waits = []
    if wait is not None:
        waits = [
            *because(
                f"A client may wait for a job for {wait - ANSWER_MARGIN_SECONDS:g} s, which is longer than timeout."
            ),
            f"http-request set-timeout server {proxy_time(wait)} if {{ path_beg /jobs/ }}",
        ]
    return [
        *because(
            "Use the replica with the fewest requests in flight: requests to a model may have very different run times."
        ),
        "balance leastconn",
        *because(
            "Retries: a request whose connection was refused or failed, and a request that got 503, "
            "which Penstock sends only if nothing has run.  Once, and to another replica.  Add no "
            "condition: after any other failure the request may have run."
        ),
        "retry-on conn-failure 503",
        "retries 1",
        "option redispatch",
        *full,
        *because(
            "A job without a key is not retried: if the store of jobs does not respond, 503 does not "
            "mean that the job was not stored."
        ),
        f"http-request disable-l7-retry if {without_key}",
        *waits,
        *_checks(description),
        *_replicas(description),
    ]


def _checks(description: ProxyDescription) -> list[str]:
    busy = " With unready_when_full a full replica also responds 503, and gets no requests until it has room."
    return [
        *because(
            f"A replica that drains responds 503 here.  {CHECK_FAILURES} checks at intervals of "
            f"{CHECK_SECONDS * 1000:g} ms remove it within {CHECK_SECONDS * CHECK_FAILURES:g} s, and "
            f"with a margin {NOTICED_SECONDS:g} s: its drain_delay ({description.server.drain_delay:g} "
            "s) must not be shorter, because for this time it still accepts requests.  A replica that "
            f"hangs has {CHECK_ANSWER_SECONDS:g} s for a response.  One successful check adds a replica "
            "again.  Requests in flight are not aborted: a replica that drains completes "
            f"them.{(busy if description.server.unready_when_full else '')}"
        ),
        "option httpchk",
        "http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host penstock",
        "http-check expect status 200",
        f"timeout check {proxy_time(CHECK_ANSWER_SECONDS)}",
    ]


def _replicas(description: ProxyDescription) -> list[str]:
    server = description.server
    words = [
        f"default-server check inter {proxy_time(CHECK_SECONDS)} fall {CHECK_FAILURES} rise 1",
        f"maxconn {description.replica_connections}",
        f"pool-purge-delay {_purge_time(server.keepalive_timeout)}",
    ]
    if description.replicas_speak_tls:
        assert description.replica_ca is not None, "checked at birth"
        name = description.replica_name
        words += [
            f"ssl verify required ca-file {_word('--server-ca', description.replica_ca)}",
            f"verifyhost {name} sni str({name}) check-sni {name} ssl-min-ver TLSv1.2",
        ]
    return [
        *because(
            f"maxconn: max_connections ({server.max_connections}) of a replica; requests above it are "
            "queued here.  pool-purge-delay: half of the idle connections are closed at each interval, "
            f"so that none reaches keepalive_timeout ({server.keepalive_timeout:g} s).  At that age the replica "
            "closes it, and a request sent on it fails."
        ),
        " ".join(words),
        *(f"server replica{n} {_address('--server', each)}" for n, each in enumerate(description.replicas, 1)),
    ]


def _purge_time(keep_alive: float) -> str:
    """The interval at which idle connections are halved; 0: none is kept.

    Ten intervals leave one of a thousand, and are over at the half of what the replica waits.
    """
    return proxy_time(min(USUAL_PURGE_SECONDS, keep_alive / 20)) if keep_alive else "0"


def _body(status: int, title: str, detail: str) -> str:
    return f"content-type application/problem+json string '{problem(status, title, detail)}'"


def _address(what: str, endpoint: Endpoint) -> str:
    return _word(what, f"unix@{endpoint.path}") if endpoint.path else str(endpoint)


def _word(what: str, text: str) -> str:
    """`text` as one word: between single quotes HAProxy takes every character as it is, but for such a quote."""
    if not text or not text.isprintable() or "'" in text:
        raise ConfigError(
            f"{what} cannot be written in a file of HAProxy, which does not support a single quote, an "
            f"empty value or a character that is not printable: {text!r}"
        )
    return text if _PLAIN.fullmatch(text) else f"'{text}'"
