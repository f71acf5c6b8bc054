"""Write one line for each answered request, where the `access_log` option asks for it: logger ``penstock.access``.

Neither headers nor the query are written, because both may carry secrets.  The tenant is written as ``tenant=NAME``
and the urgency as ``u=N``, which try of its client the request is as ``attempt=N``, and the client's address as
``client=ADDRESS``, in every line, so that a line always has as many words.
"""

from __future__ import annotations

from typing import Final

from penstock.hosting.guarded_log import guarded_logger
from penstock.log_level_text import ACCESS_LOGGER
from penstock.server.application import ATTEMPT, FORWARDED_FOR, HttpRequest
from penstock.server.trusted_proxies import TrustedProxies

MOST_DIGITS: Final = 4
"""Of the number of a try, which is the client's own word."""

log = guarded_logger(ACCESS_LOGGER)


def write_line(
    request: HttpRequest, status: int, nbytes: int, seconds: float, *, urgency: int, proxies: TrustedProxies
) -> None:
    """Log one answer: status 499 means that the client left before it.

    `urgency` is what it was served with, and `proxies` are those that may say who the client is.
    """
    path = request.path.decode("ascii", "backslashreplace")
    if not path.isprintable():
        path = ascii(path)[1:-1]  # a line break in a path must not make two lines
    request_id = request.id.decode()
    attempt = read_attempt(request.headers.get(ATTEMPT))
    client = proxies.client(request.peer, request.headers.get(FORWARDED_FOR))
    log.info(
        "%s %s %d %d %.6f %s tenant=%s u=%d attempt=%d client=%s",
        request.method,
        path,
        status,
        nbytes,
        seconds,
        request_id,
        request.tenant,
        urgency,
        attempt,
        client,
        extra={
            "method": request.method,
            "path": path,
            "status": status,
            "bytes": nbytes,
            "seconds": round(seconds, 6),
            "request_id": request_id,
            "tenant": request.tenant,
            "urgency": urgency,
            "attempt": attempt,
            "client": client,
        },
    )


def read_attempt(value: bytes | None) -> int:
    """Which try of its client a request is; 1 where the client does not say so in up to `MOST_DIGITS` digits."""
    return int(value) if value is not None and len(value) <= MOST_DIGITS and value.isdigit() else 1
