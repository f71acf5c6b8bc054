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
    "# HAProxy in front of Penstock, made by `penstock config haproxy`.  Make it again when an option changes: the",
    "# numbers follow from the options that the replicas run with.",
    "#   check it:  haproxy -c -f FILE",
    "#   start it:  haproxy -f FILE     (needs no root, writes no file, logs to standard output)",
)


def _global(description: ProxyDescription) -> list[str]:
    server, replicas = description.server, len(description.replicas)
    head = min(server.max_header, LARGEST_HEAD)
    buffer = -(-(head + RESENT_BODY + ADDED_HEAD) // 16) * 16  # HAProxy rounds up to 16 too
    return [
        "log stdout format raw local0 info",
        *because(
            f"Clients: max_connections ({server.max_connections}) for each of {replicas} replicas, with two files for "
            "each client.  Where the system allows fewer files, HAProxy serves as many clients as these are for."
        ),
        f"fd-hard-limit {2 * description.replica_connections * replicas + SPARE_FILES}",
        *because(
            "A request can be sent again only if all of it, head and body, fits into one buffer.  This one has room "
            f"for the largest head (max_header, {server.max_header} bytes), {ADDED_HEAD} bytes that HAProxy adds, "
            f"and a body of {RESENT_BODY} bytes; with a usual head of 1 KiB for one of {buffer - 2 * ADDED_HEAD}.  A "
            "larger request is passed on too, but sent once.  A request in hand takes two or three buffers."
        ),
        f"tune.bufsize {buffer}",
        f"tune.maxrewrite {ADDED_HEAD}",
        *because(f"max_header_fields ({server.max_header_fields}), and what HAProxy adds: more is for us to refuse."),
        f"tune.http.maxhdr {min(server.max_header_fields + ADDED_FIELDS, MOST_FIELDS)}",
        *because(
            "A thread uses no idle connection of another one, which alone is told that a replica has closed it: a "
            "request that meets such an end is lost."
        ),
        "tune.idle-pool.shared off",
        *because("After a reload the old process ends when its last answer has come or never will."),
        f"hard-stop-after {proxy_time(description.answer_seconds)}",
    ]


def _defaults(description: ProxyDescription) -> list[str]:
    server, timeout = description.server, description.service.timeout
    if description.answer_seconds > LONGEST_SECONDS:
        answer = f"timeout is {timeout:g} s: this is the longest time that HAProxy takes."
    else:
        answer = (
            f"timeout ({timeout:g} s) and {ANSWER_MARGIN_SECONDS:g} s: the answer to what takes too long is ours, and "
            "says why."
        )
    return [
        "mode http",
        "log global",
        *because(
            "A client that has gone needs no answer, and the replica learns of it.  In a backend alone it does nothing."
        ),
        "option abortonclose",
        *because(
            "The client, the replica, the status, the times in ms (for a place, to connect, to the answer, in all), "
            "how it ended, the retries (with a + to another replica), the request, and its id, which is in our log too."
        ),
        'log-format "%ci:%cp [%tr] %s %ST %Tw/%Tc/%Tr/%Ta %tsc %rc %{+Q}r id=%[var(txn.id)]"',
        *because(
            f"header_timeout ({server.header_timeout:g} s) and body_timeout ({server.body_timeout:g} s): by then the "
            "head must be there, and as much of the body as fits into the buffer."
        ),
        f"timeout http-request {proxy_time(server.header_timeout + server.body_timeout)}",
        *because(
            f"The longer of body_timeout ({server.body_timeout:g} s) and unread_timeout ({server.unread_timeout:g} s): "
            "the longest that a client may send nothing of its body, or take nothing of its answer."
        ),
        f"timeout client {proxy_time(max(server.body_timeout, server.unread_timeout))}",
        *because(
            f"Idle connections of clients: keep_alive ({server.keep_alive:g} s), as without a proxy; 1 s at least."
        ),
        f"timeout http-keep-alive {proxy_time(max(server.keep_alive, 1.0))}",
        *because(
            "One lost packet is sent again after 1 s.  Nothing was sent yet of the request: another replica gets it."
        ),
        f"timeout connect {proxy_time(CONNECT_SECONDS)}",
        *because(
            "How long a request waits for one of the maxconn places at a replica.  It has not begun: 503 is true."
        ),
        f"timeout queue {proxy_time(CONNECT_SECONDS)}",
        *because(answer),
        f"timeout server {proxy_time(description.answer_seconds)}",
        *because(
            "What HAProxy says itself has the shape of our problems; but 400 and 408, which have words of its own."
        ),
        *(f"http-error status {own[0]} {_body(*own)}" for own in (BAD_GATEWAY, UNAVAILABLE, GATEWAY_TIMEOUT)),
    ]


def _clients(description: ProxyDescription) -> list[str]:
    server = description.server
    largest = min(server.max_body, LARGEST_NUMBER)
    kept = "{ req.fhdr(X-Request-ID,-1) -m reg ^[A-Za-z0-9._-]{1,128}$ }"
    return [
        _bind(description),
        *because("The whole request first, as far as the buffer goes: only what is whole can be sent again."),
        "option http-buffer-request",
        *because(f"max_body ({server.max_body} bytes).  A body of unknown length is measured by the replica."),
        f"http-request deny deny_status {TOO_LARGE[0]} {_body(*TOO_LARGE)} if {{ req.body_size gt {largest} }}",
        *because(
            "The client's address, behind what the client itself has sent.  Replicas with --trusted-proxies log it."
        ),
        "option forwardfor",
        *because("One id in both logs: the client's, if it is one that we keep, or else a new one."),
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
    full = [] if status == 503 else because(f"A full replica says {status} (overload_status), which is not sent again.")
    waits = []
    if wait is not None:
        waits = [
            *because(
                f"A client may wait for a job for {wait - ANSWER_MARGIN_SECONDS:g} s, which is longer than timeout."
            ),
            f"http-request set-timeout server {proxy_time(wait)} if {{ path_beg /jobs/ }}",
        ]
    return [
        *because("Who has the least in hand is next: some requests of a model take much longer than others."),
        "balance leastconn",
        *because(
            "What is sent again: a request whose connection was refused or did not come about, and one that was "
            "answered 503, which we say only of what never ran.  Once, and to another replica.  Add nothing here: "
            "after any other failure the request may have run."
        ),
        "retry-on conn-failure 503",
        "retries 1",
        "option redispatch",
        *full,
        *because("A job without a key is not: where the store does not answer, 503 does not say whether it was kept."),
        f"http-request disable-l7-retry if {without_key}",
        *waits,
        *_checks(description),
        *_replicas(description),
    ]


def _checks(description: ProxyDescription) -> list[str]:
    busy = " With busy_is_unready a full one says 503 too, and gets nothing until it has room."
    return [
        *because(
            f"A replica that drains says 503 here at once.  {CHECK_FAILURES} checks at intervals of "
            f"{CHECK_SECONDS * 1000:g} ms take it out within {CHECK_SECONDS * CHECK_FAILURES:g} s, and with a margin "
            f"{NOTICED_SECONDS:g} s: its drain_delay ({description.server.drain_delay:g} s) must not be shorter, for "
            f"so long it answers what still comes.  One that is frozen has {CHECK_ANSWER_SECONDS:g} s an answer.  "
            "One good check brings a replica back.  What it has in hand is never cut off: one that drains still "
            f"answers that.{busy if description.server.busy_is_unready else ''}"
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
        f"pool-purge-delay {_purge_time(server.keep_alive)}",
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
            f"maxconn: max_connections ({server.max_connections}) of a replica; what is beyond it waits here.  "
            "pool-purge-delay: at each such interval half of the idle connections are closed, so that none gets near "
            f"the age of keep_alive ({server.keep_alive:g} s).  Then the replica closes it, and a request that meets "
            "that is lost."
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
            f"{what} cannot be written in a file of HAProxy, which has no way to write a single quote, nothing, or a "
            f"character that cannot be printed: {text!r}"
        )
    return text if _PLAIN.fullmatch(text) else f"'{text}'"
