"""Write one line for each answered request, where the `access_log` option asks for it: logger ``penstock.access``.

Neither headers nor the query are written, because both may carry secrets.
"""

from __future__ import annotations

from penstock.config import ACCESS_LOGGER
from penstock.hosting.guarded_log import guarded_logger
from penstock.server.application import HttpRequest

log = guarded_logger(ACCESS_LOGGER)


def write_line(request: HttpRequest, status: int, nbytes: int, seconds: float) -> None:
    """Log one answer: status 499 means that the client left before it."""
    path = request.path.decode("ascii", "backslashreplace")
    if not path.isprintable():
        path = ascii(path)[1:-1]  # a line break in a path must not make two lines
    request_id = request.id.decode()
    log.info(
        "%s %s %d %d %.6f %s",
        request.method,
        path,
        status,
        nbytes,
        seconds,
        request_id,
        extra={
            "method": request.method,
            "path": path,
            "status": status,
            "bytes": nbytes,
            "seconds": round(seconds, 6),
            "request_id": request_id,
        },
    )
