"""Ask a server whether it is ready: one `GET /readyz`, in bounded time and memory.

Contract
--------
* Everything together ends within the timeout: finding the host's address, connecting, TLS, and an answer of which one
  byte comes at a time.
* At most `MOST_BODY_BYTES` of a body are read, and of a head what `http.client` allows.
* A certificate is not checked.  Nothing secret is sent, a certificate seldom names 127.0.0.1, and whether this process
  serves is another question than whether its certificate is right.  Kubernetes asks its probes in the same way.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading

from penstock.cli.readiness import NOT_PENSTOCK, NotPenstock, Readiness, read_readiness
from penstock.cli.server_address import HealthAddress
from penstock.core.tls_words import speaks_no_tls

MOST_BODY_BYTES = 64 * 1024


class Unreachable(Exception):
    """No server of Penstock answers; the text says what came instead."""


def ask_ready(address: HealthAddress, timeout: float) -> Readiness:
    """What the server at `address` says within `timeout` seconds; raises Unreachable."""
    found: list[Readiness | Unreachable] = []
    # In a thread: nothing else bounds the search for a host's address, and each wait for a byte has a limit of its own.
    asking = threading.Thread(target=_ask, args=(address, timeout, found), name="penstock-health", daemon=True)
    try:
        asking.start()
    except RuntimeError as error:
        raise Unreachable(f"the request failed: {error}") from None
    asking.join(timeout)
    outcome = found[0] if found else Unreachable(f"no response within {timeout:g} s")
    if isinstance(outcome, Unreachable):
        raise outcome
    return outcome


def _ask(address: HealthAddress, timeout: float, found: list[Readiness | Unreachable]) -> None:
    try:
        found.append(read_readiness(*_get(address, timeout)))
    except NotPenstock as error:
        found.append(Unreachable(str(error)))
    except http.client.HTTPException as error:  # before OSError, which one of them is as well
        found.append(_no_http(error))
    except TimeoutError:
        found.append(Unreachable(f"no response within {timeout:g} s"))
    except (OSError, UnicodeError) as error:  # a name too long to be looked up is a UnicodeError
        words = getattr(error, "strerror", None) or str(error)
        found.append(Unreachable("the server does not use TLS: write http://" if speaks_no_tls(words) else words))
    except ValueError as error:  # a chunk of a length below 0
        found.append(_no_http(error))


def _no_http(error: Exception) -> Unreachable:
    return Unreachable(f"{NOT_PENSTOCK}: it closes the connection, sends too much or does not speak HTTP ({error!r})")


def _get(address: HealthAddress, timeout: float) -> tuple[int, bytes]:
    """Status and body of the answer."""
    if address.unix_path is None:
        sock = socket.create_connection((address.host, address.port), timeout)
    else:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout)
    with contextlib.closing(sock):
        if address.unix_path is not None:
            sock.connect(address.unix_path)
        if not address.tls:
            return _ask_over(sock, address)
        with _unchecked_context().wrap_socket(sock, server_hostname=address.host) as secured:
            return _ask_over(secured, address)


def _ask_over(sock: socket.socket, address: HealthAddress) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address.host, address.port or None)
    connection.sock = sock
    connection.request("GET", address.target, headers={"Connection": "close"})
    answer = connection.getresponse()
    body = answer.read(MOST_BODY_BYTES + 1)
    if answer.length or len(body) > MOST_BODY_BYTES:  # what is left of it, where its length was told
        raise http.client.IncompleteRead(body)
    return answer.status, body


def _unchecked_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
