"""What a WSGI environ says of a request: its head, and where its body ends."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, TypeAlias
from urllib.parse import quote

from penstock.server.application import HttpRequest
from penstock.server.fields import RequestRefused, read_length
from penstock.server_names import UNIX_PEER

Environ: TypeAlias = MutableMapping[str, Any]


def read_environ(environ: Environ, arrived: float) -> HttpRequest:
    """The request that `environ` describes; its path begins below our mount point, as WSGI has it."""
    headers = {
        name[5:].replace("_", "-").lower().encode("latin-1"): value.strip(" \t").encode("latin-1")
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }
    # These two stand for themselves, and are empty where the client has not sent them.
    for name, field in (("CONTENT_TYPE", b"content-type"), ("CONTENT_LENGTH", b"content-length")):
        value = environ.get(name)
        if value:
            headers[field] = value.strip(" \t").encode("latin-1")
    if b"transfer-encoding" in headers:
        headers.pop(b"content-length", None)  # chunks have none (RFC 9112, 6.3)
    path = environ.get("PATH_INFO") or "/"
    target = b"*" if path == "*" else quote(path.encode("latin-1"), safe="/:").encode()
    query = environ.get("QUERY_STRING", "").encode("latin-1")
    request = HttpRequest(environ["REQUEST_METHOD"], target, query, headers, arrived)
    request.peer = environ.get("REMOTE_ADDR") or UNIX_PEER
    return request


def body_length(request: HttpRequest, environ: Environ) -> int | None:
    """The length of the body, None where only its end tells; 0 where it makes no sense, which its head says."""
    if b"transfer-encoding" in request.headers:
        return None
    announced = request.headers.get(b"content-length")
    if announced is None:
        return 0 if _has_no_body(environ) else None
    try:
        return read_length(announced)
    except RequestRefused:
        return 0


def _has_no_body(environ: Environ) -> bool:
    """Whether there is no body where no length is announced, and no chunks are: so it is in HTTP/1, only there."""
    return environ.get("SERVER_PROTOCOL", "").startswith("HTTP/1") or not environ.get("wsgi.input_terminated")
